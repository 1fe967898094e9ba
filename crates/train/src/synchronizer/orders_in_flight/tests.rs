//! Orders that are carried out together give the bits of orders one after the other, within the bound.

use bytes::Bytes;
use dipaco_codec::Compression;
use dipaco_config::RunConfig;
use dipaco_model::{ModuleWeights, parameters};
use dipaco_path::{Layout, module_files};
use dipaco_protocol::{MergeInput, WorkerPlan};
use dipaco_store::{ObjectRef, RunStore};
use dipaco_sync::FragmentId;
use dipaco_topology::{LevelConfig, ModuleId, Modules, PathId, TopologyConfig};

use super::*;
use crate::host::VerifiedGradients;

/// Number of modules, and of paths with a module each.
const MODULES: u32 = 7;

fn config() -> RunConfig {
    let mut config = RunConfig::default();
    config.model.vocab_size = 11;
    (config.model.hidden_size, config.model.ffn_size, config.model.blocks) = (8, 8, 1);
    (config.model.heads, config.model.head_dim) = (1, 8);
    let level = LevelConfig {
        modules: Modules::Count(MODULES),
        blocks: "0".to_owned(),
        embedding: true,
        head: true,
        frozen: false,
    };
    config.topology = TopologyConfig::grid(1, vec![level]);
    config
}

fn layout(config: &RunConfig) -> Layout {
    let plan = WorkerPlan::new(config);
    Layout::of_plan(&plan, &plan.topology().unwrap()).unwrap()
}

fn synchronizer(config: &RunConfig, store: &RunStore) -> Arc<Synchronizer> {
    let gradients = VerifiedGradients::default();
    let (layout, scratch) = (layout(config), std::env::temp_dir());
    Arc::new(Synchronizer::new(store.clone(), layout, &WorkerPlan::new(config), gradients, scratch))
}

/// The first outer steps of all modules: their weights and one outer gradient each are in the store.
async fn first_orders(config: &RunConfig, store: &RunStore) -> Vec<OuterStepOrder> {
    let specs = layout(config).fragment(0, 0).unwrap().specs.clone();
    let values =
        |seed: u32| (0..parameters(&specs)).map(move |at| ((at as u32 * 31 + seed) % 17) as f32 / 17.0);
    let mut orders = Vec::new();
    for index in 0..MODULES {
        let weights = ModuleWeights { specs: specs.clone(), values: values(index).collect() };
        let weights = module_files::encode(&weights).unwrap();
        let weights = store.put(&format!("modules/{index}"), weights).await.unwrap();
        let gradient: Vec<f32> = values(100 + index).collect();
        let gradient = dipaco_codec::encode(&gradient, Compression::F32).unwrap();
        let gradient = store.put(&format!("gradients/{index}"), Bytes::from(gradient)).await.unwrap();
        orders.push(OuterStepOrder {
            fragment: FragmentId { module: ModuleId { level: 0, index }, index: 0 },
            version: 1,
            fence: 7,
            weights,
            momentum: None,
            shares: vec![MergeInput {
                path: PathId(index),
                weight: 1.0,
                reduction: 1.0,
                gradient: Some(gradient),
            }],
            applied: 0,
            due: true,
        });
    }
    orders
}

/// The orders for the step after these steps, with the same outer gradients.
fn next_orders(orders: &[OuterStepOrder], done: &[OuterStepDone]) -> Vec<OuterStepOrder> {
    let after = |order: &OuterStepOrder| {
        let before = done.iter().find(|done| done.fragment == order.fragment).unwrap();
        let (weights, momentum) = (before.weights.clone(), Some(before.momentum.clone()));
        OuterStepOrder { version: order.version + 1, weights, momentum, ..order.clone() }
    };
    orders.iter().map(after).collect()
}

/// The objects of steps, by fragment.
fn objects(mut done: Vec<OuterStepDone>) -> Vec<ObjectRef> {
    done.sort_by_key(|done| done.fragment);
    done.into_iter().flat_map(|done| [done.weights, done.momentum]).collect()
}

async fn all(mut orders: OrdersInFlight) -> Vec<OuterStepDone> {
    let mut done = Vec::new();
    while let Some(step) = orders.next().await.unwrap() {
        done.push(step);
    }
    done
}

/// Two outer steps of each module: the objects of the second, and what the store saw of the second.
async fn two_steps(free: usize) -> (Vec<ObjectRef>, usize, Vec<usize>) {
    let (config, store) = (config(), RunStore::in_memory());
    let orders = first_orders(&config, &store).await;
    let done = all(OrdersInFlight::within(&synchronizer(&config, &store), orders.clone(), free)).await;
    let (store, load) = store.counted();
    let orders = next_orders(&orders, &done);
    let done = all(OrdersInFlight::within(&synchronizer(&config, &store), orders, free)).await;
    (objects(done), load.most_reads(), load.writes().into_values().collect())
}

#[tokio::test]
async fn orders_are_carried_out_together_within_a_bound_and_written_once() {
    let (objects, most_reads, writes) = two_steps(VALUES_AT_ONCE).await;
    assert!(most_reads >= ORDERS_AT_ONCE, "{most_reads} reads at a time");
    // Each order reads its weights and its momentum at the same time.
    assert!(most_reads <= 2 * ORDERS_AT_ONCE, "{most_reads} reads at a time");
    assert_eq!(writes, vec![1; objects.len()]);

    let config = config();
    let values = parameters(&layout(&config).fragment(0, 0).unwrap().specs);
    // Room for less than a fragment: each order is carried out alone.
    let (alone, reads_alone, _) = two_steps(values - 1).await;
    assert_eq!(reads_alone, 2);
    assert_eq!(alone, objects, "the same bits");
    let (_, reads_in_pairs, _) = two_steps(2 * values + 1).await;
    assert!((2..=4).contains(&reads_in_pairs), "{reads_in_pairs}");
}

#[tokio::test]
async fn an_order_that_fails_ends_with_its_error() {
    let (config, store) = (config(), RunStore::in_memory());
    let mut orders = first_orders(&config, &store).await;
    let damaged = ObjectRef { hash: orders[3].weights.hash.clone(), ..orders[2].weights.clone() };
    orders[2].weights = damaged.clone();
    let mut orders = OrdersInFlight::new(&synchronizer(&config, &store), orders);
    let error = loop {
        match orders.next().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("an order with damaged weights was carried out"),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains(&damaged.name), "{error}");
}
