//! Outer steps with contributions that overflow, after one another, and in a store that fails for a while.

use std::fs::{remove_file, rename};
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use dipaco_codec::Compression;
use dipaco_config::RunConfig;
use dipaco_optim::NesterovConfig;
use dipaco_store::{Patience, StoreError};
use dipaco_sync::{Merge, Rescale};
use dipaco_topology::ModuleId;

use super::*;

const FRAGMENT: FragmentId = FragmentId { module: ModuleId { level: 0, index: 0 }, index: 0 };

fn plan() -> WorkerPlan {
    let mut config = RunConfig::default();
    config.model.vocab_size = 11;
    (config.model.hidden_size, config.model.ffn_size, config.model.blocks) = (8, 8, 1);
    (config.model.heads, config.model.head_dim) = (1, 8);
    config.topology = dipaco_topology::TopologyConfig::dense(1);
    WorkerPlan::new(&config)
}

fn specs(plan: &WorkerPlan) -> Arc<[TensorSpec]> {
    let layout = Layout::of_plan(plan, &plan.topology().unwrap()).unwrap();
    layout.fragment(0, 0).unwrap().specs.clone()
}

fn synchronizer(plan: &WorkerPlan, store: &RunStore) -> Synchronizer {
    let layout = Layout::of_plan(plan, &plan.topology().unwrap()).unwrap();
    Synchronizer::new(store.clone(), layout, plan, VerifiedGradients::default(), std::env::temp_dir())
}

/// Puts weights of equal values into the store.
async fn weights(store: &RunStore, plan: &WorkerPlan, value: f32) -> ObjectRef {
    let specs = specs(plan);
    let values = vec![value; dipaco_model::parameters(&specs)];
    let weights = module_files::encode(&ModuleWeights { specs, values }).unwrap();
    store.put("modules/before", weights).await.unwrap()
}

/// Puts an outer gradient of equal values into the store.
async fn gradient(store: &RunStore, plan: &WorkerPlan, value: f32) -> ObjectRef {
    let values = vec![value; dipaco_model::parameters(&specs(plan))];
    let encoded = dipaco_codec::encode(&values, Compression::F32).unwrap();
    store.put(&format!("gradients/{value}"), Bytes::from(encoded)).await.unwrap()
}

/// A step that is due, from these weights and this momentum, with one contribution.
fn order(weights: ObjectRef, momentum: Option<ObjectRef>, gradient: ObjectRef) -> OuterStepOrder {
    OuterStepOrder {
        fragment: FRAGMENT,
        version: 1,
        fence: 7,
        weights,
        momentum,
        shares: vec![MergeInput { path: PathId(0), weight: 1.0, reduction: 1.0, gradient: Some(gradient) }],
        applied: 0,
        due: true,
    }
}

#[tokio::test]
async fn contributions_that_overflow_are_left_out() {
    let (plan, store) = (plan(), RunStore::in_memory());
    let weights = weights(&store, &plan, 0.25).await;
    let synchronizer = synchronizer(&plan, &store);
    for (value, expected) in [(-3e38f32, Some(0.25f32)), (1.0, None)] {
        let gradient = gradient(&store, &plan, value).await;
        let order = order(weights.clone(), None, gradient);
        let done = synchronizer.carry_out(order).await.unwrap().unwrap();
        let published = read_module(&store, &done.weights, specs(&plan)).await.unwrap().values;
        assert!(published.iter().all(|value| value.is_finite()));
        assert_eq!(published.iter().all(|value| *value == 0.25), expected.is_some(), "{value}");
        assert!(store.get(&done.momentum).await.is_ok());
    }
}

/// The objects of an outer step.
fn objects(done: OuterStepDone) -> Vec<ObjectRef> {
    done.objects().cloned().collect()
}

#[tokio::test]
async fn an_outer_step_begins_with_what_the_last_one_made_and_reads_no_object_of_it() {
    for (broadcast, delay) in [(Compression::F32, 0), (Compression::Int8, 0), (Compression::F32, 2)] {
        let (mut plan, store) = (plan(), RunStore::in_memory());
        (plan.outer.broadcast, plan.outer.delay) = (broadcast, delay);
        let (weights, gradient) = (weights(&store, &plan, 0.25).await, gradient(&store, &plan, 1.0).await);
        let process = synchronizer(&plan, &store);
        let first = process.carry_out(order(weights, None, gradient.clone())).await.unwrap().unwrap();
        let next = order(first.weights.clone(), Some(first.momentum.clone()), gradient);
        let next = OuterStepOrder { version: 2, ..next };
        let of_new_process = synchronizer(&plan, &store).carry_out(next.clone()).await.unwrap().unwrap();
        for object in [first.weights, first.momentum] {
            store.delete(&object.name).await.unwrap();
        }
        let second = process.carry_out(next).await.unwrap().unwrap();
        assert_eq!(objects(second), objects(of_new_process), "{broadcast:?} {delay}");
    }
}

