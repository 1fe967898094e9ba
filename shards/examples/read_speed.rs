//! How fast training sequences come out of a token file: `cargo run -p dipaco-shards --example read_speed -- FILE`.
//!
//! Prints one line of JSON: the time of each batch when the file is read for the first time and again.
#![expect(clippy::print_stdout, reason = "a program whose result is what it prints")]

use std::sync::Arc;
use std::time::Instant;

use dipaco_shards::{Sampler, SamplerConfig, ShardsError, TokenSet};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, otherwise: usize| arguments.get(at).map_or(Ok(otherwise), |text| text.parse());
    let path = arguments.first().ok_or("usage: read_speed FILE [BATCH [SEQUENCE_LENGTH [BATCHES]]]")?;
    let (batch, sequence_length, batches) = (number(1, 8)?, number(2, 256)?, number(3, 2000)?);

    let start = Instant::now();
    let file = Arc::new(TokenSet::open(path)?);
    let documents = 0..file.documents();
    let config = SamplerConfig { sequence_length, seed: 0, packing: false };
    let sampler = Sampler::new(Arc::clone(&file), documents, config)?;
    let opened = start.elapsed();

    let pass = || -> Result<Vec<f64>, ShardsError> {
        let mut times = Vec::with_capacity(batches);
        for at in 0..batches as u64 {
            let start = Instant::now();
            let drawn = sampler.batch(at * batch as u64, batch)?;
            times.push(start.elapsed().as_secs_f64() * 1e6);
            std::hint::black_box(drawn);
        }
        times.sort_by(f64::total_cmp);
        Ok(times)
    };
    let (first, again) = (pass()?, pass()?);
    let median = |times: &[f64]| times.get(times.len() / 2).copied().unwrap_or_default();
    let mean = |times: &[f64]| times.iter().sum::<f64>() / times.len().max(1) as f64;
    println!(
        "{{\"open_ms\": {:.2}, \"first_mean_us\": {:.2}, \"again_median_us\": {:.2}, \"again_mean_us\": {:.2}, \
         \"again_worst_us\": {:.2}, \"tokens_per_batch\": {}}}",
        opened.as_secs_f64() * 1e3,
        mean(&first),
        median(&again),
        mean(&again),
        again.last().copied().unwrap_or_default(),
        batch * sequence_length,
    );
    Ok(())
}
