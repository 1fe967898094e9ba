//! Peers with a valid token that lie. The coordinator refuses them, and the run ends with the bits of an honest run.
#![allow(clippy::unwrap_used)]

mod support;

use std::sync::Arc;

use dipaco_config::RunConfig;
use dipaco_model::Dtype;
use dipaco_path::{MomentSpecs, PathState};
use dipaco_protocol::{ContentDigest, GrantedLease, LeaseReport, LeaseResult, Request, Response, WorkerPlan};
use dipaco_telemetry::Events;
use dipaco_topology::{PathId, Topology};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use support::{Coordinating, Puppet, Run, config};

fn refusal(answer: Response) -> String {
    match answer {
        Response::Refused { reason } => reason,
        other => panic!("not refused but {other:?}"),
    }
}

fn lost(answer: Response) -> String {
    match answer {
        Response::Lost { reason } => reason,
        other => panic!("not lost but {other:?}"),
    }
}

/// A coordinated run with a liar that has a valid token.
struct Hostile {
    run: Run,
    coordinator: Coordinating,
    token: dipaco_net::JoinToken,
    liar: Puppet,
}

impl Hostile {
    async fn started(config: RunConfig) -> Self {
        let run = Run::seeded(config).await;
        let (coordinator, token) = run.coordinator(Events::off(), CancellationToken::new()).await;
        let liar = Puppet::welcome(&token, "liar").await;
        Self { run, coordinator, token, liar }
    }
}

/// Trains the run to its end with an honest worker, and compares it with a run without liars.
async fn ends_like_an_honest_run(run: &Run, coordinator: Coordinating, token: &dipaco_net::JoinToken) {
    let worker = run.spawn_worker(token, "honest");
    assert!(coordinator.await.unwrap().unwrap().finished);
    worker.await.unwrap().unwrap();
    run.has_undisturbed_bits().await;
}

