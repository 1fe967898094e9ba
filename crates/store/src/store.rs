//! The run store and its objects.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use futures::{StreamExt, TryStreamExt, stream};
use object_store::path::Path;
use object_store::signer::Signer;
use object_store::{Error, GetOptions, GetResult, ObjectStore, ObjectStoreExt, PutPayload};
use tokio::sync::Semaphore;

use crate::ObjectRef;
use crate::address::{self, Open, Resolved, StoreOptions};
use crate::folder::Folder;
use crate::hash::hash;
use crate::parts::ObjectParts;
use crate::patience::Patience;
use crate::transfer::{PART, SLOTS};
use crate::{StoreError, manifest, probe};

/// An object in the list of [`RunStore::list`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoredObject {
    /// Name of the object.
    pub name: String,
    /// Length in bytes.
    pub bytes: u64,
}

/// All durable data of a run, at one address. Cheap to clone; all clones share the connection.
#[derive(Clone)]
pub struct RunStore {
    pub(crate) objects: Arc<dyn ObjectStore>,
    address: Arc<str>,
    /// The directory of a local store.
    folder: Option<Arc<Folder>>,
    /// Makes links; only remote stores have it.
    pub(crate) signer: Option<Arc<dyn Signer>>,
    /// Bounds the parts on the line to a remote store; other stores need no bound.
    pub(crate) slots: Option<Arc<Semaphore>>,
    pub(crate) patience: Patience,
}

impl fmt::Debug for RunStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RunStore").field("address", &self.address).finish_non_exhaustive()
    }
}

impl RunStore {
    /// Opens the store at `address`: an existing directory, `file:///path`, `s3://`, `gs://` or `az://`. A cloud store is
    /// not contacted; [`Self::check_writable`] does that.
    ///
    /// # Errors
    /// [`StoreError::Address`], [`StoreError::Directory`], [`StoreError::SecretInAddress`] and [`StoreError::NoStore`].
    pub fn open(address: &str) -> Result<Self, StoreError> {
        Self::open_with(address, &StoreOptions::default())
    }

    /// [`RunStore::open`] with options.
    ///
    /// # Errors
    /// As [`RunStore::open`].
    pub fn open_with(address: &str, options: &StoreOptions) -> Result<Self, StoreError> {
        Self::resolve(address, options, Open::Existing)
    }

    /// Opens the store at `address`, and creates its directory if absent.
    ///
    /// # Errors
    /// [`StoreError::Address`], [`StoreError::Directory`] and [`StoreError::SecretInAddress`].
    pub fn create(address: &str) -> Result<Self, StoreError> {
        Self::create_with(address, &StoreOptions::default())
    }

    /// [`RunStore::create`] with options.
    ///
    /// # Errors
    /// As [`RunStore::create`].
    pub fn create_with(address: &str, options: &StoreOptions) -> Result<Self, StoreError> {
        Self::resolve(address, options, Open::Create)
    }

    /// A store in memory, for tests and simulations. It lives as long as its clones.
    #[must_use]
    pub fn in_memory() -> Self {
        Self {
            objects: Arc::new(object_store::memory::InMemory::new()),
            address: "memory".into(),
            folder: None,
            signer: None,
            slots: None,
            patience: Patience::default(),
        }
    }

    /// A store in memory that takes large objects in parts, as remote stores do.
    #[cfg(test)]
    pub(crate) fn in_parts_in_memory() -> Self {
        Self { slots: Some(Arc::new(Semaphore::new(SLOTS))), ..Self::in_memory() }
    }

    fn resolve(address: &str, options: &StoreOptions, open: Open) -> Result<Self, StoreError> {
        let Resolved { objects, signer, address, folder } = address::resolve(address, options, open)?;
        let slots = folder.is_none().then(|| Arc::new(Semaphore::new(SLOTS)));
        let (address, folder, patience) = (address.into(), folder.map(Arc::new), Patience::default());
        Ok(Self { objects, address, folder, signer, slots, patience })
    }

    /// True for a store behind a network, where the outcome of a request can be unknown.
    pub(crate) fn is_remote(&self) -> bool {
        self.slots.is_some()
    }

    pub(crate) fn folder(&self) -> Option<&Folder> {
        self.folder.as_deref()
    }

    /// Address of the store, for messages.
    #[must_use]
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Publishes `content` under `name` atomically: a reader sees all of it or nothing, also if the writer dies.
    ///
    /// Publishing the same content again is no error, so a process may repeat its work after a crash.
    ///
    /// In a remote store a large object travels in parts, and the last part can't be conditional. Between the look-up and
    /// the last part another writer may publish the name, and would be overwritten. So the name of a large object contains
    /// the hash of its content, as those of results do: then both write the same. Or it contains the number of its only
    /// writer, as those of new weights (a fence) and of checkpoints (an incarnation) do.
    ///
    /// # Errors
    /// [`StoreError::Exists`] if the name has different content, [`StoreError::Full`] if the disk is full, and
    /// [`StoreError::Name`] for an invalid name.
    pub async fn put(&self, name: &str, content: Bytes) -> Result<ObjectRef, StoreError> {
        let reference = reference(name, &content.clone().into()).await;
        self.put_referenced(&reference, [content]).await?;
        Ok(reference)
    }