#[tokio::test]
async fn an_order_with_other_inputs_than_the_last_step_made_reads_them() {
    let (plan, store) = (plan(), RunStore::in_memory());
    let (weights, gradient) = (weights(&store, &plan, 0.25).await, gradient(&store, &plan, 1.0).await);
    let process = synchronizer(&plan, &store);
    let begin = order(weights, None, gradient.clone());
    let first = process.carry_out(begin.clone()).await.unwrap().unwrap();
    let other = store.get(&first.weights).await.unwrap();
    let other = store.put("momenta/other", other).await.unwrap();
    // The same step again, as after its loss; and the next one with a momentum that another process has made.
    let next = order(first.weights, Some(other), gradient);
    for order in [begin.clone(), OuterStepOrder { version: 2, ..next }, begin] {
        let of_new_process = synchronizer(&plan, &store).carry_out(order.clone()).await.unwrap().unwrap();
        let found = process.carry_out(order).await.unwrap().unwrap();
        assert_eq!(objects(found), objects(of_new_process));
    }
}

/// Whichever way the contributions are merged.
#[tokio::test]
async fn a_reduced_contribution_counts_as_a_smaller_one() {
    for (merge, delay) in [(Merge::Mean, 0), (Merge::Clipped, 0), (Merge::Trimmed, 0), (Merge::Mean, 2)] {
        let (mut plan, store) = (plan(), RunStore::in_memory());
        (plan.outer.merge, plan.outer.delay) = (merge, delay);
        let weights = weights(&store, &plan, 0.25).await;
        let mut stepped = Vec::new();
        for (value, reduction) in [(1.0, 0.25), (0.25, 1.0)] {
            let order = order(weights.clone(), None, gradient(&store, &plan, value).await);
            let share = MergeInput { reduction, ..order.shares[0].clone() };
            let order = OuterStepOrder { shares: vec![share], ..order };
            stepped.push(synchronizer(&plan, &store).carry_out(order).await.unwrap().unwrap());
        }
        assert_eq!(stepped[0].weights, stepped[1].weights, "{merge:?} {delay}");
    }
}

/// Contributions that are compared with each other.
#[tokio::test]
async fn a_merge_that_compares_contributions_reduces_them() {
    for merge in [Merge::Clipped, Merge::Trimmed] {
        let (mut plan, store) = (plan(), RunStore::in_memory());
        (plan.outer.merge, plan.outer.rescale) = (merge, Rescale::NONE);
        plan.outer.nesterov = NesterovConfig { learning_rate: 1.0, momentum: 0.0 };
        let share = |path, reduction, gradient| MergeInput {
            path: PathId(path),
            weight: 0.5,
            reduction,
            gradient: Some(gradient),
        };
        let gradient = gradient(&store, &plan, 1.0).await;
        let shares = vec![share(0, 1.0, gradient.clone()), share(1, 0.5, gradient.clone())];
        let order = order(weights(&store, &plan, 0.25).await, None, gradient);
        let order = OuterStepOrder { shares, ..order };
        let done = synchronizer(&plan, &store).carry_out(order).await.unwrap().unwrap();
        let published = read_module(&store, &done.weights, specs(&plan)).await.unwrap().values;
        // The mean of 1 and a half.
        assert!(published.iter().all(|value| (value + 0.5).abs() < 1e-6), "{merge:?} {:?}", published[0]);
    }
}

/// The order of a fragment with two contributions, of which the second may not have arrived.
fn order_of_two(
    index: u32,
    version: u32,
    weights: &ObjectRef,
    gradients: [Option<&ObjectRef>; 2],
) -> OuterStepOrder {
    let share = |(path, gradient): (u32, Option<&ObjectRef>)| MergeInput {
        path: PathId(path),
        weight: 0.5,
        reduction: 1.0,
        gradient: gradient.cloned(),
    };
    OuterStepOrder {
        fragment: FragmentId { module: ModuleId { level: 0, index }, index: 0 },
        version,
        fence: 7,
        weights: weights.clone(),
        momentum: None,
        shares: (0..).zip(gradients).map(share).collect(),
        applied: 0,
        due: gradients[1].is_some(),
    }
}

