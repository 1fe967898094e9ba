use super::*;
use crate::{IGNORE, TokenFileInfo, TokenFileWriter};

/// A file of documents with `lengths` tokens each. All tokens of the file differ, except the end-of-text tokens.
fn file(folder: &tempfile::TempDir, lengths: &[u32]) -> Arc<TokenSet> {
    let path = folder.path().join("t.h5");
    let info = TokenFileInfo { vocab_size: 1 << 20, ..Default::default() };
    let mut writer = TokenFileWriter::create(&path, info).unwrap();
    let mut next = 1;
    for &length in lengths {
        let mut document: Vec<u32> = (next..next + length - 1).collect();
        next += length - 1;
        document.push(0);
        writer.push_document(&document).unwrap();
    }
    writer.finish().unwrap();
    Arc::new(TokenSet::open(path).unwrap())
}

fn config(sequence_length: usize, packing: bool) -> SamplerConfig {
    SamplerConfig { sequence_length, seed: 7, packing }
}

#[test]
fn windows_cover_each_document_and_never_mix_two() {
    let folder = tempfile::tempdir().unwrap();
    let file = file(&folder, &[6, 1, 2, 3]);
    let sampler = Sampler::new(file, 0..4, config(3, false)).unwrap();
    assert_eq!(sampler.sequences(), 4);
    let all = sampler.window_batch(0, 99).unwrap();
    assert_eq!(all.rows(), 4);
    assert_eq!(all.tokens().ids(), [1, 2, 3, 4, 5, 0, 6, 0, 0, 7, 8, 0]);
    assert_eq!(all.targets(), [2, 3, 4, 5, 0, IGNORE, 0, IGNORE, IGNORE, 8, 0, IGNORE]);
    let places: Vec<_> =
        (0..4).map(|window| sampler.place(window)).map(|place| (place.document, place.start)).collect();
    assert_eq!(places, [(0, 0), (0, 3), (2, 0), (3, 0)]);
}

#[test]
fn packing_runs_across_documents_without_padding() {
    let folder = tempfile::tempdir().unwrap();
    let file = file(&folder, &[6, 1, 2, 3]);
    let sampler = Sampler::new(file, 0..3, config(4, true)).unwrap();
    assert_eq!(sampler.sequences(), 2);
    let all = sampler.window_batch(0, 2).unwrap();
    assert_eq!(all.tokens().ids(), [1, 2, 3, 4, 5, 0, 0, 6]);
    assert_eq!(all.targets(), [2, 3, 4, 5, 0, 0, 6, 0]);
}

#[test]
fn an_epoch_draws_every_sequence_once_and_epochs_differ() {
    let folder = tempfile::tempdir().unwrap();
    let lengths: Vec<u32> = (0..2500).map(|at| 1 + at % 9).collect();
    let file = file(&folder, &lengths);
    let sampler = Sampler::new(file, 100..2400, config(4, false)).unwrap();
    let n = sampler.sequences() as usize;
    let rows = |batch: &TokenBatch| {
        let rows = batch.tokens().ids().chunks(4).zip(batch.targets().chunks(4));
        rows.map(|(a, b)| [a, b].concat()).collect::<Vec<_>>()
    };
    let mut in_order = rows(&sampler.window_batch(0, n).unwrap());
    let epochs = [0, 1].map(|epoch| rows(&sampler.batch(epoch * n as u64, n).unwrap()));
    assert_ne!(epochs[0], epochs[1]);
    in_order.sort();
    for mut epoch in epochs {
        epoch.sort();
        assert_eq!(epoch, in_order);
    }
    // Every counted target of the range once.
    let targets: usize = lengths[100..2400].iter().map(|&length| length as usize - 1).sum();
    let counted = sampler.windows(64).map(|batch| batch.unwrap().counted());
    assert_eq!(counted.sum::<usize>(), targets);
}

#[test]
fn resuming_at_a_position_continues_the_same_order() {
    let folder = tempfile::tempdir().unwrap();
    let file = file(&folder, &[5; 11]);
    let sampler = Sampler::new(file.clone(), 0..11, config(3, false)).unwrap();
    let whole = sampler.batch(0, 60).unwrap();
    let resumed = Sampler::new(file, 0..11, config(3, false)).unwrap();
    let pieces = [(0, 7), (7, 1), (8, 40), (48, 12)]
        .map(|(position, batch)| resumed.batch(position, batch).unwrap().tokens().ids().to_vec());
    assert_eq!(pieces.concat(), whole.tokens().ids());
}

