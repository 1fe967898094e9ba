//! What the keys of `run` mean.

use super::{KeyDoc, free, key};

pub(super) const KEYS: &[KeyDoc] = &[
    free(
        "run.name",
        "text",
        "Name of the run and of the model that it serves: letters, digits, `-`, `_` and `.`.",
    ),
    key(
        "run.seed",
        "number",
        "Seed of every random choice. The same seed and configuration give the same bits.",
    ),
    free("run.directory", "path", "The run's directory. When it is not given: `runs/` and the run's name."),
    free(
        "run.data",
        "path",
        "The folder of the prepared text. When it is not given: `data` in the run's directory. Runs that are compared \
         share one.",
    ),
];
