//! Objects whose content comes piece by piece, in any order.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use object_store::PutPayload;
use thiserror::Error;

use crate::store::object_path;
use crate::transfer::PART;
use crate::{ObjectRef, RunStore, StoreError};

/// An object that is not published yet. Its content lies in a file, and comes in any order.
///
/// In a directory the file becomes the object, so the content is written once. Until then it lies beside the object's place:
/// it goes with this value, and [`RunStore::sweep`] removes it if the process is killed. For another store the file has no
/// name, and is sent to the store at the end.
#[derive(Debug)]
pub struct UnfinishedObject {
    store: RunStore,
    reference: ObjectRef,
    /// The lock belongs to the place at which is read or written.
    file: Mutex<File>,
    /// The file, or the folder on whose disk it lies without a name.
    place: PathBuf,
}

/// A file on a disk can't be used.
#[derive(Debug, Error)]
#[error("can't {action} a file on the disk of {}: {source}", place.display())]
pub struct DiskError {
    /// The attempted action.
    action: &'static str,
    /// The file, or a folder on the disk.
    place: PathBuf,
    /// The reason.
    source: io::Error,
}

impl DiskError {
    fn new(action: &'static str, place: &Path) -> impl Fn(io::Error) -> Self {
        move |source| Self { action, place: place.to_owned(), source }
    }
}

impl From<DiskError> for io::Error {
    fn from(error: DiskError) -> Self {
        Self::new(error.source.kind(), error)
    }
}

impl RunStore {
    /// Begins an object with this reference, and blocks meanwhile. If the store is no directory, its content lies on the disk of
    /// the folder `scratch` until it is published.
    ///
    /// # Errors
    /// When the disk fails, or the reference has no valid name.
    pub fn begin(&self, reference: ObjectRef, scratch: &Path) -> Result<UnfinishedObject, DiskError> {
        let (file, place) = match self.folder() {
            Some(folder) => {
                let failed = DiskError::new("create", &folder.path);
                let path = object_path(&reference.name).map_err(|error| failed(io::Error::other(error)))?;
                folder.create(&folder.place(&path)).map_err(failed)?
            }
            None => {
                let file = tempfile::tempfile_in(scratch).map_err(DiskError::new("create", scratch))?;
                (file, scratch.to_owned())
            }
        };
        Ok(UnfinishedObject { store: self.clone(), reference, file: Mutex::new(file), place })
    }
}

impl UnfinishedObject {
    /// Length of the whole content in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.reference.bytes
    }

    fn file(&self) -> MutexGuard<'_, File> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes a piece of the content from the byte `offset` on, and blocks meanwhile.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn write(&self, offset: u64, piece: &[u8]) -> Result<(), DiskError> {
        let mut file = self.file();
        let written = file.seek(SeekFrom::Start(offset)).and_then(|_| file.write_all(piece));
        written.map_err(DiskError::new("write", &self.place))?;
        if let Some(folder) = self.store.folder() {
            folder.begin_sync(&file, offset, piece.len());
        }
        Ok(())
    }

    /// Reads a part of the content, which has been written, and blocks meanwhile.
    ///
    /// # Errors
    /// When the disk fails, or the part has not been written.
    pub fn read(&self, range: Range<u64>) -> Result<Bytes, DiskError> {
        let failed = DiskError::new("read", &self.place);
        let length = range.end.min(self.reference.bytes).saturating_sub(range.start);
        let length = usize::try_from(length).map_err(io::Error::other).map_err(&failed)?;
        let mut content = Vec::new();
        content.try_reserve_exact(length).map_err(io::Error::other).map_err(&failed)?;
        let mut file = self.file();
        file.seek(SeekFrom::Start(range.start)).map_err(&failed)?;
        Read::take(&mut *file, length as u64).read_to_end(&mut content).map_err(&failed)?;
        if content.len() < length {
            return Err(failed(io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(content.into())
    }

    /// Publishes the whole content, as [`RunStore::put_referenced`] does. The caller is responsible for the hash in the reference.
    /// When the disk fails, the content must come again, into a new object: what a disk has not taken may be gone.
    ///
    /// # Errors
    /// As [`RunStore::put_referenced`]. Within them that of the disk.
    pub async fn publish(self: &Arc<Self>) -> Result<Result<(), DiskError>, StoreError> {
        let (store, reference) = (&self.store, &self.reference);
        if store.folder().is_some() {
            return match self.on_blocking_thread(Self::link).await {
                Ok(true) => Ok(Ok(())),
                Ok(false) if store.has(reference).await? => Ok(Ok(())),
                Ok(false) => {
                    Ok(Err(DiskError::new("publish", &self.place)(io::ErrorKind::AlreadyExists.into())))
                }
                Err(error) => Ok(Err(error)),
            };
        }
        if store.is_remote() && reference.bytes > PART as u64 {
            if !store.has(reference).await? {
                store.overwrite_from(&object_path(&reference.name)?, self).await?;
            }
            return Ok(Ok(()));
        }
        match self.on_blocking_thread(|object| object.read(0..object.bytes())).await {
            Ok(content) => Ok(Ok(store.put_referenced(reference, [content]).await?)),
            Err(error) => Ok(Err(error)),
        }
    }

    /// Links the file to the place of the object. Returns false if there is an object already.
    fn link(&self) -> Result<bool, DiskError> {
        let failed = DiskError::new("publish", &self.place);
        let Some(folder) = self.store.folder() else { return Err(failed(io::ErrorKind::Unsupported.into())) };
        let path = object_path(&self.reference.name).map_err(|error| failed(io::Error::other(error)))?;
        folder.publish(&self.file(), &self.place, &folder.place(&path)).map_err(failed)
    }

    /// The content in parts of [`PART`] bytes and a rest. Each is read when it is waited for.
    pub(crate) fn parts(
        self: &Arc<Self>,
    ) -> impl Iterator<Item = impl Future<Output = object_store::Result<PutPayload>> + Send> + Send {
        let (object, bytes) = (self.clone(), self.bytes());
        (0..bytes).step_by(PART).map(move |begin| {
            let object = object.clone();
            async move {
                let read = object
                    .on_blocking_thread(move |object| object.read(begin..begin.saturating_add(PART as u64)));
                let failed = |error| object_store::Error::Generic {
                    store: "UnfinishedObject",
                    source: Box::new(error),
                };
                read.await.map(PutPayload::from).map_err(failed)
            }
        })
    }

    async fn on_blocking_thread<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, DiskError> + Send + 'static,
    ) -> Result<T, DiskError> {
        let object = self.clone();
        let done = tokio::task::spawn_blocking(move || work(&object)).await;
        done.map_err(io::Error::other).map_err(DiskError::new("use", &self.place)).flatten()
    }
}

impl Drop for UnfinishedObject {
    fn drop(&mut self) {
        if let Some(folder) = self.store.folder() {
            folder.remove(&self.place);
        }
    }
}

#[cfg(test)]
mod tests;
