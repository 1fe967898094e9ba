//! A path state in a file of a worker.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path as FilePath;

use dipaco_files::FileError;
use dipaco_path::{MomentSpecs, PathState};

use super::WorkerError;

/// An encoded path state in an unnamed file. The file disappears with this or with the process.
#[derive(Debug)]
pub(super) struct StateFile {
    file: File,
    bytes: u64,
    hash: blake3::Hash,
}

impl StateFile {
    /// Writes a state to a new file on the disk of `folder`.
    ///
    /// # Errors
    /// When the state has other moments, or the disk fails or is full.
    pub(super) fn write(
        state: &PathState,
        moments: &MomentSpecs,
        folder: &FilePath,
    ) -> Result<Self, WorkerError> {
        let encoded = state.encode(moments)?;
        std::fs::create_dir_all(folder).map_err(FileError::new("create the folder", folder))?;
        let mut file =
            tempfile::tempfile_in(folder).map_err(FileError::new("create a temporary file in", folder))?;
        file.write_all(&encoded).map_err(FileError::new("write a path's state to the disk of", folder))?;
        Ok(Self { file, bytes: encoded.len() as u64, hash: blake3::hash(&encoded) })
    }

    /// Reads the state.
    ///
    /// # Errors
    /// When the disk fails, or gives back other bytes.
    pub(super) fn read(mut self, moments: &MomentSpecs, folder: &FilePath) -> Result<PathState, WorkerError> {
        let failed = || FileError::new("read a path's state from the disk of", folder);
        let mut encoded = Vec::with_capacity(usize::try_from(self.bytes).unwrap_or_default());
        self.file.seek(SeekFrom::Start(0)).map_err(failed())?;
        self.file.read_to_end(&mut encoded).map_err(failed())?;
        if blake3::hash(&encoded) != self.hash {
            let other = std::io::Error::other("the disk gave back other bytes than were written");
            return Err(failed()(other).into());
        }
        Ok(PathState::decode(&encoded, moments)?)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use dipaco_model::ModelConfig;
    use dipaco_optim::Optimizer;

    use super::*;

    /// The moments of a path of a few hundred parameters.
    pub(in super::super) fn moments() -> MomentSpecs {
        let model = ModelConfig {
            hidden_size: 8,
            blocks: 1,
            heads: 1,
            head_dim: 8,
            ffn_size: 8,
            vocab_size: 16,
            ..ModelConfig::default()
        };
        MomentSpecs::whole(&model, Optimizer::AdamW)
    }

    #[test]
    fn a_state_comes_back_and_damage_is_seen() {
        let moments = moments();
        let mut state = PathState { step: 7, position: 9, ..PathState::start(&moments) };
        state.first[3] = 0.5;
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("cache");
        let write = || StateFile::write(&state, &moments, &cache).unwrap();
        assert_eq!(write().read(&moments, &cache).unwrap(), state);
        assert_eq!(std::fs::read_dir(&cache).unwrap().count(), 0, "the files have no names");
        let mut damaged = write();
        damaged.file.seek(SeekFrom::End(-1)).unwrap();
        damaged.file.write_all(&[1]).unwrap();
        let error = format!("{:?}", damaged.read(&moments, &cache).unwrap_err());
        assert!(error.contains("other bytes"), "{error}");
        let error = StateFile::write(&state, &moments, FilePath::new("/proc/nothing")).unwrap_err();
        assert!(error.to_string().contains("/proc/nothing"), "{error}");
    }
}
