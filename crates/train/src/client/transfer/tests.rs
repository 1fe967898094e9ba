//! A worker's transfers over real connections, to a scripted coordinator.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, SystemTime};

use dipaco_config::RunConfig;
use dipaco_net::{Clock, Exchange, Limits, NetError, RunAuthority, Server};
use dipaco_sync::{Fence, LeaseKey, LeaseSecret};
use dipaco_topology::PathId;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::TrainError;
use crate::client::session::Identity;
use crate::client::{ContentFile, UploadContent};
use dipaco_protocol::{ContentDigest, LeaseResult, ObjectLink, WorkerPlan};

const HOUR: Duration = Duration::from_secs(3600);
fn lease() -> LeaseKey {
    LeaseKey { path: PathId(0), fence: Fence(1), secret: LeaseSecret::default() }
}

/// Behaviour of a coordinator, and its record of the requests.
#[derive(Default)]
pub(crate) struct Script {
    pub(crate) object: Bytes,
    /// The link to the object, if the store makes links.
    pub(crate) link: Option<ObjectLink>,
    pub(crate) links_asked: Mutex<usize>,
    /// Number of pieces that each connection answers before it is cut; the last entry is the first connection's.
    pub(crate) cuts: Mutex<Vec<usize>>,
    /// Number of times that the first piece is sent with a wrong byte.
    pub(crate) damaged: Mutex<usize>,
    pub(crate) answered: Mutex<BTreeSet<u64>>,
    pub(crate) repeated: Mutex<usize>,
    pub(crate) checks: Mutex<usize>,
    /// The result that each uploaded piece belongs to, in the order of arrival.
    pub(crate) uploaded: Mutex<Vec<LeaseResult>>,
    /// The stored pieces, by their offset.
    pub(crate) stored: Mutex<BTreeMap<(LeaseResult, u64), Bytes>>,
    /// Numbers of stored pieces at which there is no room for another; the last entry is the first time.
    pub(crate) no_room: Mutex<Vec<usize>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap()
}

pub(crate) fn content(pieces: u64, rest: u64) -> Bytes {
    (0..pieces * PIECE_BYTES + rest).map(|at| (at % 251) as u8).collect::<Vec<_>>().into()
}

impl Script {
    /// Stores a piece of a result. Without room for it all pieces are lost.
    fn store(&self, item: LeaseResult, digest: &ContentDigest, offset: u64, piece: Bytes) -> Response {
        let (mut stored, mut no_room) = (lock(&self.stored), lock(&self.no_room));
        if no_room.pop_if(|pieces| *pieces == stored.len()).is_some() {
            stored.clear();
            return Response::Wait { reason: "no room".to_owned() };
        }
        stored.insert((item, offset), piece);
        let pieces = stored.keys().filter(|(of, _)| *of == item).count() as u64;
        let all = pieces == digest.bytes.div_ceil(PIECE_BYTES);
        if all { Response::Done } else { Response::PieceStored }
    }

    /// Answers one request; returns whether the request or its answer carries a piece.
    async fn answer(&self, mut exchange: Exchange) -> bool {
        let Ok(request) = exchange.request::<Request>().await else { return false };
        let (response, payload, offset) = match request {
            Request::Hello { .. } => {
                let plan = serde_json::to_string(&WorkerPlan::new(&RunConfig::default())).unwrap();
                (Response::Welcome { run: "run".into(), plan }, None, None)
            }
            Request::Fetch { offset, .. } => {
                let end = self.object.len().min((offset + PIECE_BYTES) as usize);
                let mut piece = self.object[offset as usize..end].to_vec();
                let mut damaged = lock(&self.damaged);
                if offset == 0 && *damaged > 0 {
                    *damaged -= 1;
                    piece[0] ^= 1;
                }
                let total = self.object.len() as u64;
                (Response::Piece { total }, Some(piece.into()), Some(offset))
            }
            Request::Submit { offset, item, digest, .. } => {
                // The worker gives the other pieces of a result up when there is no room for one.
                let Ok(piece) = exchange.receive_payload(PIECE_BYTES).await else { return false };
                assert_eq!(Some(piece.len() as u64), digest.piece(offset));
                let mut uploaded = lock(&self.uploaded);
                uploaded.push(item);
                (self.store(item, &digest, offset, piece), None, Some(offset))
            }
            Request::Link { .. } => {
                *lock(&self.links_asked) += 1;
                (self.link.clone().map_or(Response::NoLink, Response::Link), None, None)
            }
            Request::Check { .. } => {
                *lock(&self.checks) += 1;
                (Response::Done, None, None)
            }
            other => panic!("{other:?}"),
        };
        match exchange.respond(&response, payload).await {
            // The worker may read the answer and leave before it acknowledges the end of the stream.
            Ok(()) | Err(NetError::Abandoned { .. }) => {}
            Err(error) => panic!("{error}"),
        }
        if let Some(offset) = offset
            && !lock(&self.answered).insert(offset)
        {
            *lock(&self.repeated) += 1;
        }
        offset.is_some()
    }
}

