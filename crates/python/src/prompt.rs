//! Texts and token ids as arguments.

use pyo3::prelude::*;
use pyo3::types::PyString;

/// A text, or the ids of its tokens.
pub(crate) enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

impl<'a, 'py> FromPyObject<'a, 'py> for Prompt {
    type Error = PyErr;

    fn extract(given: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        if given.is_instance_of::<PyString>() {
            return Ok(Self::Text(given.extract()?));
        }
        // Lists, and arrays of any type of integers.
        let ids = given.try_iter()?.map(|id| id?.extract::<u32>());
        Ok(Self::Tokens(ids.collect::<PyResult<_>>()?))
    }
}
