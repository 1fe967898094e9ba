//! Errors of the run store.

use std::error::Error;
use std::io;

/// An error of the run store. The message names the object, the store and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The address is neither a directory nor a valid URL.
    #[error("`{address}` is not a valid address of a run store: {reason}; give a directory or file:///path")]
    Address {
        /// The address given by the caller.
        address: String,
        /// Reason why it is unusable.
        reason: String,
    },
    /// The address needs the feature `cloud`, and this build lacks it.
    #[error(
        "this program is built without support for {scheme}:// addresses and can't open `{address}`: use a directory \
         (a program of your own can enable the feature `cloud` of the package dipaco-store)"
    )]
    SchemeNotBuilt {
        /// The address given by the caller.
        address: String,
        /// The scheme of the address.
        scheme: String,
    },
    /// The address has no directory.
    #[error("there is no run store at `{address}`: check the path, or create the run first")]
    NoStore {
        /// Address of the absent directory.
        address: String,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The name of an object is invalid.
    #[error("`{name}` is not a valid object name: {reason}")]
    Name {
        /// The name given by the caller.
        name: String,
        /// Reason why it is unusable.
        reason: String,
    },
    /// A referenced object is absent.
    #[error(
        "object `{object}` is missing in {store}: restore it from a copy of the store, or go back to an earlier round with `dipaco train --resume`"
    )]
    Missing {
        /// Name of the object.
        object: String,
        /// The store's address.
        store: String,
    },
    /// An object is shorter than its reference.
    #[error(
        "object `{object}` in {store} is truncated: it has {found} of {expected} bytes; restore it from a copy, or go back to an earlier round with `dipaco train --resume`"
    )]
    Cut {
        /// Name of the object.
        object: String,
        /// The store's address.
        store: String,
        /// Length in the reference, in bytes.
        expected: u64,
        /// Length of the object, in bytes.
        found: u64,
    },
    /// The content of an object does not match its reference.
    #[error(
        "object `{object}` in {store} is damaged: it has {found_bytes} bytes with BLAKE3 hash {found}, its reference {expected_bytes} bytes with {expected}; restore it from a copy, or go back to an earlier round with `dipaco train --resume`"
    )]
    Damaged {
        /// Name of the object.
        object: String,
        /// The store's address.
        store: String,
        /// Hash in the reference.
        expected: String,
        /// Length in the reference, in bytes.
        expected_bytes: u64,
        /// Hash of the content, or `not read` if the length was already wrong.
        found: String,
        /// Length of the object, in bytes.
        found_bytes: u64,
    },
    /// An object of this name exists with different content.
    #[error(
        "object `{object}` exists in {store} with different content, and objects are immutable: use another name"
    )]
    Exists {
        /// Name of the object.
        object: String,
        /// The store's address.
        store: String,
    },
    /// The disk or the quota is full. Nothing was published.
    #[error("no space left in {store} while writing `{object}`: free some space and resume; no data is lost")]
    Full {
        /// Name of the object.
        object: String,
        /// The store's address.
        store: String,
        /// Error of the underlying store.
        #[source]
        source: Box<object_store::Error>,
    },
    /// Another writer replaced the manifest first.
    #[error(
        "the manifest of {store} was replaced by another writer: this writer started from sequence {expected}, the current sequence is {current}; stop all coordinators of the run but one"
    )]
    Conflict {
        /// The store's address.
        store: String,
        /// Sequence number from which the writer started.
        expected: u64,
        /// Current sequence number.
        current: u64,
    },
    /// All kept manifests are damaged.
    #[error("every manifest of {store} is damaged ({reasons}): restore `manifest/` from a copy of the store")]
    ManifestDamaged {
        /// The store's address.
        store: String,
        /// The damage of each manifest, the newest first.
        reasons: String,
    },
    /// The manifest has a format that this program does not know.
    #[error(
        "manifest `{object}` of {store} has format {found}, this program reads format {known}: use the program that wrote it"
    )]
    ManifestFormat {
        /// The manifest's name.
        object: String,
        /// The store's address.
        store: String,
        /// Format of the file.
        found: u32,
        /// Format that this program reads.
        known: u32,
    },
    /// The manifest is intact, but has another schema or version.
    #[error(
        "manifest `{object}` of {store} is {found_schema} version {found_version}, this program reads {schema} version {version}: use the program that wrote it, or start a new run"
    )]
    ManifestSchema {
        /// The manifest's name.
        object: String,
        /// The store's address.
        store: String,
        /// Schema requested by the caller.
        schema: &'static str,
        /// Version requested by the caller.
        version: u32,
        /// Schema of the file.
        found_schema: String,
        /// Version of the file.
        found_version: u32,
    },
    /// The payload of the manifest does not fit the requested type, or the value has no JSON form.
    #[error("manifest `{object}` of {store} does not fit its schema {schema}")]
    ManifestPayload {
        /// The manifest's name.
        object: String,
        /// The store's address.
        store: String,
        /// Schema requested by the caller.
        schema: &'static str,
        /// The field and the reason.
        #[source]
        source: serde_json::Error,
    },
    /// Another error of the underlying store: permissions, network, a broken disk.
    #[error(
        "can't {what} `{object}` in {store}: check the permissions and the free disk space, then repeat the command"
    )]
    Io {
        /// The failed operation.
        what: &'static str,
        /// Name of the object.
        object: String,
        /// The store's address.
        store: String,
        /// Error of the underlying store.
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

/// True if the cause is a full disk or quota. object_store wraps the operating system's error several levels deep.
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
