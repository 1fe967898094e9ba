//! Commands that read a run while its training replaces the weights.
#![allow(clippy::unwrap_used)]

use dipaco_tests::training::untrained;

/// Reads of each kind. `scripts/readers-beside-training.sh` repeats them 200 times.
const READS: usize = 3;

#[test]
fn readers_beside_a_training_of_very_short_rounds_never_miss_an_object() {
    let run = untrained();
    let mut train = run.train("--workers 2 --set train.rounds=100000 --set train.inner_steps=1");
    for _ in 0..8 {
        train.line_with(" committed ");
    }
    for number in 0..READS {
        let _ = run.dipaco("evaluate --json").succeeded();
        let out = run.folder().join(format!("path-{number}"));
        let _ = run.dipaco(&format!("export --path 1 --out {}", out.display())).succeeded();
    }
    train.signal(dipaco_tests::process::Signal::INT);
    let _ = train.finish().failed(130, &[]);
    let pins = std::fs::read_dir(run.file("store/readers")).map_or(0, Iterator::count);
    assert_eq!(pins, 0, "each reader has ended its pin");
}
