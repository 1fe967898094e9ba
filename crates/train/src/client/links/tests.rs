//! A worker's downloads over real connections, from a store and a scripted coordinator.

use std::sync::atomic::AtomicUsize;

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;
use crate::client::transfer::tests::{Script, connect, content};

/// What a store does with a request.
#[derive(Clone, Copy)]
enum Answer {
    /// Sends the part.
    Part,
    /// Sends the part with a wrong byte.
    Damaged,
    /// Sends nothing but this status.
    Status(u16),
}

/// A store of one object that answers over HTTP.
struct Store {
    link: ObjectLink,
    /// Number of requests.
    requests: Arc<AtomicUsize>,
}

impl Store {
    async fn start(object: &Bytes, answer: Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}/object?signature=x", listener.local_addr().unwrap());
        let requests = Arc::new(AtomicUsize::new(0));
        let (object, seen) = (object.clone(), requests.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                seen.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(serve(stream, object.clone(), answer));
            }
        });
        Self { link: ObjectLink { address, seconds: 900 }, requests }
    }

    fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }
}

/// Answers one request.
async fn serve(mut stream: TcpStream, object: Bytes, answer: Answer) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let range = head.lines().find_map(|line| line.strip_prefix("range: bytes=")).unwrap();
    let (from, to) = range.split_once('-').unwrap();
    let mut part = object[from.parse().unwrap()..=to.parse().unwrap()].to_vec();
    let status = match answer {
        Answer::Part => 206,
        Answer::Damaged => {
            part[0] ^= 1;
            206
        }
        Answer::Status(status) => {
            part.clear();
            status
        }
    };
    let head = format!("HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", part.len());
    stream.write_all(&[head.as_bytes(), &part].concat()).await.unwrap();
}

/// The work of a worker that downloads an object twice.
struct Twice {
    /// Payload that the coordinator has sent.
    sent: u64,
    /// Bytes that came straight from the store.
    linked: u64,
    /// Number of requests for a link.
    asked: usize,
    /// Number of times that the coordinator had to check its object.
    checks: usize,
}

/// Downloads the same object two times, with links to it or without. Both times it must be whole.
async fn download_twice(object: &Bytes, link: Option<ObjectLink>) -> Twice {
    let script = Arc::new(Script { object: object.clone(), link, ..Script::default() });
    let (server, transfer) = connect(&script).await;
    for _ in 0..2 {
        assert!(transfer.object(&ObjectRef::of("modules/0/0/0/1", object)).await.unwrap() == object);
    }
    assert_eq!(transfer.moved().down, server.traffic().payload_sent + transfer.moved().linked);
    Twice {
        sent: server.traffic().payload_sent,
        linked: transfer.moved().linked,
        asked: *script.links_asked.lock().unwrap(),
        checks: *script.checks.lock().unwrap(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pieces_come_straight_from_the_store() {
    let object = content(12, 77);
    let store = Store::start(&object, Answer::Part).await;
    let twice = download_twice(&object, Some(store.link.clone())).await;
    assert_eq!((twice.sent, twice.linked), (0, 2 * object.len() as u64));
    assert_eq!((twice.asked, store.requests()), (2, 2 * 13));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_without_links_is_asked_once() {
    let object = content(2, 77);
    let twice = download_twice(&object, None).await;
    assert_eq!((twice.sent, twice.asked), (2 * object.len() as u64, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_out_of_reach_is_tried_for_one_object() {
    let object = content(2, 77);
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let link = ObjectLink { address: format!("http://{closed}/object"), seconds: 900 };
    let twice = download_twice(&object, Some(link)).await;
    assert_eq!((twice.sent, twice.asked), (2 * object.len() as u64, 1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_ended_link_is_tried_for_one_object() {
    let object = content(2, 77);
    let store = Store::start(&object, Answer::Status(403)).await;
    let twice = download_twice(&object, Some(store.link.clone())).await;
    assert_eq!((twice.sent, twice.asked), (2 * object.len() as u64, 1));
    assert!((1..=3).contains(&store.requests()), "{}", store.requests());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_bytes_are_fetched_again_from_the_coordinator_which_is_not_blamed() {
    let object = content(2, 77);
    let store = Store::start(&object, Answer::Damaged).await;
    let twice = download_twice(&object, Some(store.link.clone())).await;
    assert_eq!((twice.sent, twice.linked), (2 * object.len() as u64, object.len() as u64));
    assert_eq!((twice.asked, twice.checks, store.requests()), (1, 0, 3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_store_and_a_deleted_object_concern_one_object_only() {
    for status in [503, 404] {
        let object = content(2, 77);
        let store = Store::start(&object, Answer::Status(status)).await;
        let twice = download_twice(&object, Some(store.link.clone())).await;
        assert_eq!((twice.sent, twice.asked), (2 * object.len() as u64, 2), "{status}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_is_not_used_until_its_end() {
    let object = content(2, 77);
    let store = Store::start(&object, Answer::Part).await;
    let young = ObjectLink { seconds: 900, ..store.link.clone() };
    assert_eq!(download_twice(&object, Some(young)).await.asked, 2);
    let old = ObjectLink { seconds: 2, ..store.link.clone() };
    // A third of two seconds is no whole second: each piece asks anew.
    assert_eq!(download_twice(&object, Some(old)).await.asked, 6);
}

#[test]
fn a_rest_ends_and_is_told_once() {
    let mut rest = Rest::default();
    assert!(!rest.lasts(Duration::ZERO));
    assert!(rest.begin(Duration::from_secs(5)));
    assert!(!rest.begin(Duration::from_secs(6)), "the second failure of a rest is told");
    assert!(rest.lasts(Duration::from_secs(604)));
    assert!(!rest.lasts(Duration::from_secs(605)), "a failure that comes later makes the rest longer");
    assert!(rest.begin(Duration::from_secs(605)));
}
