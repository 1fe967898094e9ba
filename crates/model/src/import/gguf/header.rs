//! The header of a GGUF file: its keys and the places of its tensors.
//!
//! candle has a reader too. It takes 32 bytes of memory for each element of an array, and it panics at an alignment of 0
//! and at dimensions whose product has more than 64 bits. This one borrows from the file, and checks each number against
//! the bytes that are left. The format is that of <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>.

use std::collections::HashMap;

use crate::import::ImportError;

/// The first bytes of a file.
pub(super) const MAGIC: &[u8; 4] = b"GGUF";
/// Most dimensions of a tensor.
const DIMENSIONS: u32 = 4;
/// Most bytes of a header. The vocabularies of known models take up to 20 MB.
const LARGEST: usize = 64 << 20;
/// Most keys and most tensors. Known models have up to 60 keys and 2,000 tensors, and each takes more memory than bytes of
/// the file.
const MOST_ENTRIES: u64 = 1 << 16;

/// Most bytes of the name of a key or tensor. ggml has tensors of up to 64.
const LONGEST_NAME: usize = 1024;

/// Kinds of values.
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// The value of a key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Value<'a> {
    Whole(u64),
    Negative(i64),
    F32(f32),
    F64(f64),
    Bool(bool),
    Text(&'a [u8]),
    Array(Array<'a>),
}

/// An array of values of one kind.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Array<'a> {
    kind: u32,
    count: u64,
    bytes: &'a [u8],
}

/// A tensor.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct TensorInfo {
    /// The sizes of its dimensions, rows first.
    pub(super) shape: Vec<usize>,
    /// GGML's number of the number type.
    pub(super) kind: u32,
    /// Its first byte, counted from the start of the data.
    pub(super) offset: u64,
}

/// A file whose header has been read.
#[derive(Clone, Debug)]
pub(super) struct Header<'a> {
    pub(super) keys: HashMap<&'a str, Value<'a>>,
    pub(super) tensors: HashMap<&'a str, TensorInfo>,
    data: &'a [u8],
}

impl<'a> Header<'a> {
    /// Reads the header of a file. Errors call the file `file`.
    pub(super) fn parse(bytes: &'a [u8], file: &str) -> Result<Self, ImportError> {
        let failed = |problem: String| ImportError::Gguf { file: file.to_owned(), problem };
        Self::read(bytes).map_err(failed)
    }

    fn read(bytes: &'a [u8]) -> Result<Self, String> {
        let mut reader = Reader { bytes: &bytes[..bytes.len().min(LARGEST)], at: 0 };
        if reader.take(MAGIC.len() as u64)? != MAGIC {
            return Err("it does not begin with GGUF".to_owned());
        }
        let version = reader.u32()?;
        if !(2..=3).contains(&version) {
            return Err(format!(
                "it has version {version}: only 2 and 3 in little-endian order of bytes are read"
            ));
        }
        let (tensor_count, key_count) = (reader.u64()?, reader.u64()?);
        for (what, count) in [("tensors", tensor_count), ("keys", key_count)] {
            if count > MOST_ENTRIES {
                return Err(format!("it has {count} {what}: no model has more than {MOST_ENTRIES}"));
            }
        }
        let (mut keys, mut tensors) = (HashMap::new(), HashMap::new());
        for _ in 0..key_count {
            let key = reader.name()?;
            let kind = reader.u32()?;
            if keys.insert(key, reader.value(kind)?).is_some() {
                return Err(format!("the key {key} is there twice"));
            }
        }
        for _ in 0..tensor_count {
            let name = reader.name()?;
            if tensors.insert(name, reader.tensor()?).is_some() {
                return Err(format!("the tensor {name} is there twice"));
            }
        }
        let alignment = match keys.get("general.alignment") {
            None => 32,
            Some(Value::Whole(alignment)) if alignment.is_power_of_two() => *alignment,
            Some(_) => return Err("general.alignment is wrong: it must be a power of two".to_owned()),
        };
        let start = (reader.at as u64).checked_next_multiple_of(alignment);
        let data = start.and_then(|start| bytes.get(usize::try_from(start).ok()?..));
        // A file without tensors may end with its header.
        Ok(Self { keys, tensors, data: data.unwrap_or_default() })
    }

    /// The `length` bytes of a tensor; `None` if the file ends before.
    pub(super) fn data(&self, tensor: &TensorInfo, length: usize) -> Option<&'a [u8]> {
        let start = usize::try_from(tensor.offset).ok()?;
        self.data.get(start..start.checked_add(length)?)
    }
}

impl<'a> Array<'a> {
    /// The number of values.
    pub(super) fn count(self) -> u64 {
        self.count
    }

