//! The shards that a worker trains on.

use std::collections::{HashSet, VecDeque};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Component, Path as FilePath, PathBuf};
use std::sync::Arc;

use bytes::BytesMut;
use dipaco_files::{FileError, PendingFile};
use dipaco_shards::{ListedFile, ShardsError, TokenSet, TokenSetManifest};
use dipaco_topology::PathId;
use tokio::sync::Mutex;

use super::WorkerError;
use crate::blocking::blocking;
use crate::client::transfer::FetchOrigin;
use crate::client::{ClientError, Transfer};
use dipaco_path::PathData;
use dipaco_protocol::{FetchSource, GrantedLease};

/// Opens shards, downloads missing ones, and keeps the most recent ones open. To open a shard means to read the table of
/// its documents and to lay out its sequences.
pub(super) struct ShardCache {
    transfer: Arc<Transfer>,
    /// The run's routing folder or a copy, where shards may already lie.
    folder: Option<PathBuf>,
    /// Folder for downloaded shards.
    cache: PathBuf,
    /// Locked while a shard is opened, so that each shard is downloaded once.
    opened: Mutex<OpenedShards>,
}

/// Identity of a shard. A path has another shard in every phase of routing.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ShardKey {
    path: PathId,
    /// Content hash.
    hash: String,
}

/// Open shards, the most recently used at the end.
struct OpenedShards {
    capacity: usize,
    shards: VecDeque<(ShardKey, Arc<PathData>)>,
    verified: VerifiedShards,
}

/// Places and content hashes of the shards whose bytes this process has verified.
type VerifiedShards = HashSet<(PathBuf, String)>;

impl OpenedShards {
    fn new(capacity: usize) -> Self {
        Self { capacity: capacity.max(1), shards: VecDeque::new(), verified: VerifiedShards::new() }
    }

    fn get(&mut self, key: &ShardKey) -> Option<Arc<PathData>> {
        let at = self.shards.iter().position(|(opened, _)| opened == key)?;
        let shard = self.shards.remove(at)?;
        let data = shard.1.clone();
        self.shards.push_back(shard);
        Some(data)
    }

    fn insert(&mut self, key: ShardKey, data: Arc<PathData>) {
        // The path's shard of an earlier phase is not used again.
        self.shards.retain(|(opened, _)| opened.path != key.path);
        if self.shards.len() >= self.capacity {
            self.shards.pop_front();
        }
        self.shards.push_back((key, data));
    }
}

impl ShardCache {
    pub(super) fn new(transfer: Arc<Transfer>, folder: Option<PathBuf>, cache: PathBuf) -> Self {
        // A path whose state is kept comes back to this worker, and its shard with it.
        let capacity = transfer.routes.coordinator().plan().train.held_paths;
        Self { transfer, folder, cache, opened: Mutex::new(OpenedShards::new(capacity)) }
    }

    /// The shard of a lease. It comes from memory, from the routing folder, from the folder of downloaded shards, or from
    /// the coordinator. The bytes of one that lies in a folder are verified once in the life of this process.
    pub(super) async fn data(&self, lease: &GrantedLease) -> Result<Arc<PathData>, WorkerError> {
        let key = ShardKey { path: lease.path, hash: lease.shard.hash.clone() };
        let mut opened = self.opened.lock().await;
        if let Some(data) = opened.get(&key) {
            return Ok(data);
        }
        let data = Arc::new(self.open(&key, &lease.shard.file, &mut opened.verified).await?);
        opened.insert(key, data.clone());
        Ok(data)
    }

    /// Opens a shard whose list in the routing folder is called `file`, and downloads it if no folder has it. A damaged shard of
    /// the routing folder is an error, because others use that folder too.
    async fn open(
        &self,
        key: &ShardKey,
        file: &str,
        verified: &mut VerifiedShards,
    ) -> Result<PathData, WorkerError> {
        let plan = self.transfer.routes.coordinator().plan().clone();
        check_names(file, &key.hash)?;
        // Named by the hash, because shards of several runs and phases may lie in one folder.
        let list = FilePath::new(file).extension().is_some_and(|extension| extension == "json");
        let downloaded = self.cache.join(format!("{}.{}", key.hash, if list { "json" } else { "h5" }));
        let ShardKey { path, hash } = key.clone();
        let given = self.folder.iter().map(|folder| folder.join(file)).find(|place| place.exists());
        let place = given.clone().unwrap_or_else(|| downloaded.clone());
        let of_place = (place.clone(), hash.clone());
        if !verified.contains(&of_place) || !place.exists() {
            match given {
                Some(given) => blocking(move || TokenSet::open(given)?.verify()).await??,
                None => self.make_sound(key, &downloaded, list).await?,
            }
            verified.insert(of_place);
        }
        blocking(move || Ok(PathData::new(TokenSet::open(place)?, &hash, path, &plan)?)).await?
    }

    /// Downloads a shard if it is missing or damaged in the folder of downloaded shards.
    async fn make_sound(
        &self,
        key: &ShardKey,
        destination: &FilePath,
        list: bool,
    ) -> Result<(), WorkerError> {
        if is_sound(destination, &key.hash).await? {
            return Ok(());
        }
        std::fs::create_dir_all(&self.cache).map_err(FileError::new("create the folder", &self.cache))?;
        match list {
            true => self.download_listed(key, destination).await,
            false => self.download_file(key, None, destination, &key.hash).await,
        }
    }

