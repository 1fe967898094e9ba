use proptest::prelude::*;

use super::*;
use crate::LevelConfig;

fn level(modules: Modules, blocks: &str, embedding: bool, head: bool) -> LevelConfig {
    LevelConfig { modules, blocks: blocks.into(), embedding, head, frozen: false }
}

fn grid(k: u32) -> TopologyConfig {
    TopologyConfig::grid(
        1,
        vec![level(Modules::Count(k), "0..6", true, false), level(Modules::Count(k), "6..12", false, true)],
    )
}

#[test]
fn every_configuration_of_the_paper_is_a_value() {
    let dense = Topology::new(&TopologyConfig::dense(12), 12).unwrap();
    assert_eq!((dense.paths(), dense.module_ids().count()), (1, 1));

    let diloco = TopologyConfig { replicas: 8, ..TopologyConfig::dense(12) };
    let diloco = Topology::new(&diloco, 12).unwrap();
    assert_eq!((diloco.paths(), diloco.module_ids().count()), (8, 1));
    assert_eq!(diloco.paths_through(ModuleId { level: 0, index: 0 }).count(), 8);

    let mut flat = TopologyConfig::dense(12);
    flat.levels[0].modules = Modules::Count(16);
    let flat = Topology::new(&flat, 12).unwrap();
    assert_eq!((flat.paths(), flat.module_ids().count()), (16, 16));

    assert_eq!((dense.radices(), diloco.radices(), flat.radices()), (vec![], vec![8], vec![16]));

    let paper = Topology::new(&grid(16), 12).unwrap();
    assert_eq!(paper.radices(), [16, 16]);
    assert_eq!((paper.paths(), paper.module_ids().count()), (256, 32));
    assert_eq!(paper.paths_through(ModuleId { level: 1, index: 3 }).count(), 16);
}

#[test]
fn path_specific_modules_do_not_multiply_the_paths() {
    let config = TopologyConfig::grid(
        1,
        vec![
            level(Modules::Count(8), "1..5", false, false),
            level(Modules::Count(8), "7..11", false, true),
            level(Modules::Paths, "0, 5..7, 11", true, false),
        ],
    );
    let topology = Topology::new(&config, 12).unwrap();
    assert_eq!(topology.paths(), 64);
    assert_eq!(topology.modules_in(2), 64);
    let modules = topology.modules_of(PathId(13));
    assert_eq!(modules.iter().map(ToString::to_string).collect::<Vec<_>>(), ["0/1", "1/5", "2/13"]);
}

#[test]
fn refused_configurations_are_named() {
    let mut twice = grid(2);
    twice.levels[1].blocks = "5..12".into();
    assert_eq!(
        Topology::new(&twice, 12).unwrap_err(),
        TopologyError::Part { part: "block 5".into(), holders: 2 }
    );
    let error = Topology::new(&grid(2), 8).unwrap_err();
    assert_eq!(error, TopologyError::NoSuchBlock { level: 1, block: 8, blocks: 8 });
    assert!(matches!(Topology::new(&grid(4096), 12).unwrap_err(), TopologyError::TooManyPaths { .. }));
    assert!(matches!(Topology::new(&grid(0), 12).unwrap_err(), TopologyError::Zero { .. }));
    let mut text = grid(2);
    text.levels[0].blocks = "0-5".into();
    assert_eq!(Topology::new(&text, 12).unwrap_err(), TopologyError::Blocks { entry: "0-5".into() });
}

#[test]
fn a_frozen_level_has_modules_and_does_not_train() {
    let mut config = grid(2);
    config.levels[0].frozen = true;
    let topology = Topology::new(&config, 12).unwrap();
    assert_eq!((topology.trains(0), topology.trains(1), topology.trains(2)), (false, true, false));
    assert!(!topology.part_trains(Part::Embedding) && topology.part_trains(Part::Head));
    assert!(!topology.part_trains(Part::Block(5)) && topology.part_trains(Part::Block(6)));
    assert_eq!((topology.paths(), topology.module_ids().count()), (4, 4));
    config.levels[1].frozen = true;
    assert_eq!(Topology::new(&config, 12).unwrap_err(), TopologyError::Frozen);
}

proptest! {
    #[test]
    fn modules_and_paths_agree(replicas in 1u32..4, a in 1u32..5, b in 1u32..5) {
        let config = TopologyConfig::grid(
            replicas,
            vec![
                level(Modules::Count(a), "0", true, false),
                level(Modules::Paths, "", false, true),
                level(Modules::Count(b), "1", false, false),
            ],
        );
        let topology = Topology::new(&config, 2).unwrap();
        prop_assert_eq!(topology.paths(), replicas * a * b);
        let digits: Vec<u32> = [replicas, a, b].into_iter().filter(|&digit| digit > 1).collect();
        prop_assert_eq!(topology.radices(), digits);
        prop_assert_eq!(topology.replicas(), replicas);
        for module in topology.module_ids() {
            let through: Vec<_> = topology.paths_through(module).collect();
            let picked: Vec<_> = topology.path_ids().filter(|&p| topology.modules_of(p).contains(&module)).collect();
            prop_assert_eq!(&through, &picked);
        }
    }

    #[test]
    fn any_list_of_blocks_is_read_or_refused(text in ".{0,40}") {
        let _ = parse_blocks(&text);
    }
}