#[tokio::test]
async fn early_orders_keep_no_more_than_their_room_and_change_no_bit() {
    let (plan, store) = (plan(), RunStore::in_memory());
    let weights = weights(&store, &plan, 0.25).await;
    let (first, second) = (gradient(&store, &plan, 1.0).await, gradient(&store, &plan, -0.5).await);
    let values = dipaco_model::parameters(&specs(&plan));
    let mut process = synchronizer(&plan, &store);
    // Less than three fragments, and less than one: the fold of a longer fragment is kept alone.
    for (room, kept) in [(3 * values - 1, 2 * values), (1, values)] {
        process.folds = EarlyFolds::within(room);
        for fragment in 0..4 {
            let early = order_of_two(fragment, 1, &weights, [Some(&first), None]);
            assert_eq!(process.carry_out(early).await.unwrap(), None);
            assert!(process.folds.values_held() <= kept);
        }
        assert_eq!(process.folds.values_held(), kept);
        for fragment in 0..4 {
            let due = order_of_two(fragment, 1, &weights, [Some(&first), Some(&second)]);
            let alone = synchronizer(&plan, &store).carry_out(due.clone()).await.unwrap().unwrap();
            assert_eq!(objects(process.carry_out(due).await.unwrap().unwrap()), objects(alone));
        }
        assert_eq!(process.folds.values_held(), 0);
    }
}

#[tokio::test]
async fn early_orders_that_are_carried_out_have_room_of_their_own() {
    let (plan, store) = (plan(), RunStore::in_memory());
    let weights = weights(&store, &plan, 0.25).await;
    let (first, second) = (gradient(&store, &plan, 1.0).await, gradient(&store, &plan, -0.5).await);
    // Whoever reads it fails.
    let damaged = store.put("gradients/damaged", Bytes::from_static(b"damaged")).await.unwrap();
    let values = dipaco_model::parameters(&specs(&plan));
    let process = Synchronizer { folds: EarlyFolds::within(2 * values), ..synchronizer(&plan, &store) };
    let early = |fragment, gradients| {
        process.carry_out(OuterStepOrder { due: false, ..order_of_two(fragment, 1, &weights, gradients) })
    };
    for fragment in [0, 1] {
        assert_eq!(early(fragment, [Some(&first), None]).await.unwrap(), None);
    }
    let both = [Some(&first), Some(&second)];
    let done = tokio::join!(early(0, both), early(1, both), early(2, [Some(&damaged), None]));
    assert_eq!((done.0.unwrap(), done.1.unwrap(), done.2.unwrap()), (None, None, None));
    assert_eq!(process.folds.values_held(), 2 * values);
    for fragment in [0, 1] {
        let due = order_of_two(fragment, 1, &weights, both);
        assert!(process.carry_out(due).await.unwrap().is_some());
    }
    assert_eq!(early(2, [None, None]).await.unwrap(), None);
    assert!(early(2, [Some(&damaged), None]).await.is_err());
    assert_eq!(process.folds.values_held(), 0);
}

#[tokio::test]
async fn the_early_orders_of_a_module_that_others_step_give_their_room_up() {
    let (plan, store) = (plan(), RunStore::in_memory());
    let weights = weights(&store, &plan, 0.25).await;
    let first = gradient(&store, &plan, 1.0).await;
    let values = dipaco_model::parameters(&specs(&plan));
    let process = Synchronizer { folds: EarlyFolds::within(values), ..synchronizer(&plan, &store) };
    let early = |fragment, version| order_of_two(fragment, version, &weights, [Some(&first), None]);
    for (fragment, version, keeps) in [(0, 1, 0), (1, 1, 0), (1, 2, 0), (1, 3, 1)] {
        assert_eq!(process.carry_out(early(fragment, version)).await.unwrap(), None);
        let kept = [0, 1].map(|index| process.folds.keeps(early(index, 1).fragment));
        assert_eq!(kept, [keeps == 0, keeps == 1], "version {version} of {fragment}");
    }
}

