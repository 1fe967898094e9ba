//! Checks the pages of a column of texts before the library decodes them.
//!
//! The library makes room for as many texts as a dictionary or a list of lengths declares. A failed allocation would
//! end the program.

use parquet::basic::Encoding;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};

/// Most texts of a dictionary, and most lengths of a list: the rows of pyarrow's longest row group. A list can be short
/// in the file, because a miniblock of equal steps takes no bytes. In memory each text of a dictionary takes 32 bytes,
/// and each length 4.
const MOST_TEXTS: u64 = 1 << 26;

const CUT_OFF: &str = "a data page ends before its texts";

/// The pages of a column of texts without repetition.
pub(super) struct CheckedPages {
    /// The pages as the library reads them.
    pub(super) pages: Box<dyn PageReader>,
    /// The definition level of a row with a text; 0 if all rows have one.
    pub(super) present: i16,
}

impl Iterator for CheckedPages {
    type Item = Result<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for CheckedPages {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = self.pages.get_next_page()?;
        if let Some(page) = &page {
            check(page, self.present).map_err(ParquetError::General)?;
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.pages.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.pages.at_record_boundary()
    }
}

/// Refuses a page that declares more texts than it can hold.
pub(super) fn check(page: &Page, present: i16) -> Result<(), String> {
    let declared = u64::from(page.num_values());
    let mut bytes: &[u8] = page.buffer();
    if page.is_dictionary_page() {
        // The length of a text takes 4 bytes.
        let most = MOST_TEXTS.min(bytes.len() as u64 / 4);
        return if declared > most {
            Err(format!("a dictionary page declares {declared} texts, and it can hold {most}"))
        } else {
            Ok(())
        };
    }
    let lists = match page.encoding() {
        Encoding::DELTA_LENGTH_BYTE_ARRAY => 1,
        Encoding::DELTA_BYTE_ARRAY => 2,
        _ => return Ok(()),
    };
    let levels = levels_length(page, present).ok_or(CUT_OFF)?;
    take(&mut bytes, levels).ok_or(CUT_OFF)?;
    for _ in 0..lists {
        pass_lengths(&mut bytes, MOST_TEXTS.min(declared))?;
    }
    Ok(())
}

/// Bytes of the levels before the texts of a page.
fn levels_length(page: &Page, present: i16) -> Option<usize> {
    match page {
        Page::DictionaryPage { .. } => Some(0),
        Page::DataPage { .. } if present == 0 => Some(0),
        Page::DataPage { buf, def_level_encoding: Encoding::RLE, .. } => {
            let length = u32::from_le_bytes(*buf.first_chunk()?);
            usize::try_from(length).ok()?.checked_add(size_of::<u32>())
        }
        // The only other encoding of levels packs their bits.
        Page::DataPage { num_values, .. } => {
            let width = u16::BITS - present.unsigned_abs().leading_zeros();
            usize::try_from((u64::from(*num_values) * u64::from(width)).div_ceil(8)).ok()
        }
        Page::DataPageV2 { def_levels_byte_len, rep_levels_byte_len, .. } => {
            usize::try_from(u64::from(*def_levels_byte_len) + u64::from(*rep_levels_byte_len)).ok()
        }
    }
}

/// Passes over a list of at most `most` lengths in the encoding DELTA_BINARY_PACKED.
fn pass_lengths(bytes: &mut &[u8], most: u64) -> Result<(), String> {
    let [block, miniblocks, count, _first] = header(bytes).ok_or(CUT_OFF)?;
    if count > most {
        return Err(format!("a data page declares {count} lengths of texts, and it can hold {most}"));
    }
    pass_blocks(bytes, block, miniblocks, count).ok_or(CUT_OFF)?;
    Ok(())
}

/// Lengths of a block, miniblocks of a block, the number of lengths, and the first length.
fn header(bytes: &mut &[u8]) -> Option<[u64; 4]> {
    Some([integer(bytes)?, integer(bytes)?, integer(bytes)?, integer(bytes)?])
}

/// Passes over the blocks of a list. They hold all its lengths but the first.
fn pass_blocks(bytes: &mut &[u8], block: u64, miniblocks: u64, count: u64) -> Option<()> {
    let miniblocks = usize::try_from(miniblocks).ok()?;
    let miniblock = usize::try_from(block).ok()?.checked_div(miniblocks)?;
    let mut left = usize::try_from(count.saturating_sub(1)).ok()?;
    while left > 0 {
        let _smallest_step = integer(bytes)?;
        let widths = take(bytes, miniblocks)?;
        for &width in widths {
            // Miniblocks behind the last length have a width, but no bytes.
            if left == 0 {
                break;
            }
            take(bytes, miniblock.checked_mul(usize::from(width))? / 8)?;
            left = left.saturating_sub(miniblock);
        }
    }
    Some(())
}

/// Takes an integer of 7 bits a byte.
fn integer(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let byte = *take(bytes, 1)?.first()?;
        value |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn take<'a>(bytes: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    Some(taken)
}
