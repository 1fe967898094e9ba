use dipaco_routing::{FeatureKind, RouterKind};

use super::*;
use crate::small_run::{DOCUMENTS, SmallRun};

#[test]
fn among_all_steps_a_gpu_routes_only_what_a_model_reads() {
    let mut config = RunConfig::default();
    let device = |config: &RunConfig| device_among_all_steps(config, DeviceChoice::Cuda(1));
    assert_eq!(device(&config), DeviceChoice::Cpu);
    config.routing.features = FeatureKind::Seed;
    assert_eq!(device(&config), DeviceChoice::Cuda(1));
    config.routing.kind = RouterKind::Random;
    assert_eq!(device(&config), DeviceChoice::Cpu);
}

#[test]
fn a_router_that_can_not_be_used_is_fitted_again() {
    let small = SmallRun::seeded();
    let (router, _) = small.fit().unwrap();
    let file = small.run.routing(0).router();
    std::fs::write(&file, "no router").unwrap();
    assert_eq!(small.fit().unwrap(), (router.clone(), true));
    std::fs::write(&file, "no router").unwrap();
    assert!(publish_router(&small.run.routing(0), &router).unwrap());
    assert!(!publish_router(&small.run.routing(0), &router).unwrap());
}

#[test]
fn the_router_of_the_phase_decides_if_useless_shards_are_warned_of() {
    let mut small = SmallRun::seeded();
    let (clusters, _) = small.fit().unwrap();
    small.config.routing.kind = RouterKind::Random;
    small.fit().unwrap();
    // A run that began with random shards, after a phase of routing.
    let phase = |phase| small.run.routing(phase);
    publish_router(&phase(1), &clusters).unwrap();
    assert_eq!(gain_warning(&phase(0), Some(0.0)).unwrap(), None);
    let warning = gain_warning(&phase(1), Some(0.0)).unwrap().unwrap();
    assert!(warning.contains("hardly separates"), "{warning}");
}

#[test]
fn a_damaged_shard_is_made_again_by_the_command_that_its_error_names() {
    let small = SmallRun::seeded();
    small.fit().unwrap();
    let shards = small.assign().unwrap().train;
    let path = shards.shards().iter().find(|shard| shard.documents > 0).unwrap().path;
    let shard = || shards.open_shard(path).unwrap();
    let (file, first) =
        shard().files().map(|(file, data)| (file.to_owned(), data.tokens_offset)).next().unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[usize::try_from(first).unwrap()] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let said = shard().verify().unwrap_err().to_string();
    assert!(said.contains("is damaged") && said.contains("`dipaco route assign`"), "{said}");
    assert!(!small.assign().unwrap().skipped);
    shard().verify().unwrap();
    assert!(small.assign().unwrap().skipped);
}

#[test]
fn a_later_phase_without_a_router_names_the_command_that_makes_one() {
    let small = SmallRun::seeded();
    small.fit().unwrap();
    let said = router(&small.run.routing(1)).unwrap_err().to_string();
    assert!(said.contains("phase-1") && said.contains("`dipaco route refit`"), "{said}");
}

#[test]
fn text_is_divided_by_the_label_file_of_the_fit() {
    let mut small = SmallRun::seeded();
    let file = small.folder.path().join("labels.jsonl");
    let write = |domains: [&str; 4]| {
        let line = |i: usize| format!("{{\"url\": \"training/{i}\", \"domain\": \"{}\"}}\n", domains[i % 4]);
        std::fs::write(&file, (0..DOCUMENTS).map(line).collect::<String>()).unwrap();
    };
    write(["a", "b", "c", "d"]);
    small.config.routing.kind = RouterKind::Labels;
    small.config.routing.labels = Some(file.clone());
    // The labels are those of the training text.
    std::fs::remove_file(small.run.validation_tokens()).unwrap();
    small.fit().unwrap();
    write(["b", "a", "c", "d"]);
    let said = small.assign().err().unwrap().to_string();
    assert!(said.contains("labels.jsonl has hash") && said.contains("`dipaco route fit` again"), "{said}");
    write(["a", "b", "c", "d"]);
    small.assign().unwrap();
}
