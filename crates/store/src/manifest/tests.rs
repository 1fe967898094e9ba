//! Tests of reading and writing manifests.

use dipaco_fuzz::rand::Rng;
use dipaco_fuzz::{Campaign, CaseRng, Reached};
use dipaco_topology::{ModuleId, PathId};
use proptest::prelude::*;

use super::*;
use crate::*;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct RoundManifest {
    round: u64,
}

impl ManifestSchema for RoundManifest {
    const SCHEMA: &'static str = "round";
    const VERSION: u32 = 1;
}

#[test]
fn names_sort_like_numbers() {
    assert_eq!(name(42), "manifest/00000000000000000042.json");
    assert_eq!(parse_name(&name(u64::MAX)), Some(u64::MAX));
    for other in ["manifest/42.json", "manifest/x.json", "manifest/00000000000000000042.json.bak"] {
        assert_eq!(parse_name(other), None, "{other}");
    }
}

/// A run of two paths through one module and modules of their own.
fn valid(rng: &mut CaseRng) -> Vec<u8> {
    let mut number = || rng.random_range(0..5u32);
    let object = |name: &str| ObjectRef { name: name.to_owned(), hash: "ab".repeat(32), bytes: 17 };
    let fragment = |version| FragmentRecord {
        version,
        weights: object("modules/0"),
        momentum: Some(object("momenta/0")),
        changes: vec![ChangeRecord { from: "cd".repeat(32), version, object: object("changes/0") }],
        kept: vec![KeptVersion { version: 0, weights: object("modules/1") }],
        norms: vec![0.5, 2.0],
        norm_paths: vec![PathId(0), PathId(1)],
    };
    let path = |steps: u32| PathRecord {
        steps: steps.into(),
        sent: vec![1; 2],
        adopted: vec![1; 2],
        counted: vec![CountRecord { steps: 3, tokens: 4 }; 2],
        state: Some(object("states/0")),
        fence: Some(7),
        best: Some(EarlyStoppingBest { round: 1, versions: vec![1; 2], loss: 2.5 }),
        contributors: [("token".to_owned(), ContributorRecord::default())].into(),
        ..PathRecord::default()
    };
    let modules = [0, 1].map(|index| {
        let module = ModuleId { level: 0, index };
        ModuleRecord { module, fragments: vec![fragment(number()); 2] }
    });
    let training = TrainingRecord {
        origin: "ef".repeat(32),
        rounds: 9,
        inner_steps: 5,
        boundaries: vec![3],
        phase: number().min(1),
        shards: vec![ShardRecord { file: "a.h5".into(), hash: "00".into(), documents: 3, tokens: 9 }; 2],
        modules: modules.into(),
        paths: [number(), number()].map(path).into(),
        numerics: None,
        numerics_token: None,
    };
    let checkpoints = vec![CheckpointRecord { round: 1, object: object("checkpoints/1") }];
    let run = RunManifest { training: Some(training), checkpoints, ..RunManifest::new("run".into()) };
    encode(&run, 7, "writer").unwrap().to_vec()
}

/// The same manifest with the right checksum, if it has a manifest's fields.
fn sealed(content: &[u8]) -> Option<Vec<u8>> {
    let stored: StoredManifest<'_> = serde_json::from_slice(content).ok()?;
    if stored.payload_blake3.is_empty() {
        return None;
    }
    let sum = checksum(&stored.schema, stored.version, stored.sequence, &stored.writer, stored.payload.get());
    let at =
        content.windows(stored.payload_blake3.len()).position(|w| w == stored.payload_blake3.as_bytes())?;
    Some([&content[..at], sum.as_bytes(), &content[at + stored.payload_blake3.len()..]].concat())
}

#[test]
fn damaged_manifests_are_refused_or_read() {
    Campaign::new("manifest").past(0.15).memory(1 << 18).play(valid, |bytes| {
        let content = sealed(bytes).unwrap_or_else(|| bytes.to_vec());
        let Ok(stored) = parse(7, &content) else { return Reached::Outside };
        let Ok(manifest) = serde_json::from_str::<RunManifest>(stored.payload.get()) else {
            return Reached::Inside;
        };
        // Readers ask for these before anything else.
        let _ = manifest.phase();
        if let Some(training) = &manifest.training {
            let rounds = (training.rounds_done(), training.phase_begin_step(), training.phase_end());
            let _ = (rounds, training.at_boundary(), training.objects().count());
            let _ = training.fragment(ModuleId { level: 0, index: 1 }, 1);
            let _ = training.path(PathId(1)).map(|path| training.rounds_of(path));
        }
        Reached::Accepted
    });
}

proptest! {
    #[test]
    fn any_flipped_bit_and_any_cut_is_found(round: u64, at: prop::sample::Index, bit in 0..8_u8) {
        let whole = encode(&RoundManifest { round }, 7, "writer").unwrap();
        prop_assert!(parse(7, &whole).is_ok());
        let at = at.index(whole.len() - 1); // the last byte is the line's end
        prop_assert!(parse(7, &whole[..at]).is_err());
        let mut damaged = whole.to_vec();
        damaged[at] ^= 1 << bit;
        prop_assert!(parse(7, &damaged).is_err());
    }
}
