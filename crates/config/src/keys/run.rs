//! Keys of `run`.

use super::{KeyDoc, free, key};

pub(super) const KEYS: &[KeyDoc] = &[
    free(
        "run.name",
        "text",
        "Name of the run and of the served model: letters, digits, `-`, `_` and `.`. A run that begins with `--run` and \
         without this key has the name of its directory.",
    ),
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
         one folder. A relative path is relative to the folder in which the command runs. It is saved as an absolute one.",
    ),
    free(
        "run.store",
        "address",
        "Where the run keeps weights and manifests: a folder, or `s3://BUCKET/PATH`, `az://CONTAINER/PATH` or \
         `gs://BUCKET/PATH`. When it is not set, `store` in the run's directory. Each run needs an address of its own. A \
         relative path of a folder is saved as an absolute one. Credentials come from the environment and never stand in the \
         address. The cells of an experiment keep their own folders.",
    ),
    free(
        "run.links",
        "true or false",
        "Workers read weights and states straight from an object store, through addresses that end after 15 minutes, and ask \
         the coordinator and its synchronizers only where they can't. A store in a folder has no such addresses. False keeps \
         the store's name and the id of its credentials from the workers.",
    ),
];
