//! The memory that an import may take. Whoever wrote the files of a model chose their lengths, and a file of any length
//! takes no space on a disk if it is sparse.

use std::io::Read;
use std::path::Path;

use dipaco_files::open_regular;

use crate::error::PipelineError;
use crate::machine_memory::machine_memory;
use crate::pretrained_error::PretrainedError;

/// Memory that is assumed where the system does not tell.
const UNKNOWN: u64 = 1 << 40;

/// Bytes of memory that an import may take: at first all that programs can still allocate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ImportMemory {
    /// What was available at first.
    available: u64,
    /// What is left of it.
    left: u64,
}

impl ImportMemory {
    pub(crate) fn of_this_machine() -> Self {
        Self::new(machine_memory().map_or(UNKNOWN, |memory| memory.available))
    }

    pub(crate) fn new(available: u64) -> Self {
        Self { available, left: available }
    }

    /// The rest beside the weights of a model, which are up to `values` numbers of f32 at a time.
    pub(crate) fn beside(self, model: &Path, values: u64) -> Result<Self, PipelineError> {
        let weights = values.saturating_mul(size_of::<f32>() as u64);
        self.check(model, weights)?;
        Ok(Self { left: self.left - weights, ..self })
    }

    /// Refuses `bytes` more than are left.
    pub(crate) fn check(self, file: &Path, bytes: u64) -> Result<(), PipelineError> {
        if bytes <= self.left {
            return Ok(());
        }
        let needed = bytes.saturating_add(self.available - self.left);
        Err(PretrainedError::Memory { file: file.to_owned(), needed, available: self.available }.into())
    }

    /// Reads the first bytes of a file, at most `most`.
    pub(crate) fn read_first(path: &Path, most: u64) -> Result<Vec<u8>, PipelineError> {
        let failed = |source| PipelineError::Io { action: "read", path: path.to_owned(), source };
        let mut bytes = Vec::new();
        open_regular(path).map_err(failed)?.take(most).read_to_end(&mut bytes).map_err(failed)?;
        Ok(bytes)
    }

    /// Reads a file that fits into the memory.
    pub(crate) fn read(self, path: &Path) -> Result<Vec<u8>, PipelineError> {
        let failed = |source| PipelineError::Io { action: "read", path: path.to_owned(), source };
        let file = open_regular(path).map_err(failed)?;
        self.check(path, file.metadata().map_err(failed)?.len())?;
        let mut bytes = Vec::new();
        // The file may grow meanwhile.
        file.take(self.left.saturating_add(1)).read_to_end(&mut bytes).map_err(failed)?;
        self.check(path, bytes.len() as u64)?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_and_a_file_fit_into_the_memory_together() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.safetensors");
        std::fs::write(&file, [7; 100]).unwrap();
        let memory = ImportMemory::new(180);
        let beside = memory.beside(folder.path(), 20).unwrap();
        assert_eq!(beside.read(&file).unwrap(), [7; 100]);
        let refused = memory.beside(folder.path(), 21).unwrap().read(&file).unwrap_err();
        let PipelineError::Pretrained(PretrainedError::Memory { needed: 184, available: 180, .. }) = refused
        else {
            panic!("{refused}");
        };
        let text = refused.to_string();
        assert!(
            text.contains("model.safetensors needs 184 bytes of memory, and 180 are available here"),
            "{text}"
        );
        let many = memory.beside(folder.path(), u64::MAX).unwrap_err();
        assert!(many.to_string().contains(&format!("needs {} bytes", u64::MAX)), "{many}");
    }
}
