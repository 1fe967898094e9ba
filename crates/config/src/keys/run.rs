//! Keys of `run`.

use super::{KeyDoc, free, key};

pub(super) const KEYS: &[KeyDoc] = &[
    free("run.name", "text", "Name of the run and of the served model: letters, digits, `-`, `_` and `.`."),
    key(
        "run.seed",
        "number",
        "Seed of every random choice, such as initial weights and the order of the text. The same seed and configuration \
         give the same bits.",
    ),
    free("run.directory", "path", "Directory of the run. When it is not set, `runs/` and the run's name."),
    free(
        "run.data",
        "path",
        "Folder of the prepared text. When it is not set, `data` in the run's directory. Runs that are to be compared share \
         one folder.",
    ),
];
