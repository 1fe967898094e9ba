//! Tests of results in files.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path as FilePath;

use dipaco_store::ObjectRef;

use super::*;

impl Collector {
    /// Takes the disk away, or brings it back.
    fn disk(&self, there: bool) {
        let folder = self.folder.path();
        if there {
            fs::remove_file(folder).unwrap();
            fs::create_dir(folder).unwrap();
        } else {
            fs::remove_dir(folder).unwrap();
            fs::write(folder, "a file").unwrap();
        }
    }

    /// All pieces of the state that a claim brings.
    async fn complete_of(&self, claim: LeaseClaim) -> CompleteUpload {
        for number in 0..3 {
            assert_eq!(answer(self.piece_by(claim.clone(), number).await), Response::PieceStored);
        }
        soon(async { complete(self.piece_by(claim, 3).await) }).await
    }

    /// Publishes a complete state of [`Self::complete_of`], and returns its object.
    async fn publish(&self, claim: LeaseClaim, mut complete: CompleteUpload) -> ObjectRef {
        let digest = ContentDigest::of(&self.content);
        let piece = UploadedPiece { claim, item: LeaseResult::State, digest, offset: 0 };
        let object = self.begun(&piece).object();
        complete.content().publish(&self.uploads.store, &object).await.unwrap().unwrap();
        complete.finish(Response::Done);
        object
    }
}

/// The outcome of something that waits for nothing.
async fn soon<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), work).await.unwrap()
}

/// Name and inode of each file below a folder.
fn files(folder: &FilePath) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            found.push((name, fs::metadata(path).unwrap().ino()));
        }
    }
    found
}

/// Fails if the answer is not that the pieces must be sent again.
fn no_room(outcome: PieceOutcome) {
    let answer = answer(outcome);
    assert!(matches!(&answer, Response::Wait { reason } if reason.contains("no room")), "{answer:?}");
}

#[tokio::test]
async fn a_long_result_is_written_once_to_the_file_that_becomes_its_object() {
    let collector = Collector::with_room(0);
    for number in [2, 0, 3] {
        collector.piece_by(claim(), number).await;
    }
    assert_eq!(collector.in_memory(), 0);
    let [(name, inode)] = &files(collector.folder.path())[..] else { panic!("one file") };
    let number = name.rsplit_once('#').map(|(_, number)| number);
    assert!(number.is_some_and(|number| number.bytes().all(|byte| byte.is_ascii_digit())), "{name}");
    let upload = complete(collector.piece_by(claim(), 1).await);
    assert_eq!(upload.content().digest, ContentDigest::of(&collector.content));
    let object = collector.publish(claim(), upload).await;
    assert!(collector.uploads.store.get(&object).await.unwrap() == collector.content);
    let [(found, same)] = &files(collector.folder.path())[..] else { panic!("one file") };
    assert!(object.name.ends_with(found) && same == inode, "{found}");
}

#[tokio::test]
async fn a_long_result_is_taken_while_others_are_half_sent_and_stored() {
    let collector = Collector::with_room(0);
    let [first, second, third] = [1, 2, 3].map(|fence| claim_of("test", fence));
    for number in [0, 2] {
        collector.piece_by(first.clone(), number).await;
    }
    let stored = collector.complete_of(second.clone()).await;
    let object = collector.complete_of(third.clone()).await;
    let object = collector.publish(third, object).await;
    assert!(collector.uploads.store.get(&object).await.unwrap() == collector.content);
    for number in [1, 3] {
        let added = collector.piece_by(first.clone(), number).await;
        if number == 3 {
            assert!(whole(&complete(added)) == collector.content);
        }
    }
    assert!(whole(&stored) == collector.content);
}

#[tokio::test]
async fn for_a_store_that_is_no_directory_the_files_have_no_names() {
    let mut collector = Collector::with_room(0);
    let scratch = collector.folder.path().to_owned();
    collector.uploads = Arc::new(Uploads::with_room(RunStore::in_memory(), scratch, 0, COMPLETE));
    let upload = collector.complete_of(claim()).await;
    assert!(files(collector.folder.path()).is_empty());
    let object = collector.publish(claim(), upload).await;
    assert!(collector.uploads.store.get(&object).await.unwrap() == collector.content);
}

