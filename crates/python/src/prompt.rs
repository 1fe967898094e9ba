//! Texts and token ids as arguments.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyMemoryView, PyString};

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
        // Each of their bytes would be an id.
        if given.is_instance_of::<PyBytes>()
            || given.is_instance_of::<PyByteArray>()
            || is_view_of_bytes(&given)?
        {
            return Err(PyTypeError::new_err("bytes are neither a text nor token ids: decode them to a str"));
        }
        // Lists, and arrays of any type of integers.
        let ids = given.try_iter()?.map(|id| id?.extract::<u32>());
        Ok(Self::Tokens(ids.collect::<PyResult<_>>()?))
    }
}

/// True for a `memoryview` of unsigned bytes. One of larger integers may hold token ids.
fn is_view_of_bytes(given: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(given.is_instance_of::<PyMemoryView>() && given.getattr("format")?.extract::<String>()? == "B")
}
