//! A worker as it is, but for its training thread, which stands still. Its connection lives, and its heartbeats go on.
//!
//! Linux stops processes and no single threads from outside, so the observer of leases holds the thread. It stands still
//! with states of paths that count, and between inner steps: before the first one of a lease, or after the last one.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use dipaco_net::JoinToken;
use dipaco_path::TrainDevice;
use dipaco_train::client::TokenSource;
use dipaco_train::{LeaseMoment, LeaseObserver, LeaseStage, WEIGHTS_IN_MEMORY, WorkerOptions, work};
use tokio_util::sync::CancellationToken;

use crate::Failure;

/// Of so many leases one stands still before its first inner step, and one after its last.
const TURN: u32 = 8;
/// The lease of each turn that stands still after its last inner step. The other one is the last of the turn.
const AFTER_LAST_STEP: u32 = 4;

/// Works until a lease stands still for good.
pub(crate) async fn work_and_hang(token: JoinToken, name: &str, cache: PathBuf) -> Result<(), Failure> {
    carry_out_leases(token, name, cache, || {
        loop {
            std::thread::park();
        }
    })
    .await
}

/// Works until the run is complete. Leases that stand still go on after this time.
pub(crate) async fn work_and_pause(
    token: JoinToken,
    name: &str,
    cache: PathBuf,
    time: Duration,
) -> Result<(), Failure> {
    carry_out_leases(token, name, cache, move || std::thread::sleep(time)).await
}

async fn carry_out_leases(
    token: JoinToken,
    name: &str,
    cache: PathBuf,
    stand_still: impl Fn() + Send + Sync + 'static,
) -> Result<(), Failure> {
    rayon::ThreadPoolBuilder::new().num_threads(1).build_global()?;
    let (loaded, trained) = (AtomicU32::new(0), AtomicU32::new(0));
    let observe = move |LeaseMoment { lease, stage, .. }: LeaseMoment| {
        // Both stages are told on the training thread.
        let (count, stop) = match stage {
            LeaseStage::Loaded => (&loaded, 0),
            LeaseStage::Trained => (&trained, AFTER_LAST_STEP),
            _ => return,
        };
        if (count.fetch_add(1, Ordering::Relaxed) + 1) % TURN == stop {
            report(&format!("path {} stands still: {stage:?}", lease.path));
            stand_still();
            report(&format!("path {} goes on", lease.path));
        }
    };
    let options = WorkerOptions {
        token,
        source: TokenSource::Given,
        name: name.to_owned(),
        shards: None,
        cache,
        patience: Duration::from_secs(60),
        bandwidth: 0,
        weights_in_memory: WEIGHTS_IN_MEMORY,
        device: TrainDevice::Cpu,
        observer: Some(LeaseObserver::new(observe)),
    };
    work(options, CancellationToken::new()).await?;
    Ok(())
}

#[expect(clippy::print_stderr, reason = "the log that the script reads")]
fn report(line: &str) {
    eprintln!("{line}");
}
