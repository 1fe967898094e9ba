//! Lines of bounded length.

use std::io::{BufRead, Read};

/// A line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Line<'a> {
    /// The line with its line feed, if it has one.
    Whole(&'a [u8]),
    /// A line over the limit; its bytes are skipped.
    TooLong,
}

/// Splits a reader at line feeds, holding at most one line of at most `limit` bytes.
pub(super) struct Lines<R> {
    reader: R,
    limit: usize,
    line: Vec<u8>,
}

impl<R: BufRead> Lines<R> {
    pub(super) fn new(reader: R, limit: usize) -> Self {
        Self { reader, limit, line: Vec::new() }
    }

    /// The next line. An error replaces the line that it cuts.
    pub(super) fn next(&mut self) -> std::io::Result<Option<Line<'_>>> {
        self.line.clear();
        // One long line must not keep its memory for the rest of the file.
        self.line.shrink_to(1 << 20);
        let most = self.limit as u64 + 1;
        if self.reader.by_ref().take(most).read_until(b'\n', &mut self.line)? == 0 {
            return Ok(None);
        }
        let whole = self.line.ends_with(b"\n") || self.line.len() <= self.limit;
        if !whole {
            self.line = Vec::new();
            self.reader.skip_until(b'\n')?;
            return Ok(Some(Line::TooLong));
        }
        Ok(Some(Line::Whole(&self.line)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_passed_over_and_the_next_is_whole() {
        let mut lines = Lines::new(&b"1234\n12345\n12\n\n123456789\n1"[..], 4);
        let mut all = Vec::new();
        while let Some(line) = lines.next().unwrap() {
            all.push(match line {
                Line::Whole(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
                Line::TooLong => "too long".to_owned(),
            });
        }
        assert_eq!(all, ["1234\n", "too long", "12\n", "\n", "too long", "1"]);
    }
}