    /// [`RunStore::put`] for content with a known reference. The content may lie in several parts of memory. The caller is
    /// responsible for the hash in the reference.
    ///
    /// # Errors
    /// As [`RunStore::put`].
    pub async fn put_referenced(
        &self,
        reference: &ObjectRef,
        content: impl IntoIterator<Item = Bytes>,
    ) -> Result<(), StoreError> {
        let name = reference.name.as_str();
        let path = object_path(name)?;
        let content: PutPayload = content.into_iter().collect();
        if self.is_remote() && content.content_length() > PART {
            return if self.has(reference).await? { Ok(()) } else { self.overwrite(&path, content).await };
        }
        // Only a conditional write is safe here: a look-up before the write would leave a gap in which another writer
        // publishes the name.
        if self.create_exclusive(&path, content).await? { Ok(()) } else { Err(self.exists(name)) }
    }

    /// Returns whether the store has this object.
    ///
    /// # Errors
    /// [`StoreError::Exists`] if the name has different content.
    pub(crate) async fn has(&self, reference: &ObjectRef) -> Result<bool, StoreError> {
        match self.verify(reference).await {
            Ok(()) => Ok(true),
            Err(StoreError::Missing { .. }) => Ok(false),
            Err(StoreError::Cut { .. } | StoreError::Damaged { .. }) => Err(self.exists(&reference.name)),
            Err(error) => Err(error),
        }
    }

    fn exists(&self, name: &str) -> StoreError {
        StoreError::Exists { object: name.to_owned(), store: self.address.to_string() }
    }

    /// Publishes `content`, which may lie in several parts of memory, under `name` atomically, in place of any old content.
    ///
    /// Use it only for names without references, such as leftovers of a dead writer: a reference to the old content
    /// becomes invalid.
    ///
    /// # Errors
    /// [`StoreError::Full`] if the disk is full, and [`StoreError::Name`] for an invalid name.
    pub async fn put_replacing(
        &self,
        name: &str,
        content: impl IntoIterator<Item = Bytes>,
    ) -> Result<ObjectRef, StoreError> {
        let path = object_path(name)?;
        let content: PutPayload = content.into_iter().collect();
        let reference = reference(name, &content).await;
        self.overwrite(&path, content).await?;
        Ok(reference)
    }

    /// Writes one content under several names as [`Self::put_replacing`] does, some at a time. Returns the references in the
    /// order of the names.
    ///
    /// # Errors
    /// As [`Self::put_replacing`], for the first name that fails.
    pub async fn put_replacing_each(
        &self,
        names: impl IntoIterator<Item = String>,
        content: &Bytes,
    ) -> Result<Vec<ObjectRef>, StoreError> {
        let put = |name: String| async move { self.put_replacing(&name, [content.clone()]).await };
        stream::iter(names).map(put).buffered(SLOTS).try_collect().await
    }

    /// Reads an object and verifies its length and hash.
    ///
    /// # Errors
    /// [`StoreError::Missing`], [`StoreError::Cut`] and [`StoreError::Damaged`].
    pub async fn get(&self, reference: &ObjectRef) -> Result<Bytes, StoreError> {
        let content = self.read_object(reference, 0..reference.bytes).await?;
        let hash = hash(&content.clone().into()).await;
        if hash != reference.hash || content.len() as u64 != reference.bytes {
            return Err(self.damaged(reference, hash, content.len() as u64));
        }
        Ok(content)
    }

    /// Reads an object and verifies its length and hash, without holding it in memory.
    ///
    /// # Errors
    /// As [`RunStore::get`].
    pub async fn verify(&self, reference: &ObjectRef) -> Result<(), StoreError> {
        let mut parts = self.parts(reference);
        while parts.next().await?.is_some() {}
        Ok(())
    }

    /// Reads an object part by part, and verifies its length and hash when the last part has come.
    #[must_use]
    pub fn parts<'a>(&'a self, reference: &'a ObjectRef) -> ObjectParts<'a> {
        ObjectParts::new(self, reference)
    }

    /// Reads a part of an object. Verifies only the object's length; the caller verifies the hash of the whole.
    ///
    /// # Errors
    /// [`StoreError::Missing`], [`StoreError::Cut`] and [`StoreError::Damaged`].
    pub async fn get_range(&self, reference: &ObjectRef, range: Range<u64>) -> Result<Bytes, StoreError> {
        let range = range.start..range.end.min(reference.bytes);
        let expected = range.end.saturating_sub(range.start);
        if expected == 0 {
            return Ok(Bytes::new());
        }
        let part = self.read_object(reference, range).await?;
        if part.len() as u64 != expected {
            return Err(self.damaged(reference, "not read".to_owned(), part.len() as u64));
        }
        Ok(part)
    }

