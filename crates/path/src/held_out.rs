//! The held-out documents of a shard, on which a path is measured during training.

use dipaco_shards::{DocumentSet, TokenSet, document_number};

/// Name of the rule that chooses the held-out documents. Another rule has another name: a training keeps the rule that it
/// began with. The name is also the key context that separates this use of BLAKE3 from all others.
pub const HELD_OUT_RULE: &str = "dipaco 2026 held-out documents: length, first and last tokens";

/// Tokens at each end of a document that decide. It bounds the time to open a shard.
const END: u64 = 64;

/// The documents of a shard that no path trains on: a share `fraction` of all documents.
///
/// A hash of a document's length and of the tokens at both its ends decides, so every shard that has the document holds it
/// out, and the order of the corpus does not matter. The beginning alone must not decide: a router gathers documents with
/// one beginning in one shard. A shard whose documents would all be held out holds none out.
pub(crate) fn held_out_documents(file: &TokenSet, fraction: f64, seed: u64) -> DocumentSet {
    let held_out = |document: u64| {
        let tokens = file.document(document);
        let length = tokens.len() as u64;
        let mut read = vec![length as u32, (length >> 32) as u32];
        read.extend(tokens.slice(0..END).iter());
        read.extend(tokens.slice(length.saturating_sub(END)..length).iter());
        document_number(HELD_OUT_RULE, seed, &read) < fraction
    };
    let chosen = DocumentSet::of(file.documents(), held_out);
    if chosen.documents() < file.documents() { chosen } else { DocumentSet::default() }
}

#[cfg(test)]
mod tests {
    use dipaco_shards::{TokenFileInfo, TokenFileWriter};

    use super::*;

    /// A file of the documents with these numbers. Each begins with `beginning`.
    fn file(folder: &std::path::Path, name: &str, beginning: &[u32], numbers: &[u32]) -> TokenSet {
        let info = TokenFileInfo { vocab_size: 10_000, ..TokenFileInfo::default() };
        let mut writer = TokenFileWriter::create(folder.join(name), info).unwrap();
        for &number in numbers {
            writer.push_document(&[beginning, &[number, number / 2, 1, 0]].concat()).unwrap();
        }
        writer.finish().unwrap();
        TokenSet::open(folder.join(name)).unwrap()
    }

    #[test]
    fn shards_with_common_documents_hold_the_same_ones_out() {
        let folder = tempfile::tempdir().unwrap();
        let one: Vec<u32> = (0..2000).collect();
        // The other shard has half of these documents, in another order, and others.
        let other: Vec<u32> = (1000..3000).rev().collect();
        let held_out = |name: &str, numbers: &[u32]| -> Vec<u32> {
            let file = file(folder.path(), name, &[], numbers);
            let set = held_out_documents(&file, 0.1, 7);
            (0..file.documents()).filter(|&i| set.contains(i)).map(|i| numbers[i as usize]).collect()
        };
        let (of_one, of_other) = (held_out("one.h5", &one), held_out("other.h5", &other));
        // 200 are expected, with a standard deviation of 13.
        assert!((150..250).contains(&of_one.len()), "{}", of_one.len());
        for number in 1000..2000 {
            assert_eq!(of_one.contains(&number), of_other.contains(&number), "{number}");
        }
        // Held-out documents are spread over the corpus.
        assert!(of_one.iter().filter(|&&number| number < 1000).count() > 60);
    }

    #[test]
    fn documents_with_one_beginning_are_held_out_one_by_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = file(folder.path(), "t.h5", &[7; 64], &(0..2000).collect::<Vec<_>>());
        for seed in 0..=20 {
            let set = held_out_documents(&file, 0.1, seed);
            // 200 are expected, with a standard deviation of 13.
            assert!((100..=300).contains(&set.documents()), "seed {seed}: {}", set.documents());
        }
    }

    #[test]
    fn the_run_chooses_and_some_documents_are_always_left() {
        let folder = tempfile::tempdir().unwrap();
        let file = file(folder.path(), "t.h5", &[], &(0..500).collect::<Vec<_>>());
        assert_ne!(held_out_documents(&file, 0.1, 1), held_out_documents(&file, 0.1, 2));
        assert_eq!(held_out_documents(&file, 0.0, 1), DocumentSet::of(500, |_| false));
        assert_eq!(held_out_documents(&file, 1.0, 1), DocumentSet::default());
    }
}
