//! Standard error that never fails, so that a run goes on after its terminal is closed.

use std::io::{self, Write};

use indicatif::TermLike;

/// Standard error for lines. Lines that can't be written are dropped.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // When standard error is gone, there is no place to report its error.
        let _ = io::stderr().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The terminal of standard error, for bars. It ignores errors, because indicatif panics when its terminal reports an error,
/// as after a closed window or a lost connection.
#[derive(Debug)]
pub(crate) struct Terminal(console::Term);

impl Terminal {
    pub(crate) fn stderr() -> Self {
        Self(console::Term::buffered_stderr())
    }
}

fn ignore(result: io::Result<()>) -> io::Result<()> {
    let _ = result;
    Ok(())
}

impl TermLike for Terminal {
    fn width(&self) -> u16 {
        self.0.size().1
    }

    fn height(&self) -> u16 {
        self.0.size().0
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        ignore(self.0.move_cursor_up(n))
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        ignore(self.0.move_cursor_down(n))
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        ignore(self.0.move_cursor_right(n))
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        ignore(self.0.move_cursor_left(n))
    }

    fn write_line(&self, line: &str) -> io::Result<()> {
        ignore(self.0.write_line(line))
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        ignore(self.0.write_str(text))
    }

    fn clear_line(&self) -> io::Result<()> {
        ignore(self.0.clear_line())
    }

    fn flush(&self) -> io::Result<()> {
        ignore(self.0.flush())
    }
}
