//! Tests of receiving results.

mod long_gradients;
mod long_results;

use std::fs;
use std::path::{Path as FilePath, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use dipaco_codec::{Compression, decode, encode};
use dipaco_config::RunConfig;
use dipaco_model::ModelConfig;
use dipaco_net::{Client, Limits, RunAuthority, Server};
use dipaco_path::MomentSpecs;
use dipaco_protocol::ContentDigest;
use dipaco_sync::{Fence, LeaseSecret, ProcessId};

use super::*;
use crate::host::verified_gradients::CAPACITY_BYTES;

/// An upper bound; no test waits for its end.
const LONG: Duration = Duration::from_secs(60);

/// A process whose leases expect every result.
struct Host {
    intake: Arc<ResultIntake>,
    reception: Arc<Reception>,
    /// True if each lease ends while its first upload is admitted.
    ends: AtomicBool,
    /// Inner steps at the end of each lease.
    to: u64,
}

impl ResultReceiver for Host {
    type Error = HostError;

    fn intake(&self) -> &Arc<ResultIntake> {
        &self.intake
    }

    fn reception(&self) -> &Arc<Reception> {
        &self.reception
    }

    async fn admit(&self, piece: &UploadedPiece) -> Result<Admission, HostError> {
        if self.ends.load(Ordering::Relaxed) {
            let LeaseClaim { key: LeaseKey { path, fence, .. }, worker } = &piece.claim;
            self.intake.uploads.drop_lease(worker, *path, *fence);
        }
        Ok(Admission::Expected(AdmittedUpload { to: self.to, expected: None }))
    }

    fn lost(&self, _: &LeaseClaim) -> Option<Response> {
        self.ends.load(Ordering::Relaxed).then(|| Response::Lost { reason: "ended".to_owned() })
    }

    async fn record(&self, _: &Upload, _: StoredResult) -> Result<Response, HostError> {
        Ok(Response::Done)
    }
}

fn host(configure: impl FnOnce(&mut RunConfig)) -> Host {
    let mut config = RunConfig::default();
    config.model.vocab_size = 4000;
    configure(&mut config);
    let plan = WorkerPlan::new(&config);
    let topology = plan.topology().unwrap();
    let layout = Layout::of_plan(&plan, &topology).unwrap();
    let intake = ResultIntake {
        store: RunStore::in_memory(),
        plan,
        topology,
        layout,
        uploads: Uploads::new(RunStore::in_memory(), PathBuf::from("no folder")),
        gradients: VerifiedGradients::default(),
        modules: None,
    };
    Host { intake: Arc::new(intake), reception: Arc::default(), ends: AtomicBool::new(false), to: 0 }
}

/// The first piece of a path's state of `bytes` bytes.
fn state(bytes: u64) -> UploadedPiece {
    let key = LeaseKey { path: PathId(0), fence: Fence(1), secret: LeaseSecret::default() };
    let claim = LeaseClaim { key, worker: ProcessId::local("w") };
    let digest = ContentDigest { bytes, ..ContentDigest::of(&[]) };
    UploadedPiece { claim, item: LeaseResult::State, digest, offset: 0 }
}

/// The pieces of a result with their numbers.
fn pieces(bytes: &[u8]) -> impl DoubleEndedIterator<Item = (usize, &[u8])> + ExactSizeIterator {
    bytes.chunks(PIECE_BYTES as usize).enumerate()
}

/// The files below a folder.
fn files(folder: &FilePath) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

#[tokio::test]
async fn an_upload_that_begins_after_the_end_of_its_lease_does_not_stay() {
    let host = host(|_| ());
    let (piece, payload) = (state(2 * PIECE_BYTES), Bytes::from(vec![0; PIECE_BYTES as usize]));
    for ends in [false, true] {
        host.ends.store(ends, Ordering::Relaxed);
        host.intake.uploads.retain(|_| false);
        let answer = accept(&host, piece.clone(), payload.clone()).await.unwrap();
        assert_eq!(matches!(answer, Response::Lost { .. }), ends, "{answer:?}");
        assert_eq!(host.intake.uploads.find(&piece).is_err(), ends);
    }
}

#[tokio::test]
async fn a_piece_that_waits_counts_against_the_next_connection_of_its_token() {
    let host = Arc::new(host(|_| ()));
    let payload = Bytes::from(vec![0; 4096]);
    let piece = state(payload.len() as u64);
    let uploads = &host.intake.uploads;
    let key = uploads.find(&piece).err().unwrap();
    let upload = uploads.begin(key, &piece, AdmittedUpload::default());
    // The upload is complete and in its check, so a further piece waits.
    let outcome = uploads.add_piece(&upload, 0, payload.clone()).await.unwrap();
    let PieceOutcome::Complete(mut complete) = outcome else { panic!("the result has one piece") };

    let now = SystemTime::now();
    let authority = RunAuthority::create("run", now).unwrap();
    let identity = authority.server(now, LONG).unwrap();
    let limits = Limits { token_piece_bytes: PIECE_BYTES as u32, ..Limits::default() };
    let server = Server::bind("127.0.0.1:0".parse().unwrap(), &identity, limits).unwrap();
    let addresses = vec![server.local_addr().to_string()];
    let token = authority.issue("worker", "a", addresses, now, LONG).unwrap();

    let client = Client::connect(&token, now, Limits::default()).await.unwrap();
    let connection = server.accept().await.unwrap();
    let peer = Peer { process: piece.claim.worker.clone(), role: Role::Worker, numerics: String::new() };
    let begun = Arc::strong_count(&upload);
    let arrive = async {
        let mut exchange = connection.accept_exchange().await.unwrap();
        exchange.request::<u8>().await.unwrap();
        exchange.reserve(PIECE_BYTES).await;
        receive(&mut exchange, &host, &peer, piece).await
    };
    let waits = async {
        while Arc::strong_count(&upload) == begun {
            tokio::task::yield_now().await;
        }
    };
    tokio::select! {
        answer = client.call::<u8, u8>(&1, Some(payload), 0, LONG) => panic!("{answer:?}"),
        received = arrive => panic!("{received:?}"),
        () = waits => {}
    }
    drop((client, connection));
    while server.peers() > 0 {
        tokio::task::yield_now().await;
    }

    let client = Client::connect(&token, now, Limits::default()).await.unwrap();
    let connection = server.accept().await.unwrap();
    let serve = async {
        let mut exchange = connection.accept_exchange().await.unwrap();
        exchange.request::<u8>().await.unwrap();
        let at_once = tokio::time::timeout(Duration::ZERO, exchange.reserve(PIECE_BYTES)).await;
        assert!(at_once.is_err(), "the memory of the waiting piece is free");
        complete.finish(Response::Done);
        drop(complete);
        tokio::time::timeout(LONG, exchange.reserve(PIECE_BYTES)).await.unwrap();
        exchange.respond(&2_u8, None).await.unwrap();
    };
    let (answer, ()) = tokio::join!(client.call::<u8, u8>(&1, None, 0, LONG), serve);
    assert_eq!(answer.unwrap().0, 2);
}

#[tokio::test]
async fn an_outer_gradient_without_room_counts_and_is_read_from_the_store() {
    let host = host(|config| {
        config.model = ModelConfig { vocab_size: 500, hidden_size: 128, ..ModelConfig::default() };
    });
    let intake = &host.intake;
    let module = ModuleId { level: 0, index: 0 };
    let fragment = FragmentId { module, index: 0 };
    let values = intake.values(PathId(0), fragment).unwrap();
    let content = Bytes::from(encode(&vec![0.5; values], Compression::TopK).unwrap());
    let decoded = decode(&content, values).unwrap();
    let all = || intake.gradients.room(CAPACITY_BYTES / size_of::<f32>());
    for (number, has_room) in [(1, true), (2, false), (3, true)] {
        let digest = ContentDigest::of(&content);
        let item = LeaseResult::OuterGradient { fragment, number, tokens: 1 };
        let piece = UploadedPiece { item, digest: digest.clone(), ..state(0) };
        let name = item.object_name(piece.claim.key, host.to, &digest.hash);
        let taken = if has_room { None } else { all() };
        assert_eq!(accept(&host, piece, content.clone()).await.unwrap(), Response::Done);
        drop(taken);
        assert!(all().is_some(), "what is kept or dropped needs no room");
        let object = ObjectRef { name, hash: digest.hash, bytes: digest.bytes };
        assert_eq!(intake.gradients.remove(&object), has_room.then(|| decoded.clone()));
        assert_eq!(decode(&intake.store.get(&object).await.unwrap(), values).unwrap(), decoded);
    }
}

#[test]
fn a_state_longer_than_its_scheme_needs_is_refused_with_its_first_header() {
    let adamw = host(|_| ());
    let muon = host(|config| config.train.optimizer = dipaco_optim::Optimizer::Muon);
    let bf16 = host(|config| config.train.state_dtype = dipaco_model::Dtype::Bf16);
    let moments = |host: &Host| MomentSpecs::of_plan(&host.intake.plan).unwrap().file_bytes();
    assert!(moments(&muon) < moments(&adamw) * 3 / 4);
    assert_eq!(moments(&bf16), moments(&adamw) / 2);
    for host in [adamw, muon, bf16] {
        let bytes = moments(&host);
        assert_eq!(host.intake.objection(&state(bytes + 4096)), None);
        let refusal = host.intake.objection(&state(bytes * 5 / 4));
        assert!(
            matches!(&refusal, Some(Response::Refused { reason }) if reason.contains("at most")),
            "{refusal:?}"
        );
    }
}
