//! The index of weights in several files (`model.safetensors.index.json`).

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::ImportError;

/// The file of each tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorIndex {
    files: BTreeMap<String, String>,
}

impl TensorIndex {
    /// Reads the index; errors call it `file`.
    ///
    /// # Errors
    /// The bytes are no index, or a name of a file would leave the folder.
    pub fn parse(json: &[u8], file: &str) -> Result<Self, ImportError> {
        let failed = |source| ImportError::Json { file: file.to_owned(), source };
        let value: Value = serde_json::from_slice(json).map_err(|source| failed(Some(source)))?;
        let wrong = |key: &str, problem: &str| ImportError::Value {
            file: file.to_owned(),
            key: key.to_owned(),
            problem: problem.to_owned(),
        };
        let map = value.get("weight_map").and_then(Value::as_object);
        let map = map.filter(|map| !map.is_empty());
        let map = map.ok_or_else(|| wrong("weight_map", "is not a list of tensors with their files"))?;
        let mut files = BTreeMap::new();
        for (tensor, name) in map {
            let name = name.as_str().ok_or_else(|| wrong(tensor, "has no name of a file"))?;
            if name.is_empty() || name.starts_with('.') || name.contains(['/', '\\', ':', '\0']) {
                return Err(wrong(tensor, &format!("is in {name:?}, which is not a plain name of a file")));
            }
            files.insert(tensor.clone(), name.to_owned());
        }
        Ok(Self { files })
    }

    /// Returns the names of the files, each once, in their order.
    #[must_use]
    pub fn files(&self) -> BTreeSet<&str> {
        self.files.values().map(String::as_str).collect()
    }

    /// Returns the number of tensors.
    #[must_use]
    pub fn tensors(&self) -> usize {
        self.files.len()
    }

    /// Returns the file of a tensor.
    #[must_use]
    pub fn file_of(&self, tensor: &str) -> Option<&str> {
        self.files.get(tensor).map(String::as_str)
    }
}
