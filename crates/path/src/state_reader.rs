//! Reading a path's state piece by piece.

use std::collections::{BTreeMap, HashMap};

use dipaco_model::WeightStream;

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
    /// The tensors.
    Tensors(Box<StateTensors>),
}

/// The tensors of a state so far.
#[derive(Debug)]
struct StateTensors {
    header: StateHeader,
    stream: WeightStream,
    /// The vector of each tensor, and the place of its first value there.
    places: HashMap<String, (usize, usize)>,
    /// Number of values of each vector.
    lengths: Vec<usize>,
    /// First moments, second moments, and the parts of the fragments in the order of the header; none before the first value.
    values: Vec<Vec<f32>>,
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
            move_bytes(header, &mut piece, LENGTH);
            let Some(length) = header.first_chunk() else { return Ok(()) };
            let end = usize::try_from(u64::from_le_bytes(*length)).ok().and_then(|it| it.checked_add(LENGTH));
            let end = end.filter(|end| *end <= self.length).ok_or_else(state_header::damaged)?;
            move_bytes(header, &mut piece, end);
            if header.len() < end {
                return Ok(());
            }
            let mut tensors = StateTensors::new(header, self.moments, self.length)?;
            tensors.read(header)?;
            self.part = FilePart::Tensors(Box::new(tensors));
        }
        match &mut self.part {
            FilePart::Tensors(tensors) => tensors.read(piece),
            FilePart::Header(_) => Ok(()),
        }
    }

    /// Ends the file.
    ///
    /// # Errors
    /// When bytes are missing, or the parts of a fragment do not belong together.
    pub fn finish(self) -> Result<PathState, PathError> {
        let FilePart::Tensors(tensors) = self.part else { return Err(state_header::damaged()) };
        let StateTensors { header, stream, values, .. } = *tensors;
        stream.finish()?;
        let mut values = values.into_iter();
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

impl StateTensors {
    /// Begins the tensors after these bytes of the header.
    fn new(header: &[u8], moments: &MomentSpecs, length: usize) -> Result<Self, PathError> {
        let header = StateHeader::read(std::iter::once(header), u64::MAX)?;
        let specs = header.specs(moments);
        let firsts = moments.first().len();
        let both = firsts + moments.second().len();
        let (mut places, mut lengths) = (HashMap::new(), vec![0, 0]);
        for (number, spec) in specs.iter().enumerate() {
            let vector = match number {
                _ if number < firsts => 0,
                _ if number < both => 1,
                _ => number - both + 2,
            };
            lengths.resize(lengths.len().max(vector + 1), 0);
            if let Some(end) = lengths.get_mut(vector) {
                places.insert(spec.name.clone(), (vector, *end));
                *end += spec.parameters();
            }
        }
        let stream = WeightStream::new(specs.into(), length);
        Ok(Self { header, stream, places, lengths, values: Vec::new() })
    }

    fn read(&mut self, piece: &[u8]) -> Result<(), PathError> {
        let Self { stream, places, lengths, values, .. } = self;
        stream.read_values(piece, |spec, begin, found| {
            if values.is_empty() {
                // Not before the first value: by now the header agrees with the length of the file. And not `vec![0.0; n]`: the
                // allocator would take fresh pages from the system for zeros.
                values.extend(lengths.iter().map(|&length| {
                    let mut vector = Vec::with_capacity(length);
                    vector.resize(length, 0.0);
                    vector
                }));
            }
            let place = places.get(&spec.name).and_then(|&(vector, first)| {
                let begin = first + begin;
                values.get_mut(vector)?.get_mut(begin..begin + found.len())
            });
            if let Some(place) = place {
                place.copy_from_slice(found);
            }
            Ok(())
        })?;
        Ok(())
    }
}

/// Moves bytes from the start of `piece` to `to`, until that has `length`.
fn move_bytes(to: &mut Vec<u8>, piece: &mut &[u8], length: usize) {
    let (first, rest) = piece.split_at(length.saturating_sub(to.len()).min(piece.len()));
    to.extend_from_slice(first);
    *piece = rest;
}
