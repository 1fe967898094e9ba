use std::io::Write;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use proptest::prelude::*;

use super::*;
use crate::NoProgress;

fn settings() -> ReadSettings {
    ReadSettings { text_field: "text".to_owned(), max_line_bytes: 1000, text_document_bytes: 12 }
}

fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

fn lines(count: usize) -> String {
    (0..count).map(|at| format!("{{\"text\":\"document {at}\"}}\n")).collect()
}

fn write(folder: &tempfile::TempDir, name: &str, content: &[u8]) -> InputFile {
    let path = folder.path().join(name);
    std::fs::write(&path, content).unwrap();
    InputFile::new(path, content.len() as u64)
}

fn read(file: &InputFile) -> (Vec<String>, Vec<(Refusal, u64)>, FileEnd) {
    let (mut texts, mut refused) = (Vec::new(), Vec::new());
    let end = read_documents(file, &settings(), &NoProgress, &mut |record| {
        match record {
            ReadRecord::Document { text, .. } => texts.push(text),
            ReadRecord::Refused { reason, line } => refused.push((reason, line)),
        }
        ControlFlow::Continue(())
    });
    (texts, refused, end.unwrap())
}

#[test]
fn every_container_gives_the_same_documents_and_the_hash_of_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let plain = lines(5);
    let members = [gzip(lines(2).as_bytes()), gzip(&plain.as_bytes()[lines(2).len()..])].concat();
    let frames = [
        zstd::encode_all(&plain.as_bytes()[..30], 0).unwrap(),
        zstd::encode_all(&plain.as_bytes()[30..], 0).unwrap(),
    ]
    .concat();
    for (name, content) in [
        ("a.jsonl", plain.clone().into_bytes()),
        ("a.json", plain.replace('\n', "\r\n").into_bytes()),
        ("a.json.gz", members),
        ("a.jsonl.zst", frames),
    ] {
        let (texts, refused, end) = read(&write(&folder, name, &content));
        assert_eq!(texts, (0..5).map(|at| format!("document {at}")).collect::<Vec<_>>(), "{name}");
        assert_eq!((refused.len(), end.damage, end.lines), (0, None, 5), "{name}");
        assert_eq!(
            (end.bytes, end.hash),
            (content.len() as u64, Some(blake3::hash(&content).to_hex().to_string()))
        );
    }
}

#[test]
fn damaged_files_keep_the_documents_before_and_name_the_damage() {
    let folder = tempfile::tempdir().unwrap();
    let whole = gzip(lines(200).as_bytes());
    let changed = |from_end: usize| {
        let mut bytes = whole.clone();
        let at = bytes.len() - from_end;
        bytes[at] ^= 0xFF;
        bytes
    };
    let zstd = zstd::encode_all(lines(200).as_bytes(), 0).unwrap();
    let cases: [(&str, Vec<u8>, usize, &str); 9] = [
        ("cut.json.gz", whole[..whole.len() * 6 / 10].to_vec(), 1, "cut off"),
        ("crc.json.gz", changed(6), 200, "damaged"),
        (
            "trailing.json.gz",
            [whole.clone(), b"garbage behind the end".to_vec()].concat(),
            200,
            "not gzip follow",
        ),
        ("middle.json.gz", changed(whole.len() / 2), 0, "line "),
        ("empty.json.gz", Vec::new(), 0, "empty"),
        ("plain.json.gz", lines(3).into_bytes(), 0, "not gzip"),
        ("nothing.json.gz", gzip(b""), 0, "no text"),
        ("blank.jsonl", b"\n \r\n\t\n".to_vec(), 0, "no text"),
        ("cut.json.zst", zstd[..zstd.len() / 2].to_vec(), 0, "cut off"),
    ];
    for (name, content, at_least, words) in cases {
        let (texts, refused, end) = read(&write(&folder, name, &content));
        assert!(texts.len() >= at_least && texts.len() <= 200, "{name}: {}", texts.len());
        // Whole lines only.
        assert!(
            texts.iter().enumerate().all(|(at, text)| *text == format!("document {at}"))
                || name == "middle.json.gz"
        );
        let damage = end.damage.unwrap_or_default();
        assert!(damage.contains(words), "{name}: {damage}; {refused:?}");
        assert_eq!(end.hash, Some(blake3::hash(&content).to_hex().to_string()), "{name}");
    }
}

