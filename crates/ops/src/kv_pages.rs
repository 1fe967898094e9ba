//! Keys and values of many sequences, in pages.

use half::bf16;
use half::vec::HalfBitsVecExt as _;

use crate::OpsError;
use crate::element::{Element, Precision};
use crate::error::shape;
use crate::product::Shared;

/// Tokens of a page.
pub const PAGE_TOKENS: usize = 16;

/// The sizes of the keys and values of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvShape {
    /// L, the number of blocks.
    pub blocks: usize,
    /// Hkv.
    pub kv_heads: usize,
    /// Dh.
    pub head_dim: usize,
}

impl KvShape {
    /// Elements of the values of one token and head: Dh, rounded up to whole vectors.
    pub(crate) fn value_stride(self) -> usize {
        self.head_dim.next_multiple_of(PAGE_TOKENS)
    }

    /// Elements of one head of a page: keys (Dh, 16), then values (16, Dh rounded up).
    pub(crate) fn head(self) -> usize {
        PAGE_TOKENS * (self.head_dim + self.value_stride())
    }

    /// Memory of a page in bytes.
    #[must_use]
    pub fn page_bytes(self, precision: Precision) -> usize {
        let bytes = match precision {
            Precision::F32 => size_of::<f32>(),
            Precision::Bf16 => size_of::<bf16>(),
        };
        self.blocks * self.kv_heads * self.head() * bytes
    }
}

/// A pool of pages. A page holds the keys and values of 16 consecutive tokens of one sequence in all blocks. Several
/// sequences that begin alike may read the same page.
#[derive(Debug)]
pub struct KvPages {
    shape: KvShape,
    pages: usize,
    memory: Memory,
}

/// Block by block, page by page, head by head: see [`KvShape::head`].
#[derive(Debug)]
enum Memory {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
}

impl KvPages {
    /// A pool of this many pages. The system gives the memory of a page when it is written for the first time.
    #[must_use]
    pub fn new(shape: KvShape, pages: usize, precision: Precision) -> Self {
        let length = shape.blocks * pages * shape.kv_heads * shape.head();
        let memory = match precision {
            Precision::F32 => Memory::F32(vec![0.0; length]),
            // The standard library asks the system for zeros of its own number types only. It would write each
            // `bf16::ZERO`, and so take the memory of all pages at once.
            Precision::Bf16 => Memory::Bf16(vec![0u16; length].reinterpret_into()),
        };
        Self { shape, pages, memory }
    }

    /// Number of pages.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.pages
    }

    /// The sizes of the keys and values in the pages.
    #[must_use]
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// Copies the keys and values of the first `blocks` blocks from one page to another.
    ///
    /// # Errors
    /// A page or a block does not exist.
    pub fn copy(&mut self, from: u32, to: u32, blocks: usize) -> Result<(), OpsError> {
        let (from, to) = (from as usize, to as usize);
        if from.max(to) >= self.pages || blocks > self.shape.blocks {
            let problem = format!(
                "{blocks} blocks of page {from} can't be copied to page {to}: there are {} blocks and {} pages",
                self.shape.blocks, self.pages
            );
            return Err(shape("pages", problem));
        }
        let page = self.shape.kv_heads * self.shape.head();
        for block in 0..blocks {
            let at = |number: usize| (block * self.pages + number) * page;
            let source = at(from)..at(from) + page;
            match &mut self.memory {
                Memory::F32(memory) => memory.copy_within(source, at(to)),
                Memory::Bf16(memory) => memory.copy_within(source, at(to)),
            }
        }
        Ok(())
    }

    /// Gives each sequence of a step access to its pages, in the order of `places`.
    ///
    /// # Errors
    /// A page does not exist, a sequence has too few pages, or a page to be written is in use by another sequence.
    pub fn open<'a>(&'a mut self, places: &[SequencePlace<'a>]) -> Result<Vec<SequencePages<'a>>, OpsError> {
        let problem = |problem: String| shape("pages", problem);
        // For each page: the number of sequences that hold it, and the last of them, counted from 1.
        let (mut holders, mut last) = (vec![0u32; self.pages], vec![0usize; self.pages]);
        for (number, SequencePlace { pages, start, rows }) in (1..).zip(places) {
            if (start + rows).div_ceil(PAGE_TOKENS) > pages.len() {
                let tokens = start + rows;
                return Err(problem(format!("{tokens} tokens do not fit {} pages", pages.len())));
            }
            for &page in *pages {
                let last = last
                    .get_mut(page as usize)
                    .ok_or_else(|| problem(format!("page {page} of {} does not exist", self.pages)))?;
                if *last == number {
                    return Err(problem(format!("a sequence has page {page} twice")));
                }
                *last = number;
                holders[page as usize] += 1;
            }
        }
        for SequencePlace { pages, start, rows } in places {
            let written = &pages[start / PAGE_TOKENS..(start + rows).div_ceil(PAGE_TOKENS)];
            if let Some(page) = written.iter().find(|&&page| holders[page as usize] > 1) {
                return Err(problem(format!("page {page} would be written while another sequence uses it")));
            }
        }
        let (shape, count) = (self.shape, self.pages);
        let memory = match &mut self.memory {
            Memory::F32(memory) => SharedMemory::F32(Shared::new(memory)),
            Memory::Bf16(memory) => SharedMemory::Bf16(Shared::new(memory)),
        };
        let open = |&place: &SequencePlace<'a>| SequencePages { place, shape, count, memory };
        Ok(places.iter().map(open).collect())
    }
}

