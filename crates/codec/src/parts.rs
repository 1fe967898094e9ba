//! Bytes that lie in several parts of memory.

/// Bytes that lie in several parts of memory, in their order.
pub(crate) struct Parts<'a, I> {
    rest: I,
    part: &'a [u8],
    /// Bytes that are asked for together and lie in two parts or more.
    joined: Vec<u8>,
}

impl<'a, I: Iterator<Item = &'a [u8]>> Parts<'a, I> {
    pub(crate) fn new(parts: I) -> Self {
        Self { rest: parts, part: &[], joined: Vec::new() }
    }

    /// The next `count` bytes, or what is left when that is less.
    pub(crate) fn next(&mut self, count: usize) -> &[u8] {
        if self.part.is_empty() {
            self.part = self.rest.next().unwrap_or_default();
        }
        if let Some((next, rest)) = self.part.split_at_checked(count) {
            self.part = rest;
            return next;
        }
        self.joined.clear();
        loop {
            let (next, rest) = self.part.split_at(self.part.len().min(count - self.joined.len()));
            self.joined.extend_from_slice(next);
            self.part = rest;
            if self.joined.len() == count {
                return &self.joined;
            }
            match self.rest.next() {
                Some(part) => self.part = part,
                None => return &self.joined,
            }
        }
    }
}