#[test]
fn ranges_without_sequences_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = file(&folder, &[1, 1, 5]);
    let new = |range, config| Sampler::new(file.clone(), range, config).err().unwrap();
    assert!(matches!(new(0..4, config(3, false)), ShardsError::DocumentRange { documents: 3, .. }));
    assert!(matches!(new(0..2, config(3, false)), ShardsError::NoSequences { .. }));
    assert!(matches!(new(3..3, config(3, true)), ShardsError::NoSequences { .. }));
    assert!(matches!(new(0..3, config(0, false)), ShardsError::Value { .. }));
}

#[test]
fn a_token_outside_the_vocabulary_is_refused_at_use() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.h5");
    let mut writer =
        TokenFileWriter::create(&path, TokenFileInfo { vocab_size: 10, ..Default::default() }).unwrap();
    writer.push_document(&[1, 2, 0]).unwrap();
    writer.finish().unwrap();
    let tokens = hdf5::File::open(&path).unwrap().dataset("tokens").unwrap().offset().unwrap() as usize;
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[tokens] = 200;
    std::fs::write(&path, bytes).unwrap();
    let sampler = Sampler::new(Arc::new(TokenSet::open(path).unwrap()), 0..1, config(2, false)).unwrap();
    assert!(matches!(sampler.batch(0, 1), Err(ShardsError::TokenOutOfVocabulary { token: 200, .. })));
}

#[test]
fn the_number_that_marks_no_target_is_refused_as_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.h5");
    // A vocabulary of this size takes four bytes a token.
    let info = TokenFileInfo { vocab_size: 100_000, ..Default::default() };
    let mut writer = TokenFileWriter::create(&path, info).unwrap();
    writer.push_document(&[1, 2, 0]).unwrap();
    writer.finish().unwrap();
    let tokens = hdf5::File::open(&path).unwrap().dataset("tokens").unwrap().offset().unwrap() as usize;
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[tokens + 8..tokens + 12].copy_from_slice(&IGNORE.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
    let sampler = Sampler::new(Arc::new(TokenSet::open(path).unwrap()), 0..1, config(2, false)).unwrap();
    assert!(matches!(sampler.batch(0, 1), Err(ShardsError::TokenOutOfVocabulary { token: IGNORE, .. })));
}

#[test]
fn a_selection_leaves_the_other_documents_out() {
    let folder = tempfile::tempdir().unwrap();
    let file = file(&folder, &[6, 1, 2, 3, 4]);
    let without = |left_out: u64, config| {
        let selected = DocumentSet::of(5, |document| document != left_out);
        Sampler::selected(file.clone(), selected, config).unwrap()
    };
    let all = without(2, config(3, false)).window_batch(0, 99).unwrap();
    assert_eq!(all.tokens().ids(), [1, 2, 3, 4, 5, 0, 7, 8, 0, 9, 10, 11]);
    // Packed: 1 to 5, 0, 0, 7, 8, 0, 9, 10, 11, 0.
    let all = without(2, config(4, true)).window_batch(0, 99).unwrap();
    assert_eq!(all.tokens().ids(), [1, 2, 3, 4, 5, 0, 0, 7, 8, 0, 9, 10, 11, 0, 0, 0]);
    assert_eq!(all.targets(), [2, 3, 4, 5, 0, 0, 7, 8, 0, 9, 10, 11, 0, IGNORE, IGNORE, IGNORE]);
    let nothing = Sampler::selected(file.clone(), DocumentSet::default(), config(3, false));
    assert!(matches!(nothing.err().unwrap(), ShardsError::NoSequences { .. }));
}

#[test]
fn a_selection_of_all_documents_draws_what_the_whole_range_draws() {
    let folder = tempfile::tempdir().unwrap();
    let lengths: Vec<u32> = (0..2500).map(|at| 1 + at % 9).collect();
    let file = file(&folder, &lengths);
    for packing in [false, true] {
        let whole = Sampler::new(file.clone(), 0..2500, config(4, packing)).unwrap();
        let every = DocumentSet::of(2500, |_| true);
        let selected = Sampler::selected(file.clone(), every, config(4, packing)).unwrap();
        assert_eq!(selected.sequences(), whole.sequences());
        assert_eq!(selected.batch(3, 2000).unwrap(), whole.batch(3, 2000).unwrap());
    }
}
