//! Reading a path's state piece by piece.

use std::collections::BTreeMap;

use dipaco_model::{WeightReader, take_bytes};

use crate::state::{FragmentState, PathState};
use crate::state_header::{self, LENGTH, StateHeader};
use crate::{MomentSpecs, PathError};

/// Reads the file of a path's state piece by piece. The file is not in memory beside its values.
#[derive(Debug)]
pub struct StateReader<'a> {
    moments: &'a MomentSpecs,
    /// Bytes of the file.
    length: usize,
    part: FilePart,
}

/// The part of the file that is read.
#[derive(Debug)]
enum FilePart {
    /// The header. Its bytes so far.
    Header(Vec<u8>),
    /// The tensors: first moments, second moments, and each part of the fragments in a vector of its own.
    Tensors(StateHeader, Box<WeightReader>),
}

impl PathState {
    /// Decodes the bytes of [`encode`](Self::encode).
    ///
    /// # Errors
    /// When the bytes are damaged, or belong to another model.
    pub fn decode(bytes: &[u8], moments: &MomentSpecs) -> Result<Self, PathError> {
        let mut reader = StateReader::new(moments, bytes.len());
        reader.read(bytes)?;
        reader.finish()
    }
}

impl<'a> StateReader<'a> {
    /// Begins a file of `length` bytes with these moments.
    #[must_use]
    pub fn new(moments: &'a MomentSpecs, length: usize) -> Self {
        Self { moments, length, part: FilePart::Header(Vec::new()) }
    }

    /// Reads the next piece of the file.
    ///
    /// # Errors
    /// When the bytes are damaged or more than the length of the file, or belong to another model.
    pub fn read(&mut self, mut piece: &[u8]) -> Result<(), PathError> {
        if let FilePart::Header(header) = &mut self.part {
            take_bytes(header, &mut piece, LENGTH);
            let Some(length) = header.first_chunk() else { return Ok(()) };
            let end = usize::try_from(u64::from_le_bytes(*length)).ok().and_then(|it| it.checked_add(LENGTH));
            let end = end.filter(|end| *end <= self.length).ok_or_else(state_header::damaged)?;
            take_bytes(header, &mut piece, end);
            if header.len() < end {
                return Ok(());
            }
            let read = StateHeader::parse(header.get(LENGTH..).unwrap_or_default())?;
            let parts = read.kept.values().flatten().map(|_| 1);
            let counts = [self.moments.first().len(), self.moments.second().len()].into_iter().chain(parts);
            let mut tensors = WeightReader::in_vectors(read.specs(self.moments).into(), counts, self.length);
            tensors.read(header)?;
            self.part = FilePart::Tensors(read, Box::new(tensors));
        }
        match &mut self.part {
            FilePart::Tensors(_, tensors) => Ok(tensors.read(piece)?),
            FilePart::Header(_) => Ok(()),
        }
    }

    /// Ends the file.
    ///
    /// # Errors
    /// When bytes are missing, or the parts of a fragment do not belong together.
    pub fn finish(self) -> Result<PathState, PathError> {
        let FilePart::Tensors(header, tensors) = self.part else { return Err(state_header::damaged()) };
        let mut values = tensors.finish_vectors()?.into_iter();
        let mut next = || values.next().unwrap_or_default();
        let (first, second) = (next(), next());
        let mut kept = BTreeMap::new();
        for (place, parts) in header.kept {
            let parts = parts.into_iter().map(|(part, _)| (part, next())).collect();
            kept.insert(place, FragmentState::of_parts(parts).ok_or_else(state_header::damaged)?);
        }
        Ok(PathState { step: header.step, position: header.position, first, second, kept })
    }
}