    /// The texts of an array of texts; `None` for an array of another kind, or with a text that is not UTF-8.
    pub(super) fn texts(self) -> Option<Vec<&'a str>> {
        let mut reader = Reader { bytes: self.bytes, at: 0 };
        let text = |_| std::str::from_utf8(reader.text().ok()?).ok();
        (self.kind == STRING).then(|| (0..self.count).map(text).collect()).flatten()
    }

    /// The numbers of an array of whole numbers; `None` for an array of another kind.
    pub(super) fn numbers(self) -> Option<Vec<i64>> {
        let mut reader = Reader { bytes: self.bytes, at: 0 };
        let number = |_| match reader.value(self.kind).ok()? {
            Value::Whole(number) => i64::try_from(number).ok(),
            Value::Negative(number) => Some(number),
            _ => None,
        };
        (0..self.count).map(number).collect()
    }
}

/// Reads numbers and texts in little-endian order of bytes.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: u64) -> Result<&'a [u8], String> {
        let end = usize::try_from(length).ok().and_then(|length| self.at.checked_add(length));
        let taken = end.and_then(|end| Some((self.bytes.get(self.at..end)?, end)));
        let (taken, end) = taken.ok_or_else(|| {
            let ends = if self.bytes.len() < LARGEST {
                "the file ends before".to_owned()
            } else {
                format!("the header of a model ends before byte {LARGEST}")
            };
            format!("its header needs {length} bytes at byte {}, and {ends}", self.at)
        })?;
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let taken = self.take(N as u64)?;
        Ok(taken.first_chunk().copied().unwrap_or([0; N]))
    }

    fn u32(&mut self) -> Result<u32, String> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, String> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn text(&mut self) -> Result<&'a [u8], String> {
        let length = self.u64()?;
        self.take(length)
    }

    fn name(&mut self) -> Result<&'a str, String> {
        let at = self.at;
        let name = self.text()?;
        if name.len() > LONGEST_NAME {
            return Err(format!("the name at byte {at} has {} bytes, more than {LONGEST_NAME}", name.len()));
        }
        std::str::from_utf8(name).map_err(|_| format!("the name at byte {at} is not UTF-8"))
    }

    fn value(&mut self, kind: u32) -> Result<Value<'a>, String> {
        let signed = |number: i64| match u64::try_from(number) {
            Ok(number) => Value::Whole(number),
            Err(_) => Value::Negative(number),
        };
        Ok(match kind {
            0 => Value::Whole(u8::from_le_bytes(self.array()?).into()),
            1 => signed(i8::from_le_bytes(self.array()?).into()),
            2 => Value::Whole(u16::from_le_bytes(self.array()?).into()),
            3 => signed(i16::from_le_bytes(self.array()?).into()),
            4 => Value::Whole(self.u32()?.into()),
            5 => signed(i32::from_le_bytes(self.array()?).into()),
            6 => Value::F32(f32::from_le_bytes(self.array()?)),
            7 => Value::Bool(self.array()? != [0u8]),
            STRING => Value::Text(self.text()?),
            ARRAY => Value::Array(self.array_value()?),
            10 => Value::Whole(self.u64()?),
            11 => signed(i64::from_le_bytes(self.array()?)),
            12 => Value::F64(f64::from_le_bytes(self.array()?)),
            _ => return Err(format!("it has a value of the unknown kind {kind} before byte {}", self.at)),
        })
    }

    fn array_value(&mut self) -> Result<Array<'a>, String> {
        let (kind, count) = (self.u32()?, self.u64()?);
        let start = self.at;
        let size = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            4..=6 => 4,
            10..=12 => 8,
            STRING => 0,
            _ => return Err(format!("it has an array of values of kind {kind} before byte {start}")),
        };
        if kind == STRING {
            // Each text takes at least the bytes of its length, so a wrong count ends soon.
            for _ in 0..count {
                self.text()?;
            }
        } else {
            self.take(count.saturating_mul(size))?;
        }
        Ok(Array { kind, count, bytes: &self.bytes[start..self.at] })
    }

    fn tensor(&mut self) -> Result<TensorInfo, String> {
        let dimensions = self.u32()?;
        if dimensions > DIMENSIONS {
            return Err(format!("it has a tensor of {dimensions} dimensions before byte {}", self.at));
        }
        let size =
            |_| usize::try_from(self.u64()?).map_err(|_| "it has a tensor that is too large".to_owned());
        let mut shape = (0..dimensions).map(size).collect::<Result<Vec<_>, _>>()?;
        shape.reverse();
        Ok(TensorInfo { shape, kind: self.u32()?, offset: self.u64()? })
    }
}
