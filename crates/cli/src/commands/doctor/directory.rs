//! Checks of the directory for runs: space, writing, renaming, locking, HDF5.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use dipaco_pipeline::files::open_to_lock;
use dipaco_telemetry::human;
use rustix::fs::statvfs;

use super::finding::Finding;

/// Below this, a small run may fill the disk.
const LITTLE_SPACE: u64 = 1_000_000_000;
/// Below this, not even a tiny run fits.
const NO_SPACE: u64 = 100_000_000;
const ELSEWHERE: &str = "name another directory with --run, or set run.directory";

pub(super) fn check(directory: &Path) -> Vec<Finding> {
    let Some(place) = nearest(directory) else {
        let found = format!("neither {} nor any directory above it exists", directory.display());
        return vec![Finding::fail("directory", found, ELSEWHERE)];
    };
    if !place.is_dir() {
        let found = format!("{} is a file, not a directory", place.display());
        return vec![Finding::fail("directory", found, ELSEWHERE)];
    }
    let mut findings = vec![space(&place)];
    // Dropping it removes the folder and its content.
    match tempfile::Builder::new().prefix(".doctor-").tempdir_in(&place) {
        Ok(folder) => findings.extend([files(folder.path(), &place), hdf5_file(folder.path())]),
        Err(error) => {
            let found = format!("{} can't be written: {error}", place.display());
            findings.push(Finding::fail("directory", found, ELSEWHERE));
        }
    }
    findings
}

/// The directory, or its nearest ancestor that exists, which may be a file.
fn nearest(directory: &Path) -> Option<PathBuf> {
    let absolute = std::path::absolute(directory).ok()?;
    absolute.ancestors().find(|path| path.exists()).map(Path::to_owned)
}

fn space(place: &Path) -> Finding {
    match statvfs(place) {
        Ok(disk) => {
            let free = disk.f_bavail.saturating_mul(disk.f_frsize);
            let found = format!("{} free at {}", human::bytes(free), place.display());
            match free {
                0..NO_SPACE => Finding::fail("disk", found, ELSEWHERE),
                NO_SPACE..LITTLE_SPACE => Finding::warn("disk", found, "free some space before a larger run"),
                _ => Finding::ok("disk", found),
            }
        }
        Err(error) => Finding::warn("disk", format!("{}: {error}", place.display()), ELSEWHERE),
    }
}

fn files(folder: &Path, place: &Path) -> Finding {
    match write_rename_lock(folder) {
        Ok(()) => Finding::ok(
            "directory",
            format!("files can be written, renamed and locked in {}", place.display()),
        ),
        Err((what, error)) => {
            let found = format!("files can't be {what} in {}: {error}", place.display());
            Finding::fail("directory", found, ELSEWHERE)
        }
    }
}

/// Checks the two operations that writing files relies on: a renamed file replaces the old one, and a lock excludes a
/// second process.
fn write_rename_lock(folder: &Path) -> Result<(), (&'static str, io::Error)> {
    let failed = |what| move |error| (what, error);
    let (old, new) = (folder.join("old"), folder.join("new"));
    fs::write(&new, b"before").map_err(failed("written"))?;
    fs::write(&old, b"after").map_err(failed("written"))?;
    let file = File::open(&old).map_err(failed("read"))?;
    file.sync_all().map_err(failed("synchronised"))?;
    fs::rename(&old, &new).map_err(failed("renamed"))?;
    if fs::read(&new).map_err(failed("read"))? != b"after" {
        return Err(("renamed", io::Error::other("the old content is still there")));
    }
    let open = || open_to_lock(&new).map_err(failed("opened"));
    let (first, second) = (open()?, open()?);
    first.try_lock().map_err(|error| ("locked", error.into()))?;
    match second.try_lock() {
        Err(TryLockError::WouldBlock) => Ok(()),
        Err(TryLockError::Error(error)) => Err(("locked", error)),
        Ok(()) => Err(("locked", io::Error::other("a second lock was granted"))),
    }
}

fn hdf5_file(folder: &Path) -> Finding {
    let (major, minor, patch) = hdf5::library_version();
    let version = format!("{major}.{minor}.{patch}");
    match round_trip(&folder.join("check.h5")) {
        Ok(true) => Finding::ok("HDF5", format!("{version}, a file is read back as it was written")),
        Ok(false) => {
            Finding::fail("HDF5", format!("{version}, a file is read back with other content"), ELSEWHERE)
        }
        Err(error) => Finding::fail("HDF5", format!("{version}: {error}"), ELSEWHERE),
    }
}

fn round_trip(path: &Path) -> hdf5::Result<bool> {
    let tokens: Vec<u16> = (0..1000).collect();
    let file = hdf5::File::create(path)?;
    file.new_dataset_builder().with_data(tokens.as_slice()).create("tokens")?;
    file.close()?;
    Ok(hdf5::File::open(path)?.dataset("tokens")?.read_raw::<u16>()? == tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_a_folder_of_this_machine_can_be_written_renamed_and_locked() {
        let folder = tempfile::tempdir().unwrap();
        write_rename_lock(folder.path()).unwrap();
        assert_eq!(fs::read(folder.path().join("new")).unwrap(), b"after", "a lock leaves the content");
    }
}
