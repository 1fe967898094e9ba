//! A disk that fills up, imitated by a limit on the size of files.
#![cfg(unix)]

use std::path::PathBuf;
use std::process::Command;

use dipaco_shards::{TokenFileInfo, TokenFileWriter};

/// Environment variable with the number of tokens and the folder for the process with the limit.
const TASK: &str = "DIPACO_TEST_FULL_DISK";

/// Writes a token file if the environment has a task; does nothing otherwise.
#[test]
fn write_when_asked() {
    let Ok(task) = std::env::var(TASK) else { return };
    let (tokens, folder) = task.split_once(' ').unwrap();
    let path = PathBuf::from(folder).join("train.h5");
    let info = TokenFileInfo { vocab_size: 10, ..Default::default() };
    let outcome = TokenFileWriter::create(path, info).and_then(|mut writer| {
        for _ in 0..tokens.parse::<u64>().unwrap() / 100 {
            writer.push_document(&[0; 100])?;
        }
        writer.finish()
    });
    println!("outcome: {}", outcome.map_or_else(|error| error.to_string(), |_| "written".to_owned()));
}

#[test]
fn a_full_disk_is_an_error_that_says_so_and_leaves_nothing() {
    // 128 KiB per file: the collected tokens fit but the HDF5 file does not, not even the collected tokens fit, or
    // everything fits.
    for (tokens, words) in [(50_000, "free disk space"), (1_000_000, "free disk space"), (10_000, "written")]
    {
        let folder = tempfile::tempdir().unwrap();
        let program = std::env::current_exe().unwrap();
        let output = Command::new("sh")
            .args(["-c", "trap '' XFSZ; ulimit -f 256; exec \"$0\" --exact write_when_asked --nocapture"])
            .arg(program)
            .env(TASK, format!("{tokens} {}", folder.path().display()))
            .output()
            .unwrap();
        let shown = String::from_utf8_lossy(&output.stdout);
        let outcome = shown.lines().find_map(|line| line.split_once("outcome: ")).unwrap_or_default().1;
        assert!(output.status.success() && outcome.contains(words), "{tokens}: {shown}\n{output:?}");
        let files = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(files, usize::from(outcome == "written"), "{tokens}: {outcome}");
    }
}
