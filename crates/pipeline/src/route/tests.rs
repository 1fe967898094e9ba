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
