//! Lloyd's iterations on points in a file, for `scripts/bench-kmeans.py`, which runs faiss and scikit-learn on the same
//! points from the same centroids in turn.
//!
//! `kmeans POINTS CENTROIDS DIMENSION ITERATIONS` reads two files of little-endian f32 and prints a line of JSON. Without
//! arguments it takes 50,000 points of 64 components of its own.
#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs, reason = "a benchmark")]

use std::ops::ControlFlow;
use std::time::Instant;

use dipaco_routing::{RouterConfig, kmeans_from};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let (points, centroids, dimension, iterations) = match arguments.as_slice() {
        [points, centroids, dimension, iterations] => {
            (read(points), read(centroids), dimension.parse().unwrap(), iterations.parse().unwrap())
        }
        _ => {
            let points: Vec<f32> = (0..50_000u64 * 64).map(|i| (i * i % 10_007) as f32 / 10_007.0).collect();
            let centroids = points[..16 * 64].to_vec();
            (points, centroids, 64, 10)
        }
    };
    let config = RouterConfig { iterations, tolerance: 0.0, ..RouterConfig::default() };
    let start = Instant::now();
    let found =
        kmeans_from(&points, dimension, centroids, &config, &mut |_| ControlFlow::Continue(())).unwrap();
    let seconds = start.elapsed().as_secs_f64();
    println!(
        "{}",
        serde_json::json!({
            "seconds": seconds,
            "inertia": found.inertia,
            "iterations": found.iterations,
            "threads": rayon::current_num_threads(),
        })
    );
}

fn read(path: &str) -> Vec<f32> {
    let bytes = std::fs::read(path).unwrap();
    bytes.as_chunks::<4>().0.iter().map(|&value| f32::from_le_bytes(value)).collect()
}
