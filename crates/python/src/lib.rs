//! The Python module `dipaco._dipaco`, which the package `dipaco` shows: reads a run.
//!
//! Every method calls the functions that the program's commands call, without the interpreter's lock. `python/dipaco` has the
//! package's files, with the types and the documentation for people.

#![forbid(unsafe_code)]

mod answers;
mod failure;
mod prompt;
mod run;
mod session;
mod token_set;
mod unlocked;

use pyo3::exceptions::PyImportError;
use pyo3::prelude::*;

/// Reads runs of dipaco.
#[pymodule]
fn _dipaco(module: &Bound<'_, PyModule>) -> PyResult<()> {
    dipaco_model::kernel_choice().map_err(|error| PyImportError::new_err(error.to_string()))?;
    module.add_class::<run::PyRun>()?;
    module.add_class::<token_set::PyTokenSet>()?;
    module.add_class::<answers::PyRoute>()?;
    module.add_class::<answers::Score>()?;
    module.add_class::<answers::PyGeneration>()?;
    module.add("RunError", module.py().get_type::<failure::RunError>())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
