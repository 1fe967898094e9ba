#![allow(clippy::unwrap_used)]

use super::*;

/// The expected number of distinct values among `draws` uniform draws of `values`.
fn distinct(values: f64, draws: f64) -> f64 {
    values * (1.0 - (1.0 - 1.0 / values).powf(draws))
}

fn traffic(grid: u32) -> ServedTraffic {
    ServedTraffic {
        levels: 2,
        grid,
        parameters: 151e6,
        bits: 8.5,
        memory: None,
        zipf: 0.0,
        sequences: 32,
        requests: 4000,
        prompt: 1,
        generated: 64,
        step_tokens: 64,
        bandwidth: 16e9,
        // Far more than reading needs.
        flops: 1e18,
        store: 1e18,
        seed: 1,
    }
}

#[test]
fn the_gain_is_that_of_the_modules_that_sequences_share() {
    // The expected numbers of distinct modules and paths: 8.0 and 28.1 bytes, so 3.5; 28.1 and 60.2, so 2.15.
    for grid in [4, 16] {
        let (k, traffic) = (f64::from(grid), traffic(grid));
        let module = serve_traffic(&traffic, Batching::Module).unwrap();
        let path = serve_traffic(&traffic, Batching::Path).unwrap();
        let expected = distinct(k * k, 32.0) / distinct(k, 32.0);
        let gain = module.tokens_per_second / path.tokens_per_second;
        assert!((gain / expected - 1.0).abs() < 0.03, "{grid}: {gain} {expected}");
        let read = distinct(k, 32.0) / k.min(32.0) * k * traffic.path_bytes() / 32.0;
        assert!((module.bytes_per_token / read - 1.0).abs() < 0.03, "{grid}: {module:?} {read}");
    }
}

#[test]
fn one_path_gains_nothing_and_every_run_repeats_itself() {
    let one = traffic(1);
    let all = [Batching::Module, Batching::Path, Batching::Copies];
    let seconds = all.map(|batching| serve_traffic(&one, batching).unwrap().seconds);
    assert!(seconds.iter().all(|other| (other / seconds[0] - 1.0).abs() < 1e-9), "{seconds:?}");
    let capped = ServedTraffic { memory: Some(1e9), zipf: 1.0, store: 1e9, flops: 4e11, ..traffic(16) };
    for batching in all {
        assert_eq!(serve_traffic(&capped, batching).unwrap(), serve_traffic(&capped, batching).unwrap());
    }
}

#[test]
fn memory_stays_below_its_limit_and_copies_load_most() {
    let capped = ServedTraffic { memory: Some(1e9), zipf: 1.0, store: 1e9, requests: 1000, ..traffic(16) };
    let [module, path, copies] = [Batching::Module, Batching::Path, Batching::Copies]
        .map(|batching| serve_traffic(&capped, batching).unwrap());
    for served in [module, path, copies] {
        assert!(served.most_memory <= 1e9 && served.loads > 0, "{served:?}");
    }
    // A copy of a path has the bytes of two modules.
    assert!(2 * copies.loads > module.loads, "{copies:?} {module:?}");
    assert!(module.tokens_per_second > path.tokens_per_second, "{module:?} {path:?}");
    let everything = ServedTraffic { memory: None, ..capped };
    let free = serve_traffic(&everything, Batching::Module).unwrap();
    assert!(free.loads <= 32 && free.tokens_per_second >= module.tokens_per_second, "{free:?} {module:?}");
}

#[test]
fn memory_of_exactly_one_path_is_enough_for_each_path() {
    // Eleven elevenths of it are a little more, after rounding.
    let bytes = 1_000_007.0;
    let of_path: Vec<ModuleNumber> = (0..11).map(|level| (level, 0)).collect();
    assert_eq!(LoadedModules::new(bytes).take_room(&of_path, bytes / 11.0), Some(11));
    let exact = ServedTraffic {
        levels: 11,
        parameters: bytes,
        bits: 8.0,
        memory: Some(bytes),
        requests: 20,
        ..traffic(2)
    };
    for batching in [Batching::Module, Batching::Path, Batching::Copies] {
        let served = serve_traffic(&exact, batching).unwrap();
        assert!(served.tokens_per_second > 0.0 && served.most_memory / bytes < 1.0 + 1e-6, "{served:?}");
    }
}

#[test]
fn impossible_settings_are_named() {
    for (what, wrong) in [
        ("memory", ServedTraffic { memory: Some(1e8), ..traffic(4) }),
        ("grid", ServedTraffic { grid: 0, ..traffic(4) }),
        ("grid", ServedTraffic { levels: 40, ..traffic(4) }),
        ("levels", ServedTraffic { levels: 0, ..traffic(4) }),
        ("levels", ServedTraffic { levels: 65, ..traffic(1) }),
        ("sequences", ServedTraffic { sequences: 0, ..traffic(4) }),
        ("bandwidth", ServedTraffic { bandwidth: f64::NAN, ..traffic(4) }),
        ("zipf", ServedTraffic { zipf: -1.0, ..traffic(4) }),
    ] {
        let refused = serve_traffic(&wrong, Batching::Module).unwrap_err();
        let SimulateError::Setting { what: named, .. } = refused else { panic!("{refused}") };
        assert_eq!(named, what);
    }
}
