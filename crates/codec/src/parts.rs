//! Reading of bytes in several parts of memory.

/// Reader of bytes in several parts of memory, in their order.
pub(crate) struct Parts<'a, I> {
    rest: I,
    part: &'a [u8],
    /// Copy of requested bytes that two or more parts hold.
    joined: Vec<u8>,
}

impl<'a, I: Iterator<Item = &'a [u8]>> Parts<'a, I> {
    pub(crate) fn new(parts: I) -> Self {
        Self { rest: parts, part: &[], joined: Vec::new() }
    }

    /// Returns the next `count` bytes, or all remaining bytes if there are fewer.
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
