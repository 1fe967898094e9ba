//! Path states in files of a worker.

use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use dipaco_path::{MomentSpecs, PathState, StateReader};

use super::WorkerError;
use crate::blocking::blocking;
use crate::client::{ContentFile, UploadContent};

/// The folder on whose disk a worker's states lie.
#[derive(Clone)]
pub(super) struct StateFolder {
    moments: Arc<MomentSpecs>,
    folder: PathBuf,
}

impl StateFolder {
    /// `folder` need not exist. The states have these moments.
    pub(super) fn new(folder: PathBuf, moments: MomentSpecs) -> Self {
        Self { moments: Arc::new(moments), folder }
    }

    /// Writes a state to a new file; `None` with a warning if the disk does not take it.
    pub(super) async fn write(&self, state: &Arc<PathState>) -> Option<StateFile> {
        let (state, StateFolder { moments, folder }) = (state.clone(), self.clone());
        let written = blocking(move || StateFile::write(&state, &moments, &folder)).await;
        let written = written.map_err(WorkerError::from).and_then(|written| written);
        written
            .inspect_err(|error| tracing::warn!(%error, "the states of this worker's paths stay in memory"))
            .ok()
    }

    /// Reads the state of a file.
    ///
    /// # Errors
    /// When the disk fails, or gives back other bytes.
    pub(super) async fn read(&self, file: StateFile) -> Result<PathState, WorkerError> {
        let moments = self.moments.clone();
        blocking(move || file.read(&moments)).await?
    }

    /// The bytes of a state's file.
    ///
    /// # Errors
    /// When the state has other moments.
    pub(super) async fn encode(&self, state: &Arc<PathState>) -> Result<Vec<u8>, WorkerError> {
        let (state, moments) = (state.clone(), self.moments.clone());
        Ok(blocking(move || state.encode(&moments)).await??)
    }
}

/// An encoded path state in an unnamed file. The file disappears with the last copy of this or with the process.
#[derive(Clone, Debug)]
pub(super) struct StateFile(Arc<ContentFile>);

impl StateFile {
    /// Writes a state to a new file on the disk of `folder`.
    ///
    /// # Errors
    /// When the state has other moments, or the disk fails or is full.
    fn write(state: &PathState, moments: &MomentSpecs, folder: &FilePath) -> Result<Self, WorkerError> {
        Ok(Self(Arc::new(ContentFile::write(folder, state.encoded_parts(moments)?)?)))
    }

    /// Reads the state.
    ///
    /// # Errors
    /// When the disk fails, or gives back other bytes.
    fn read(&self, moments: &MomentSpecs) -> Result<PathState, WorkerError> {
        let mut reader = StateReader::new(moments, self.0.length());
        self.0.read_pieces(|piece| Ok::<_, WorkerError>(reader.read(piece)?))?;
        Ok(reader.finish()?)
    }
}

impl From<StateFile> for UploadContent {
    fn from(state: StateFile) -> Self {
        Self::File(state.0)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use dipaco_model::{Dtype, ModelConfig};
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
    fn a_state_comes_back() {
        for dtype in [Dtype::F32, Dtype::Bf16] {
            comes_back(&moments().stored_as(dtype));
        }
    }

    fn comes_back(moments: &MomentSpecs) {
        let mut state = PathState { step: 7, position: 9, ..PathState::start(moments) };
        state.first[3] = 0.5;
        let folder = tempfile::tempdir().unwrap();
        let file = StateFile::write(&state, moments, folder.path()).unwrap();
        assert_eq!(file.read(moments).unwrap(), state);
        assert_eq!(file.0.length(), state.encode(moments).unwrap().len());
    }
}
