//! Tests of collecting pieces.

mod in_files;

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use dipaco_protocol::LeaseResult;
use dipaco_sync::{LeaseKey, LeaseSecret};

use super::*;

const PIECE: usize = PIECE_BYTES as usize;
/// Number of complete results of one piece, and in files.
const COMPLETE: [usize; 2] = [4, 2];

fn claim() -> LeaseClaim {
    claim_of("test", 1)
}

/// A claim of the lease with this fencing number of a worker with this token.
fn claim_of(token: &str, fence: u64) -> LeaseClaim {
    let key = LeaseKey { path: PathId(0), fence: Fence(fence), secret: LeaseSecret::default() };
    LeaseClaim { key, worker: ProcessId { token: token.to_owned(), ..ProcessId::local("w") } }
}

/// Memory whose bytes are counted until it is dropped.
struct Counted(Vec<u8>, Arc<AtomicUsize>);

impl AsRef<[u8]> for Counted {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_sub(self.0.len(), Ordering::SeqCst);
    }
}

struct Collector {
    uploads: Arc<Uploads>,
    room: usize,
    content: Vec<u8>,
    in_memory: Arc<AtomicUsize>,
    folder: tempfile::TempDir,
}

impl Collector {
    /// Collects results of three pieces and nine bytes for a store in a folder, with room for `room` pieces in memory.
    fn with_room(room: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = RunStore::create(&folder.path().to_string_lossy()).unwrap();
        let content = (0..3 * PIECE + 9).map(|at| (at % 251) as u8).collect();
        Self {
            uploads: Arc::new(Uploads::with_room(store, PathBuf::from("no folder"), room, COMPLETE)),
            room,
            content,
            in_memory: Arc::default(),
            folder,
        }
    }

    async fn add(
        &self,
        item: LeaseResult,
        digest: &ContentDigest,
        offset: usize,
        bytes: &[u8],
    ) -> PieceOutcome {
        let (digest, offset) = (digest.clone(), offset as u64);
        self.add_of(UploadedPiece { claim: claim(), item, digest, offset }, bytes).await
    }

    async fn add_of(&self, piece: UploadedPiece, bytes: &[u8]) -> PieceOutcome {
        self.in_memory.fetch_add(bytes.len(), Ordering::SeqCst);
        let content = Bytes::from_owner(Counted(bytes.to_vec(), self.in_memory.clone()));
        let upload = self.begun(&piece);
        self.uploads.add_piece(&upload, piece.offset, content).await.unwrap()
    }

    fn begun(&self, piece: &UploadedPiece) -> Arc<Upload> {
        let begin = |key| self.uploads.begin(key, piece, AdmittedUpload::default());
        self.uploads.find(piece).unwrap_or_else(begin)
    }

    /// A piece of the state that a claim brings.
    async fn piece_by(&self, claim: LeaseClaim, number: usize) -> PieceOutcome {
        let (begin, end) = (number * PIECE, self.content.len().min((number + 1) * PIECE));
        let digest = ContentDigest::of(&self.content);
        let piece = UploadedPiece { claim, item: LeaseResult::State, digest, offset: begin as u64 };
        self.add_of(piece, &self.content[begin..end]).await
    }

    async fn piece(&self, digest: &ContentDigest, number: usize) -> PieceOutcome {
        self.piece_of(LeaseResult::State, digest, number).await
    }

    async fn piece_of(&self, item: LeaseResult, digest: &ContentDigest, number: usize) -> PieceOutcome {
        let (begin, end) = (number * PIECE, self.content.len().min((number + 1) * PIECE));
        self.add(item, digest, begin, &self.content[begin..end]).await
    }

    /// Bytes of pieces that are in memory.
    fn in_memory(&self) -> usize {
        self.in_memory.load(Ordering::SeqCst)
    }

    fn is_empty(&self) -> bool {
        self.in_memory() == 0 && self.uploads.collected.available_permits() == self.room
    }
}

fn answer(outcome: PieceOutcome) -> Response {
    match outcome {
        PieceOutcome::Answer(answer) => answer,
        PieceOutcome::Complete(_) => panic!("complete"),
    }
}

