//! Certificates that end while a run goes on, or begin after its clock was set right.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use dipaco_net::{Client, Clock, HelperToken, JoinToken, Limits, NetError, Server};
use dipaco_protocol::{Request, SYNCHRONIZER};
use dipaco_telemetry::Events;
use dipaco_topology::ModuleId;
use dipaco_train::client::{Identity, NextIdentity, Session, TokenSource};
use dipaco_train::{CoordinatorOptions, SynchronizerOptions, coordinate, synchronize};
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
        Self::start_with(None).await
    }

    /// If the session is that of a server, its next identity goes to `next`, and its first renewal fails.
    async fn start_with(next: Option<NextIdentity>) -> Self {
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
        let (of_a_server, has_failed) = (next.is_some(), AtomicBool::new(false));
        let options = CoordinatorOptions {
            renew: Some(Arc::new(move |role, name| {
                let join = renewing.issue(role, name, Vec::new(), now.now(), LIFETIME)?;
                if !of_a_server {
                    return Ok(join.to_string());
                }
                if !has_failed.swap(true, Ordering::Relaxed) {
                    return Err(NetError::Identity { what: "renew", reason: "this is a test".to_owned() });
                }
                Ok(HelperToken { join, server: renewing.helper(now.now(), LIFETIME)? }.to_string())
            })),
            ..run.options(started, Events::off())
        };
        let stop = CancellationToken::new();
        let coordinator = tokio::spawn(coordinate(options, server, stop.clone()));
        let identity = Identity {
            token: token.clone(),
            source: TokenSource::Given,
            worker: "worker".to_owned(),
            instance: 1,
            patience: Duration::from_secs(20),
            clock,
            numerics: "test".to_owned(),
            server: next,
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_whose_renewal_fails_asks_again_within_an_hour() {
    let next = NextIdentity::default();
    let run = RenewingRun::start_with(Some(next.clone())).await;
    run.set_clock(46 * DAY);
    run.ask().await;
    assert!(next.lock().unwrap().is_none(), "the first renewal fails");
    run.set_clock(46 * DAY + Duration::from_secs(3600));
    run.ask().await;
    assert!(next.lock().unwrap().is_some());
    run.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_synchronizer_with_an_old_certificate_gets_the_next_one_with_its_first_request() {
    let run = Run::seeded(config()).await;
    let (server, token) = run.server().await;
    let authority = run.authority.clone();
    let options = CoordinatorOptions {
        renew: Some(Arc::new(move |role, name| {
            let now = SystemTime::now();
            let join = authority.issue(role, name, Vec::new(), now, LIFETIME)?;
            Ok(HelperToken { join, server: authority.helper(now, LIFETIME)? }.to_string())
        })),
        ..run.options(run.start(true).await.unwrap(), Events::off())
    };
    let (leave, stop) = (CancellationToken::new(), CancellationToken::new());
    let coordinator = tokio::spawn(coordinate(options, server, stop.clone()));
    // Half of this certificate's life is over. The token is new.
    let identity = run.authority.helper(SystemTime::now() - 46 * DAY, LIFETIME).unwrap();
    let server = Server::bind(([127, 0, 0, 1], 0).into(), &identity, Limits::default()).unwrap();
    let (next_identity, has_modules) = (NextIdentity::default(), CancellationToken::new());
    let observed = has_modules.clone();
    let options = SynchronizerOptions {
        token: run.token_as(SYNCHRONIZER, &token),
        source: TokenSource::Given,
        name: "synchronizer".to_owned(),
        modules: vec![ModuleId { level: 0, index: 0 }],
        address: server.local_addr().to_string(),
        store: run.store.clone(),
        links: false,
        collect: run.folder.path().to_owned(),
        patience: Duration::from_secs(20),
        next_identity: next_identity.clone(),
        observe: Some(Box::new(move |_| observed.cancel())),
    };
    let mut synchronizer = tokio::spawn(synchronize(options, server, leave.clone()));
    tokio::select! {
        () = has_modules.cancelled() => {}
        ended = &mut synchronizer => panic!("{ended:?}"),
    }
    assert!(next_identity.lock().unwrap().is_some());
    leave.cancel();
    synchronizer.await.unwrap().unwrap();
    stop.cancel();
    coordinator.await.unwrap().unwrap();
}
