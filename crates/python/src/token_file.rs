//! A token file as arrays of NumPy, without copying.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use dipaco_shards::TokenFile;
use pyo3::exceptions::{PyImportError, PyIndexError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PySlice, PyType};

use crate::failure::Failure;
use crate::unlocked::unlocked;

/// Documents as token ids.
#[pyclass(frozen, name = "TokenFile", module = "dipaco")]
pub(crate) struct PyTokenFile {
    file: Arc<TokenFile>,
    tokens: PyOnceLock<Py<PyAny>>,
    offsets: PyOnceLock<Py<PyAny>>,
}

impl From<Arc<TokenFile>> for PyTokenFile {
    fn from(file: Arc<TokenFile>) -> Self {
        Self { file, tokens: PyOnceLock::new(), offsets: PyOnceLock::new() }
    }
}

#[pymethods]
impl PyTokenFile {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        unlocked(py, |_| Ok(Self::from(Arc::new(TokenFile::open(path)?))))
    }

    #[getter]
    fn path(&self) -> &Path {
        self.file.path()
    }

    #[getter]
    fn vocab_size(&self) -> u32 {
        self.file.vocab_size()
    }

    #[getter]
    fn end_of_text(&self) -> u32 {
        self.file.end_of_text()
    }

    #[getter]
    fn content_hash(&self) -> &str {
        self.file.content_hash()
    }

    #[getter]
    fn tokens(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let places = self.file.data_sets();
        let kind = if places.token_bytes == 2 { "<u2" } else { "<u4" };
        let map = || mapped(py, self.file.path(), kind, places.tokens_offset, places.tokens);
        Ok(self.tokens.get_or_try_init(py, map)?.clone_ref(py))
    }

    #[getter]
    fn offsets(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let places = self.file.data_sets();
        let map = || {
            let count = places.documents.saturating_add(1);
            mapped(py, self.file.path(), "<u8", places.documents_offset, count)
        };
        Ok(self.offsets.get_or_try_init(py, map)?.clone_ref(py))
    }

    fn verify(&self, py: Python<'_>) -> PyResult<()> {
        unlocked(py, |_| Ok(self.file.verify()?))
    }

    fn __len__(&self) -> usize {
        usize::try_from(self.file.documents()).unwrap_or(usize::MAX)
    }

    fn __getitem__<'py>(&self, py: Python<'py>, document: isize) -> PyResult<Bound<'py, PyAny>> {
        let documents = self.file.documents();
        let behind = documents.saturating_sub(document.unsigned_abs() as u64);
        let place = if document < 0 { behind } else { document as u64 };
        if place >= documents || document.unsigned_abs() as u64 > documents {
            let shown = self.file.path().display();
            return Err(PyIndexError::new_err(format!(
                "{shown} has {documents} documents, no number {document}"
            )));
        }
        let range = self.file.document_range(place);
        let slice = PySlice::new(py, range.start as isize, range.end as isize, 1);
        self.tokens(py)?.bind(py).get_item(slice)
    }

    /// Another process opens the file again.
    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyType>, (PathBuf,)) {
        (py.get_type::<Self>(), (self.file.path().to_owned(),))
    }

    fn __repr__(&self) -> String {
        let (documents, tokens) = (self.file.documents(), self.file.tokens());
        format!("TokenFile('{}', documents={documents}, tokens={tokens})", self.file.path().display())
    }
}

/// A part of a file that is never written again, as an array that can't be written.
fn mapped(py: Python<'_>, file: &Path, kind: &str, offset: u64, count: u64) -> PyResult<Py<PyAny>> {
    let missing = |error| {
        let missing = PyImportError::new_err("tokens are arrays of NumPy: pip install numpy");
        missing.set_cause(py, Some(error));
        missing
    };
    let numpy = py.import("numpy").map_err(missing)?;
    if count == 0 {
        // The system maps no empty part.
        return Ok(numpy.call_method1("empty", (0, kind))?.unbind());
    }
    let options = PyDict::new(py);
    options.set_item("dtype", kind)?;
    options.set_item("mode", "r")?;
    options.set_item("offset", offset)?;
    options.set_item("shape", (count,))?;
    let map = numpy.call_method("memmap", (file,), Some(&options))?;
    Ok(numpy.call_method1("asarray", (map,))?.unbind())
}

/// Opens a token file of a run without the interpreter's lock.
pub(crate) fn opened(
    py: Python<'_>,
    open: impl FnOnce() -> Result<Arc<TokenFile>, Failure> + Send,
) -> PyResult<PyTokenFile> {
    unlocked(py, |_| Ok(open()?.into()))
}
