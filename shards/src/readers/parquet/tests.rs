use std::path::{Path, PathBuf};

use dipaco_fuzz::rand::Rng;
use dipaco_fuzz::{Campaign, CaseRng, Reached};

use super::*;
use crate::{NoProgress, read_documents};

/// A file that `tests/parquet/write.py` wrote with pyarrow or datatrove.
fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/parquet").join(name)
}

type Outcome = (Vec<String>, Vec<(Refusal, u64)>, FileEnd);

fn read_column(path: &Path, field: &str) -> Outcome {
    let settings =
        ReadSettings { text_field: field.to_owned(), max_line_bytes: 1000, text_document_bytes: 100 };
    let file = InputFile::new(path.to_owned(), std::fs::metadata(path).unwrap().len());
    let (mut texts, mut refused) = (Vec::new(), Vec::new());
    let end = read_documents(&file, &settings, &NoProgress, &mut |record| {
        match record {
            ReadRecord::Document { text, .. } => texts.push(text),
            ReadRecord::Refused { reason, line } => refused.push((reason, line)),
        }
        ControlFlow::Continue(())
    });
    (texts, refused, end)
}

const TEXTS: [&str; 5] = ["document 0", "naïve 文書 🦀", "line one\nline two", "document 0", "last"];

#[test]
fn files_of_pyarrow_give_their_texts_whatever_the_compression() {
    for name in ["plain.parquet", "snappy.parquet", "zstd.parquet"] {
        let (texts, refused, end) = read_column(&golden(name), "text");
        assert_eq!(texts, TEXTS, "{name}");
        let expected = [(Refusal::NoText, 2), (Refusal::EmptyText, 4), (Refusal::LineTooLong, 6)];
        assert_eq!(refused, expected, "{name}");
        assert_eq!((end.lines, &end.damage), (8, &None), "{name}");
        assert_eq!(end.hash, Some(dipaco_files::file_hash(&golden(name)).unwrap()), "{name}");
    }
}

#[test]
fn files_of_datatrove_give_their_texts() {
    let (texts, refused, end) = read_column(&golden("000_datatrove-00000.parquet"), "text");
    assert_eq!(texts, TEXTS);
    assert_eq!(refused, [(Refusal::EmptyText, 3), (Refusal::LineTooLong, 5)]);
    assert_eq!(end.damage, None);
}

#[test]
fn the_column_is_named_by_a_setting() {
    let path = golden("snappy.parquet");
    let (texts, _, end) = read_column(&path, "label.source");
    assert_eq!((texts, end.damage), (vec!["test".to_owned(); 8], None));
    for (field, words) in [
        ("content", "no column `content` but `id`, `text`, `label.source`, `label.score`"),
        ("id", "holds no texts"),
    ] {
        let (texts, _, end) = read_column(&path, field);
        let damage = end.damage.unwrap();
        assert!(
            texts.is_empty() && damage.contains(words) && damage.contains("prepare.text_field"),
            "{damage}"
        );
    }
}

#[test]
fn damage_is_named_with_its_row_group_and_the_rows_before_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.parquet");
    let whole = std::fs::read(golden("zstd.parquet")).unwrap();
    // The second row group begins with the row of blanks.
    let reader = SerializedFileReader::new(File::open(golden("zstd.parquet")).unwrap()).unwrap();
    let (start, length) = reader.metadata().row_group(1).column(1).byte_range();
    let mut bytes = whole.clone();
    bytes[(start + length) as usize - 20..][..10].fill(0xAA);
    std::fs::write(&path, &bytes).unwrap();
    let (texts, _, end) = read_column(&path, "text");
    let damage = end.damage.unwrap();
    assert_eq!(texts, TEXTS[..2]);
    assert!(damage.starts_with("row group 1, row 4: "), "{damage}");

    std::fs::write(&path, &whole[..whole.len() - 100]).unwrap();
    let damage = read_column(&path, "text").2.damage.unwrap();
    assert!(damage.contains("no whole Parquet file"), "{damage}");
}

#[test]
fn damaged_files_never_end_the_program() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.parquet");
    let files =
        ["plain.parquet", "snappy.parquet", "zstd.parquet"].map(|name| std::fs::read(golden(name)).unwrap());
    let make = |rng: &mut CaseRng| files[rng.random_range(0..files.len())].clone();
    Campaign::new("parquet").memory(1 << 30).cases(600).past(0.25).play(make, |bytes| {
        std::fs::write(&path, bytes).unwrap();
        match read_column(&path, "text").2 {
            FileEnd { damage: None, .. } => Reached::Accepted,
            FileEnd { lines: 0, .. } => Reached::Outside,
            _ => Reached::Inside,
        }
    });
}