/// Connects a worker to a coordinator that follows a script.
pub(crate) async fn connect(script: &Arc<Script>) -> (Arc<Server>, Arc<Transfer>) {
    connect_at(script, 0).await
}

async fn connect_at(script: &Arc<Script>, megabits_per_second: u32) -> (Arc<Server>, Arc<Transfer>) {
    let now = SystemTime::now();
    let authority = RunAuthority::create("run", now).unwrap();
    let identity = authority.server(now, HOUR).unwrap();
    let address = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = Arc::new(Server::bind(address, &identity, Limits::default()).unwrap());
    let token = authority.issue("worker", "w", vec![server.local_addr().to_string()], now, HOUR).unwrap();
    let (listening, script) = (server.clone(), script.clone());
    tokio::spawn(async move {
        while let Some(peer) = listening.accept().await {
            let mut left = lock(&script.cuts).pop();
            while left != Some(0)
                && let Some(exchange) = peer.accept_exchange().await
            {
                let piece = script.answer(exchange).await;
                left = left.map(|left| left - usize::from(piece));
            }
            peer.close("cut");
        }
    });
    let identity = Identity {
        token,
        source: crate::client::TokenSource::Given,
        worker: "w".into(),
        instance: 1,
        patience: HOUR,
        clock: Clock::system(),
        numerics: "test".to_owned(),
        server: None,
    };
    let session = Session::open(identity, CancellationToken::new()).await.unwrap();
    (server, Arc::new(Transfer::new(Arc::new(session), megabits_per_second)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fetch_continues_after_each_cut_with_the_missing_pieces() {
    let object = content(12, 77);
    let cuts = Mutex::new(vec![5, 1, 3]);
    let script = Arc::new(Script { object: object.clone(), cuts, ..Script::default() });
    let (server, transfer) = connect(&script).await;
    let fetched = transfer.object(&ObjectRef::of("modules/0/0/0/1", &object)).await.unwrap();
    assert!(fetched == object);
    assert_eq!(*lock(&script.repeated), 0, "an arrived piece was sent again");
    assert_eq!(server.traffic().payload_sent, object.len() as u64);
    assert!(lock(&script.cuts).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_continues_after_each_cut_with_the_unacknowledged_pieces() {
    let content = content(12, 77);
    let script = Arc::new(Script { cuts: Mutex::new(vec![5, 1, 3]), ..Script::default() });
    let (server, transfer) = connect(&script).await;
    transfer.upload(lease(), LeaseResult::State, content.clone()).await.unwrap();
    assert_eq!(*lock(&script.repeated), 0, "an acknowledged piece was sent again");
    assert_eq!(server.traffic().payload_received, content.len() as u64);
    assert!(lock(&script.cuts).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn content_of_a_file_is_uploaded() {
    let content = content(9, 77);
    let script = Arc::new(Script::default());
    let (_server, transfer) = connect(&script).await;
    let folder = tempfile::tempdir().unwrap();
    let file = ContentFile::write(folder.path(), content.chunks(1 << 20)).unwrap();
    let file = UploadContent::File(Arc::new(file));
    transfer.upload(lease(), LeaseResult::State, file).await.unwrap();
    assert!(lock(&script.stored).values().flatten().eq(&content));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_without_room_is_sent_again_as_a_whole() {
    let content = content(12, 77);
    let script = Arc::new(Script { no_room: Mutex::new(vec![9, 0, 5]), ..Script::default() });
    let (_server, transfer) = connect(&script).await;
    transfer.upload(lease(), LeaseResult::State, content).await.unwrap();
    assert_eq!(lock(&script.stored).len(), 13);
    assert!(lock(&script.no_room).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_outer_gradient_is_uploaded_before_the_next_one_begins() {
    let content = content(20, 0);
    let script = Arc::new(Script::default());
    let (_server, transfer) = connect(&script).await;
    let gradient = |fragment| {
        let fragment =
            FragmentId { module: dipaco_topology::ModuleId { level: 0, index: 0 }, index: fragment };
        LeaseResult::OuterGradient { fragment, number: 1, tokens: 1 }
    };
    let [first, second] =
        [0, 1].map(|fragment| transfer.upload(lease(), gradient(fragment), content.clone()));
    let (first, second) = tokio::join!(first, second);
    first.unwrap();
    second.unwrap();
    // The second gradient begins while the last pieces of the first are still in flight.
    let uploaded = lock(&script.uploaded);
    let apart = uploaded.len() / 2 - PIECES_AT_ONCE;
    assert!(uploaded[..apart].iter().all(|item| *item == uploaded[0]), "{uploaded:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_waits_for_no_outer_gradient() {
    let (_server, transfer) = connect(&Arc::default()).await;
    // An outer gradient holds the turn.
    let _turn = transfer.turn.lock().await;
    transfer.upload(lease(), LeaseResult::State, content(9, 0)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_with_another_hash_is_fetched_a_second_time_and_then_given_up() {
    let object = content(1, 5);
    let reference = ObjectRef::of("modules/0/0/0/1", &object);
    let script = |damaged| {
        Arc::new(Script { object: object.clone(), damaged: Mutex::new(damaged), ..Script::default() })
    };
    let once = script(1);
    let (_server, transfer) = connect(&once).await;
    assert!(transfer.object(&reference).await.unwrap() == object);
    assert_eq!(*lock(&once.checks), 1);

    let (_server, transfer) = connect(&script(2)).await;
    let error = transfer.object(&reference).await.unwrap_err();
    assert!(matches!(&error, ClientError::OtherObject { name } if *name == reference.name), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_piece_tells_an_unknown_length() {
    let object = content(2, 1);
    let script = Arc::new(Script { object: object.clone(), ..Script::default() });
    let (_server, transfer) = connect(&script).await;
    let source = FetchSource::Shard { path: PathId(0), hash: "h".into(), file: None };
    let origin = FetchOrigin::peer(transfer.routes.coordinator(), source);
    let mut parts = BTreeMap::new();
    let put = |offset, piece| {
        parts.insert(offset, piece);
        Ok(())
    };
    transfer.gather(&origin, None, BytesMut::with_capacity, put).await.unwrap();
    assert!(parts.into_values().flatten().eq(object.iter().copied()));
    // An answer with another length than the known one is an error.
    let other = transfer.gather(&origin, Some(1), BytesMut::with_capacity, |_, _| Ok(())).await.unwrap_err();
    assert!(
        matches!(other, ClientError::Core(TrainError::Net(_)) | ClientError::UnexpectedAnswer { .. }),
        "{other}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bandwidth_holds_in_both_directions() {
    let content = content(2, 77);
    let script = Arc::new(Script { object: content.clone(), ..Script::default() });
    // A piece takes 41.9 ms at 50 MB/s, and the last of three pieces begins after at least one other.
    let (_server, transfer) = connect_at(&script, 400).await;
    let begun = Instant::now();
    transfer.object(&ObjectRef::of("modules/0/0/0/1", &content)).await.unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(41), "{:?}", begun.elapsed());
    let begun = Instant::now();
    transfer.upload(lease(), LeaseResult::State, content).await.unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(41), "{:?}", begun.elapsed());
}