    /// Opens the requested part of an object, if the object has the length in its reference.
    pub(crate) async fn open_object(
        &self,
        reference: &ObjectRef,
        options: GetOptions,
    ) -> Result<GetResult, StoreError> {
        let name = reference.name.as_str();
        let failed = |source| self.failed("read", name, source);
        let found = self.objects.get_opts(&object_path(name)?, options).await.map_err(failed)?;
        let (expected, size) = (reference.bytes, found.meta.size);
        // Check the length before the read, so a wrong length costs no memory.
        if size < expected {
            let (object, store) = (name.to_owned(), self.address.to_string());
            return Err(StoreError::Cut { object, store, expected, found: size });
        }
        if size > expected {
            return Err(self.damaged(reference, "not read".to_owned(), size));
        }
        Ok(found)
    }

    pub(crate) fn damaged(&self, reference: &ObjectRef, found: String, found_bytes: u64) -> StoreError {
        StoreError::Damaged {
            object: reference.name.clone(),
            store: self.address.to_string(),
            expected: reference.hash.clone(),
            expected_bytes: reference.bytes,
            found,
            found_bytes,
        }
    }

    /// The time at which an object was written. `None` if the store does not know it or has no such object.
    pub async fn written(&self, reference: &ObjectRef) -> Option<SystemTime> {
        let path = object_path(&reference.name).ok()?;
        self.objects.head(&path).await.ok().map(|meta| meta.last_modified.into())
    }

    /// Returns whether an object of this name exists, without reading its content.
    ///
    /// # Errors
    /// [`StoreError::Name`] and [`StoreError::Io`].
    pub async fn contains(&self, name: &str) -> Result<bool, StoreError> {
        let path = object_path(name)?;
        let attempt = || async {
            match self.objects.head(&path).await {
                Ok(_) => Ok(true),
                Err(Error::NotFound { .. }) => Ok(false),
                Err(source) => Err(self.failed("look up", name, source)),
            }
        };
        self.patiently(attempt).await
    }

    /// Lists the objects whose name starts with the segments of `prefix` (`""` for all), sorted by name. Manifests, probes
    /// and interrupted writes are excluded.
    ///
    /// # Errors
    /// [`StoreError::Name`] and [`StoreError::Io`].
    pub async fn list(&self, prefix: &str) -> Result<Vec<StoredObject>, StoreError> {
        let path = parse_path(prefix)?;
        let mut found = self.list_under(Some(&path)).await?;
        found.retain(|object| !manifest::is_manifest(&object.name) && !probe::is_probe(&object.name));
        Ok(found)
    }

    pub(crate) async fn list_under(&self, prefix: Option<&Path>) -> Result<Vec<StoredObject>, StoreError> {
        let failed = |source| self.failed("list", prefix.map_or("", AsRef::as_ref), source);
        let attempt = || async {
            let listed = self
                .objects
                .list(prefix)
                .map_ok(|meta| StoredObject { name: meta.location.to_string(), bytes: meta.size });
            listed.try_collect::<Vec<_>>().await.map_err(failed)
        };
        let mut found = self.patiently(attempt).await?;
        found.sort();
        Ok(found)
    }

    pub(crate) async fn read(&self, path: &Path) -> Result<Bytes, StoreError> {
        let failed = |source| self.failed("read", path.as_ref(), source);
        let attempt =
            || async { self.objects.get(path).await.map_err(failed)?.bytes().await.map_err(failed) };
        self.patiently(attempt).await
    }

    pub(crate) fn failed(&self, what: &'static str, object: &str, source: Error) -> StoreError {
        match self.is_remote() {
            true => StoreError::remote(what, object, &self.address, source),
            false => StoreError::io(what, object, &self.address, source),
        }
    }
}

async fn reference(name: &str, content: &PutPayload) -> ObjectRef {
    ObjectRef { name: name.to_owned(), hash: hash(content).await, bytes: content.content_length() as u64 }
}

pub(crate) fn object_path(name: &str) -> Result<Path, StoreError> {
    let wrong = |reason: &str| StoreError::Name { name: name.to_owned(), reason: reason.to_owned() };
    let path = parse_path(name)?;
    if name.is_empty() || name.starts_with('/') || name.ends_with('/') {
        return Err(wrong("separate segments by single slashes, as in modules/0/3/17"));
    }
    if manifest::is_manifest(name) {
        return Err(wrong("manifests have the functions `load` and `replace`"));
    }
    if name.contains('#') {
        return Err(wrong("`#` marks unfinished writes"));
    }
    Ok(path)
}

fn parse_path(name: &str) -> Result<Path, StoreError> {
    Path::parse(name).map_err(|error| StoreError::Name { name: name.to_owned(), reason: error.to_string() })
}
