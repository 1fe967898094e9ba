//! Certificates that end while a run goes on.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use dipaco_net::{Client, Clock, Limits, NetError, Server};
use dipaco_protocol::Request;
use dipaco_telemetry::Events;
use dipaco_train::client::{Identity, Session};
use dipaco_train::{CoordinatorOptions, coordinate};
use tokio_util::sync::CancellationToken;

use support::{Run, config};

const DAY: Duration = Duration::from_secs(86_400);
const LIFETIME: Duration = Duration::from_secs(90 * 86_400);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connected_worker_can_connect_again_after_91_days() {
    let run = Run::seeded(config()).await;
    let begin = SystemTime::now();
    let time = Arc::new(Mutex::new(begin));
    let shown = time.clone();
    let clock = Clock::from_fn(move || *shown.lock().unwrap());

    let (authority, source, renewing) = (run.authority.clone(), run.authority.clone(), run.authority.clone());
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
        clock: clock.clone(),
        numerics: "test".to_owned(),
        server: None,
    };
    let session = Session::open(identity, CancellationToken::new()).await.unwrap();
    let ask = Request::Lease { held: Vec::new(), wait_ms: 0 };
    *time.lock().unwrap() = begin + 46 * DAY;
    session.ask(&ask).await.unwrap();
    *time.lock().unwrap() = begin + 91 * DAY;
    let error = Client::connect(&token, clock.now(), Limits::default()).await.unwrap_err();
    assert!(matches!(error, NetError::Expired { .. }), "{error}");
    // The connection breaks. The session connects again, with its new token, to a server with a new certificate.
    session.client().await.close("the network is down").await;
    session.ask(&ask).await.unwrap();
    stop.cancel();
    coordinator.await.unwrap().unwrap();
}