fn complete(outcome: PieceOutcome) -> CompleteUpload {
    match outcome {
        PieceOutcome::Answer(answer) => panic!("{answer:?}"),
        PieceOutcome::Complete(complete) => complete,
    }
}

fn whole(upload: &CompleteUpload) -> Vec<u8> {
    upload.content().pieces().flat_map(|piece| piece.unwrap()).collect()
}

/// The outer gradient of a fragment of module 0/0.
fn gradient(fragment: u32) -> LeaseResult {
    let module = dipaco_topology::ModuleId { level: 0, index: 0 };
    LeaseResult::OuterGradient {
        fragment: dipaco_sync::FragmentId { module, index: fragment },
        number: 1,
        tokens: 0,
    }
}

#[tokio::test]
async fn pieces_complete_a_result_in_any_order_and_when_repeated() {
    for room in [4, 3] {
        let collector = Collector::with_room(room);
        let digest = ContentDigest::of(&collector.content);
        for number in [3, 1, 1, 0, 3] {
            assert_eq!(answer(collector.piece(&digest, number).await), Response::PieceStored);
        }
        let mut upload = complete(collector.piece(&digest, 2).await);
        assert!(whole(&upload) == collector.content);
        assert_eq!(upload.content().digest, digest);
        upload.finish(Response::Done);
        drop(upload);
        assert!(collector.is_empty());
        // The answer to the last piece was lost; every repetition gets it.
        for number in [2, 0] {
            assert_eq!(answer(collector.piece(&digest, number).await), Response::Done);
        }
    }
}

#[tokio::test]
async fn a_result_whose_connection_broke_is_complete_again_with_its_last_piece() {
    for room in [4, 3] {
        let collector = Collector::with_room(room);
        let digest = ContentDigest::of(&collector.content);
        for number in 0..3 {
            collector.piece(&digest, number).await;
        }
        // The request that was storing it was dropped.
        drop(complete(collector.piece(&digest, 3).await));
        let upload = complete(collector.piece(&digest, 3).await);
        assert!(whole(&upload) == collector.content);
    }
}

#[tokio::test]
async fn the_upload_that_has_waited_longest_moves_to_a_file_and_becomes_complete() {
    let collector = Collector::with_room(4);
    let digest = ContentDigest::of(&collector.content);
    let add = |fragment, number| collector.piece_of(gradient(fragment), &digest, number);
    for number in [0, 2] {
        add(0, number).await;
        add(1, number).await;
    }
    assert_eq!(collector.in_memory(), 4 * PIECE);
    // This piece has room only when the first upload has moved to a file.
    assert_eq!(answer(add(1, 1).await), Response::PieceStored);
    assert_eq!(collector.in_memory(), 3 * PIECE);
    assert_eq!(answer(add(0, 1).await), Response::PieceStored);
    assert_eq!(collector.in_memory(), 3 * PIECE, "an upload in a file stays there");
    for fragment in [1, 0] {
        let mut upload = complete(add(fragment, 3).await);
        assert!(whole(&upload) == collector.content);
        upload.finish(Response::Done);
    }
    assert!(collector.is_empty());
}

#[tokio::test]
async fn an_incomplete_upload_ends_with_its_lease() {
    for room in [4, 3] {
        let collector = Collector::with_room(room);
        let digest = ContentDigest::of(&collector.content);
        for number in 0..3 {
            collector.piece(&digest, number).await;
        }
        collector.uploads.retain(|named| *named == claim());
        let lease = claim().key;
        assert_eq!(collector.uploads.oldest_leases(1), [(lease.path, lease.fence)]);
        assert!(collector.uploads.oldest_leases(0).is_empty());
        assert_eq!(collector.uploads.uploads().all().count(), 1);
        collector.uploads.retain(|_| false);
        assert!(collector.uploads.uploads().all().next().is_none());
        assert!(collector.is_empty());
        // The last piece alone does not complete the result.
        assert_eq!(answer(collector.piece(&digest, 3).await), Response::PieceStored);
    }
}

