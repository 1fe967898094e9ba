//! The shards that a worker trains on.

use std::collections::VecDeque;
use std::io::{Seek, SeekFrom, Write};
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
}

impl OpenedShards {
    fn new(capacity: usize) -> Self {
        Self { capacity: capacity.max(1), shards: VecDeque::new() }
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
    /// the coordinator.
    pub(super) async fn data(&self, lease: &GrantedLease) -> Result<Arc<PathData>, WorkerError> {
        let key = ShardKey { path: lease.path, hash: lease.shard.hash.clone() };
        let mut opened = self.opened.lock().await;
        if let Some(data) = opened.get(&key) {
            return Ok(data);
        }
        let data = Arc::new(self.open(&key, &lease.shard.file).await?);
        opened.insert(key, data.clone());
        Ok(data)
    }

    /// Opens a shard whose list in the routing folder is called `file`, and downloads it if no folder has it.
    async fn open(&self, key: &ShardKey, file: &str) -> Result<PathData, WorkerError> {
        let plan = self.transfer.routes.coordinator().plan().clone();
        check_names(file, &key.hash)?;
        // Named by the hash, because shards of several runs and phases may lie in one folder.
        let list = FilePath::new(file).extension().is_some_and(|extension| extension == "json");
        let downloaded = self.cache.join(format!("{}.{}", key.hash, if list { "json" } else { "h5" }));
        let ShardKey { path, hash } = key.clone();
        let mut places = self.folder.iter().map(|folder| folder.join(file)).chain([downloaded.clone()]);
        if let Some(place) = places.find(|place| place.exists()) {
            let data = blocking(move || PathData::new(TokenSet::open(place)?, &hash, path, &plan));
            return Ok(data.await??);
        }
        std::fs::create_dir_all(&self.cache).map_err(FileError::new("create the folder", &self.cache))?;
        if list {
            self.download_listed(key, &downloaded).await?;
        } else {
            self.download_file(key, None, &downloaded, &hash).await?;
        }
        blocking(move || Ok(PathData::new(TokenSet::open(downloaded)?, &hash, path, &plan)?)).await?
    }

    /// Downloads the list of a shard and those of its files that are not there. The list gets its name last, so it is
    /// there only with all of its files. It names them by their hashes.
    async fn download_listed(&self, key: &ShardKey, destination: &FilePath) -> Result<(), WorkerError> {
        let pending = self.download(key, None, destination).await?;
        let mut list = blocking(move || TokenSetManifest::read(pending.temporary_path())).await??;
        if list.content_hash() != key.hash {
            let reason = format!("the coordinator sent a list with the content hash {}", list.content_hash());
            return Err(ShardsError::Damaged { path: destination.to_owned(), reason }.into());
        }
        for (number, ListedFile { file, content_hash, .. }) in (0..).zip(&mut list.files) {
            *file = format!("{content_hash}.h5");
            check_names(file, content_hash)?;
            let place = self.cache.join(&file);
            if !place.exists() {
                self.download_file(key, Some(number), &place, content_hash).await?;
            }
        }
        let destination = destination.to_owned();
        Ok(blocking(move || list.publish(&destination)).await??)
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
mod tests {
    use dipaco_shards::{TokenFileInfo, TokenFileWriter, TokenSet};
    use dipaco_store::ShardRecord;
    use dipaco_sync::{Fence, LeaseSecret};

    use super::*;
    use crate::client::transfer::tests::connect;

    /// Writes a shard of five documents and returns a lease of its path.
    fn lease(folder: &FilePath, path: u32) -> GrantedLease {
        let file = format!("shard-{path}.h5");
        let info = TokenFileInfo { vocab_size: 100, ..TokenFileInfo::default() };
        let mut writer = TokenFileWriter::create(folder.join(&file), info).unwrap();
        for document in 0..5 {
            writer.push_document(&[path + 1, document + 1, 7, 0]).unwrap();
        }
        writer.finish().unwrap();
        let opened = TokenSet::open(folder.join(&file)).unwrap();
        let (hash, documents, tokens) =
            (opened.content_hash().to_owned(), opened.documents(), opened.tokens());
        GrantedLease {
            path: PathId(path),
            fence: Fence(1),
            secret: LeaseSecret::new([0; 16]),
            lease_ms: 1000,
            from: 0,
            to: 1,
            phase_step: 0,
            weights: Vec::new(),
            sends: Vec::new(),
            state: None,
            replay: Vec::new(),
            made_by: None,
            uploads_state: false,
            shard: ShardRecord { file, hash, documents, tokens },
        }
    }

    #[test]
    fn a_coordinator_can_not_name_files_outside_of_the_folders() {
        assert!(check_names("train/path-003.h5", "0aff").is_ok());
        for (file, hash) in
            [("../x.h5", "0a"), ("/x.h5", "0a"), ("a/../../b", "0a"), ("", "0a"), ("x", "../0a"), ("x", "")]
        {
            assert!(matches!(check_names(file, hash), Err(WorkerError::ShardName { .. })), "{file} {hash}");
        }
    }

    #[tokio::test]
    async fn as_many_shards_stay_open_as_states_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let (_server, transfer) = connect(&Arc::default()).await;
        let capacity = 3;
        let cache = ShardCache {
            opened: Mutex::new(OpenedShards::new(capacity)),
            ..ShardCache::new(transfer, Some(folder.path().to_owned()), folder.path().join("cache"))
        };
        let leases: Vec<_> = (0..=capacity as u32).map(|path| lease(folder.path(), path)).collect();
        let mut opened = Vec::new();
        for lease in &leases[..capacity] {
            opened.push(cache.data(lease).await.unwrap());
        }
        // Without their files, the shards can only come from memory.
        for lease in &leases[..capacity] {
            std::fs::remove_file(folder.path().join(&lease.shard.file)).unwrap();
        }
        for (lease, data) in leases.iter().zip(&opened).rev() {
            assert!(Arc::ptr_eq(&cache.data(lease).await.unwrap(), data));
        }
        // One more shard takes the place of the least recently used shard, the first of the loop above.
        cache.data(&leases[capacity]).await.unwrap();
        let kept = cache.opened.lock().await.shards.iter().map(|(key, _)| key.path.0).collect::<Vec<_>>();
        assert_eq!(kept, (0..capacity as u32 - 1).rev().chain([capacity as u32]).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn a_new_shard_of_a_path_replaces_the_shard_of_the_earlier_phase() {
        let folder = tempfile::tempdir().unwrap();
        let (_server, transfer) = connect(&Arc::default()).await;
        let cache = ShardCache::new(transfer, Some(folder.path().to_owned()), folder.path().join("cache"));
        let (first, mut second) = (lease(folder.path(), 0), lease(folder.path(), 1));
        second.path = first.path;
        let old = cache.data(&first).await.unwrap();
        let new = cache.data(&second).await.unwrap();
        assert!(!Arc::ptr_eq(&old, &new));
        assert_eq!(cache.opened.lock().await.shards.len(), 1);
    }
}