#[test]
fn a_file_that_cannot_be_opened_or_read_is_an_error_and_no_damage() {
    let folder = tempfile::tempdir().unwrap();
    // Linux opens a folder as a file and refuses to read it.
    std::fs::create_dir(folder.path().join("folder.jsonl")).unwrap();
    for name in ["missing.jsonl", "folder.jsonl"] {
        let path = folder.path().join(name);
        let file = InputFile::new(path.clone(), 0);
        let read = read_documents(&file, &settings(), &NoProgress, &mut |_| ControlFlow::Continue(()));
        let lines = read_lines(&path, 100, &mut |_, _| ControlFlow::Continue(()));
        for error in [read.unwrap_err(), lines.unwrap_err()] {
            assert!(matches!(&error, ShardsError::Io { path: found, .. } if *found == path), "{error}");
        }
    }
}

#[test]
fn lines_over_the_limit_are_refused_with_their_place() {
    let folder = tempfile::tempdir().unwrap();
    let content = format!("{}{{\"text\":\"{}\"}}\n{}", lines(2), "x".repeat(5000), lines(1));
    let (texts, refused, end) = read(&write(&folder, "a.jsonl", content.as_bytes()));
    assert_eq!((texts.len(), refused, end.lines), (3, vec![(Refusal::LineTooLong, 3)], 4));
}

#[test]
fn plain_text_is_cut_at_line_ends() {
    let folder = tempfile::tempdir().unwrap();
    let text = "\u{FEFF}line one\nl2\nline three\n\na line that is longer\nend";
    let (texts, refused, end) = read(&write(&folder, "a.txt", text.as_bytes()));
    assert_eq!(texts, ["line one\nl2\n", "line three\n\n", "a line that is longer\n", "end"]);
    assert_eq!((refused.len(), end.damage, end.lines), (0, None, 6));
    let (texts, refused, _) = read(&write(&folder, "b.md", b"0123456789\nbad \xFF\nmore good\n"));
    assert_eq!(
        (texts, refused),
        (vec!["0123456789\n".to_owned(), "more good\n".to_owned()], vec![(Refusal::NotUtf8, 2)])
    );
    let (texts, _, end) = read(&write(&folder, "c.bin", b"ab\0cd"));
    assert_eq!((texts.len(), end.skipped, end.damage), (0, Some(Skipped::Binary), None));
}

#[test]
fn directories_are_listed_in_order_and_skipped_entries_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    std::fs::create_dir_all(root.join("b/c")).unwrap();
    std::fs::create_dir_all(root.join(".git")).unwrap();
    for name in ["z.txt", "b/c/a.rs", "b/a.json.gz", ".hidden", ".git/config"] {
        std::fs::write(root.join(name), "x").unwrap();
    }
    let list = list_inputs(&[root.to_owned(), root.join("z.txt")]).unwrap();
    let names: Vec<_> =
        list.files.iter().map(|file| file.path.strip_prefix(root).unwrap().to_owned()).collect();
    assert_eq!(names, ["b/a.json.gz", "b/c/a.rs", "z.txt"].map(PathBuf::from));
    assert_eq!(list.skipped, BTreeMap::from([(Skipped::Hidden, 2)]));
    let error = list_inputs(&[root.join("none")]).unwrap_err();
    assert!(error.to_string().contains("none"), "{error}");
}

