//! Standard error that never fails: a run goes on when nobody reads its messages any more.

use std::io::{self, Write};

use indicatif::TermLike;

/// Standard error for lines; what can't be written is dropped.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Stderr;

impl Write for Stderr {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Nothing is left to report to when standard error itself is gone.
        let _ = io::stderr().write_all(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The terminal behind standard error for bars. indicatif panics when its terminal reports an error, which a closed
/// window or a hung-up connection causes, so errors end here.
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