/// The outer gradient of the lease's first fragment.
fn first_gradient(work: &GrantedLease, tokens: u64) -> LeaseResult {
    let send = work.sends[0];
    LeaseResult::OuterGradient { fragment: send.fragment, number: send.number, tokens }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paths_that_the_run_does_not_have_end_no_coordinator() {
    let mut config = config();
    config.train.held_paths = 1;
    let Hostile { run, coordinator, token, liar } = Hostile::started(config).await;
    // A worker of this run keeps one state, and has two leases.
    for (held, why) in [
        (vec![PathId(99)], "this run has 4 paths"),
        (vec![PathId(u32::MAX)], "this run has 4 paths"),
        (vec![PathId(0); 4], "at most 3 states"),
    ] {
        let refused = refusal(liar.ask(&Request::Lease { held, wait_ms: 0 }, None).await.unwrap().0);
        assert!(refused.contains(why), "{refused}");
    }
    drop(liar);
    ends_like_an_honest_run(&run, coordinator, &token).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_belongs_to_the_process_that_got_it() {
    let run = Run::seeded(config()).await;
    let (coordinator, token) = run.coordinator(Events::off(), CancellationToken::new()).await;
    let owner = Puppet::welcome(&token, "owner").await;
    let work = owner.lease().await;
    let values = run.values_of(work.sends[0].fragment);
    let item = first_gradient(&work, 1);
    // Another worker with the same token, and the same name with another token.
    let other_token = run.token_of("other", &token);
    for thief in [Puppet::welcome(&token, "thief").await, Puppet::welcome(&other_token, "owner").await] {
        lost(thief.beat(&work, 1).await);
        lost(thief.follow(&work).await);
        lost(thief.submit_gradient(&work, item, (values, 0.5)).await);
        lost(thief.complete(&work, LeaseReport::default()).await);
        assert_eq!(owner.beat(&work, 1).await, Response::Done);
    }
    // The lease of the owner's own process, with a guessed secret.
    let forged = GrantedLease { secret: dipaco_sync::LeaseSecret::new([0; 16]), ..work.clone() };
    lost(owner.beat(&forged, 1).await);
    lost(owner.submit_gradient(&forged, item, (values, 0.5)).await);
    lost(owner.complete(&forged, LeaseReport::default()).await);
    owner.ask(&Request::Release, None).await.unwrap();
    drop(owner);
    ends_like_an_honest_run(&run, coordinator, &token).await;
}

/// Uploads each outer gradient of a lease, and then others in its place.
async fn a_second_content_is_refused(overlap_steps: u64) {
    let mut config = config();
    (config.sync.fragments, config.sync.overlap_steps) = (2, overlap_steps);
    let Hostile { run, coordinator, token, liar } = Hostile::started(config).await;
    let work = liar.lease().await;
    let topology = Topology::new(&run.config.topology, run.config.model.blocks).unwrap();
    let plan = WorkerPlan::new(&run.config);
    let layout = dipaco_path::Layout::of_plan(&plan, &topology).unwrap();
    assert!(work.sends.iter().all(|send| (send.step < work.to) == (overlap_steps > 0)));
    for send in &work.sends {
        let fragment = send.fragment;
        let values = layout.fragment(fragment.module.level, fragment.index).unwrap().values();
        let item = |tokens| LeaseResult::OuterGradient { fragment, number: send.number, tokens };
        assert_eq!(liar.submit_gradient(&work, item(1), (values, 0.5)).await, Response::Done);
        // Another content, and the same content with another number of tokens.
        refusal(liar.submit_gradient(&work, item(1), (values, 0.25)).await);
        refusal(liar.submit_gradient(&work, item(2), (values, 0.5)).await);
        assert_eq!(liar.submit_gradient(&work, item(1), (values, 0.5)).await, Response::Done);
    }
    liar.ask(&Request::Release, None).await.unwrap();
    drop(liar);
    let worker = run.spawn_worker(&token, "honest");
    assert!(coordinator.await.unwrap().unwrap().finished);
    worker.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_content_of_what_counts_with_its_lease_is_refused() {
    a_second_content_is_refused(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_content_of_what_counts_at_once_is_refused() {
    a_second_content_is_refused(1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_that_no_training_makes_is_refused() {
    let Hostile { run, coordinator, token, liar } = Hostile::started(config()).await;
    let work = liar.lease().await;
    let moments = MomentSpecs::of_plan(&WorkerPlan::new(&run.config)).unwrap();
    let position = work.to * run.config.train.batch as u64;
    let sound = PathState { step: work.to, position, ..PathState::start(&moments) };
    let mut states = vec![
        ("step", PathState { step: work.to + 1, ..sound.clone() }),
        ("position", PathState { position: u64::MAX, ..sound.clone() }),
    ];
    let mut negative = sound.clone();
    negative.second[0] = -1.0;
    states.push(("second moment", negative));
    let values = run.values_of(work.sends[0].fragment);
    for part in ["own", "residual"] {
        let mut kept = dipaco_path::FragmentState::default();
        let values = Some(vec![0.5; values]);
        if part == "own" {
            kept.weights = values;
        } else {
            kept.residual = values;
        }
        let mut state = sound.clone();
        state.kept.insert((0, 0), kept);
        states.push((part, state));
    }
    for (why, state) in states {
        let encoded = state.encode(&moments).unwrap();
        let refused = refusal(liar.submit(&work, LeaseResult::State, encoded.into()).await.unwrap());
        assert!(refused.contains(why), "{why}: {refused}");
    }
    // Half of the bytes, and moments that an honest worker would train from.
    let bf16 = sound.encode(&moments.clone().stored_as(Dtype::Bf16)).unwrap();
    let refused = refusal(liar.submit(&work, LeaseResult::State, bf16.into()).await.unwrap());
    assert!(refused.contains("is BF16 in the file: only F32 is read"), "{refused}");
    // The states of this scheme are moments. A state with room for weights too is refused before a byte of it is sent.
    let digest = ContentDigest { bytes: 12 * moments.values() as u64, ..ContentDigest::of(&[]) };
    let submit = Request::Submit { lease: work.key(), item: LeaseResult::State, digest, offset: 0 };
    let refused = refusal(liar.ask(&submit, None).await.unwrap().0);
    assert!(refused.contains("at most"), "{refused}");
    liar.ask(&Request::Release, None).await.unwrap();
    drop(liar);
    ends_like_an_honest_run(&run, coordinator, &token).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_that_ends_or_freezes_the_training_of_others_is_refused() {
    for dtype in [Dtype::F32, Dtype::Bf16] {
        let mut config = config();
        config.train.state_dtype = dtype;
        forged_moments_are_refused(config).await;
    }
}

async fn forged_moments_are_refused(config: RunConfig) {
    let Hostile { run, coordinator, token, liar } = Hostile::started(config).await;
    let work = liar.lease().await;
    let moments = MomentSpecs::of_plan(&WorkerPlan::new(&run.config)).unwrap();
    let position = work.to * run.config.train.batch as u64;
    let sound = PathState { step: work.to, position, ..PathState::start(&moments) };
    // Without a further gradient a step of AdamW makes the weight infinite, or moves it by far more than 1, or not at all
    // for the rest of the run.
    for (first, second, why) in
        [(3e38, 0.0, "first moment"), (1e-3, 0.0, "first moment"), (0.0, 1e38, "second moment")]
    {
        // Of the embedding of a token, which a lease may not read.
        let mut state = sound.clone();
        (state.first[5], state.second[5]) = (first, second);
        let encoded = state.encode(&moments).unwrap();
        let refused = refusal(liar.submit(&work, LeaseResult::State, encoded.into()).await.unwrap());
        assert!(refused.contains(why), "{why}: {refused}");
    }
    liar.ask(&Request::Release, None).await.unwrap();
    drop(liar);
    ends_like_an_honest_run(&run, coordinator, &token).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_holds_at_most_two_leases() {
    let run = Run::seeded(config()).await;
    let (coordinator, token) = run.coordinator(Events::off(), CancellationToken::new()).await;
    let greedy = Puppet::welcome(&token, "greedy").await;
    greedy.lease().await;
    greedy.lease().await;
    let third = greedy.ask(&Request::Lease { held: Vec::new(), wait_ms: 0 }, None).await.unwrap().0;
    assert!(matches!(&third, Response::Wait { reason } if reason.contains("has 2 leases")), "{third:?}");
    greedy.ask(&Request::Release, None).await.unwrap();
    drop(greedy);
    ends_like_an_honest_run(&run, coordinator, &token).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_waits_with_one_request_for_a_lease_and_with_one_to_follow_each() {
    let mut config = config();
    (config.sync.fragments, config.sync.overlap_steps) = (2, 1);
    let Hostile { run, coordinator, token, liar: greedy } = Hostile::started(config).await;
    let works = [greedy.lease().await, greedy.lease().await];
    let other = Puppet::welcome(&token, "other").await;
    other.lease().await;
    other.lease().await;
    let greedy = Arc::new(greedy);
    // All paths have leases, so each request waits.
    let any = Request::Lease { held: Vec::new(), wait_ms: 20_000 };
    let follow = works.map(|work| Request::Follow { lease: work.key(), wait_ms: 20_000 });
    let mut waiting = JoinSet::new();
    for ask in [any, follow[0].clone(), follow[1].clone()].into_iter().flat_map(|ask| vec![ask; 5]) {
        let greedy = greedy.clone();
        waiting.spawn(async move { greedy.ask(&ask, None).await.unwrap().0 });
    }
    for _ in 0..12 {
        let answer = waiting.join_next().await.unwrap().unwrap();
        assert!(matches!(&answer, Response::Wait { reason } if reason.contains("asked again")), "{answer:?}");
    }
    // The others still wait for what the end of its leases brings.
    greedy.ask(&Request::Release, None).await.unwrap();
    let mut answers = Vec::new();
    while let Some(answer) = waiting.join_next().await {
        answers.push(answer.unwrap());
    }
    let granted = answers.iter().filter(|answer| matches!(answer, Response::Lease(_)));
    let lost = answers.iter().filter(|answer| matches!(answer, Response::Lost { .. }));
    assert_eq!((granted.count(), lost.count()), (1, 2), "{answers:?}");
    for puppet in [&*greedy, &other] {
        puppet.ask(&Request::Release, None).await.unwrap();
    }
    drop((greedy, other));
    ends_like_an_honest_run(&run, coordinator, &token).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_with_many_names_leaves_a_path_to_another_token() {
    let run = Run::seeded(config()).await;
    let (coordinator, token) = run.coordinator(Events::off(), CancellationToken::new()).await;
    let other = Puppet::welcome(&run.token_of("other", &token), "other").await;
    let ask = Request::Lease { held: Vec::new(), wait_ms: 0 };
    let mut greedy = Vec::new();
    for name in 0..4 {
        let puppet = Puppet::welcome(&token, &format!("greedy {name}")).await;
        puppet.lease().await;
        greedy.push(puppet);
    }
    assert!(matches!(other.ask(&ask, None).await.unwrap().0, Response::Wait { .. }), "all paths have leases");
    // The lease of a worker ends, and the worker is first to ask for the path.
    greedy[3].ask(&Request::Release, None).await.unwrap();
    let again = greedy[3].ask(&ask, None).await.unwrap().0;
    let at_most_three = |reason: &str| reason.contains("train 3 paths") && reason.contains("at most 3");
    assert!(matches!(&again, Response::Wait { reason } if at_most_three(reason)), "{again:?}");
    other.lease().await;
    for puppet in greedy.iter().chain([&other]) {
        puppet.ask(&Request::Release, None).await.unwrap();
    }
    drop((greedy, other));
    ends_like_an_honest_run(&run, coordinator, &token).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_trains_at_most_the_paths_of_the_setting() {
    let mut config = config();
    config.train.token_leases = 2;
    let Hostile { run, coordinator, token, liar } = Hostile::started(config).await;
    liar.lease().await;
    let second = Puppet::welcome(&token, "second name").await;
    second.lease().await;
    let third = Puppet::welcome(&token, "third name").await;
    let answer = third.ask(&Request::Lease { held: Vec::new(), wait_ms: 0 }, None).await.unwrap().0;
    let reason = |reason: &str| reason.contains("at most 2") && reason.contains("train.token_leases");
    assert!(matches!(&answer, Response::Wait { reason: why } if reason(why)), "{answer:?}");
    for puppet in [&liar, &second] {
        puppet.ask(&Request::Release, None).await.unwrap();
    }
    drop((liar, second, third));
    ends_like_an_honest_run(&run, coordinator, &token).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_tokens_than_a_lease_has_are_refused() {
    let mut config = config();
    config.outer.weighting = dipaco_sync::Weighting::Tokens;
    let Hostile { run, coordinator, token, liar } = Hostile::started(config).await;
    let work = liar.lease().await;
    let values = run.values_of(work.sends[0].fragment);
    // 4 inner steps of 4 sequences of 16 tokens.
    for tokens in [257, u64::MAX] {
        let refused =
            refusal(liar.submit_gradient(&work, first_gradient(&work, tokens), (values, 0.5)).await);
        assert!(refused.contains("256 tokens"), "{refused}");
    }
    assert_eq!(liar.submit_gradient(&work, first_gradient(&work, 256), (values, 0.5)).await, Response::Done);
    liar.ask(&Request::Release, None).await.unwrap();
    drop(liar);
    ends_like_an_honest_run(&run, coordinator, &token).await;
}
