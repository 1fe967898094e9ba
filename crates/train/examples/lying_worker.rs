//! A worker with a valid token that lies about some paths, to measure how a run withstands it (`scripts/poison.py`).
//!
//! It trains every lease honestly. For the paths of its list it then sends another outer gradient than it found:
//! the opposite one (`flip`), or noise of the same norm (`noise`), times a factor. Everything else is honest, so the
//! coordinator accepts the lie as long as its norm is within `outer.guard`. The lie is a function of the lease, so a
//! synchronous run with lies has the same bits each time.
//!
//! ```text
//! lying_worker TOKEN_FILE NAME SHARDS [flip|noise TIMES PATH,PATH,…]
//! ```
//!
//! It uses what the package offers to other programs, and holds one lease at a time.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use dipaco_net::{Clock, JoinToken};
use dipaco_path::{
    GlobalFragment, Layout, LeaseTraining, LeaseWatch, MomentSpecs, PathData, PathState, PathWeights,
    TrainDevice, TrainerMemory, module_files, numerics, train_lease,
};
use dipaco_protocol::{GrantedLease, LeaseResult, Request, WorkerPlan};
use dipaco_shards::TokenSet;
use dipaco_topology::PathId;
use dipaco_train::client::{Identity, LONG_CALL_TIMEOUT, LeaseOffer, Session, Transfer, expect_done};
use tokio_util::sync::CancellationToken;

type Failure = Box<dyn Error + Send + Sync>;

/// What the worker sends instead of an outer gradient.
#[derive(Clone, Debug)]
struct Lie {
    noise: bool,
    times: f32,
    paths: Vec<PathId>,
}

impl Lie {
    fn of(words: &[String]) -> Result<Option<Self>, Failure> {
        let [kind, times, paths] = words else {
            return if words.is_empty() {
                Ok(None)
            } else {
                Err("give flip or noise, a factor, and paths".into())
            };
        };
        let noise = match kind.as_str() {
            "flip" => false,
            "noise" => true,
            other => return Err(format!("{other} is no lie: give flip or noise").into()),
        };
        let paths = paths.split(',').map(|path| Ok(PathId(path.parse()?))).collect::<Result<_, Failure>>()?;
        Ok(Some(Self { noise, times: times.parse()?, paths }))
    }

    /// The outer gradient that the worker sends for an honest one.
    fn about(&self, honest: &[f32], lease: &GrantedLease, level: u16) -> Vec<f32> {
        if !self.noise {
            return honest.iter().map(|value| -self.times * value).collect();
        }
        let source = format!("{} {} {level}", lease.path, lease.from);
        let mut bytes = vec![0; size_of_val(honest)];
        blake3::Hasher::new().update(source.as_bytes()).finalize_xof().fill(&mut bytes);
        let drawn = bytes.chunks_exact(4).map(|four| four.iter().fold(0u32, |n, b| n << 8 | u32::from(*b)));
        // Uniform noise of this width has the mean square of the honest values.
        let square: f32 = honest.iter().map(|value| value * value).sum();
        let width = self.times * (3.0 * square / honest.len().max(1) as f32).sqrt();
        drawn.map(|drawn| width * (drawn as f32 / u32::MAX as f32 * 2.0 - 1.0)).collect()
    }
}

