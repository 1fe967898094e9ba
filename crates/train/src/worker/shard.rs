//! The shards that a worker trains on.

use std::io::{Seek, SeekFrom, Write};
use std::path::Path as FilePath;
use std::sync::Arc;

use bytes::BytesMut;
use dipaco_shards::TokenFile;
use dipaco_store::ShardRecord;
use dipaco_topology::PathId;

use super::Worker;
use crate::TrainError;
use crate::protocol::{Source, Work};
use crate::round::{PathData, open_shard};
use crate::synchronizer::blocking;

impl Worker {
    /// The shard of a lease: the last one, one that lies in the folder of the options, or a fetched one.
    pub(super) async fn data(&mut self, work: &Work) -> Result<Arc<PathData>, TrainError> {
        if let Some((path, hash, data)) = &self.data
            && *path == work.path
            && *hash == work.shard.hash
        {
            return Ok(data.clone());
        }
        let file = self.shard_file(work.path, &work.shard).await?;
        let (path, plan) = (work.path, self.session.plan().clone());
        let data = Arc::new(blocking(move || PathData::open(file, path, &plan)).await??);
        self.data = Some((path, work.shard.hash.clone(), data.clone()));
        Ok(data)
    }

    async fn shard_file(&self, path: PathId, shard: &ShardRecord) -> Result<Arc<TokenFile>, TrainError> {
        if let Some(folder) = &self.options.shards {
            let file = folder.join(&shard.file);
            if file.exists() {
                return open_shard(&file, &shard.hash);
            }
        }
        // Named by its hash: another run's shard of the same path is another file.
        let file = self.options.cache.join(format!("{}.h5", shard.hash));
        if file.exists() {
            return open_shard(&file, &shard.hash);
        }
        let fetched = self.fetch_shard(path, &shard.hash, &file).await?;
        // Verified before it gets its name: a wrong one must not stand in the way of the right one.
        let verified = open_shard(fetched.path(), &shard.hash)?;
        blocking(move || verified.verify()).await??;
        fetched.persist(&file).map_err(|error| TrainError::Io {
            action: "name",
            file: file.clone(),
            source: error.error,
        })?;
        open_shard(&file, &shard.hash)
    }

    /// Fetches a shard into a temporary file beside `file`.
    async fn fetch_shard(
        &self,
        path: PathId,
        hash: &str,
        file: &FilePath,
    ) -> Result<tempfile::NamedTempFile, TrainError> {
        let io = |action| move |source| TrainError::Io { action, file: file.to_owned(), source };
        std::fs::create_dir_all(&self.options.cache).map_err(io("create the folder of"))?;
        let mut temporary = tempfile::NamedTempFile::new_in(&self.options.cache).map_err(io("create"))?;
        let source = Source::Shard { path, hash: hash.to_owned() };
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
