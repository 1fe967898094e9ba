//! Processes under one token and one name: none takes anything from a live one, and a killed one is succeeded.
#![allow(clippy::unwrap_used)]

mod support;

use std::time::Duration;

use dipaco_net::Limits;
use dipaco_protocol::{LeaseReport, Request, Response};
use dipaco_telemetry::Events;
use tokio_util::sync::CancellationToken;

use support::{Puppet, Run, config};

/// A request for a lease that does not wait.
const ASK: Request = Request::Lease { held: Vec::new(), wait_ms: 0 };

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_under_the_name_of_a_live_worker_takes_nothing_from_it() {
    let run = Run::seeded(config()).await;
    let (coordinator, token) = run.coordinator(Events::off(), CancellationToken::new()).await;
    let victim = Puppet::welcome(&token, "victim").await;
    let work = victim.lease().await;
    let mut thieves = Vec::new();
    // As many come and go as a coordinator might remember, and some stay.
    for instance in 2..24 {
        let thief = Puppet::welcome_as(&token, "victim", instance, Limits::default()).await;
        assert!(matches!(thief.beat(&work, 1).await, Response::Lost { .. }));
        assert!(matches!(thief.complete(&work, LeaseReport::default()).await, Response::Lost { .. }));
        thief.ask(&Request::Release, None).await.unwrap();
        assert_eq!(victim.beat(&work, 1).await, Response::Done);
        thieves.extend((instance % 3 == 0).then_some(thief));
    }
    // They are processes of their own: they get other leases.
    let mut paths = vec![work.path];
    for thief in &thieves[..3] {
        paths.push(thief.lease().await.path);
    }
    paths.sort_unstable();
    paths.dedup();
    assert_eq!(paths.len(), 4);
    let Response::Wait { reason } = thieves[3].ask(&ASK, None).await.unwrap().0 else { panic!("a lease") };
    assert!(reason.contains("4 of the leases") && reason.contains("also named \"victim\""), "{reason}");
    victim.carry_out(&run, &work, 0.001).await;
    for thief in &thieves {
        thief.ask(&Request::Release, None).await.unwrap();
    }
    drop((victim, thieves));
    let worker = run.spawn_worker(&token, "honest");
    assert!(coordinator.await.unwrap().unwrap().finished);
    worker.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_process_is_succeeded_when_it_has_been_silent() {
    let mut config = config();
    // Far longer than the test: the lease must not simply expire.
    (config.train.lease_seconds, config.train.standstill_seconds) = (3600, 3600);
    let run = Run::seeded(config).await;
    let (coordinator, token) = run.coordinator(Events::off(), CancellationToken::new()).await;
    // Its runtime ends as a killed process does: it says nothing to the coordinator.
    let process = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let soon = Limits {
        idle_timeout: Duration::from_secs(1),
        keep_alive: Duration::from_millis(300),
        ..Limits::default()
    };
    let joins = token.clone();
    let begun = process.spawn(async move {
        let puppet = Puppet::welcome_as(&joins, "same", 7, soon).await;
        let work = puppet.lease().await;
        (puppet, work)
    });
    let (killed, work) = begun.await.unwrap();
    let others = [Puppet::welcome(&token, "other").await, Puppet::welcome(&token, "third").await];
    others[0].lease().await;
    others[0].lease().await;
    others[1].lease().await;
    let successor = Puppet::welcome_as(&token, "same", 3, Limits::default()).await;
    assert!(matches!(successor.ask(&ASK, None).await.unwrap().0, Response::Wait { .. }), "it is still alive");
    process.shutdown_background();
    assert_eq!(successor.lease().await.path, work.path);
    for puppet in others.iter().chain([&successor]) {
        puppet.ask(&Request::Release, None).await.unwrap();
    }
    drop((killed, others, successor));
    let worker = run.spawn_worker(&token, "honest");
    assert!(coordinator.await.unwrap().unwrap().finished);
    worker.await.unwrap().unwrap();
    run.has_undisturbed_bits().await;
}
