//! What the coordinator makes of pieces.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const LEASE: (PathId, Fence) = (PathId(0), Fence(1));
const PIECE: usize = PIECE_BYTES as usize;

/// Memory that is counted while it is there.
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

struct CoordinatorRequests {
    uploads: Uploads,
    room: usize,
    content: Vec<u8>,
    in_memory: Arc<AtomicUsize>,
    _folder: tempfile::TempDir,
}

impl CoordinatorRequests {
    /// Collects results of three pieces and a bit, in memory as far as there is room for so many pieces.
    fn with_room(room: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let content = (0..3 * PIECE + 9).map(|at| (at % 251) as u8).collect();
        Self {
            uploads: Uploads::with_room(folder.path().to_owned(), room),
            room,
            content,
            in_memory: Arc::default(),
            _folder: folder,
        }
    }

    async fn bring(
        &self,
        item: LeaseResult,
        whole: &ContentDigest,
        offset: usize,
        bytes: &[u8],
    ) -> PieceOutcome {
        self.in_memory.fetch_add(bytes.len(), Ordering::SeqCst);
        let piece = Bytes::from_owner(Counted(bytes.to_vec(), self.in_memory.clone()));
        self.uploads.take(LEASE, item, whole.clone(), offset as u64, piece).await.unwrap()
    }

    async fn piece(&self, whole: &ContentDigest, number: usize) -> PieceOutcome {
        self.piece_of(LeaseResult::State, whole, number).await
    }

    async fn piece_of(&self, item: LeaseResult, whole: &ContentDigest, number: usize) -> PieceOutcome {
        let (begin, end) = (number * PIECE, self.content.len().min((number + 1) * PIECE));
        self.bring(item, whole, begin, &self.content[begin..end]).await
    }

    /// Bytes of pieces that are in memory.
    fn in_memory(&self) -> usize {
        self.in_memory.load(Ordering::SeqCst)
    }

    fn is_empty(&self) -> bool {
        self.in_memory() == 0 && self.uploads.collected.available_permits() == self.room
    }
}

fn answer(taken: PieceOutcome) -> Response {
    match taken {
        PieceOutcome::Answer(answer) => answer,
        PieceOutcome::Complete(_) => panic!("whole"),
    }
}