#[tokio::test]
async fn wrong_pieces_are_refused_with_the_reason() {
    let collector = Collector::with_room(4);
    let digest = ContentDigest::of(&collector.content);
    let piece = vec![0; PIECE];
    for (offset, length) in [
        (1, PIECE),          // overlaps two others
        (PIECE, PIECE - 1),  // too short
        (3 * PIECE, 10),     // beyond the end
        (4 * PIECE, 1),      // behind the end
        (usize::MAX - 8, 1), // far behind the end
        (0, 0),              // nothing
    ] {
        let refused = answer(collector.add(LeaseResult::State, &digest, offset, &piece[..length]).await);
        let Response::Refused { reason } = refused else { panic!("{refused:?}") };
        assert!(reason.contains(&format!("no piece of {length} bytes at {offset}")), "{reason}");
    }
    assert!(collector.is_empty(), "nothing of them is kept");
}

#[tokio::test]
async fn another_content_of_the_same_result_replaces_the_first() {
    let mut collector = Collector::with_room(4);
    let first = ContentDigest::of(&collector.content);
    for number in 0..3 {
        collector.piece(&first, number).await;
    }
    collector.content[0] ^= 1;
    let second = ContentDigest::of(&collector.content);
    assert_eq!(answer(collector.piece(&second, 3).await), Response::PieceStored);
    assert_eq!(collector.uploads.uploads().all().count(), 1);
    for number in [0, 1] {
        assert_eq!(answer(collector.piece(&second, number).await), Response::PieceStored);
    }
    let upload = complete(collector.piece(&second, 2).await);
    assert!(whole(&upload) == collector.content);
}

#[tokio::test]
async fn the_uploads_of_a_lease_end_with_it_and_no_others() {
    let collector = Collector::with_room(8);
    let leases = [claim_of("a", 1), claim_of("a", 2), claim_of("b", 1)];
    for lease in &leases {
        collector.piece_by(lease.clone(), 0).await;
        collector.piece_by(lease.clone(), 1).await;
    }
    collector.uploads.drop_lease(&leases[0].worker, PathId(0), Fence(1));
    let left: Vec<_> = collector.uploads.uploads().all().map(|upload| upload.claim.clone()).collect();
    assert_eq!(left, leases[1..]);
    assert_eq!(collector.in_memory(), 4 * PIECE);
}

/// A piece that notes when it is dropped, and whether the lock on all uploads is free then.
struct Witness(Weak<Uploads>, Arc<AtomicBool>);

impl AsRef<[u8]> for Witness {
    fn as_ref(&self) -> &[u8] {
        &[7; PIECE]
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        let uploads = self.0.upgrade();
        self.1.store(uploads.is_some_and(|uploads| uploads.uploads.try_lock().is_ok()), Ordering::SeqCst);
    }
}

#[tokio::test]
async fn nobody_waits_while_the_pieces_of_ended_uploads_are_dropped() {
    let collector = Collector::with_room(8);
    let digest = |bytes| ContentDigest { bytes, ..ContentDigest::of(&[]) };
    let piece =
        |bytes| UploadedPiece { claim: claim(), item: LeaseResult::State, digest: digest(bytes), offset: 0 };
    let ends: [&dyn Fn(); 3] = [
        &|| collector.uploads.drop_lease(&claim().worker, PathId(0), Fence(1)),
        &|| collector.uploads.retain(|_| false),
        &|| drop(collector.begun(&piece(3 * PIECE_BYTES))),
    ];
    for end in ends {
        let free = Arc::new(AtomicBool::new(false));
        let witness = Witness(Arc::downgrade(&collector.uploads), free.clone());
        let upload = collector.begun(&piece(2 * PIECE_BYTES));
        let added = collector.uploads.add_piece(&upload, 0, Bytes::from_owner(witness)).await.unwrap();
        assert_eq!(answer(added), Response::PieceStored);
        drop(upload);
        end();
        assert!(free.load(Ordering::SeqCst));
    }
}
