//! Certificates that end while a run goes on, or begin after its clock was set right.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use dipaco_net::{Client, Clock, JoinToken, Limits, NetError, Server};
use dipaco_protocol::Request;
use dipaco_telemetry::Events;
use dipaco_train::client::{Identity, Session};
use dipaco_train::{CoordinatorOptions, coordinate};
use tokio_util::sync::CancellationToken;

use support::{Coordinating, Run, config};

const DAY: Duration = Duration::from_secs(86_400);
const LIFETIME: Duration = Duration::from_secs(90 * 86_400);

/// A coordinator that renews certificates, with the session of a worker, under one clock.
struct RenewingRun {
    _run: Run,
    begin: SystemTime,
    time: Arc<Mutex<SystemTime>>,
    /// The first token of the worker.
    token: JoinToken,
    session: Session,
    coordinator: Coordinating,
    stop: CancellationToken,
}

impl RenewingRun {
    async fn start() -> Self {
        let run = Run::seeded(config()).await;
        let begin = SystemTime::now();
        let time = Arc::new(Mutex::new(begin));
        let shown = time.clone();
        let clock = Clock::from_fn(move || *shown.lock().unwrap());

        let (authority, source, renewing) =
            (run.authority.clone(), run.authority.clone(), run.authority.clone());
        let identity = authority.server(begin, LIFETIME).unwrap();
        let identity = identity.renewed_by(clock.clone(), move |now| source.server(now, LIFETIME));
        let server = Server::bind(([127, 0, 0, 1], 0).into(), &identity, Limits::default()).unwrap();
        let addresses = vec![server.local_addr().to_string()];
        let token = authority.issue("worker", "test", addresses, begin, LIFETIME).unwrap();
        let now = clock.clone();
        let started = run.start(true).await.unwrap();
        let options = CoordinatorOptions {
            renew: Some(Arc::new(move |role, name| {
                Ok(renewing.issue(role, name, Vec::new(), now.now(), LIFETIME)?.to_string())
            })),
            ..run.options(started, Events::off())
        };
        let stop = CancellationToken::new();
        let coordinator = tokio::spawn(coordinate(options, server, stop.clone()));
        let identity = Identity {
            token: token.clone(),
            source: dipaco_train::client::TokenSource::Given,
            worker: "worker".to_owned(),
            instance: 1,
            patience: Duration::from_secs(20),
            clock,
            numerics: "test".to_owned(),
            server: None,
        };
        let session = Session::open(identity, CancellationToken::new()).await.unwrap();
        Self { _run: run, begin, time, token, session, coordinator, stop }
    }

    /// Sets the clock to a time after the begin.
    fn set_clock(&self, after: Duration) {
        *self.time.lock().unwrap() = self.begin + after;
    }

    /// Sends a request of the session.
    async fn ask(&self) {
        self.session.ask(&Request::Lease { held: Vec::new(), wait_ms: 0 }).await.unwrap();
    }

    /// Breaks the connection of the session, which connects again.
    async fn connect_again(&self) {
        self.session.client().await.close("the network is down").await;
        self.ask().await;
    }

    /// Connects with the first token.
    async fn connect(&self) -> Result<Client, NetError> {
        let now = *self.time.lock().unwrap();
        Client::connect(&self.token, now, Limits::default()).await
    }

    async fn end(self) {
        self.stop.cancel();
        self.coordinator.await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connected_worker_can_connect_again_after_91_days() {
    let run = RenewingRun::start().await;
    run.set_clock(46 * DAY);
    run.ask().await;
    run.set_clock(91 * DAY);
    let error = run.connect().await.unwrap_err();
    assert!(matches!(error, NetError::Expired { .. }), "{error}");
    // The session has a new token, and the server a new certificate.
    run.connect_again().await;
    run.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_can_connect_after_a_wrong_clock_is_set_right() {
    let run = RenewingRun::start().await;
    run.set_clock(60 * DAY);
    // Both ends get certificates of the wrong time.
    run.connect().await.unwrap();
    run.ask().await;
    run.set_clock(Duration::ZERO);
    run.connect().await.unwrap();
    run.ask().await;
    run.connect_again().await;
    run.end().await;
}
