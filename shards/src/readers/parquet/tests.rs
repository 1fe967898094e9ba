use std::path::{Path, PathBuf};
use std::sync::Arc;

use dipaco_fuzz::rand::Rng;
use dipaco_fuzz::{Campaign, CaseRng, Reached};
use parquet::basic::Encoding;
use parquet::column::page::Page;
use parquet::file::properties::{WriterProperties, WriterVersion};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

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
    (texts, refused, end.unwrap())
}

/// Reads the bytes of a file with the column `text`.
fn read_bytes(bytes: &[u8]) -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("texts.parquet");
    std::fs::write(&path, bytes).unwrap();
    read_column(&path, "text")
}

/// A file with the column `text` in one row group. The column has definition levels if a row has no text.
fn written(texts: &[Option<&str>], properties: WriterProperties) -> Vec<u8> {
    let nullable = texts.contains(&None);
    let repetition = if nullable { "OPTIONAL" } else { "REQUIRED" };
    let schema =
        parse_message_type(&format!("message rows {{ {repetition} BYTE_ARRAY text (UTF8); }}")).unwrap();
    let values: Vec<ByteArray> = texts.iter().flatten().map(|text| ByteArray::from(*text)).collect();
    let levels: Vec<i16> = texts.iter().map(|text| i16::from(text.is_some())).collect();
    let mut bytes = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut bytes, Arc::new(schema), Arc::new(properties)).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let levels = nullable.then_some(levels.as_slice());
    column.typed::<ByteArrayType>().write_batch(&values, levels, None).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    bytes
}

/// Writes pages of a version with an encoding, without compression and dictionaries.
fn encoded(encoding: Encoding, version: WriterVersion) -> WriterProperties {
    WriterProperties::builder()
        .set_writer_version(version)
        .set_encoding(encoding)
        .set_dictionary_enabled(false)
        .build()
}

const VERSIONS: [WriterVersion; 2] = [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0];

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
fn texts_in_delta_encodings_are_read() {
    for encoding in [Encoding::DELTA_LENGTH_BYTE_ARRAY, Encoding::DELTA_BYTE_ARRAY] {
        for version in VERSIONS {
            for (rows, nulls) in [(1_usize, false), (2, true), (40, false), (300, true), (300, false)] {
                let texts: Vec<Option<String>> = (0..rows)
                    .map(|row| {
                        let text = format!("page {} {} row {row}", row / 7, "x".repeat(row % 50));
                        (!nulls || row % 3 != 1).then_some(text)
                    })
                    .collect();
                let texts: Vec<Option<&str>> = texts.iter().map(Option::as_deref).collect();
                let (read, refused, end) = read_bytes(&written(&texts, encoded(encoding, version)));
                let case = format!("{encoding} {version:?} {rows} {nulls}");
                assert_eq!(end.damage, None, "{case}");
                assert_eq!(read, texts.iter().flatten().copied().collect::<Vec<_>>(), "{case}");
                assert_eq!(read.len() + refused.len(), rows, "{case}");
            }
        }
    }
}

#[test]
fn a_page_that_declares_more_lengths_than_texts_is_damage() {
    let text = "x".repeat(100);
    // The start of a list of 2^40 lengths.
    let hostile: [u8; 10] = [0x80, 0x01, 4, 0x80, 0x80, 0x80, 0x80, 0x80, 0x20, 0];
    // The list of one length takes 6 bytes before the text, and the list of one prefix 5 bytes before that.
    for (encoding, before) in [
        (Encoding::DELTA_LENGTH_BYTE_ARRAY, 6),
        (Encoding::DELTA_BYTE_ARRAY, 6),
        (Encoding::DELTA_BYTE_ARRAY, 11),
    ] {
        for version in VERSIONS {
            for rows in [&[Some(text.as_str())][..], &[Some(text.as_str()), None][..]] {
                let mut bytes = written(rows, encoded(encoding, version));
                let start = bytes.windows(100).position(|window| window == text.as_bytes()).unwrap();
                let list = &mut bytes[start - before..][..hostile.len()];
                assert_eq!(list[..3], hostile[..3], "the file has another layout than the test expects");
                list.copy_from_slice(&hostile);
                let damage = read_bytes(&bytes).2.damage.unwrap();
                assert!(damage.starts_with("row group 0, row 1: "), "{damage}");
                assert!(damage.contains("declares 1099511627776 lengths of texts"), "{damage}");
            }
        }
    }
}

