//! Errors of the run store.

use std::error::Error;
use std::io;

use object_store::client::{HttpError, HttpErrorKind};

/// Errors of the operating system that deny an operation.
const DENIED: [io::ErrorKind; 2] = [io::ErrorKind::PermissionDenied, io::ErrorKind::ReadOnlyFilesystem];

/// An error of the run store. The message names the object, the store and the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The address is neither a directory nor a valid URL.
    #[error(
        "`{address}` is not a valid address of a run store: {reason}; give a directory, file:///path, s3://BUCKET/PATH, az://CONTAINER/PATH or gs://BUCKET/PATH"
    )]
    Address {
        /// The address given by the caller.
        address: String,
        /// Reason why it is unusable.
        reason: String,
    },
    /// The address has room for a secret. The message does not repeat it.
    #[error(
        "the store's address has a password, a query or a fragment: leave it out, and give credentials in the environment (AWS_*, AZURE_*, GOOGLE_*), because the address is saved with the run"
    )]
    SecretInAddress,
    /// The store replaces objects although it was asked to create them.
    #[error(
        "{store} ignores conditional writes (`If-None-Match: *`): it replaced an object that it should have refused to create, so two coordinators could destroy each other's work; use a store that supports them"
    )]
    Unconditional {
        /// The store's address.
        store: String,
    },
    /// A request to a remote store failed.
    #[error("can't {what} `{object}` in {store}: {cause}")]
    Remote {
        /// The failed operation.
        what: &'static str,
        /// Name of the object.
        object: String,
        /// The store's address.
        store: String,
        /// The cause, with the remedy.
        cause: RemoteCause,
        /// Error of the underlying store.
        #[source]
        source: Box<object_store::Error>,
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
    /// The operating system refuses the directory of a local store.
    #[error("the run store in `{address}` can't be used: check the directory and its permissions")]
    Directory {
        /// The directory.
        address: String,
        /// Error of the operating system.
        #[source]
        source: io::Error,
    },
    /// What other processes left in the directory of a local store can't be removed. It takes space and does no other harm.
    #[error(
        "leftovers of earlier processes can't be removed from the run store in `{store}`: {cause}; check the permissions of its files"
    )]
    Leftovers {
        /// The directory.
        store: String,
        /// Error of the operating system.
        cause: io::Error,
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
        "object `{object}` is missing in {store}: restore it from a copy of the store, or, unless the training is complete, go back to an earlier round with `dipaco train --resume`"
    )]
    Missing {
        /// Name of the object.
        object: String,
        /// The store's address.
        store: String,
    },
    /// An object is shorter than its reference.
    #[error(
        "object `{object}` in {store} is truncated: it has {found} of {expected} bytes; restore it from a copy, or, unless the training is complete, go back to an earlier round with `dipaco train --resume`"
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
        "object `{object}` in {store} is damaged: it has {found_bytes} bytes with BLAKE3 hash {found}, its reference {expected_bytes} bytes with {expected}; restore it from a copy, or, unless the training is complete, go back to an earlier round with `dipaco train --resume`"
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
    /// A manifest was written, and the store failed before it told whether another writer was first.
    #[error(
        "manifest `{object}` was written to {store}, but the store then failed, so it is not known whether it counts: see `dipaco status` before you repeat the command"
    )]
    UnknownOutcome {
        /// The manifest's name.
        object: String,
        /// The store's address.
        store: String,
        /// The failure.
        #[source]
        source: Box<StoreError>,
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
    /// True if the same operation may succeed later: the disk, the network or the remote store failed. Damage, absence and
    /// another writer's content stay.
    #[must_use]
    pub fn may_pass(&self) -> bool {
        match self {
            Self::Remote { .. } | Self::Full { .. } => true,
            // A limit of this process, or of the names of a folder's files.
            Self::Io { source, .. } => {
                !is_of(source, &[io::ErrorKind::FileTooLarge, io::ErrorKind::InvalidFilename])
            }
            _ => false,
        }
    }

    /// True if the store does not let this process do this: the rights are missing, or the file system is read-only. Another
    /// attempt has the same result.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        match self {
            Self::Remote { cause, .. } => *cause == RemoteCause::Credentials,
            Self::Io { source, .. } => is_of(source, &DENIED),
            Self::Directory { source, .. } | Self::Leftovers { cause: source, .. } => {
                DENIED.contains(&source.kind())
            }
            Self::UnknownOutcome { source, .. } => source.is_denied(),
            _ => false,
        }
    }

    /// The error of a request to a remote store. An object that can't be read because it is absent is missing; nothing
    /// else of a store can be absent but its bucket.
    pub(crate) fn remote(what: &'static str, object: &str, store: &str, source: object_store::Error) -> Self {
        let (object, store) = (object.to_owned(), store.to_owned());
        match source {
            object_store::Error::NotFound { .. } if what == "read" => Self::Missing { object, store },
            source => {
                let cause = RemoteCause::of(&source);
                Self::Remote { what, object, store, cause, source: Box::new(source) }
            }
        }
    }

    pub(crate) fn io(what: &'static str, object: &str, store: &str, source: object_store::Error) -> Self {
        let (object, store) = (object.to_owned(), store.to_owned());
        match source {
            object_store::Error::NotFound { .. } => Self::Missing { object, store },
            source if is_of(&source, &[io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded]) => {
                Self::Full { object, store, source: Box::new(source) }
            }
            source => Self::Io { what, object, store, source: Box::new(source) },
        }
    }
}

/// Why a request to a remote store failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RemoteCause {
    /// The store refuses the credentials, or has none.
    #[error(
        "the store refuses the credentials of this process; set them in the environment (AWS_*, AZURE_*, GOOGLE_*), with the rights to read, write, list and delete below the address"
    )]
    Credentials,
    /// There is no such bucket or container.
    #[error("there is no such bucket or container; create it, or correct the address")]
    NoBucket,
    /// No connection to the store.
    #[error(
        "the store can't be reached; check the address, the network and a setting such as AWS_ENDPOINT_URL"
    )]
    Unreachable,
    /// A request took too long.
    #[error(
        "a request exceeded its time limit, although it moves at most 8 MiB; the line or the store is too slow (a setting such as AWS_TIMEOUT=300s raises the limit)"
    )]
    TimedOut,
    /// Another error of the store.
    #[error("the store answered with an error, also when asked again; `dipaco doctor --store` checks it")]
    Other,
}

impl RemoteCause {
    fn of(error: &object_store::Error) -> Self {
        match error {
            object_store::Error::Unauthenticated { .. } | object_store::Error::PermissionDenied { .. } => {
                return Self::Credentials;
            }
            object_store::Error::NotFound { .. } => return Self::NoBucket,
            _ => {}
        }
        let mut cause: Option<&(dyn Error + 'static)> = Some(error);
        while let Some(error) = cause {
            if let Some(http) = error.downcast_ref::<HttpError>() {
                return match http.kind() {
                    HttpErrorKind::Timeout => Self::TimedOut,
                    HttpErrorKind::Connect => Self::Unreachable,
                    _ => Self::Other,
                };
            }
            cause = error.source();
        }
        Self::Other
    }
}

/// True if the cause is an error of the operating system of one of these kinds. object_store wraps it several levels deep.
pub(crate) fn is_of(error: &object_store::Error, kinds: &[io::ErrorKind]) -> bool {
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<io::Error>() {
            return kinds.contains(&io.kind());
        }
        cause = error.source();
    }
    false
}

#[cfg(test)]
mod tests;
