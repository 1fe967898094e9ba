//! Lease trial: the costs of one lease beside its inner steps.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use dipaco_net::JoinToken;
use dipaco_path::TrainDevice;
use dipaco_sync::Fence;
use dipaco_train::client::{Moved, TokenSource};
use dipaco_train::{
    LeaseMoment, LeaseObserver, LeaseStage, WEIGHTS_IN_MEMORY, WorkerError, WorkerOptions, work,
};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::BenchError;

/// Use of the processor and of memory by this process since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct ProcessUse {
    /// Processor seconds in the program.
    pub user: f64,
    /// Processor seconds in the system.
    pub system: f64,
    /// Pages that the process touched for the first time, without reading a disk.
    pub minor_faults: u64,
}

/// Functions that measure this process, and that of the coordinator.
#[derive(Clone)]
pub struct ProcessMeter {
    /// Use by the process; `None` where the system does not report it.
    pub used: fn() -> Option<ProcessUse>,
    /// Peak resident memory in bytes since the last call of `begin_peak`.
    pub peak: fn() -> Option<u64>,
    /// Begins a new peak.
    pub begin_peak: fn(),
    /// Use by the coordinator's process; `None` where the system does not report it.
    pub coordinator: Arc<dyn Fn() -> Option<ProcessUse> + Send + Sync>,
}

/// Settings of a lease trial.
#[derive(Clone)]
pub struct LeaseTrialOptions {
    /// Join token from the coordinator of a run with one path.
    pub token: JoinToken,
    /// Folder for the path's shard.
    pub cache: PathBuf,
    /// Number of leases.
    pub leases: u32,
    /// Measures this process.
    pub meter: ProcessMeter,
}

/// Costs of a part of a lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StageCost {
    /// Elapsed time.
    pub seconds: f64,
    /// Use by the process meanwhile; `None` where the system does not report it.
    #[serde(flatten)]
    pub used: Option<ProcessUse>,
    /// Bytes that came to the worker.
    pub down: u64,
    /// Bytes that left the worker.
    pub up: u64,
}

/// Costs of a lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct LeaseCost {
    /// From the end of the lease before until the grant: the outer steps of its modules, and the request. Nothing for the first
    /// lease.
    pub wait: StageCost,
    /// From the grant until the inputs are in memory.
    pub fetch: StageCost,
    /// From there until the path is on the device.
    pub load: StageCost,
    /// The inner steps.
    pub steps: StageCost,
    /// From the last inner step until the results are encoded.
    pub encode: StageCost,
    /// From there until the coordinator has recorded the end of the lease.
    pub upload: StageCost,
    /// From the end of the lease before, or from the grant if that was earlier, to the end.
    pub whole: StageCost,
    /// Use by the coordinator's process meanwhile.
    pub coordinator: Option<ProcessUse>,
    /// Bytes that all leases up to the end of this one have moved. With several paths leases overlap, so their bytes do not add
    /// up.
    pub moved: MovedBytes,
    /// Peak resident memory of the process during the lease, in bytes.
    pub peak_bytes: Option<u64>,
}

/// Bytes that a worker has moved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MovedBytes {
    /// Bytes that came to the worker.
    pub down: u64,
    /// Bytes that left the worker.
    pub up: u64,
}

/// A moment of a lease with the use of the process until then.
#[derive(Clone, Copy)]
struct Sample {
    moment: LeaseMoment,
    at: Instant,
    used: Option<ProcessUse>,
    coordinator: Option<ProcessUse>,
    peak: Option<u64>,
}