#[tokio::test]
async fn an_order_whose_inputs_are_gone_is_dropped_once() {
    let (plan, store) = (plan(), RunStore::in_memory());
    let (weights, gradient) = (weights(&store, &plan, 0.25).await, gradient(&store, &plan, 1.0).await);
    let momentum = ObjectRef::of("momenta/before", b"gone");
    for (momentum, gone) in [(None, &gradient), (None, &weights), (Some(momentum.clone()), &momentum)] {
        let synchronizer = synchronizer(&plan, &store);
        let first = order(weights.clone(), momentum, gradient.clone());
        let kept = store.get(gone).await.ok();
        store.delete(&gone.name).await.unwrap();
        assert_eq!(synchronizer.carry_out(first.clone()).await.unwrap(), None, "{}", gone.name);
        // The coordinator orders a step again only if nobody has taken it: its input is lost.
        let error = synchronizer.carry_out(first.clone()).await.unwrap_err();
        assert!(error.to_string().contains(&gone.name), "{error}");
        // Orders of later steps and of another owner are others.
        for later in [OuterStepOrder { version: 2, ..first.clone() }, OuterStepOrder { fence: 8, ..first }] {
            assert_eq!(synchronizer.carry_out(later).await.unwrap(), None);
        }
        if let Some(bytes) = kept {
            store.put(&gone.name, bytes).await.unwrap();
        }
    }
}

/// What an outer step gives when `part` of its store is broken until so many failures have been heard, and the number of
/// failures.
async fn step_with_broken(part: &str, mended: u32) -> (Result<OuterStepDone, SynchronizerError>, u32) {
    let (plan, folder) = (plan(), tempfile::tempdir().unwrap());
    let (place, kept) = (folder.path().join(part), folder.path().join("kept"));
    let told = Arc::<AtomicU32>::default();
    let (heard, broken, whole) = (told.clone(), place.clone(), kept.clone());
    let patience = Patience::new(Duration::ZERO, Duration::from_secs(3600), move |_| {
        let number = heard.fetch_add(1, Ordering::Relaxed) + 1;
        if number == mended {
            remove_file(&broken).unwrap();
            if whole.exists() {
                rename(&whole, &broken).unwrap();
            }
        }
        number < 100
    });
    let store = RunStore::create(folder.path().to_str().unwrap()).unwrap().with_patience(patience);
    let (weights, gradient) = (weights(&store, &plan, 0.25).await, gradient(&store, &plan, 1.0).await);
    let momentum = Arc::new(OuterState::start(&plan.outer, dipaco_model::parameters(&specs(&plan))));
    let momentum = momentum.encode(&plan.outer, &specs(&plan)).unwrap();
    let momentum = store.put_replacing("before/momentum", momentum).await.unwrap();
    if place.exists() {
        rename(&place, &kept).unwrap();
    }
    // A link to itself can't be opened, also not by root, and it is not absent.
    symlink(&place, &place).unwrap();
    let stepped = synchronizer(&plan, &store).carry_out(order(weights, Some(momentum), gradient)).await;
    (stepped.map(Option::unwrap), told.load(Ordering::Relaxed))
}

#[tokio::test]
async fn a_store_that_fails_for_a_while_changes_no_bit_of_an_outer_step() {
    let (calm, told) = step_with_broken("unrelated", u32::MAX).await;
    let (calm, OuterStepDone { weights, momentum, .. }) = (told, calm.unwrap());
    assert_eq!(calm, 0);
    // The contributions, the old weights, the old momentum, and the place of the new ones.
    for part in ["gradients/1", "modules/before", "before/momentum", "modules", "momenta"] {
        let (done, told) = step_with_broken(part, 3).await;
        let done = done.unwrap_or_else(|error| panic!("{part}: {error}"));
        assert_eq!((&done.weights, &done.momentum), (&weights, &momentum), "{part}");
        assert!(told >= 3, "{part}: {told}");
    }
}

#[tokio::test]
async fn an_outer_step_ends_with_the_reason_when_the_patience_ends() {
    for (part, what) in [("gradients/1", "can't read `gradients/1`"), ("momenta", "can't write `momenta/")] {
        let error = step_with_broken(part, u32::MAX).await.0.unwrap_err();
        let SynchronizerError::Core(TrainError::Store(StoreError::Io { .. })) = &error else {
            panic!("{part}: {error:?}");
        };
        assert!(error.to_string().starts_with(what), "{error}");
    }
}
