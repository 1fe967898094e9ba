//! All contributions to an outer step at once, for merges that compare them with each other.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use dipaco_model::little_endian;

use crate::TrainError;

/// Memory for the values of all contributions, in bytes. Above it, they lie in a file.
const MEMORY_BYTES: usize = 256 << 20;
/// Memory for one slice of all contributions, in bytes.
const SLICE_BYTES: usize = 16 << 20;

/// The contributions to an outer step of one fragment, of equal length. They lie in memory while there is room, and
/// otherwise in an unnamed file, which disappears with this value or the process.
pub(super) struct GatheredContributions {
    folder: PathBuf,
    /// Number of values of each contribution.
    values: usize,
    /// Number of contributions that are gathered.
    count: usize,
    /// Contributions in memory, one after the other; empty when there is a file.
    memory: Vec<f32>,
    file: Option<File>,
    /// Number of values that fit into memory.
    room: usize,
}

impl GatheredContributions {
    /// Gathers contributions of so many values; a file is on the disk of `folder`.
    pub(super) fn new(folder: &Path, values: usize) -> Self {
        Self::with_room(folder, values, MEMORY_BYTES / size_of::<f32>())
    }

    fn with_room(folder: &Path, values: usize, room: usize) -> Self {
        Self { folder: folder.to_owned(), values, count: 0, memory: Vec::new(), file: None, room }
    }

    /// Number of values of a slice for which all contributions together fit into [`SLICE_BYTES`].
    pub(super) fn slice_values(&self) -> usize {
        (SLICE_BYTES / size_of::<f32>() / self.count.max(1)).max(1)
    }

    /// Adds a contribution.
    ///
    /// # Errors
    /// When it has another length than the others, or the disk fails.
    pub(super) fn push(&mut self, contribution: &[f32]) -> Result<(), TrainError> {
        if contribution.len() != self.values {
            let (found, values) = (contribution.len(), self.values);
            return Err(TrainError::Internal {
                what: format!("a contribution of {found} values was gathered for a fragment of {values}"),
            });
        }
        if self.file.is_none() && self.memory.len() + contribution.len() > self.room {
            let mut file = tempfile::tempfile_in(&self.folder).map_err(self.failed("create"))?;
            write(&mut file, &self.memory).map_err(self.failed("write"))?;
            self.memory = Vec::new();
            self.file = Some(file);
        }
        match &mut self.file {
            None => self.memory.extend_from_slice(contribution),
            Some(file) => {
                let written = file.seek(SeekFrom::End(0)).and_then(|_| write(file, contribution));
                written.map_err(self.failed("write"))?;
            }
        }
        self.count += 1;
        Ok(())
    }

    /// The same values of every contribution, in the order in which they were added.
    ///
    /// # Errors
    /// When the disk fails.
    pub(super) fn slice(&mut self, range: &Range<usize>) -> Result<Vec<Vec<f32>>, TrainError> {
        (0..self.count).map(|place| self.part(place, range)).collect()
    }

    /// All values of a contribution.
    ///
    /// # Errors
    /// When the disk fails.
    pub(super) fn contribution(&mut self, place: usize) -> Result<Vec<f32>, TrainError> {
        self.part(place, &(0..self.values))
    }

    fn part(&mut self, place: usize, range: &Range<usize>) -> Result<Vec<f32>, TrainError> {
        let begin = place * self.values + range.start;
        match &mut self.file {
            None => Ok(self.memory[begin..begin + range.len()].to_vec()),
            Some(file) => {
                let mut bytes = vec![0; size_of_val(&[0f32]) * range.len()];
                let offset = (begin * size_of::<f32>()) as u64;
                let read = file.seek(SeekFrom::Start(offset)).and_then(|_| file.read_exact(&mut bytes));
                read.map_err(self.failed("read"))?;
                let value = |chunk: &[u8]| chunk.first_chunk().copied().map(f32::from_le_bytes);
                Ok(bytes.chunks_exact(size_of::<f32>()).filter_map(value).collect())
            }
        }
    }

    fn failed(&self, action: &'static str) -> impl FnOnce(std::io::Error) -> TrainError + use<> {
        let folder = self.folder.clone();
        move |source| TrainError::Io { action, file: folder.join("contributions"), source }
    }
}

fn write(file: &mut File, values: &[f32]) -> std::io::Result<()> {
    // A buffer at a time: where the bytes are a copy, those of all values at once would double the memory.
    for values in values.chunks(SLICE_BYTES / size_of::<f32>()) {
        file.write_all(&little_endian(values))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_file_hold_the_same_contributions() {
        let folder = tempfile::tempdir().unwrap();
        let contributions = [[1.5f32, -2.0, 3.25], [4.0, f32::MIN_POSITIVE, -0.0], [7.0, 8.0, 9.5]];
        // Room for all, for the first two, and for none.
        for room in [9, 6, 0] {
            let mut gathered = GatheredContributions::with_room(folder.path(), 3, room);
            for contribution in &contributions {
                gathered.push(contribution).unwrap();
            }
            assert_eq!(gathered.file.is_some(), room < 9);
            assert!(gathered.memory.len() <= room);
            assert_eq!(gathered.slice(&(1..3)).unwrap(), contributions.map(|values| values[1..].to_vec()));
            for (place, contribution) in contributions.iter().enumerate() {
                assert_eq!(gathered.contribution(place).unwrap(), contribution);
            }
            assert!(gathered.push(&[1.0]).is_err());
        }
        assert!(std::fs::read_dir(folder.path()).unwrap().next().is_none());
    }
}
