//! Reading a safetensors file piece by piece.

use std::collections::VecDeque;
use std::sync::Arc;

use safetensors::tensor::{Metadata, SafeTensorError};

use crate::file_values::append_file_values;
use crate::weights::check_tensors;
use crate::{ModelError, TensorSpec};

/// Bytes of the length of the header.
const LENGTH: usize = 8;
/// Most bytes of a header, as in the package `safetensors`.
const MOST_HEADER: usize = 100_000_000;
/// Values that are decoded at a time.
const CHUNK: usize = 1 << 16;

/// Reads a safetensors file piece by piece. Values of each type come as f32.
#[derive(Debug)]
pub struct WeightStream {
    specs: Arc<[TensorSpec]>,
    /// Bytes of the file that have not come.
    left: usize,
    state: State,
    /// The first values of a tensor that is taken as a whole.
    whole: Vec<f32>,
}

#[derive(Debug)]
enum State {
    /// The bytes of the header so far.
    Header(Vec<u8>),
    Tensors(Tensors),
}

#[derive(Debug, Default)]
struct Tensors {
    /// Indices of the specs, in the order of the file. The first is read.
    order: VecDeque<usize>,
    /// Number of its values so far.
    taken: usize,
    /// The first bytes of a value that was cut.
    cut: Vec<u8>,
    /// Memory for decoded values.
    chunk: Vec<f32>,
}

impl WeightStream {
    /// Begins a file of `length` bytes with exactly these tensors, in any order.
    #[must_use]
    pub fn new(specs: Arc<[TensorSpec]>, length: usize) -> Self {
        Self { specs, left: length, state: State::Header(Vec::new()), whole: Vec::new() }
    }

    /// Reads the next piece of the file, and gives each tensor to `take` when its last value has come, row-major. One tensor at a
    /// time is in memory.
    ///
    /// # Errors
    /// The bytes are damaged or more than the length of the file. A tensor is missing, unknown, or of another shape
    /// or type.
    /// The error of `take`.
    pub fn read(
        &mut self,
        piece: &[u8],
        mut take: impl FnMut(&TensorSpec, &[f32]) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        let mut whole = std::mem::take(&mut self.whole);
        let read = self.read_values(piece, |spec, _, values| {
            // The shape is that of the model, so the file has no influence on the memory.
            whole.reserve_exact(spec.parameters() - whole.len());
            whole.extend_from_slice(values);
            if whole.len() == spec.parameters() {
                // Freed before the next tensor takes its memory.
                let values = std::mem::take(&mut whole);
                take(spec, &values)?;
                dipaco_ops::free_values(values);
            }
            Ok(())
        });
        self.whole = whole;
        read
    }

    /// Reads the next piece of the file, and gives its values to `take` as they come, with the place of the first of them in their
    /// tensor, row-major. A tensor without values is given once. A file is read with this or with [`read`](Self::read) alone.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn read_values(
        &mut self,
        mut piece: &[u8],
        mut take: impl FnMut(&TensorSpec, usize, &[f32]) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        self.left = self.left.checked_sub(piece.len()).ok_or(SafeTensorError::MetadataIncompleteBuffer)?;
        if let State::Header(header) = &mut self.state {
            let Some(order) = read_header(header, &mut piece, self.left, &self.specs)? else { return Ok(()) };
            self.state = State::Tensors(Tensors { order, ..Tensors::default() });
        }
        match &mut self.state {
            State::Tensors(tensors) => tensors.read(piece, &self.specs, &mut take),
            State::Header(_) => Ok(()),
        }
    }

    /// Ends the file.
    ///
    /// # Errors
    /// Bytes are missing.
    pub fn finish(self) -> Result<(), ModelError> {
        match self.state {
            State::Tensors(tensors) if tensors.order.is_empty() && self.left == 0 => Ok(()),
            _ => Err(SafeTensorError::MetadataIncompleteBuffer.into()),
        }
    }
}

/// Moves the bytes of the header from `piece` to `header`. `left` bytes of the file come after the piece. Returns the tensors
/// in the order of the file when the header is whole.
fn read_header(
    header: &mut Vec<u8>,
    piece: &mut &[u8],
    left: usize,
    specs: &[TensorSpec],
) -> Result<Option<VecDeque<usize>>, ModelError> {
    take_bytes(header, piece, LENGTH);
    let Some(length) = header.first_chunk::<LENGTH>() else { return Ok(None) };
    let length = usize::try_from(u64::from_le_bytes(*length));
    let length =
        length.ok().filter(|length| *length <= MOST_HEADER).ok_or(SafeTensorError::HeaderTooLarge)?;
    let end = LENGTH + length;
    if end > header.len() + piece.len() + left {
        return Err(SafeTensorError::InvalidHeaderLength.into());
    }
    take_bytes(header, piece, end);
    if header.len() < end {
        return Ok(None);
    }
    let json = header.get(LENGTH..).unwrap_or_default();
    let metadata: Metadata =
        serde_json::from_slice(json).map_err(SafeTensorError::InvalidHeaderDeserialization)?;
    if metadata.data_len() != piece.len() + left {
        return Err(SafeTensorError::MetadataIncompleteBuffer.into());
    }
    Ok(Some(check_tensors(&metadata, specs)?.into()))
}

/// Moves bytes from the start of `piece` to `to`, until that has `length`.
pub fn take_bytes(to: &mut Vec<u8>, piece: &mut &[u8], length: usize) {
    let (first, rest) = piece.split_at(length.saturating_sub(to.len()).min(piece.len()));
    to.extend_from_slice(first);
    *piece = rest;
}

impl Tensors {
    fn read(
        &mut self,
        mut piece: &[u8],
        specs: &[TensorSpec],
        take: &mut impl FnMut(&TensorSpec, usize, &[f32]) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        while let Some(spec) = self.order.front().and_then(|&index| specs.get(index)) {
            let (length, dtype) = (spec.parameters(), spec.file_dtype);
            if length == 0 {
                take(spec, 0, &[])?;
            }
            if !self.cut.is_empty() {
                take_bytes(&mut self.cut, &mut piece, dtype.bytes());
                if self.cut.len() < dtype.bytes() {
                    return Ok(());
                }
                let value = std::mem::take(&mut self.cut);
                self.take(spec, &value, take)?;
            }
            let (own, rest) = piece.split_at(((length - self.taken) * dtype.bytes()).min(piece.len()));
            let (whole, cut) = own.split_at(own.len() - own.len() % dtype.bytes());
            for bytes in whole.chunks(CHUNK * dtype.bytes()) {
                self.take(spec, bytes, take)?;
            }
            self.cut.extend_from_slice(cut);
            piece = rest;
            if self.taken < length {
                return Ok(());
            }
            self.order.pop_front();
            self.taken = 0;
        }
        Ok(())
    }

    /// Gives the next values of the current tensor, which are whole numbers in these bytes.
    fn take(
        &mut self,
        spec: &TensorSpec,
        bytes: &[u8],
        take: &mut impl FnMut(&TensorSpec, usize, &[f32]) -> Result<(), ModelError>,
    ) -> Result<(), ModelError> {
        self.chunk.clear();
        append_file_values(&mut self.chunk, bytes, spec.file_dtype);
        take(spec, self.taken, &self.chunk)?;
        self.taken += self.chunk.len();
        Ok(())
    }
}
