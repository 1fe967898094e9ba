use super::*;
use proptest::prelude::*;

mod damaged;

fn info(vocab_size: u32) -> TokenFileInfo {
    TokenFileInfo {
        tokenizer_hash: "abc".into(),
        end_of_text: 0,
        vocab_size,
        source: "[]".into(),
        origin: String::new(),
    }
}

fn write(path: &Path, vocab_size: u32, documents: &[&[u32]]) -> TokenFileSummary {
    let mut writer = TokenFileWriter::create(path, info(vocab_size)).unwrap();
    documents.iter().for_each(|document| writer.push_document(document).unwrap());
    writer.finish().unwrap()
}

fn files_in(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

#[test]
fn documents_come_back_in_both_widths() {
    let folder = tempfile::tempdir().unwrap();
    for vocab_size in [65_536, 100_000] {
        let path = folder.path().join(format!("{vocab_size}.h5"));
        let large = vocab_size - 1;
        let documents: [&[u32]; 4] = [&[1, 2, 3, 0], &[0], &[large, large, 0], &[7, 0]];
        let summary = write(&path, vocab_size, &documents);
        let file = TokenFile::open(&path).unwrap();
        assert_eq!((file.documents(), file.tokens()), (4, 10));
        for (at, document) in documents.iter().enumerate() {
            assert_eq!(file.document(at as u64).to_vec(), *document);
        }
        assert!(file.document(4).is_empty());
        assert!(file.document(u64::MAX).is_empty());
        assert_eq!(file.metadata().info, info(vocab_size));
        assert_eq!(file.metadata().content_hash, summary.content_hash);
        file.verify(&mut |_| Ok(())).unwrap();
        assert_eq!(matches!(file.document(0), Tokens::U16(_)), vocab_size == 65_536);
    }
    assert_eq!(files_in(folder.path()), 2);
}

#[test]
fn a_file_without_documents_is_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("empty.h5");
    write(&path, 10, &[]);
    let file = TokenFile::open(&path).unwrap();
    assert_eq!((file.documents(), file.tokens()), (0, 0));
    file.verify(&mut |_| Ok(())).unwrap();
}

#[cfg(unix)]
#[test]
fn a_finished_file_has_the_permissions_of_any_new_file() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let [ordinary, tokens] = ["ordinary", "t.h5"].map(|name| folder.path().join(name));
    std::fs::write(&ordinary, "").unwrap();
    write(&tokens, 100, &[&[1, 0]]);
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&tokens), mode(&ordinary));
}

#[test]
fn the_same_documents_give_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let [one, two] = ["one.h5", "two.h5"].map(|name| folder.path().join(name));
    write(&one, 100, &[&[1, 0], &[2, 0]]);
    write(&two, 100, &[&[1, 0], &[2, 0]]);
    assert_eq!(std::fs::read(one).unwrap(), std::fs::read(two).unwrap());
}

#[test]
fn hdf5_itself_reads_the_data_sets() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.h5");
    write(&path, 100, &[&[1, 2, 0], &[3, 0]]);
    let file = hdf5::File::open(&path).unwrap();
    assert_eq!(file.dataset("tokens").unwrap().read_raw::<u16>().unwrap(), [1, 2, 0, 3, 0]);
    assert_eq!(file.dataset("documents").unwrap().read_raw::<u64>().unwrap(), [0, 3, 5]);
    assert_eq!(file.attr("vocab_size").unwrap().read_scalar::<u64>().unwrap(), 100);
}

#[test]
fn the_writer_refuses_unusable_documents_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.h5");
    let mut writer = TokenFileWriter::create(&path, info(10)).unwrap();
    assert!(matches!(writer.push_document(&[1, 2]), Err(ShardsError::NoEndOfText { document: 0, .. })));
    assert!(matches!(writer.push_document(&[]), Err(ShardsError::NoEndOfText { .. })));
    assert!(matches!(
        writer.push_document(&[10, 0]),
        Err(ShardsError::TokenOutOfVocabulary { token: 10, .. })
    ));
    assert_eq!(writer.documents(), 0);
    drop(writer);
    assert_eq!(files_in(folder.path()), 0);
}

#[test]
fn damage_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.h5");
    write(&path, 100, &[&[1, 2, 0], &[3, 0]]);
    let whole = std::fs::read(&path).unwrap();
    let other = folder.path().join("other.h5");
    let open = |bytes: &[u8]| {
        std::fs::write(&other, bytes).unwrap();
        TokenFile::open(&other).unwrap_err()
    };
    assert!(matches!(open(&[]), ShardsError::NotATokenFile { .. }));
    assert!(matches!(open(b"PK"), ShardsError::NotATokenFile { .. }));
    assert!(matches!(open(&vec![0; 4096]), ShardsError::NotATokenFile { .. }));
    let cut = open(&whole[..whole.len() - 1]);
    assert!(cut.to_string().contains("written with"), "{cut}");
    let text = |bytes: &[u8], from: &str, to: &str| {
        let at = bytes.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
        let mut bytes = bytes.to_vec();
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        bytes
    };
    assert!(matches!(
        open(&text(&whole, "\"version\":1", "\"version\":7")),
        ShardsError::Version { found: 7, .. }
    ));
    assert!(matches!(open(&text(&whole, "tokenizer_hash", "tokenizer_hasx")), ShardsError::Damaged { .. }));
    assert!(matches!(TokenFile::open(folder.path().join("none.h5")), Err(ShardsError::Io { .. })));
    // An HDF5 file of another program.
    hdf5::File::create(&other).unwrap().close().unwrap();
    assert!(matches!(TokenFile::open(&other), Err(ShardsError::NotATokenFile { .. })));
}

#[test]
fn changed_tokens_are_found_by_verify() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.h5");
    write(&path, 100, &[&[1, 2, 0], &[3, 0]]);
    let mut bytes = std::fs::read(&path).unwrap();
    let at = TokenFile::open(&path).unwrap().header.tokens_offset as usize;
    bytes[at] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    assert!(matches!(
        TokenFile::open(&path).unwrap().verify(&mut |_| Ok(())),
        Err(ShardsError::Damaged { .. })
    ));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn flipped_bytes_never_pass_and_never_panic(flips in prop::collection::vec((any::<prop::sample::Index>(), 1u8..), 1..4), cut in prop::option::weighted(0.3, any::<prop::sample::Index>())) {
        static WHOLE: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.h5");
        let whole = WHOLE.get_or_init(|| {
            write(&path, 100, &[&[1, 2, 0], &[3, 0], &[0; 300]]);
            std::fs::read(&path).unwrap()
        });
        let mut bytes = whole.clone();
        for (at, flip) in flips {
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        std::fs::write(&path, &bytes).unwrap();
        let header_padding = |at: usize| whole[at] == 0 && at < 512;
        let differs = (0..whole.len()).any(|at| bytes.get(at) != Some(&whole[at]) && !header_padding(at));
        let outcome = TokenFile::open(&path).and_then(|file| file.verify(&mut |_| Ok(())));
        prop_assert_eq!(outcome.is_err(), differs);
    }
}