    /// Downloads the list of a shard and those of its files that are missing or damaged. The list gets its name last, so it is
    /// there only with all of its files. It names them by their hashes.
    async fn download_listed(&self, key: &ShardKey, destination: &FilePath) -> Result<(), WorkerError> {
        let mut list = match kept_list(destination, &key.hash).await? {
            Some(list) => list,
            None => self.download_list(key, destination).await?,
        };
        for (number, ListedFile { file, content_hash, .. }) in (0..).zip(&mut list.files) {
            *file = format!("{content_hash}.h5");
            check_names(file, content_hash)?;
            let place = self.cache.join(&file);
            if !is_sound(&place, content_hash).await? {
                self.download_file(key, Some(number), &place, content_hash).await?;
            }
        }
        let destination = destination.to_owned();
        Ok(blocking(move || list.publish(&destination)).await??)
    }

    /// Downloads the list of a shard.
    async fn download_list(
        &self,
        key: &ShardKey,
        destination: &FilePath,
    ) -> Result<TokenSetManifest, WorkerError> {
        let pending = self.download(key, None, destination).await?;
        let list = blocking(move || TokenSetManifest::read(pending.temporary_path())).await??;
        if list.content_hash() != key.hash {
            let reason = format!("the coordinator sent a list with the content hash {}", list.content_hash());
            return Err(ShardsError::Damaged { path: destination.to_owned(), reason }.into());
        }
        Ok(list)
    }

    /// Downloads a token file with the content hash `hash`.
    async fn download_file(
        &self,
        key: &ShardKey,
        file: Option<u32>,
        destination: &FilePath,
        hash: &str,
    ) -> Result<(), WorkerError> {
        let pending = self.download(key, file, destination).await?;
        let (hash, place) = (hash.to_owned(), destination.to_owned());
        blocking(move || {
            let file = TokenSet::open(pending.temporary_path())?;
            // Verified before it gets its name: a damaged file under this name would be opened by every later worker.
            file.verify()?;
            if file.content_hash() != hash {
                let reason =
                    format!("the coordinator sent a file with the content hash {}", file.content_hash());
                return Err(ShardsError::Damaged { path: place, reason }.into());
            }
            Ok(pending.publish()?)
        })
        .await?
    }

    /// Downloads a file of a shard into a temporary file beside its destination.
    async fn download(
        &self,
        key: &ShardKey,
        file: Option<u32>,
        destination: &FilePath,
    ) -> Result<PendingFile, WorkerError> {
        let mut pending = PendingFile::create(destination)?;
        let source = FetchSource::Shard { path: key.path, hash: key.hash.clone(), file };
        let origin = FetchOrigin::peer(self.transfer.routes.coordinator(), source);
        self.transfer
            .gather(&origin, None, BytesMut::with_capacity, |offset, piece| {
                let written = pending.seek(SeekFrom::Start(offset)).and_then(|_| pending.write_all(&piece));
                written
                    .map_err(|source| ClientError::Core(FileError::new("write", destination)(source).into()))
            })
            .await?;
        Ok(pending)
    }
}

/// Reads all bytes of a downloaded shard, or of a file of one. False if it is missing, damaged, or another one.
async fn is_sound(place: &FilePath, hash: &str) -> Result<bool, WorkerError> {
    let (place, hash) = (place.to_owned(), hash.to_owned());
    let sound = move || {
        if !place.exists() {
            return Ok(false);
        }
        let verified = TokenSet::open(&place).and_then(|set| set.verify().map(|()| set));
        match verified {
            Ok(set) if set.content_hash() == hash => return Ok(true),
            Ok(_) => {
                tracing::warn!(file = %place.display(), "a kept shard is another one: it is downloaded again");
            }
            Err(error) if is_damage(&error) => {
                tracing::warn!(%error, "a kept shard is damaged: it is downloaded again");
            }
            Err(error) => return Err(error),
        }
        Ok(false)
    };
    Ok(blocking(sound).await??)
}

/// The list of a downloaded shard, if it is there and undamaged: then only a file of the shard is damaged.
async fn kept_list(place: &FilePath, hash: &str) -> Result<Option<TokenSetManifest>, WorkerError> {
    let (place, hash) = (place.to_owned(), hash.to_owned());
    let read = move || match TokenSetManifest::read(&place) {
        Ok(list) => Ok(Some(list).filter(|list| list.content_hash() == hash)),
        Err(error) if is_damage(&error) => Ok(None),
        Err(error) => Err(error),
    };
    Ok(blocking(read).await??)
}

/// True if a shard, or a file of one, is missing or damaged, so that another copy helps. The disk may fail for other reasons.
fn is_damage(error: &ShardsError) -> bool {
    match error {
        ShardsError::Io { source, .. } => source.kind() == io::ErrorKind::NotFound,
        ShardsError::File(_) | ShardsError::Cancelled => false,
        _ => true,
    }
}

/// Checks that the coordinator's names of a shard stay in the folders of shards.
fn check_names(file: &str, hash: &str) -> Result<(), WorkerError> {
    let inside = |part: Component<'_>| matches!(part, Component::Normal(_));
    let plain = !file.is_empty() && FilePath::new(file).components().all(inside);
    let hexadecimal = !hash.is_empty() && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
    match (plain, hexadecimal) {
        (true, true) => Ok(()),
        (false, _) => Err(WorkerError::ShardName { name: file.to_owned() }),
        (true, false) => Err(WorkerError::ShardName { name: hash.to_owned() }),
    }
}

#[cfg(test)]
mod tests;
