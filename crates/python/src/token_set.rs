//! A token set as arrays of NumPy, without copying.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use dipaco_shards::{DataSets, TokenSet};
use pyo3::exceptions::{PyImportError, PyIndexError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PySlice, PyType};

use crate::failure::Failure;
use crate::unlocked::unlocked;

/// Documents as token ids, in one token file or in several.
#[pyclass(frozen, name = "TokenSet", module = "dipaco")]
pub(crate) struct PyTokenSet {
    set: Arc<TokenSet>,
    files: Vec<MappedFile>,
}

/// A file of a set, mapped when somebody asks for it.
struct MappedFile {
    path: PathBuf,
    places: DataSets,
    /// The file's first token among all tokens.
    first: u64,
    tokens: PyOnceLock<Py<PyAny>>,
    offsets: PyOnceLock<Py<PyAny>>,
}

impl MappedFile {
    fn tokens(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let places = self.places;
        let kind = if places.token_bytes == 2 { "<u2" } else { "<u4" };
        let map = || mapped(py, &self.path, kind, places.tokens_offset, places.tokens);
        Ok(self.tokens.get_or_try_init(py, map)?.clone_ref(py))
    }
}

impl From<Arc<TokenSet>> for PyTokenSet {
    fn from(set: Arc<TokenSet>) -> Self {
        let mut first = 0u64;
        let files = set.files().map(|(path, places)| {
            let file = MappedFile {
                path: path.to_owned(),
                places,
                first,
                tokens: PyOnceLock::new(),
                offsets: PyOnceLock::new(),
            };
            first = first.saturating_add(places.tokens);
            file
        });
        let files = files.collect();
        Self { set, files }
    }
}

impl PyTokenSet {
    /// The only file.
    fn single(&self) -> PyResult<&MappedFile> {
        match &self.files[..] {
            [file] => Ok(file),
            files => {
                let (shown, count) = (self.set.path().display(), files.len());
                let text = format!("{shown} lists {count} token files: take the arrays of each of `files`");
                Err(PyValueError::new_err(text))
            }
        }
    }
}

#[pymethods]
impl PyTokenSet {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<Self> {
        unlocked(py, |_| Ok(Self::from(Arc::new(TokenSet::open(path)?))))
    }

    #[getter]
    fn path(&self) -> &Path {
        self.set.path()
    }

    #[getter]
    fn vocab_size(&self) -> u32 {
        self.set.vocab_size()
    }

    #[getter]
    fn end_of_text(&self) -> u32 {
        self.set.end_of_text()
    }

    #[getter]
    fn content_hash(&self) -> &str {
        self.set.content_hash()
    }

    #[getter]
    fn files(&self, py: Python<'_>) -> PyResult<Vec<Self>> {
        self.files.iter().map(|file| Self::new(py, file.path.clone())).collect()
    }

    #[getter]
    fn tokens(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        self.single()?.tokens(py)
    }

    #[getter]
    fn offsets(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let file = self.single()?;
        let map = || {
            let count = file.places.documents.saturating_add(1);
            mapped(py, &file.path, "<u8", file.places.documents_offset, count)
        };
        Ok(file.offsets.get_or_try_init(py, map)?.clone_ref(py))
    }

    fn verify(&self, py: Python<'_>) -> PyResult<()> {
        unlocked(py, |_| Ok(self.set.verify()?))
    }

    fn __len__(&self) -> usize {
        usize::try_from(self.set.documents()).unwrap_or(usize::MAX)
    }

    fn __getitem__<'py>(&self, py: Python<'py>, document: isize) -> PyResult<Bound<'py, PyAny>> {
        let documents = self.set.documents();
        let missing = || {
            let shown = self.set.path().display();
            PyIndexError::new_err(format!("{shown} has {documents} documents, no number {document}"))
        };
        let behind = documents.saturating_sub(document.unsigned_abs() as u64);
        let place = if document < 0 { behind } else { document as u64 };
        if place >= documents || document.unsigned_abs() as u64 > documents {
            return Err(missing());
        }
        let range = self.set.document_range(place);
        let at = self.files.partition_point(|file| file.first + file.places.tokens <= range.start);
        let file = self.files.get(at).ok_or_else(missing)?;
        let slice =
            PySlice::new(py, (range.start - file.first) as isize, (range.end - file.first) as isize, 1);
        file.tokens(py)?.bind(py).get_item(slice)
    }

    /// Another process opens the files again.
    fn __reduce__<'py>(&self, py: Python<'py>) -> (Bound<'py, PyType>, (PathBuf,)) {
        (py.get_type::<Self>(), (self.set.path().to_owned(),))
    }

    fn __repr__(&self) -> String {
        let (documents, tokens) = (self.set.documents(), self.set.tokens());
        format!("TokenSet('{}', documents={documents}, tokens={tokens})", self.set.path().display())
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

/// Opens a token set of a run without the interpreter's lock.
pub(crate) fn opened(
    py: Python<'_>,
    open: impl FnOnce() -> Result<Arc<TokenSet>, Failure> + Send,
) -> PyResult<PyTokenSet> {
    unlocked(py, |_| Ok(open()?.into()))
}
