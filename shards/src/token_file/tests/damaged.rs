//! Damaged token files.

use std::process::{Command, Stdio};

use dipaco_fuzz::rand::Rng;
use dipaco_fuzz::{Campaign, CaseRng, Reached};

use super::super::header::HEADER_BYTES;
use super::*;

/// Names the folder of a child process that gives damaged structures to HDF5.
const CHILD: &str = "DIPACO_HDF5_CHILD";

/// A token file of a few documents.
fn valid(rng: &mut CaseRng, path: &Path) -> Vec<u8> {
    let vocabulary = if rng.random() { 100 } else { 100_000 };
    let documents: Vec<Vec<u32>> = (0..rng.random_range(0..4))
        .map(|_| (0..rng.random_range(0..30)).map(|_| rng.random_range(1..vocabulary)).chain([0]).collect())
        .collect();
    let documents: Vec<&[u32]> = documents.iter().map(Vec::as_slice).collect();
    write(path, vocabulary, &documents);
    std::fs::read(path).unwrap()
}

/// Opens a file and reads all of it.
fn reached(path: &Path, bytes: &[u8]) -> Reached {
    std::fs::write(path, bytes).unwrap();
    let file = match TokenFile::open(path) {
        Ok(file) => file,
        Err(ShardsError::NotATokenFile { .. } | ShardsError::Version { .. }) => return Reached::Outside,
        Err(_) => return Reached::Inside,
    };
    // Nothing below may fail, also for a file that is not verified.
    let documents = (0..file.documents().min(10)).map(|document| file.document(document).len() as u64);
    assert!(documents.sum::<u64>() <= file.tokens());
    let all = file.slice(0..u64::MAX).to_vec();
    assert_eq!(all.len() as u64, file.tokens());
    let _ = (crate::TokenSet::open(path).unwrap().rows(all, 1), file.metadata());
    file.release(0..u64::MAX);
    match file.verify() {
        Ok(()) => Reached::Accepted,
        Err(_) => Reached::Inside,
    }
}

#[test]
fn damaged_token_files_are_refused_or_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.h5");
    let make = |rng: &mut CaseRng| valid(rng, &path);
    Campaign::new("token-file").memory(1 << 20).cases(600).play(make, |bytes| reached(&path, bytes));
}

/// The file with a header that describes it: its length, and the hash of its structures. As an attacker would write it.
fn sealed(bytes: &[u8]) -> Option<Vec<u8>> {
    let line = bytes.strip_prefix(b"dipaco-tokens\n")?.split(|&byte| byte == b'\n').next()?;
    let mut header: Header = serde_json::from_slice(line).ok()?;
    header.file_bytes = bytes.len() as u64;
    header.check(header.file_bytes).ok()?;
    header.structure_hash = header.structure_hash(bytes);
    Some([&header.to_bytes().ok()?, bytes.get(HEADER_BYTES as usize..)?].concat())
}

/// Gives sealed files to HDF5, in this process.
#[test]
fn hdf5_child() {
    let Ok(folder) = std::env::var(CHILD) else { return };
    let (folder, first) =
        (Path::new(&folder), std::fs::read_to_string(Path::new(&folder).join("first")).unwrap());
    let path = folder.join("t.h5");
    let mut case: u64 = first.parse().unwrap();
    let make = |rng: &mut CaseRng| valid(rng, &path);
    let campaign = Campaign::new("hdf5").first(case).cases(case + 200).past(0.2).memory(1 << 30);
    campaign.play(make, |bytes| {
        case += 1;
        std::fs::write(folder.join("case"), case.to_string()).unwrap();
        let Some(bytes) = sealed(bytes) else { return Reached::Outside };
        reached(&path, &bytes)
    });
}

/// Only in a long run: the library may crash or loop for ever, and nothing ends it then.
#[test]
fn damaged_structures_behind_a_right_hash_end_at_most_their_process() {
    if std::env::var("DIPACO_FUZZ_SECONDS").is_err() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("first"), "0").unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "token_file::tests::damaged::hdf5_child", "--nocapture"]);
    child.env(CHILD, folder.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let ended = child.output().unwrap();
    let case = std::fs::read_to_string(folder.path().join("case"));
    println!("{}{}", String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    // A code is the end of a test: success, or a panic of this package. A signal is the end of the C library.
    assert!(ended.status.code().is_none_or(|code| code == 0), "{:?} after {case:?} cases", ended.status);
}
