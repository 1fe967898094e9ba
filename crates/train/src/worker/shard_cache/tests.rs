//! Tests of the shards that a worker trains on.

use dipaco_shards::{TokenFileInfo, TokenFileWriter, TokenSet};
use dipaco_store::ShardRecord;
use dipaco_sync::{Fence, LeaseSecret};

use super::*;
use crate::client::transfer::tests::{Script, connect};

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
    let (hash, documents, tokens) = (opened.content_hash().to_owned(), opened.documents(), opened.tokens());
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

/// Changes a token of a file to another one.
fn damage(file: &FilePath) {
    let place = TokenSet::open(file).unwrap().files().next().unwrap().1.tokens_offset;
    let mut bytes = std::fs::read(file).unwrap();
    bytes[usize::try_from(place).unwrap()] ^= 2;
    std::fs::write(file, bytes).unwrap();
}

#[tokio::test]
async fn a_kept_shard_that_is_damaged_is_downloaded_again() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("cache");
    std::fs::create_dir(&kept).unwrap();
    let lease = lease(folder.path(), 0);
    let object: bytes::Bytes = std::fs::read(folder.path().join(&lease.shard.file)).unwrap().into();
    let file = kept.join(format!("{}.h5", lease.shard.hash));
    std::fs::write(&file, &object).unwrap();
    let script = Arc::new(Script { object: object.clone(), ..Script::default() });
    let (_server, transfer) = connect(&script).await;
    // As in processes after each other.
    let open =
        || async { ShardCache::new(transfer.clone(), None, kept.clone()).data(&lease).await.map(drop) };
    open().await.unwrap();
    assert!(script.answered.lock().unwrap().is_empty(), "a sound shard is not downloaded");
    damage(&file);
    open().await.unwrap();
    assert_eq!(std::fs::read(&file).unwrap(), object);
    assert_eq!(script.answered.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn of_a_kept_shard_of_several_files_the_damaged_file_is_downloaded_again() {
    let folder = tempfile::tempdir().unwrap();
    let kept = folder.path().join("cache");
    std::fs::create_dir(&kept).unwrap();
    let mut list = TokenSetManifest::new(&TokenFileInfo { vocab_size: 100, ..TokenFileInfo::default() });
    let [mut first, second] = [0, 1].map(|path| lease(folder.path(), path));
    let mut files = Vec::new();
    for ShardRecord { file, hash, .. } in [&first.shard, &second.shard] {
        std::fs::rename(folder.path().join(file), kept.join(format!("{hash}.h5"))).unwrap();
        list.push(&kept, format!("{hash}.h5"), hash).unwrap();
        files.push(kept.join(format!("{hash}.h5")));
    }
    list.publish(&kept.join(format!("{}.json", list.content_hash()))).unwrap();
    first.shard = ShardRecord { file: "0.json".into(), hash: list.content_hash(), ..first.shard };
    let object: bytes::Bytes = std::fs::read(&files[1]).unwrap().into();
    damage(&files[1]);
    let script = Arc::new(Script { object: object.clone(), ..Script::default() });
    let (_server, transfer) = connect(&script).await;
    ShardCache::new(transfer, None, kept).data(&first).await.unwrap();
    assert_eq!(std::fs::read(&files[1]).unwrap(), object);
    assert_eq!((script.answered.lock().unwrap().len(), *script.repeated.lock().unwrap()), (1, 0));
}

#[tokio::test]
async fn a_damaged_shard_of_the_routing_folder_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let (_server, transfer) = connect(&Arc::default()).await;
    let cache = ShardCache::new(transfer, Some(folder.path().to_owned()), folder.path().join("cache"));
    let lease = lease(folder.path(), 0);
    damage(&folder.path().join(&lease.shard.file));
    let Err(error) = cache.data(&lease).await else { panic!("a damaged shard is opened") };
    assert!(error.to_string().contains("shard-0.h5 is damaged"), "{error}");
    assert!(!folder.path().join("cache").exists(), "nothing is downloaded");
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
