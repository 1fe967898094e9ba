//! A lease that is lost costs its work, and ends no worker, whichever request learns of it.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, SystemTime};

use dipaco_codec::Compression;
use dipaco_config::RunConfig;
use dipaco_net::{Client, Exchange, JoinToken, Limits, PeerConnection, Server};
use dipaco_protocol::{FetchSource, LeaseResult, PIECE_BYTES, Request, Response};
use dipaco_telemetry::{Event, read_events};
use tokio_util::sync::CancellationToken;

use support::{Run, config};

/// Passes requests on to a coordinator, and answers some of them with `Lost`.
struct Forgetful {
    /// Token for the coordinator.
    token: JoinToken,
    /// The kind of request that is answered with `Lost`.
    kind: fn(&Request) -> bool,
    /// Number of such requests that are passed on first.
    left: AtomicU32,
}

impl Forgetful {
    async fn serve(self: Arc<Self>, server: Server) {
        while let Some(peer) = server.accept().await {
            tokio::spawn(self.clone().connection(peer));
        }
    }

    async fn connection(self: Arc<Self>, peer: PeerConnection) {
        let coordinator = Client::connect(&self.token, SystemTime::now(), Limits::default()).await.unwrap();
        let coordinator = Arc::new(coordinator);
        while let Some(exchange) = peer.accept_exchange().await {
            tokio::spawn(self.clone().pass_on(exchange, coordinator.clone()));
        }
    }

    async fn pass_on(self: Arc<Self>, mut exchange: Exchange, coordinator: Arc<Client>) {
        let Ok(request) = exchange.request::<Request>().await else { return };
        let payload = match &request {
            Request::Submit { .. } => Some(exchange.receive_payload(PIECE_BYTES).await.unwrap()),
            _ => None,
        };
        if (self.kind)(&request) && self.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            let lost = Response::Lost { reason: "the test says so".to_owned() };
            exchange.respond(&lost, None).await.ok();
            return;
        }
        let answer = coordinator.call::<_, Response>(&request, payload, 1 << 30, Duration::from_secs(60));
        // The coordinator of a complete run closes its connections.
        let Ok((response, payload)) = answer.await else { return };
        exchange.respond(&response, payload).await.ok();
    }
}

/// Trains with a worker whose `number`th request of a kind is answered with `Lost`, and writes an event file.
async fn a_request_is_lost(config: RunConfig, kind: fn(&Request) -> bool, number: u32) -> Run {
    let run = Run::seeded(config).await;
    let (coordinator, token) = run.coordinator(run.events(), CancellationToken::new()).await;
    let (server, there) = run.server().await;
    let left = AtomicU32::new(number);
    let forgetful = Arc::new(Forgetful { token, kind, left });
    let serving = tokio::spawn(forgetful.clone().serve(server));
    let (mut coordinator, mut worker) = (coordinator, run.spawn_worker(&there, "worker"));
    let mut worked = None;
    let ended = tokio::select! {
        ended = &mut coordinator => ended,
        // A worker that fails would leave the coordinator waiting, so it is looked at first.
        ended = &mut worker => {
            worked = Some(ended.unwrap().unwrap());
            coordinator.await
        }
    };
    assert!(ended.unwrap().unwrap().finished);
    let left = forgetful.left.load(Ordering::SeqCst);
    assert!(left == 0 || left > number, "no request was answered with a loss");
    serving.abort();
    if worked.is_none() {
        worker.await.unwrap().unwrap();
    }
    run
}

/// Checks that losses of a kind of request change no bit and end no worker.
async fn no_loss_ends_a_worker(overlap_steps: u64, kind: fn(&Request) -> bool, numbers: &[u32]) {
    let mut config = config();
    config.sync.overlap_steps = overlap_steps;
    config.train.rounds = 2;
    // A lease whose loss the coordinator does not know of ends soon.
    config.train.lease_seconds = 1;
    let undisturbed = Run::seeded(config.clone()).await;
    undisturbed.train(1).await;
    let expected = undisturbed.bits().await;
    for &number in numbers {
        let run = a_request_is_lost(config.clone(), kind, number).await;
        assert_eq!(run.bits().await, expected, "request {number}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_inputs_of_a_lease_are_gone() {
    // The first lease, a prefetched lease, and a lease on a path that was trained before.
    no_loss_ends_a_worker(0, |request| matches!(request, Request::Fetch { .. }), &[1, 4, 9]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_inputs_of_a_following_lease_are_gone() {
    no_loss_ends_a_worker(4, |request| matches!(request, Request::Fetch { .. }), &[1, 6, 10]).await;
    no_loss_ends_a_worker(4, |request| matches!(request, Request::Follow { .. }), &[1, 3]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_or_a_completion_learns_of_the_loss() {
    let gradient = |request: &Request| {
        matches!(request, Request::Submit { item: LeaseResult::OuterGradient { .. }, .. })
    };
    let state = |request: &Request| matches!(request, Request::Submit { item: LeaseResult::State, .. });
    let complete = |request: &Request| matches!(request, Request::Complete { .. });
    for (overlap_steps, kind) in
        [(0, gradient as fn(&Request) -> bool), (0, state), (0, complete), (4, gradient), (4, complete)]
    {
        no_loss_ends_a_worker(overlap_steps, kind, &[1, 4]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_heartbeat_learns_of_the_loss() {
    no_loss_ends_a_worker(0, |request| matches!(request, Request::Heartbeat { .. }), &[1, 2]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_of_weights_that_is_gone_costs_no_lease() {
    let mut config = config();
    config.outer.broadcast = Compression::E3m0;
    // A lease whose loss the coordinator does not know of would expire.
    (config.train.rounds, config.train.lease_seconds) = (2, 60);
    let undisturbed = Run::seeded(config.clone()).await;
    undisturbed.train(1).await;
    let change = |request: &Request| match request {
        Request::Fetch { source: FetchSource::Object(object), .. } => object.name.starts_with("changes/"),
        _ => false,
    };
    let run = a_request_is_lost(config, change, 1).await;
    assert_eq!(run.bits().await, undisturbed.bits().await);
    let records = read_events(&run.folder.path().join("metrics.jsonl")).unwrap();
    let expired =
        records.map(|record| record.unwrap().event).any(|event| matches!(event, Event::LeaseExpired { .. }));
    assert!(!expired, "the worker has dropped a lease that the coordinator holds");
}
