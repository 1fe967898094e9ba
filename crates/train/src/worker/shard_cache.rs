//! The shards that a worker trains on.

use std::io::{Seek, SeekFrom, Write};
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;

use bytes::BytesMut;
use dipaco_shards::TokenFile;
use dipaco_store::ShardRecord;
use dipaco_topology::PathId;
use tokio::sync::Mutex;

use crate::TrainError;
use crate::blocking::blocking;
use crate::client::Session;
use crate::client::Transfer;
use dipaco_path::{PathData, open_shard};
use dipaco_protocol::{FetchSource, GrantedLease};

/// Opens shards, and fetches those that are not here.
pub(super) struct ShardCache {
    session: Arc<Session>,
    transfer: Arc<Transfer>,
    /// The run's routing folder or a copy, where shards may already lie.
    folder: Option<PathBuf>,
    /// Where shards that were fetched are kept.
    cache: PathBuf,
    /// The last one, with its path and its content hash.
    last: Mutex<Option<(PathId, String, Arc<PathData>)>>,
}

impl ShardCache {
    pub(super) fn new(
        session: Arc<Session>,
        transfer: Arc<Transfer>,
        folder: Option<PathBuf>,
        cache: PathBuf,
    ) -> Self {
        Self { session, transfer, folder, cache, last: Mutex::default() }
    }

    /// The shard of a lease: the last one, one that lies in the folder, or a fetched one.
    pub(super) async fn data(&self, work: &GrantedLease) -> Result<Arc<PathData>, TrainError> {
        let mut last = self.last.lock().await;
        if let Some((path, hash, data)) = &*last
            && *path == work.path
            && *hash == work.shard.hash
        {
            return Ok(data.clone());
        }
        let file = self.file(work.path, &work.shard).await?;
        let (path, plan) = (work.path, self.session.plan().clone());
        let data = Arc::new(blocking(move || PathData::open(file, path, &plan)).await??);
        *last = Some((path, work.shard.hash.clone(), data.clone()));
        Ok(data)
    }

    async fn file(&self, path: PathId, shard: &ShardRecord) -> Result<Arc<TokenFile>, TrainError> {
        if let Some(folder) = &self.folder {
            let file = folder.join(&shard.file);
            if file.exists() {
                return Ok(open_shard(&file, &shard.hash)?);
            }
        }
        // Named by its hash: another run's shard of the same path is another file.
        let file = self.cache.join(format!("{}.h5", shard.hash));
        if file.exists() {
            return Ok(open_shard(&file, &shard.hash)?);
        }
        let fetched = self.fetch(path, &shard.hash, &file).await?;
        // Verified before it gets its name: a wrong one must not stand in the way of the right one.
        let verified = open_shard(fetched.path(), &shard.hash)?;
        blocking(move || verified.verify()).await??;
        fetched.persist(&file).map_err(|error| TrainError::Io {
            action: "name",
            file: file.clone(),
            source: error.error,
        })?;
        Ok(open_shard(&file, &shard.hash)?)
    }

    /// Fetches a shard into a temporary file beside `file`.
    async fn fetch(
        &self,
        path: PathId,
        hash: &str,
        file: &FilePath,
    ) -> Result<tempfile::NamedTempFile, TrainError> {
        let io = |action| move |source| TrainError::Io { action, file: file.to_owned(), source };
        std::fs::create_dir_all(&self.cache).map_err(io("create the folder of"))?;
        let mut temporary = tempfile::NamedTempFile::new_in(&self.cache).map_err(io("create"))?;
        let source = FetchSource::Shard { path, hash: hash.to_owned() };
        self.transfer
            .gather(&self.session, &source, None, BytesMut::with_capacity, |offset, piece| {
                temporary.seek(SeekFrom::Start(offset)).map_err(io("write"))?;
                temporary.write_all(&piece).map_err(io("write"))
            })
            .await?;
        temporary.as_file().sync_all().map_err(io("write"))?;
        Ok(temporary)
    }
}