/// A lease trained honestly, as it is uploaded.
struct Results {
    gradients: Vec<(LeaseResult, Bytes)>,
    state: Option<Bytes>,
    report: dipaco_protocol::LeaseReport,
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [token, name, shards, lie @ ..] = words.as_slice() else {
        return Err("lying_worker TOKEN_FILE NAME SHARDS [flip|noise TIMES PATH,PATH,…]".into());
    };
    let (shards, lie) = (PathBuf::from(shards), Lie::of(lie)?);
    let identity = Identity {
        token: JoinToken::read_from(Path::new(token))?,
        source: dipaco_train::client::TokenSource::Given,
        worker: name.clone(),
        instance: u64::from(std::process::id()),
        patience: Duration::from_secs(60),
        clock: Clock::system(),
        numerics: numerics(&TrainDevice::Cpu)?,
        server: None,
    };
    let session = Arc::new(Session::open(identity, CancellationToken::new()).await?);
    let transfer = Arc::new(Transfer::new(session.clone(), 0));
    loop {
        let asked = session.ask(&Request::Lease { held: Vec::new(), wait_ms: 15_000 }).await;
        let lease = match asked {
            Ok(LeaseOffer::Lease(lease)) => *lease,
            Ok(LeaseOffer::Wait(_) | LeaseOffer::Unfit(_)) => continue,
            Ok(LeaseOffer::Finished) | Err(dipaco_train::client::ClientError::Complete) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        carry_out(&session, &transfer, &shards, lease, lie.clone()).await?;
    }
}

/// Downloads the inputs of a lease, trains it, lies if the path is on the list, and uploads the results.
async fn carry_out(
    session: &Arc<Session>,
    transfer: &Arc<Transfer>,
    shards: &Path,
    lease: GrantedLease,
    lie: Option<Lie>,
) -> Result<(), Failure> {
    let key = lease.key();
    let mut globals = Vec::new();
    for weights in &lease.weights {
        globals.push(transfer.object(&weights.object).await?);
    }
    let state = match &lease.state {
        Some(object) if lease.trains() => Some(transfer.object(object).await?),
        _ => None,
    };
    let (plan, shards) = (session.plan().clone(), shards.to_owned());
    let training = tokio::task::spawn_blocking(move || {
        train(&plan, &shards, &lease, &Inputs { globals, state }, lie.as_ref())
    });
    let Results { gradients, state, report } = training.await??;
    for (item, content) in gradients {
        transfer.upload(key, item, content).await?;
    }
    if let Some(state) = state {
        transfer.upload(key, LeaseResult::State, state).await?;
    }
    let request = Request::Complete { lease: key, report };
    expect_done(session.call(&request, None, LONG_CALL_TIMEOUT).await?, "complete")?;
    Ok(())
}

/// The downloaded inputs of a lease, encoded.
struct Inputs {
    /// Global weights of the path's fragments, in the order of the lease.
    globals: Vec<Bytes>,
    state: Option<Bytes>,
}

fn train(
    plan: &WorkerPlan,
    shards: &Path,
    lease: &GrantedLease,
    inputs: &Inputs,
    lie: Option<&Lie>,
) -> Result<Results, Failure> {
    let layout = Layout::of_plan(plan, &plan.topology()?)?;
    let data =
        PathData::new(TokenSet::open(shards.join(&lease.shard.file))?, &lease.shard.hash, lease.path, plan)?;
    let moments = MomentSpecs::of_plan(plan)?;
    let mut state = match &inputs.state {
        Some(bytes) => PathState::decode(bytes, &moments)?,
        None => PathState { step: lease.from, ..PathState::start(&moments) },
    };
    let mut values = Vec::new();
    for (weights, bytes) in lease.weights.iter().zip(&inputs.globals) {
        let (level, index) = (weights.fragment.module.level, weights.fragment.index);
        let specs = layout.fragment(level, index)?.specs.clone();
        values.push(Arc::new(module_files::decode(&weights.object.name, bytes, specs)?.values));
    }
    let global = |(weights, values): (&dipaco_protocol::FragmentWeights, _)| GlobalFragment {
        fragment: weights.fragment,
        values,
        received: weights.received,
        share: weights.share,
    };
    let globals: Vec<_> = lease.weights.iter().zip(values).map(global).collect();
    let begins = lease.from == lease.phase_step || !lease.trains();
    let weights = PathWeights::new(plan, lease.path, &globals, &mut state, begins)?;
    let training = LeaseTraining {
        device: &TrainDevice::Cpu,
        plan,
        path: lease.path,
        data: &data,
        phase_step: lease.phase_step,
        to: lease.to,
        sends: &lease.sends,
        measures: true,
        memory: &TrainerMemory::default(),
    };
    let mut early = Vec::new();
    let trained = train_lease(training, weights, state, &LeaseWatch::default(), |sent| early.push(sent))?;
    let trained = trained.ok_or("the training was cancelled")?;
    let mut gradients = Vec::new();
    for gradient in early.into_iter().chain(trained.last) {
        let fragment = gradient.send.fragment;
        let mut encoded = gradient.encoded;
        if let Some(lie) = lie.filter(|lie| lie.paths.contains(&lease.path)) {
            let level = fragment.module.level;
            let honest = dipaco_codec::decode(&encoded, layout.fragment(level, fragment.index)?.values())?;
            encoded = dipaco_codec::encode(&lie.about(&honest, lease, level), plan.outer.compression)?;
        }
        let item =
            LeaseResult::OuterGradient { fragment, number: gradient.send.number, tokens: gradient.tokens };
        gradients.push((item, encoded.into()));
    }
    let state = (lease.trains() && lease.uploads_state).then(|| trained.state.encode(&moments));
    Ok(Results { gradients, state: state.transpose()?.map(Into::into), report: trained.report })
}
