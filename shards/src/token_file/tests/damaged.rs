//! Damaged token files.

use std::process::{Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::time::{Duration, Instant};

use dipaco_fuzz::rand::Rng;
use dipaco_fuzz::{Campaign, CaseRng, Reached};

use super::super::header::HEADER_BYTES;
use super::*;

/// Names the folder of a child process that gives damaged structures to HDF5.
const CHILD: &str = "DIPACO_HDF5_CHILD";
/// The exit code of a child whose library reads one file for longer than ten seconds.
const HUNG: i32 = 42;

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
    match file.verify(&mut |_| Ok(())) {
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

#[test]
fn an_attribute_that_is_no_text_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.h5");
    let texts = [(FORMAT, "format"), ("the-tokenizer", "tokenizer_hash"), ("the-source", "source")];
    let info = TokenFileInfo { tokenizer_hash: texts[1].0.into(), source: texts[2].0.into(), ..info(100) };
    let mut writer = TokenFileWriter::create(&path, info).unwrap();
    writer.push_document(&[1, 2, 0]).unwrap();
    writer.finish().unwrap();
    let whole = std::fs::read(&path).unwrap();
    for (value, attribute) in texts {
        let (header, structures) = whole.split_at(HEADER_BYTES as usize);
        let mut structures = structures.to_vec();
        let at = structures.windows(value.len()).position(|part| part == value.as_bytes()).unwrap();
        structures[at + 2] = 0xff;
        let bytes = [header, &structures].concat();
        std::fs::write(&path, sealed(&bytes).unwrap()).unwrap();
        let refused = TokenFile::open(&path).unwrap_err();
        assert!(matches!(refused, ShardsError::Damaged { .. }), "{refused}");
        assert!(refused.to_string().contains(&format!("attribute {attribute} is not text")), "{refused}");
    }
}

/// Gives sealed files to HDF5, in this process. The file `case` names the case that it reads.
#[test]
fn hdf5_child() {
    let Ok(folder) = std::env::var(CHILD) else { return };
    let folder = Path::new(&folder);
    let path = folder.join("t.h5");
    let (progress, watched) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        while watched.recv_timeout(Duration::from_secs(10)) != Err(RecvTimeoutError::Timeout) {}
        std::process::exit(HUNG);
    });
    let mut case: u64 = std::env::var("DIPACO_FUZZ_SKIP").unwrap().parse().unwrap();
    let mut first_of_two = false;
    let make = |rng: &mut CaseRng| {
        // A case takes two valid inputs.
        first_of_two = !first_of_two;
        if first_of_two {
            std::fs::write(folder.join("case"), case.to_string()).unwrap();
            case += 1;
            progress.send(()).unwrap();
        }
        valid(rng, &path)
    };
    let campaign = Campaign::new("hdf5").cases(1000).past(0.2).memory(1 << 30);
    campaign.play(make, |bytes| match sealed(bytes) {
        Some(bytes) => reached(&path, &bytes),
        None => Reached::Outside,
    });
}

/// Only in a long run: the library may crash or loop for ever.
#[test]
fn damaged_structures_behind_a_right_hash_end_at_most_their_process() {
    let Ok(seconds) = std::env::var("DIPACO_FUZZ_SECONDS") else { return };
    let seconds = Duration::from_secs(seconds.parse().unwrap());
    let mut first: u64 = std::env::var("DIPACO_FUZZ_SKIP").map_or(0, |skip| skip.parse().unwrap());
    let (begun, folder) = (Instant::now(), tempfile::tempdir().unwrap());
    while begun.elapsed() < seconds {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args(["--exact", "token_file::tests::damaged::hdf5_child", "--nocapture"]);
        child.env(CHILD, folder.path()).env("DIPACO_FUZZ_SKIP", first.to_string());
        child.env_remove("DIPACO_FUZZ_SECONDS").stdout(Stdio::piped()).stderr(Stdio::piped());
        let ended = child.output().unwrap();
        let case: u64 = std::fs::read_to_string(folder.path().join("case")).unwrap().parse().unwrap();
        let output = String::from_utf8_lossy(&ended.stdout);
        match ended.status.code() {
            Some(0) => println!("{output}"),
            Some(HUNG) => println!("hdf5: case {case} hangs"),
            // A signal is the end of the C library.
            None => println!("hdf5: case {case} ends its process: {}", ended.status),
            // Another code is a panic of this package.
            Some(_) => panic!("case {case}: {output}{}", String::from_utf8_lossy(&ended.stderr)),
        }
        first = case + 1;
    }
}
