//! Tests of the number of open shards. Linux tells which files a process maps.

use std::collections::BTreeSet;

use super::*;

/// Number of shards that are mapped into this process.
fn mapped_shards(folder: &std::path::Path) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let of_shards = folder.canonicalize().unwrap().join("shards/path-");
    maps.lines().filter(|line| line.contains(of_shards.to_str().unwrap())).count()
}

#[test]
fn shards_are_open_one_at_a_time_where_no_more_may_be_open_and_no_bit_changes() {
    let folder = tempfile::tempdir().unwrap();
    let file = token_file(folder.path(), &LENGTHS.repeat(3));
    let shards = shards(folder.path(), &file, 3);
    let config =
        EvaluationConfig { prefix_tokens: 4, sequence_tokens: 24, batch_sequences: 2, ..Default::default() };
    let router = reroute::Flat { score: 0.0, paths: 3 };
    // The first path reads its own shard, and then chunks of all shards.
    for choice in [Choice::Document, Choice::Chunks(ChunkRouting { router: &router, tokens: 8 })] {
        let run = |most| {
            let open = OpenShards::at_most(&shards, most);
            let texts = open.texts(&config);
            let mut mapped = BTreeSet::new();
            let mut progress = |_: EvaluationProgress| {
                mapped.insert(mapped_shards(folder.path()));
                ControlFlow::Continue(())
            };
            let mut source = Made::by(|path: PathId| Ok(tiny(10 + u64::from(path.0))));
            let found = evaluate(&texts, 3, &mut source, choice, &plain(&config), &mut progress).unwrap();
            (found, mapped)
        };
        let (few, mapped_of_few) = run(1);
        let (all, mapped_of_all) = run(3);
        assert_eq!(few, all);
        assert_eq!((mapped_of_few.last(), mapped_of_all.last()), (Some(&1), Some(&3)));
    }
}
