use std::sync::Arc;

use dipaco_model::{Device, ModelConfig, Module, Path, init};
use dipaco_path::{ReaderSize, TrainDevice};
use dipaco_routing::{PathScores, RoutingError};
use dipaco_shards::{ShardsError, TokenFileInfo, TokenFileWriter};
use dipaco_topology::TopologyConfig;

use super::*;

fn config() -> ModelConfig {
    ModelConfig {
        vocab_size: 11,
        hidden_size: 8,
        blocks: 1,
        heads: 1,
        head_dim: 8,
        ffn_size: 8,
        context: 8,
        ..ModelConfig::default()
    }
}

fn model(seed: u64) -> PathReader {
    let config = config();
    let dense = Topology::new(&TopologyConfig::dense(1), 1).unwrap();
    let module = Arc::new(Module::load(&init(&config, seed).unwrap(), &Device::Cpu).unwrap());
    let path = Path::compose(&config, &dense, &[module]).unwrap();
    PathReader::new(&TrainDevice::Cpu, path, ReaderSize { sequences: 2, tokens: 8 }).unwrap()
}

/// Documents of these lengths.
fn tokens(folder: &FilePath, lengths: &[u32]) -> TokenSet {
    let info = TokenFileInfo {
        tokenizer_hash: "test".into(),
        end_of_text: 0,
        vocab_size: 11,
        ..TokenFileInfo::default()
    };
    let file = folder.join("router.h5");
    let mut writer = TokenFileWriter::create(&file, info).unwrap();
    for (document, &length) in (0u32..).zip(lengths) {
        let mut ids: Vec<u32> = (1..length).map(|at| 1 + (at * 3 + document) % 10).collect();
        ids.push(0);
        writer.push_document(&ids).unwrap();
    }
    writer.finish().unwrap();
    TokenSet::open(&file).unwrap()
}

fn header(tokens: &TokenSet) -> ScoreHeader {
    let modules = vec![(ModuleId { level: 0, index: 1 }, vec![(3, "weights".to_owned())])];
    ScoreHeader::new(PathId(2), tokens, 8, modules)
}

fn go_on(_: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

#[test]
fn every_token_but_the_first_of_a_document_has_the_models_probability() {
    let folder = tempfile::tempdir().unwrap();
    // One token, within a window, exactly a window and its target, one more, several windows, one token.
    let tokens = tokens(folder.path(), &[1, 5, 9, 10, 25, 1]);
    let model = model(1);
    assert!(write_scores(folder.path(), &header(&tokens), &model, &tokens, 2, &mut go_on).unwrap());
    let mut scores = PathScores::open(folder.path(), PathId(2), &tokens).unwrap();
    assert_eq!(scores.header().device, TrainDevice::Cpu.name().unwrap());
    let mut sums = Vec::new();
    for document in [5, 0, 1, 2, 3, 4] {
        let found = scores.document(&tokens, document).unwrap();
        let text = tokens.document(document).to_vec();
        assert_eq!(found.len(), text.len());
        assert_eq!(found[0], 0.0);
        for start in (0..text.len() - 1).step_by(8) {
            let end = (start + 8).min(text.len() - 1);
            let (inputs, targets) = (text[start..end].to_vec(), text[start + 1..=end].to_vec());
            let alone =
                model.token_log_probs(&tokens.batch_of(inputs, targets, 1, end - start).unwrap()).unwrap();
            for (found, alone) in found[start + 1..=end].iter().zip(alone) {
                assert!((found - alone).abs() < 1e-5, "{found} {alone}");
            }
        }
        sums.push(found.into_iter().map(f64::from).sum::<f64>());
    }
    sums.rotate_left(1);
    let scores = PathScores::open(folder.path(), PathId(2), &tokens).unwrap();
    assert_eq!(scores.sums(&tokens).unwrap(), sums);
}

#[test]
fn scores_are_made_once_and_anew_for_other_weights_or_text() {
    let folder = tempfile::tempdir().unwrap();
    let file = tokens(folder.path(), &[7, 30, 4]);
    let header = header(&file);
    let write =
        |header: &ScoreHeader| write_scores(folder.path(), header, &model(1), &file, 4, &mut go_on).unwrap();
    assert!(write(&header));
    let bytes = std::fs::read(folder.path().join("path-002.f32")).unwrap();
    assert!(!write(&header));
    let mut stepped = header;
    stepped.modules[0].1[0].1 = "other weights".into();
    assert!(write(&stepped));
    // Another number of sequences at once changes nothing beyond rounding, and a cut file is made again.
    std::fs::write(folder.path().join("path-002.f32"), &bytes[..8]).unwrap();
    assert!(matches!(PathScores::open(folder.path(), PathId(2), &file), Err(RoutingError::NoScores { .. })));
    assert!(write(&stepped));
    assert_eq!(std::fs::read(folder.path().join("path-002.f32")).unwrap(), bytes);

    let other = tempfile::tempdir().unwrap();
    let other = tokens(other.path(), &[7, 31, 4]);
    assert!(matches!(PathScores::open(folder.path(), PathId(2), &other), Err(RoutingError::NoScores { .. })));
    assert!(matches!(PathScores::open(folder.path(), PathId(1), &file), Err(RoutingError::NoScores { .. })));
}

#[test]
fn stopped_scoring_leaves_nothing_and_damage_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let file = tokens(folder.path(), &[7, 30, 4]);
    let (header, model) = (header(&file), model(1));
    let mut stop = |_| ControlFlow::Break(());
    let stopped = write_scores(folder.path(), &header, &model, &file, 4, &mut stop);
    assert!(matches!(stopped, Err(RouterError::Core(TrainError::Cancelled))));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "only the token file");
    write_scores(folder.path(), &header, &model, &file, 4, &mut go_on).unwrap();
    let name = folder.path().join("path-002.f32");
    let mut bytes = std::fs::read(&name).unwrap();
    bytes[21] ^= 1;
    std::fs::write(&name, bytes).unwrap();
    let scores = PathScores::open(folder.path(), PathId(2), &file).unwrap();
    assert!(matches!(scores.sums(&file), Err(RoutingError::ScoresDamaged { .. })));
}

#[test]
fn a_token_outside_of_the_vocabulary_is_not_scored() {
    let folder = tempfile::tempdir().unwrap();
    let file = tokens(folder.path(), &[7, 30, 4]);
    let path = file.path().to_owned();
    let first: Vec<u8> = file.document(1).iter().flat_map(|id| (id as u16).to_le_bytes()).collect();
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(first.len()).position(|window| window == first).unwrap();
    bytes[at + 2 * 5] = 11;
    drop(file);
    std::fs::write(&path, bytes).unwrap();
    let file = TokenSet::open(&path).unwrap();
    let refused = write_scores(folder.path(), &header(&file), &model(1), &file, 2, &mut go_on);
    assert!(
        matches!(
            &refused,
            Err(RouterError::Core(TrainError::Shards(ShardsError::TokenOutOfVocabulary { token: 11, place, .. })))
                if place == "place 12"
        ),
        "{refused:?}"
    );
}
