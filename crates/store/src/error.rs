//! What can go wrong with a run store.

use std::error::Error;
use std::io;

/// A failure of the run store; the message names the object, the store and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The address is no directory and no URL that can be read.
    #[error(
        "`{address}` is no address of a run store: {reason}; give a directory, file:///path, s3://, gs:// or az://"
    )]
    Address {
        /// The address as it was given.
        address: String,
        /// Why it can't be used.
        reason: String,
    },
    /// The address needs a scheme that was not built in.
    #[error(
        "this build can't use `{address}`: rebuild with `--features cloud` for {scheme}:// addresses, or use a directory"
    )]
    SchemeNotBuilt {
        /// The address as it was given.
        address: String,
        /// The scheme of the address.
        scheme: String,
    },
    /// There is no directory at the address.
    #[error("there is no run store at `{address}`: check the path, or create the run first")]
    NoStore {
        /// The directory that was looked for.
        address: String,
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
    /// An object's name can't be used.
    #[error("`{name}` is no object name: {reason}")]
    Name {
        /// The name as it was given.
        name: String,
        /// Why it can't be used.
        reason: String,
    },
    /// An object that something refers to is not there.
    #[error(
        "object `{object}` is missing in {store}: restore it from a copy of the store, or go back to an earlier round with `dipaco train --resume`"
    )]
    Missing {
        /// The object's name.
        object: String,
        /// The store's address.
        store: String,
    },
    /// An object is shorter than its reference says.
    #[error(
        "object `{object}` in {store} is cut: {found} of {expected} bytes; restore it from a copy, or go back to an earlier round with `dipaco train --resume`"
    )]
    Cut {
        /// The object's name.
        object: String,
        /// The store's address.
        store: String,
        /// Bytes that the reference promises.
        expected: u64,
        /// Bytes that are there.
        found: u64,
    },
    /// An object's content is not what its reference says.
    #[error(
        "object `{object}` in {store} is damaged: its {found_bytes} bytes have BLAKE3 {found}, expected {expected_bytes} bytes with {expected}; restore it from a copy, or go back to an earlier round with `dipaco train --resume`"
    )]
    Damaged {
        /// The object's name.
        object: String,
        /// The store's address.
        store: String,
        /// The hash that the reference promises.
        expected: String,
        /// The bytes that the reference promises.
        expected_bytes: u64,
        /// The hash of what is there, or `not read` when the length was already wrong.
        found: String,
        /// The bytes that are there.
        found_bytes: u64,
    },
    /// An object of this name exists with other content.
    #[error(
        "object `{object}` exists in {store} with other content, and objects are immutable: use another name, or replace it if nothing refers to it"
    )]
    Exists {
        /// The object's name.
        object: String,
        /// The store's address.
        store: String,
    },
    /// The disk or the quota is full. Nothing was published.
    #[error(
        "no space left in {store} while writing `{object}`: free some space and resume; nothing was lost"
    )]
    Full {
        /// The object's name.
        object: String,
        /// The store's address.
        store: String,
        /// What the store said.
        #[source]
        source: Box<object_store::Error>,
    },
    /// Another writer replaced the manifest first.
    #[error(
        "the manifest of {store} was replaced by another writer: expected {expected} to be current, but it is {current}; only one coordinator may own a run"
    )]
    Conflict {
        /// The store's address.
        store: String,
        /// The sequence number that the writer started from.
        expected: u64,
        /// The sequence number that is current now.
        current: u64,
    },
    /// No manifest that is kept can be read.
    #[error("every manifest of {store} is damaged ({reasons}): restore `manifest/` from a copy of the store")]
    ManifestDamaged {
        /// The store's address.
        store: String,
        /// What is wrong with each, the newest first.
        reasons: String,
    },
    /// The manifest was written in a format that this program does not know.
    #[error(
        "manifest `{object}` of {store} has format {found}, this program reads format {known}: use the program that wrote it"
    )]
    ManifestFormat {
        /// The manifest's name.
        object: String,
        /// The store's address.
        store: String,
        /// The format that was found.
        found: u32,
        /// The format that is known.
        known: u32,
    },
    /// The manifest is intact but of another schema or version.
    #[error(
        "manifest `{object}` of {store} is {found_schema} version {found_version}, this program reads {schema} version {version}: use the program that wrote it, or start a new run"
    )]
    ManifestSchema {
        /// The manifest's name.
        object: String,
        /// The store's address.
        store: String,
        /// The schema that was asked for.
        schema: &'static str,
        /// The version that was asked for.
        version: u32,
        /// The schema that was found.
        found_schema: String,
        /// The version that was found.
        found_version: u32,
    },
    /// The manifest's payload can't be turned into the type asked for, or the value can't be written as JSON.
    #[error("manifest `{object}` of {store} does not fit its schema {schema}")]
    ManifestPayload {
        /// The manifest's name.
        object: String,
        /// The store's address.
        store: String,
        /// The schema that was asked for.
        schema: &'static str,
        /// Which field, and why.
        #[source]
        source: serde_json::Error,
    },
    /// The underlying store failed in another way: permissions, network, a broken disk.
    #[error(
        "can't {what} `{object}` in {store}: check its permissions and the free disk space, then repeat the command"
    )]
    Io {
        /// What was being done.
        what: &'static str,
        /// The object's name.
        object: String,
        /// The store's address.
        store: String,
        /// What the store said.
        #[source]
        source: Box<object_store::Error>,
    },
}

impl StoreError {
    pub(crate) fn io(what: &'static str, object: &str, store: &str, source: object_store::Error) -> Self {
        let (object, store) = (object.to_owned(), store.to_owned());
        match source {
            object_store::Error::NotFound { .. } => Self::Missing { object, store },
            source if is_full(&source) => Self::Full { object, store, source: Box::new(source) },
            source => Self::Io { what, object, store, source: Box::new(source) },
        }
    }
}

/// Whether the disk or the quota is the cause: object_store wraps the operating system's error some levels deep.
fn is_full(error: &object_store::Error) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            return matches!(io.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("unable to copy data to file")]
    struct Wrapped(#[source] io::Error);

    fn from_os(code: i32) -> StoreError {
        let source = Box::new(Wrapped(io::Error::from_raw_os_error(code)));
        StoreError::io(
            "write",
            "modules/0/0/1",
            "/run",
            object_store::Error::Generic { store: "LocalFileSystem", source },
        )
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_full_disk_and_a_full_quota_are_told_as_such() {
        for code in [28, 122] {
            let error = from_os(code);
            assert!(matches!(error, StoreError::Full { .. }), "{error:?}");
            assert!(error.to_string().contains("no space left in /run while writing `modules/0/0/1`"));
        }
        assert!(matches!(from_os(5), StoreError::Io { .. }));
    }
}