#[test]
fn a_dictionary_that_declares_more_texts_than_it_holds_is_damage() {
    let text = "x".repeat(100);
    let mut bytes = written(&[Some(text.as_str())], WriterProperties::builder().build());
    let start = bytes.windows(100).position(|window| window == text.as_bytes()).unwrap();
    // The number of texts in the header of the page. A byte holds twice the number.
    let number = &mut bytes[start - 10];
    assert_eq!(*number, 2, "the file has another layout than the test expects");
    *number = 2 * 63;
    let damage = read_bytes(&bytes).2.damage.unwrap();
    assert!(damage.starts_with("row group 0, row 1: "), "{damage}");
    assert!(damage.contains("a dictionary page declares 63 texts, and it can hold 26"), "{damage}");
}

/// What the check says of a page of version 1.
fn check(
    encoding: Encoding,
    num_values: u32,
    levels: Option<Encoding>,
    parts: &[&[u8]],
) -> Result<(), String> {
    let bytes: Vec<u8> = parts.concat();
    let page = Page::DataPage {
        buf: bytes.into(),
        num_values,
        encoding,
        def_level_encoding: levels.unwrap_or(Encoding::RLE),
        rep_level_encoding: Encoding::RLE,
        statistics: None,
    };
    pages::check(&page, i16::from(levels.is_some()))
}

#[test]
fn every_list_of_lengths_is_found_and_bounded() {
    let too_many = |count: u64, most: u64| {
        Err(format!("a data page declares {count} lengths of texts, and it can hold {most}"))
    };
    // Two prefixes: a header, and a block whose first miniblock has 32 steps of 1 bit. The other widths mean nothing.
    let prefixes = &[0x80, 1, 4, 2, 0, 0, 1, 9, 9, 9, 0, 0, 0, 0];
    let delta = |parts: &[&[u8]]| check(Encoding::DELTA_BYTE_ARRAY, 2, None, parts);
    assert_eq!(delta(&[prefixes, &[0x80, 1, 4, 1, 0]]), Ok(()));
    assert_eq!(delta(&[prefixes, &[0x80, 1, 4, 3, 0]]), too_many(3, 2));
    let cut_off = Err("a data page ends before its texts".to_owned());
    assert_eq!(delta(&[prefixes]), cut_off);
    assert_eq!(delta(&[&prefixes[..12]]), cut_off);
    // No miniblocks, and a miniblock of more bits than a number can count.
    assert_eq!(delta(&[&[0x80, 1, 0, 2, 0, 0, 1]]), cut_off);
    let endless = [0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 1, 1, 2, 0, 0, 255];
    assert_eq!(delta(&[&endless]), cut_off);

    // Nine levels of 1 bit take two bytes in the old encoding of levels.
    let packed = Some("BIT_PACKED".parse::<Encoding>().unwrap());
    let list = &[0x80, 1, 4, 10, 0];
    assert_eq!(check(Encoding::DELTA_LENGTH_BYTE_ARRAY, 9, packed, &[&[0xFF, 1], list]), too_many(10, 9));
    let list = &[0x80, 1, 4, 0x80, 0x80, 0x80, 0x40, 0];
    assert_eq!(check(Encoding::DELTA_LENGTH_BYTE_ARRAY, u32::MAX, None, &[list]), too_many(1 << 27, 1 << 26));
}

#[test]
fn texts_that_repeat_a_long_start_are_in_memory_one_by_one() {
    let text = "x".repeat(100_000);
    let properties = encoded(Encoding::DELTA_BYTE_ARRAY, WriterVersion::PARQUET_1_0);
    let bytes = written(&[Some(text.as_str()); 300], properties);
    let mut refused = Vec::new();
    let memory = allocation_counter::measure(|| refused = read_bytes(&bytes).1);
    assert_eq!(refused.len(), 300);
    assert!(memory.bytes_max < 8 << 20, "{} bytes of memory", memory.bytes_max);
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

#[test]
fn a_file_that_cannot_be_read_is_no_damage() {
    let folder = tempfile::tempdir().unwrap();
    // Linux opens a folder as a file and refuses to read it.
    let place = folder.path().join("folder.parquet");
    std::fs::create_dir(&place).unwrap();
    let settings =
        ReadSettings { text_field: "text".to_owned(), max_line_bytes: 1000, text_document_bytes: 100 };
    for path in [place, folder.path().join("missing.parquet")] {
        let mut end = FileEnd { bytes: 0, hash: None, lines: 0, damage: None, skipped: None };
        let file = InputFile::new(path.clone(), 1 << 20);
        let fault = read(&file, &settings, &mut |_| ControlFlow::Continue(()), &mut end).unwrap_err();
        let named =
            matches!(&fault, Fault::Unreadable(ShardsError::Io { path: found, .. }) if *found == path);
        assert!(named, "{fault:?}");
    }
}