fn whole(taken: PieceOutcome) -> CompleteUpload {
    match taken {
        PieceOutcome::Answer(answer) => panic!("{answer:?}"),
        PieceOutcome::Complete(complete) => complete,
    }
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
async fn pieces_make_the_whole_in_any_order_and_however_often_they_come() {
    for room in [4, 3] {
        let requests = CoordinatorRequests::with_room(room);
        let of = ContentDigest::of(&requests.content);
        for number in [3, 1, 1, 0, 3] {
            assert_eq!(answer(requests.piece(&of, number).await), Response::PieceStored);
        }
        let mut complete = whole(requests.piece(&of, 2).await);
        assert!(complete.content().in_one().unwrap() == requests.content);
        assert_eq!(complete.content().whole, of);
        complete.answer(Response::Done);
        drop(complete);
        assert!(requests.is_empty());
        // The answer to the last piece was lost, and all are told the same.
        for number in [2, 0] {
            assert_eq!(answer(requests.piece(&of, number).await), Response::Done);
        }
    }
}

#[tokio::test]
async fn a_last_piece_whose_connection_breaks_makes_the_whole_again() {
    for room in [4, 3] {
        let requests = CoordinatorRequests::with_room(room);
        let of = ContentDigest::of(&requests.content);
        for number in 0..3 {
            requests.piece(&of, number).await;
        }
        // Whoever was storing it was given up.
        drop(whole(requests.piece(&of, 3).await));
        let complete = whole(requests.piece(&of, 3).await);
        assert!(complete.content().in_one().unwrap() == requests.content);
    }
}

#[tokio::test]
async fn what_has_waited_longest_makes_room_and_is_whole_in_the_end() {
    let requests = CoordinatorRequests::with_room(4);
    let of = ContentDigest::of(&requests.content);
    let bring = |fragment, number| requests.piece_of(gradient(fragment), &of, number);
    for number in [0, 2] {
        bring(0, number).await;
        bring(1, number).await;
    }
    assert_eq!(requests.in_memory(), 4 * PIECE);
    // There is no room for this one before the first has moved.
    assert_eq!(answer(bring(1, 1).await), Response::PieceStored);
    assert_eq!(requests.in_memory(), 3 * PIECE);
    assert_eq!(answer(bring(0, 1).await), Response::PieceStored);
    assert_eq!(requests.in_memory(), 3 * PIECE, "what was moved goes on where it is");
    for fragment in [1, 0] {
        let mut complete = whole(bring(fragment, 3).await);
        assert!(complete.content().in_one().unwrap() == requests.content);
        complete.answer(Response::Done);
    }
    assert!(requests.is_empty());
}

#[tokio::test]
async fn what_is_longer_than_all_room_takes_none() {
    let requests = CoordinatorRequests::with_room(3);
    let small = requests.content[..2 * PIECE].to_vec();
    requests.bring(gradient(0), &ContentDigest::of(&small), 0, &small[..PIECE]).await;
    let of = ContentDigest::of(&requests.content);
    for number in 0..3 {
        requests.piece(&of, number).await;
        assert_eq!(requests.in_memory(), PIECE);
    }
}

#[tokio::test]
async fn what_waits_for_the_rest_ends_with_its_lease() {
    for room in [4, 3] {
        let requests = CoordinatorRequests::with_room(room);
        let of = ContentDigest::of(&requests.content);
        for number in 0..3 {
            requests.piece(&of, number).await;
        }
        requests.uploads.retain(|path, fence| (path, fence) == LEASE);
        assert_eq!(requests.uploads.uploads().len(), 1);
        requests.uploads.retain(|_, _| false);
        assert!(requests.uploads.uploads().is_empty());
        assert!(requests.is_empty());
        // The last piece alone is no whole.
        assert_eq!(answer(requests.piece(&of, 3).await), Response::PieceStored);
    }
}

#[tokio::test]
async fn pieces_that_are_none_are_refused_with_the_reason() {
    let requests = CoordinatorRequests::with_room(4);
    let whole = ContentDigest::of(&requests.content);
    let piece = vec![0; PIECE];
    for (offset, length) in [
        (1, PIECE),          // overlaps two others
        (PIECE, PIECE - 1),  // too short
        (3 * PIECE, 10),     // beyond the end
        (4 * PIECE, 1),      // behind the end
        (usize::MAX - 8, 1), // far behind the end
        (0, 0),              // nothing
    ] {
        let refused = answer(requests.bring(LeaseResult::State, &whole, offset, &piece[..length]).await);
        let Response::Refused { reason } = refused else { panic!("{refused:?}") };
        assert!(reason.contains(&format!("no piece of {length} bytes at {offset}")), "{reason}");
    }
    assert!(requests.uploads.uploads().is_empty());
}

#[tokio::test]
async fn another_content_for_the_same_item_takes_the_place_of_the_first() {
    let mut requests = CoordinatorRequests::with_room(4);
    let first = ContentDigest::of(&requests.content);
    for number in 0..3 {
        requests.piece(&first, number).await;
    }
    requests.content[0] ^= 1;
    let second = ContentDigest::of(&requests.content);
    assert_eq!(answer(requests.piece(&second, 3).await), Response::PieceStored);
    assert_eq!(requests.uploads.uploads().len(), 1);
    for number in [0, 1] {
        assert_eq!(answer(requests.piece(&second, number).await), Response::PieceStored);
    }
    let complete = whole(requests.piece(&second, 2).await);
    assert!(complete.content().in_one().unwrap() == requests.content);
}