/// Carries out leases with the code of a worker, and measures each. Leases of one path do not overlap, so all costs between
/// two stages belong to the lease.
///
/// # Errors
/// When the worker fails, or loses a lease, or the run ends early.
pub async fn lease_trial(
    options: LeaseTrialOptions,
    mut completed: impl FnMut(u32) + Send + 'static,
    cancel: CancellationToken,
) -> Result<Vec<LeaseCost>, BenchError> {
    let LeaseTrialOptions { token, cache, leases, meter } = options;
    let samples = Arc::new(Mutex::new(Vec::<Sample>::new()));
    let enough = cancel.child_token();
    let (seen, stop) = (samples.clone(), enough.clone());
    let ended = Mutex::new(move || {
        let lock = seen.lock().unwrap_or_else(PoisonError::into_inner);
        let count = lock.iter().filter(|sample| sample.moment.stage == LeaseStage::Completed).count();
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        completed(count);
        if count >= leases {
            stop.cancel();
        }
    });
    let kept = samples.clone();
    let observer = LeaseObserver::new(move |moment| {
        if moment.stage == LeaseStage::Granted {
            (meter.begin_peak)();
        }
        let sample = Sample {
            moment,
            at: Instant::now(),
            used: (meter.used)(),
            coordinator: (meter.coordinator)(),
            peak: (meter.peak)(),
        };
        kept.lock().unwrap_or_else(PoisonError::into_inner).push(sample);
        if moment.stage == LeaseStage::Completed {
            ended.lock().unwrap_or_else(PoisonError::into_inner)();
        }
    });
    let worker = WorkerOptions {
        token,
        source: TokenSource::Given,
        name: "lease-trial".to_owned(),
        shards: None,
        cache,
        patience: Duration::from_secs(10),
        bandwidth: 0,
        weights_in_memory: WEIGHTS_IN_MEMORY,
        device: TrainDevice::Cpu,
        observer: Some(observer),
    };
    let summary =
        work(worker, enough).await.map_err(|source: WorkerError| BenchError::Worker(source.into()))?;
    if cancel.is_cancelled() {
        return Err(BenchError::Cancelled);
    }
    if summary.lost > 0 {
        return Err(BenchError::LeaseLost);
    }
    let samples = std::mem::take(&mut *samples.lock().unwrap_or_else(PoisonError::into_inner));
    let costs = costs(&samples);
    if costs.len() < leases as usize { Err(BenchError::RunComplete) } else { Ok(costs) }
}

/// The costs of each lease. The grant of a lease may be seen before the end of the lease before it.
fn costs(samples: &[Sample]) -> Vec<LeaseCost> {
    let fences: BTreeSet<Fence> = samples.iter().map(|sample| sample.moment.lease.fence).collect();
    let of = |fence| samples.iter().filter(move |sample| sample.moment.lease.fence == fence).copied();
    let mut before = None;
    let mut cost_after = |samples: Vec<Sample>| {
        let cost = cost(before.as_ref(), &samples)?;
        before = samples.into_iter().find(|sample| sample.moment.stage == LeaseStage::Completed);
        Some(cost)
    };
    fences.into_iter().filter_map(|fence| cost_after(of(fence).collect())).collect()
}

/// The costs of a lease from its samples, and from the end of the lease before it; `None` if it did not reach its end.
fn cost(before: Option<&Sample>, samples: &[Sample]) -> Option<LeaseCost> {
    let find = |stage| samples.iter().find(|sample| sample.moment.stage == stage);
    let between = |from, to| Some(difference(find(from)?, find(to)?));
    let (granted, completed) = (find(LeaseStage::Granted)?, find(LeaseStage::Completed)?);
    // A lease may be granted before the lease before it has ended.
    let begin = before.filter(|before| before.at <= granted.at).unwrap_or(granted);
    let Moved { down, up, .. } = completed.moment.moved;
    Some(LeaseCost {
        wait: difference(begin, granted),
        fetch: between(LeaseStage::Granted, LeaseStage::Fetched)?,
        load: between(LeaseStage::Fetched, LeaseStage::Loaded)?,
        steps: between(LeaseStage::Loaded, LeaseStage::Trained)?,
        encode: between(LeaseStage::Trained, LeaseStage::Encoded)?,
        upload: between(LeaseStage::Encoded, LeaseStage::Completed)?,
        whole: difference(begin, completed),
        coordinator: use_between(begin.coordinator, completed.coordinator),
        moved: MovedBytes { down, up },
        peak_bytes: samples.iter().filter_map(|sample| sample.peak).max(),
    })
}

/// The costs from one sample to the next.
fn difference(from: &Sample, to: &Sample) -> StageCost {
    let Moved { down, up, .. } = from.moment.moved;
    StageCost {
        seconds: to.at.duration_since(from.at).as_secs_f64(),
        used: use_between(from.used, to.used),
        down: to.moment.moved.down - down,
        up: to.moment.moved.up - up,
    }
}

