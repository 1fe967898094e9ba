use super::*;
use crate::{Sampler, SamplerConfig, TokenFileWriter};
use std::sync::Arc;

const DOCUMENTS: [&[u32]; 6] = [&[1, 2, 3, 0], &[0], &[9, 9, 0], &[7, 0], &[4, 5, 6, 7, 8, 0], &[2, 0]];

fn info() -> TokenFileInfo {
    TokenFileInfo { tokenizer_hash: "abc".into(), vocab_size: 10, ..TokenFileInfo::default() }
}

fn write(path: &Path, info: TokenFileInfo, documents: &[&[u32]]) -> String {
    let mut writer = TokenFileWriter::create(path, info).unwrap();
    documents.iter().for_each(|document| writer.push_document(document).unwrap());
    writer.finish().unwrap().content_hash
}

/// A list of files that hold [`DOCUMENTS`], cut before each of `borders`.
fn list(folder: &Path, name: &str, borders: &[usize]) -> PathBuf {
    let mut manifest = TokenSetManifest::new(&info());
    let mut start = 0;
    for (at, &end) in borders.iter().chain([&DOCUMENTS.len()]).enumerate() {
        let file = format!("{name}-{at}.h5");
        let hash = write(&folder.join(&file), info(), &DOCUMENTS[start..end]);
        manifest.push(folder, file, &hash).unwrap();
        start = end;
    }
    let path = folder.join(format!("{name}.json"));
    manifest.publish(&path).unwrap();
    path
}

#[test]
fn several_files_read_as_one() {
    let folder = tempfile::tempdir().unwrap();
    write(&folder.path().join("one.h5"), info(), &DOCUMENTS);
    let one = TokenSet::open(folder.path().join("one.h5")).unwrap();
    // The second file is empty.
    let set = TokenSet::open(list(folder.path(), "set", &[2, 2, 5])).unwrap();
    assert_eq!((set.documents(), set.tokens()), (6, 18));
    for document in 0..8 {
        assert_eq!(set.document(document), one.document(document));
        assert_eq!(set.document_range(document), one.document_range(document));
    }
    for (start, end) in (0..20).flat_map(|start| (start..21).map(move |end| (start, end))) {
        let ids = |set: &TokenSet| set.ids(start..end).collect::<Vec<_>>();
        assert_eq!(ids(&set), ids(&one), "{start}..{end}");
    }
    set.release(0..u64::MAX);
    set.verify().unwrap();
    for packing in [false, true] {
        let batches = |path: &Path| {
            let config = SamplerConfig { sequence_length: 3, seed: 5, packing };
            let sampler = Sampler::new(Arc::new(TokenSet::open(path).unwrap()), 0..6, config).unwrap();
            let batch = sampler.batch(0, 20).unwrap();
            (batch.tokens().ids().to_vec(), batch.targets().to_vec())
        };
        assert_eq!(batches(set.path()), batches(one.path()), "packing {packing}");
    }
}

#[test]
fn the_content_hash_is_that_of_the_files_wherever_they_lie() {
    let folder = tempfile::tempdir().unwrap();
    let hash = |path: &Path| TokenSet::open(path).unwrap().content_hash().to_owned();
    let first = hash(&list(folder.path(), "a", &[3]));
    assert_eq!(hash(&list(folder.path(), "b", &[3])), first);
    assert_ne!(hash(&list(folder.path(), "c", &[4])), first);
}

#[test]
fn another_file_in_the_place_of_a_listed_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = list(folder.path(), "set", &[3]);
    let file = folder.path().join("set-1.h5");
    let refused = || TokenSet::open(&path).unwrap_err();
    write(&file, info(), &DOCUMENTS[2..]);
    assert!(matches!(refused(), ShardsError::Damaged { path, .. } if path == file));
    write(&file, TokenFileInfo { tokenizer_hash: "other".into(), ..info() }, &DOCUMENTS[3..]);
    assert!(matches!(refused(), ShardsError::TokenizerMismatch { path, .. } if path == file));
    std::fs::remove_file(&file).unwrap();
    let message = refused().to_string();
    assert!(message.contains("set-1.h5") && message.contains("open"), "{message}");
}

#[test]
fn a_file_is_listed_only_with_its_content() {
    let folder = tempfile::tempdir().unwrap();
    let hash = write(&folder.path().join("a.h5"), info(), &DOCUMENTS);
    let mut manifest = TokenSetManifest::new(&info());
    assert!(matches!(manifest.push(folder.path(), "a.h5".into(), "other"), Err(ShardsError::Damaged { .. })));
    let whole = std::fs::read(folder.path().join("a.h5")).unwrap();
    std::fs::write(folder.path().join("a.h5"), &whole[..whole.len() - 8]).unwrap();
    assert!(matches!(manifest.push(folder.path(), "a.h5".into(), &hash), Err(ShardsError::Damaged { .. })));
    assert!(manifest.files.is_empty());
}

#[test]
fn damaged_lists_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = list(folder.path(), "set", &[3]);
    let whole = std::fs::read_to_string(&path).unwrap();
    let open = |text: &str| {
        std::fs::write(&path, text).unwrap();
        TokenSet::open(&path).unwrap_err()
    };
    assert!(matches!(open(&whole[..whole.len() / 2]), ShardsError::Damaged { .. }));
    assert!(matches!(open("{}"), ShardsError::Damaged { .. }));
    let other = whole.replace("\"version\": 1", "\"version\": 7");
    assert!(matches!(open(&other), ShardsError::Version { found: 7, .. }));
    assert!(matches!(open(&whole.replace("dipaco-token-set", "x")), ShardsError::NotATokenFile { .. }));
    let outside = whole.replace("set-1.h5", "../set-1.h5");
    assert!(open(&outside).to_string().contains("leads out of the folder"));
    let many = whole.replace("\"documents\": 3", &format!("\"documents\": {}", u64::MAX));
    assert!(open(&many).to_string().contains("impossible"));
}