#[test]
fn a_repeated_piece_changes_no_byte_that_is_hashed() {
    let folder = tempfile::tempdir().unwrap();
    let piece = |value| vec![value; PIECE];
    let content = [piece(1), piece(2), piece(3)].concat();
    let mut pieces = ReceivedPieces::default();
    let object = ObjectRef::of("paths/0/1", &content);
    let begin = || ResultFile::begin(&RunStore::in_memory(), object, folder.path(), None);
    let file = pieces.file(begin).unwrap();
    for (offset, value) in [(0, 1), (2, 3), (0, 9), (2, 9), (1, 2), (1, 9)] {
        file.store(offset * PIECE_BYTES, &piece(value).into()).unwrap();
    }
    let found = pieces.content(None);
    assert!(found.digest == ContentDigest::of(&content));
    assert!(found.pieces().flat_map(|piece| piece.unwrap()).eq(content));
}

#[tokio::test]
async fn the_file_of_a_result_goes_with_its_lease() {
    let collector = Collector::with_room(0);
    collector.piece_by(claim(), 0).await;
    assert_eq!(files(collector.folder.path()).len(), 1);
    collector.uploads.retain(|_| false);
    assert!(fs::read_dir(collector.folder.path()).unwrap().next().is_none(), "neither file nor folder");
}

#[tokio::test]
async fn a_result_longer_than_the_memory_is_collected_in_a_file() {
    let collector = Collector::with_room(3);
    let small = collector.content[..2 * PIECE].to_vec();
    collector.add(gradient(0), &ContentDigest::of(&small), 0, &small[..PIECE]).await;
    let digest = ContentDigest::of(&collector.content);
    for number in 0..3 {
        collector.piece(&digest, number).await;
        assert_eq!(collector.in_memory(), PIECE);
    }
}

#[tokio::test]
async fn a_long_result_takes_no_room_from_short_ones() {
    let collector = Collector::with_room(0);
    let mut long = Vec::new();
    for fence in 1..=COMPLETE[1] as u64 {
        long.push(collector.complete_of(claim_of("test", fence)).await);
    }
    let (short, mut shorts) = (vec![1; 8], Vec::new());
    let digest = ContentDigest::of(&short);
    for fragment in 0..COMPLETE[0] as u32 {
        let added = collector.add(gradient(fragment), &digest, 0, &short);
        shorts.push(complete(tokio::time::timeout(Duration::from_secs(10), added).await.unwrap()));
    }
    assert!(long.iter().all(|long| whole(long) == collector.content));
}

#[tokio::test]
async fn an_upload_without_disk_is_sent_again() {
    let collector = Collector::with_room(0);
    collector.disk(false);
    no_room(collector.piece_by(claim(), 0).await);
    collector.disk(true);
    // A piece that was on its way is kept.
    for number in [1, 0, 1, 2] {
        assert_eq!(answer(collector.piece_by(claim(), number).await), Response::PieceStored);
    }
    let upload = complete(collector.piece_by(claim(), 3).await);
    assert!(whole(&upload) == collector.content);
}

#[tokio::test]
async fn an_idle_upload_without_disk_gives_its_memory_to_others_and_is_sent_again() {
    let collector = Collector::with_room(4);
    let digest = ContentDigest::of(&collector.content);
    let add = |fragment, number| collector.piece_of(gradient(fragment), &digest, number);
    for (fragment, number) in [(0, 0), (0, 2), (1, 0), (1, 2)] {
        assert_eq!(answer(add(fragment, number).await), Response::PieceStored);
    }
    collector.disk(false);
    assert_eq!(answer(add(1, 1).await), Response::PieceStored);
    let mut upload = complete(add(1, 3).await);
    assert!(whole(&upload) == collector.content);
    upload.finish(Response::Done);
    drop(upload);
    no_room(add(0, 1).await);
    for number in 0..3 {
        assert_eq!(answer(add(0, number).await), Response::PieceStored);
    }
    assert!(whole(&complete(add(0, 3).await)) == collector.content);
    collector.disk(true);
}

#[tokio::test]
async fn the_files_of_a_token_hold_no_more_than_its_leases_may_send() {
    let collector = Collector::with_room(0);
    for number in 0..3 {
        collector.piece_by(claim_of("a", 1), number).await;
    }
    // Its lease ends while it is stored.
    let stored = complete(collector.piece_by(claim_of("a", 1), 3).await);
    collector.uploads.drop_lease(&claim_of("a", 1).worker, PathId(0), Fence(1));
    no_room(collector.piece_by(claim_of("a", 2), 0).await);
    assert_eq!(answer(collector.piece_by(claim_of("b", 3), 0).await), Response::PieceStored);
    drop(stored);
    for fence in [2, 4, 5] {
        assert_eq!(answer(collector.piece_by(claim_of("a", fence), 0).await), Response::PieceStored);
    }
}
