//! Made-up results for tests.

use dipaco_experiment::{CellResult, Results};

/// The results of an experiment "n" with these cells.
pub(super) fn results(baseline: &str, cells: Vec<CellResult>) -> Results {
    Results {
        name: "n".into(),
        title: String::new(),
        notes: String::new(),
        baseline: baseline.into(),
        program: String::new(),
        command: String::new(),
        missing: Vec::new(),
        sweeps: Vec::new(),
        cells,
    }
}