/// The tokens of a sequence in a step.
#[derive(Clone, Copy, Debug)]
pub struct SequencePlace<'a> {
    /// Pages of the sequence, in the order of its tokens.
    pub pages: &'a [u32],
    /// Number of tokens whose keys and values are in the pages.
    pub start: usize,
    /// Number of tokens that the step appends.
    pub rows: usize,
}

/// The pages of one sequence during a step. No other sequence of the step has a page that this one writes.
#[derive(Debug)]
pub struct SequencePages<'a> {
    pub(crate) place: SequencePlace<'a>,
    pub(crate) shape: KvShape,
    /// Pages of the pool.
    count: usize,
    pub(crate) memory: SharedMemory,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum SharedMemory {
    F32(Shared<f32>),
    Bf16(Shared<bf16>),
}

impl SequencePages<'_> {
    /// Number of tokens that the step appends.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.place.rows
    }

    /// Where a head of the sequence's page number `index` begins in the memory of the pool.
    pub(crate) fn at(&self, block: usize, index: usize, head: usize) -> usize {
        let page = self.place.pages[index] as usize;
        ((block * self.count + page) * self.shape.kv_heads + head) * self.shape.head()
    }

    /// Writes the keys and values (Hkv × Dh each) of the token at `position` in a block.
    pub(crate) fn write<E: Element>(
        &mut self,
        memory: &Shared<E>,
        block: usize,
        position: usize,
        keys: &[f32],
        values: &[f32],
    ) {
        let KvShape { head_dim, .. } = self.shape;
        let (slot, stride) = (position % PAGE_TOKENS, self.shape.value_stride());
        let heads = keys.chunks_exact(head_dim).zip(values.chunks_exact(head_dim));
        for (head, (keys, values)) in heads.enumerate() {
            let at = self.at(block, position / PAGE_TOKENS, head);
            // SAFETY: `open` checked that no other sequence of the step has a page that this sequence writes, and this one
            // is borrowed exclusively.
            let page = unsafe { memory.part(at..at + self.shape.head()) };
            let (key_page, value_page) = page.split_at_mut(PAGE_TOKENS * head_dim);
            for (to, &key) in key_page.chunks_exact_mut(PAGE_TOKENS).zip(keys) {
                to[slot] = E::from_f32(key);
            }
            for (to, &value) in value_page[slot * stride..].iter_mut().zip(values) {
                *to = E::from_f32(value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_written_by_one_sequence_only() {
        let shape = KvShape { blocks: 1, kv_heads: 1, head_dim: 8 };
        let mut pages = KvPages::new(shape, 4, Precision::F32);
        let place = |pages, start, rows| SequencePlace { pages, start, rows };
        // Page 0 is shared and only read.
        let two = [place(&[0, 1], 16, 4), place(&[0, 2], 20, 1)];
        assert_eq!(pages.open(&two).unwrap().len(), 2);
        let three = [place(&[0, 1], 16, 4), place(&[0, 2], 20, 1), place(&[3, 0], 0, 3)];
        assert_eq!(pages.open(&three).unwrap().len(), 3);
        for (bad, message) in [
            ([place(&[0, 1], 15, 2), place(&[0, 2], 16, 1)], "page 0 would be written"),
            ([place(&[0, 4], 16, 1), place(&[1, 2], 16, 1)], "page 4 of 4"),
            ([place(&[0], 16, 1), place(&[1, 2], 16, 1)], "17 tokens do not fit 1 pages"),
            ([place(&[3, 3], 0, 1), place(&[1, 2], 16, 1)], "page 3 twice"),
            ([place(&[0, 1], 16, 1), place(&[0, 2, 0], 16, 1)], "page 0 twice"),
        ] {
            let error = pages.open(&bad).unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
        for (from, to, blocks) in [(4, 0, 1), (0, 4, 1), (0, 1, 2)] {
            assert!(pages.copy(from, to, blocks).unwrap_err().to_string().contains("can't be copied"));
        }
    }

    #[test]
    #[cfg(all(target_os = "linux", not(miri)))]
    fn pages_that_nobody_wrote_take_no_memory() {
        use crate::test_support::is_resident;

        let shape = KvShape { blocks: 1, kv_heads: 1, head_dim: 64 };
        for precision in [Precision::F32, Precision::Bf16] {
            let count = (64 << 20) / shape.page_bytes(precision);
            let mut pages = KvPages::new(shape, count, precision);
            let middle = |pages: &KvPages| match &pages.memory {
                Memory::F32(memory) => memory[memory.len() / 2..].as_ptr().addr(),
                Memory::Bf16(memory) => memory[memory.len() / 2..].as_ptr().addr(),
            };
            assert!(!is_resident(middle(&pages)), "{precision:?}");
            let written = u32::try_from(count / 2).unwrap();
            pages.copy(0, written, 1).unwrap();
            assert!(is_resident(middle(&pages)), "{precision:?}");
        }
    }
}