#[test]
fn crate_sources_have_all_kinds_within_the_budget() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("registry");
    for name in ["one-1.0.0", "two-2.0.0", "unlisted-1.0.0"] {
        let dir = root.join(name);
        std::fs::create_dir_all(dir.join("src")).unwrap();
        for at in 0..20 {
            std::fs::write(dir.join(format!("src/f{at}.rs")), "x".repeat(1000)).unwrap();
            std::fs::write(dir.join(format!("src/f{at}.c")), "x".repeat(1000)).unwrap();
        }
        for name in ["README.md", "Cargo.toml", "Cargo.toml.orig", "LICENSE-MIT", "data.bin"] {
            std::fs::write(dir.join(name), "x".repeat(500)).unwrap();
        }
    }
    let crates = ["one-1.0.0", "two-2.0.0", "absent-1.0.0"].map(str::to_owned).into();
    let files = crate_sources(std::slice::from_ref(&root), &crates, 20_000).unwrap();
    assert_eq!(files, crate_sources(&[root.clone(), root.clone()], &crates, 20_000).unwrap());
    let count = |ending: &str| files.iter().filter(|file| file.to_string_lossy().ends_with(ending)).count();
    assert_eq!((count(".md"), count("Cargo.toml"), count("LICENSE-MIT"), count(".bin")), (2, 2, 2, 0));
    assert!(count(".rs") > count(".c") && count(".c") > 3);
    let bytes: u64 = files.iter().map(|file| std::fs::metadata(file).unwrap().len()).sum();
    assert!((18_000..=20_000).contains(&bytes), "{bytes}");
    assert!(files.iter().all(|file| !file.starts_with(root.join("unlisted-1.0.0"))));
    // A large budget takes all files.
    assert_eq!(crate_sources(&[root], &crates, 1 << 30).unwrap().len(), 86);
}

fn dirty(name: &str) -> Option<InputFile> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/corpus/dirty").join(name);
    let bytes = std::fs::metadata(&path).ok()?.len();
    Some(InputFile::new(path, bytes))
}

#[test]
fn the_dirty_corpus_is_read_as_its_readme_demands() {
    let (Some(file), Some(truncated)) = (dirty("dirty.json.gz"), dirty("dirty-truncated.json.gz")) else {
        eprintln!("the shared corpus is not here: nothing tested");
        return;
    };
    let limits = ReadSettings { max_line_bytes: 64 << 20, ..settings() };
    let (mut kept, mut refused) = (Vec::new(), Vec::new());
    let end = read_documents(&file, &limits, &NoProgress, &mut |record| {
        match record {
            ReadRecord::Document { line, .. } => kept.push(line),
            ReadRecord::Refused { line, .. } => refused.push(line),
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    // The mark in line 69 is stripped, which the strict reader of the corpus's README refuses.
    let wanted: Vec<u64> = [30..=36, 42..=58, 64..=68, 71..=74, 84..=90].into_iter().flatten().collect();
    assert_eq!(refused, wanted);
    assert_eq!((kept.len(), end.lines, end.damage), (88, 132, None));

    let mut kept = 0;
    let end = read_documents(&truncated, &limits, &NoProgress, &mut |_| {
        kept += 1;
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(kept, 65);
    assert!(end.damage.unwrap().contains("line 66: the gzip stream is cut off"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn arbitrary_files_never_panic(content in prop::collection::vec(any::<u8>(), 0..400), kind in 0usize..6, flip in any::<prop::sample::Index>()) {
        let folder = tempfile::tempdir().unwrap();
        let name = ["a.json.gz", "a.jsonl", "a.txt", "a.txt.zst", "a.json.gz", "a.json.zst"][kind];
        let mut content = match kind {
            4 => gzip(&content),
            5 => zstd::encode_all(&content[..], 0).unwrap(),
            _ => content,
        };
        if !content.is_empty() {
            let at = flip.index(content.len());
            content[at] ^= 0x10;
        }
        let (texts, refused, end) = read(&write(&folder, name, &content));
        // Nothing is dropped in silence.
        prop_assert!(!texts.is_empty() || !refused.is_empty() || end.damage.is_some() || end.skipped.is_some());
    }
}
