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

struct Desk {
    uploads: Uploads,
    content: Vec<u8>,
    in_memory: Arc<AtomicUsize>,
    _folder: tempfile::TempDir,
}

impl Desk {
    /// Collects a result of three pieces and a bit.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let content = (0..3 * PIECE + 9).map(|at| (at % 251) as u8).collect();
        Self {
            uploads: Uploads::new(folder.path().to_owned()),
            content,
            in_memory: Arc::default(),
            _folder: folder,
        }
    }

    async fn bring(&self, item: Item, whole: &Whole, offset: usize, bytes: &[u8]) -> Taken {
        self.in_memory.fetch_add(bytes.len(), Ordering::SeqCst);
        let piece = Bytes::from_owner(Counted(bytes.to_vec(), self.in_memory.clone()));
        self.uploads.take(LEASE, item, whole.clone(), offset as u64, piece).await.unwrap()
    }

    async fn piece(&self, whole: &Whole, number: usize) -> Taken {
        let (begin, end) = (number * PIECE, self.content.len().min((number + 1) * PIECE));
        self.bring(Item::State, whole, begin, &self.content[begin..end]).await
    }
}

fn answer(taken: Taken) -> Response {
    match taken {
        Taken::Answer(answer) => answer,
        Taken::Whole(_) => panic!("whole"),
    }
}

#[tokio::test]
async fn pieces_make_the_whole_in_any_order_and_however_often_they_come() {
    let desk = Desk::new();
    let whole = Whole::of(&desk.content);
    for number in [3, 1, 1, 0, 3] {
        assert_eq!(answer(desk.piece(&whole, number).await), Response::Kept);
    }
    let Taken::Whole(mut complete) = desk.piece(&whole, 2).await else { panic!("not whole") };
    assert!(complete.content().await.unwrap() == desk.content);
    complete.answer(Response::Done);
    drop(complete);
    // The answer to the last piece was lost, and all are told the same.
    for number in [2, 0] {
        assert_eq!(answer(desk.piece(&whole, number).await), Response::Done);
    }
}

#[tokio::test]
async fn what_waits_for_the_rest_is_in_no_memory_and_ends_with_its_lease() {
    let desk = Desk::new();
    let whole = Whole::of(&desk.content);
    for number in 0..3 {
        desk.piece(&whole, number).await;
    }
    assert_eq!(desk.in_memory.load(Ordering::SeqCst), 0);
    desk.uploads.retain(|path, fence| (path, fence) == LEASE);
    assert_eq!(desk.uploads.uploads().len(), 1);
    desk.uploads.retain(|_, _| false);
    assert!(desk.uploads.uploads().is_empty());
    // The last piece alone is no whole.
    assert_eq!(answer(desk.piece(&whole, 3).await), Response::Kept);
}

#[tokio::test]
async fn pieces_that_are_none_are_refused_with_the_reason() {
    let desk = Desk::new();
    let whole = Whole::of(&desk.content);
    let piece = vec![0; PIECE];
    for (offset, length) in [
        (1, PIECE),          // overlaps two others
        (PIECE, PIECE - 1),  // too short
        (3 * PIECE, 10),     // beyond the end
        (4 * PIECE, 1),      // behind the end
        (usize::MAX - 8, 1), // far behind the end
        (0, 0),              // nothing
    ] {
        let refused = answer(desk.bring(Item::State, &whole, offset, &piece[..length]).await);
        let Response::Refused { reason } = refused else { panic!("{refused:?}") };
        assert!(reason.contains(&format!("no piece of {length} bytes at {offset}")), "{reason}");
    }
    assert!(desk.uploads.uploads().is_empty());
}

#[tokio::test]
async fn another_content_for_the_same_item_takes_the_place_of_the_first() {
    let mut desk = Desk::new();
    let first = Whole::of(&desk.content);
    for number in 0..3 {
        desk.piece(&first, number).await;
    }
    desk.content[0] ^= 1;
    let second = Whole::of(&desk.content);
    assert_eq!(answer(desk.piece(&second, 3).await), Response::Kept);
    assert_eq!(desk.uploads.uploads().len(), 1);
    for number in [0, 1] {
        assert_eq!(answer(desk.piece(&second, number).await), Response::Kept);
    }
    let Taken::Whole(mut complete) = desk.piece(&second, 2).await else { panic!("not whole") };
    assert!(complete.content().await.unwrap() == desk.content);
}