/// The use of a process between two moments.
fn use_between(from: Option<ProcessUse>, to: Option<ProcessUse>) -> Option<ProcessUse> {
    from.zip(to).map(|(from, to)| ProcessUse {
        user: to.user - from.user,
        system: to.system - from.system,
        minor_faults: to.minor_faults.saturating_sub(from.minor_faults),
    })
}

#[cfg(test)]
mod tests {
    use dipaco_sync::{LeaseKey, LeaseSecret};
    use dipaco_topology::PathId;

    use super::*;

    #[test]
    fn stages_add_up_to_the_lease_and_an_unfinished_lease_has_no_cost() {
        let lease = LeaseKey { path: PathId(0), fence: Fence(3), secret: LeaseSecret::default() };
        let start = Instant::now();
        let stages = [
            (LeaseStage::Granted, 0, 0, 100),
            (LeaseStage::Fetched, 40, 0, 110),
            (LeaseStage::Loaded, 40, 0, 150),
            (LeaseStage::Trained, 40, 0, 170),
            (LeaseStage::Encoded, 40, 0, 175),
            (LeaseStage::Completed, 41, 120, 180),
        ];
        let samples: Vec<Sample> = (0..)
            .zip(stages)
            .map(|(second, (stage, down, up, minor_faults))| Sample {
                moment: LeaseMoment { lease, stage, moved: Moved { down, up, linked: 0 } },
                at: start + Duration::from_secs(second),
                used: Some(ProcessUse { user: second as f64 / 2.0, system: 0.25, minor_faults }),
                coordinator: Some(ProcessUse { user: second as f64, system: 0.5, minor_faults: 0 }),
                peak: Some(7 + second),
            })
            .collect();
        let cost = cost(None, &samples).unwrap();
        let parts = [cost.fetch, cost.load, cost.steps, cost.encode, cost.upload];
        assert!((parts.iter().map(|part| part.seconds).sum::<f64>() - 5.0).abs() < 1e-9);
        assert_eq!(parts.map(|part| part.used.unwrap().minor_faults), [10, 40, 20, 5, 5]);
        assert_eq!(parts.map(|part| (part.down, part.up)), [(40, 0), (0, 0), (0, 0), (0, 0), (1, 120)]);
        assert_eq!((cost.whole.down, cost.whole.up, cost.peak_bytes), (41, 120, Some(12)));
        assert_eq!(cost.whole.used.unwrap(), ProcessUse { user: 2.5, system: 0.0, minor_faults: 80 });
        assert_eq!(cost.coordinator.unwrap(), ProcessUse { user: 5.0, system: 0.0, minor_faults: 0 });
        assert_eq!(cost.wait.seconds, 0.0);
        assert!(super::cost(None, &samples[..5]).is_none());
        // The next lease is granted before the end of this one is seen.
        let mut next = samples[0];
        next.moment.lease.fence = Fence(4);
        let overlapping = [&samples[..5], &[next], &samples[5..]].concat();
        assert_eq!(costs(&overlapping), [cost]);
        // A later lease begins with the end of the lease before it: the time until its grant is part of it.
        let later = samples.iter().map(|sample| {
            let mut sample = *sample;
            sample.moment.lease.fence = Fence(4);
            sample.at += Duration::from_secs(7);
            sample.moment.moved.down += cost.moved.down;
            sample.moment.moved.up += cost.moved.up;
            sample.coordinator = sample.coordinator.map(|used| ProcessUse { user: used.user + 8.0, ..used });
            sample
        });
        let both: Vec<Sample> = samples.iter().copied().chain(later).collect();
        let [first, second] = costs(&both)[..] else { panic!("two leases") };
        assert_eq!(first, cost);
        assert_eq!((second.wait.seconds, second.whole.seconds), (2.0, 7.0));
        assert_eq!((second.whole.down, second.moved.down, second.moved.up), (41, 82, 240));
        assert_eq!(second.coordinator.unwrap().user, 8.0);
    }
}
