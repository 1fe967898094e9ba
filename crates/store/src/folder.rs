//! The directory of a local store: files that become objects.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

use crate::unique::unique_numbers;

/// Attempts to make folders that disappear while they are brought to the disk.
const MOST_GONE: u32 = 10;

/// The directory of a local store.
#[derive(Debug)]
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    /// True if a write returns only after its file is on the disk.
    pub(crate) durable: bool,
}

impl Folder {
    /// The file of an object.
    pub(crate) fn place(&self, name: &object_store::path::Path) -> PathBuf {
        self.path.join(name.as_ref())
    }

    /// Creates a file that can become the object at `place`. Its name is that of the object store's own unfinished writes, so
    /// no list shows it and [`RunStore::sweep`](crate::RunStore::sweep) finds it. No other file ever has this name, also when
    /// the sweep has removed it.
    pub(crate) fn create(&self, place: &Path) -> io::Result<(File, PathBuf)> {
        let mut gone = 0;
        loop {
            let mut path = place.as_os_str().to_owned();
            let (nanoseconds, random) = unique_numbers();
            path.push(format!("#{nanoseconds}{random:020}"));
            match OpenOptions::new().read(true).write(true).create_new(true).open(&path) {
                // The next numbers are others.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                // An empty folder can disappear again before the next attempt: it goes with its last object.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    let made = fs::create_dir_all(place.parent().ok_or(error)?);
                    // The object store relies on folders that are there.
                    match made.and_then(|()| self.sync_folders(place)) {
                        Err(error) if error.kind() == io::ErrorKind::NotFound && gone < MOST_GONE => {
                            gone += 1;
                        }
                        made => made?,
                    }
                }
                created => return Ok((created?, path.into())),
            }
        }
    }

    /// Lets the disk begin with a part that has been written, so that [`Self::publish`] waits for less at the end.
    pub(crate) fn begin_sync(&self, file: &File, offset: u64, bytes: usize) {
        // Linux begins to write the part. It would also forget it, but keeps what is not on the disk yet.
        #[cfg(target_os = "linux")]
        if self.durable {
            let bytes = std::num::NonZeroU64::new(bytes as u64);
            // An advice: where the system does not take it, nothing is lost.
            let _ = rustix::fs::fadvise(file, offset, bytes, rustix::fs::Advice::DontNeed);
        }
        #[cfg(not(target_os = "linux"))]
        let _ = (file, offset, bytes);
    }

    /// Gives a file the name of the object at `place` beside its own. Returns false if the name is taken.
    ///
    /// # Errors
    /// When the disk fails, or another file lies at `path`. Nothing is published then.
    pub(crate) fn publish(&self, file: &File, path: &Path, place: &Path) -> io::Result<bool> {
        if self.durable {
            file.sync_all()?;
        }
        let published = match fs::hard_link(path, place) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
            linked => linked.map(|()| true)?,
        };
        if published && !is_same(file, place)? {
            fs::remove_file(place)?;
            return Err(io::Error::other("another file has taken its name: send the content again"));
        }
        self.sync_folders(place)?;
        Ok(published)
    }

    /// Brings the names of a file and of its folders to the disk.
    fn sync_folders(&self, file: &Path) -> io::Result<()> {
        // Other systems have no such operation.
        if !self.durable || !cfg!(unix) {
            return Ok(());
        }
        let mut folders = file.ancestors().skip(1).take_while(|folder| folder.starts_with(&self.path));
        folders.try_for_each(|folder| File::open(folder)?.sync_all())
    }

    /// Removes the name of an unfinished file, and the folders that it leaves empty. The sweep removes what stays.
    pub(crate) fn remove(&self, path: &Path) {
        if let Err(error) = fs::remove_file(path) {
            tracing::debug!(%error, file = %path.display(), "an unfinished write remains in the store");
            return;
        }
        let within = |folder: &&Path| folder.starts_with(&self.path) && *folder != self.path;
        let folders = path.ancestors().skip(1).take_while(within);
        // Ends at the first folder that is not empty.
        folders.take_while(|folder| fs::remove_dir(folder).is_ok()).for_each(drop);
    }
}

/// True if the open file is the one at `path`. A link is made by path, and the content was checked through the open file.
#[cfg(unix)]
fn is_same(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;

    let [own, found] = [file.metadata()?, fs::symlink_metadata(path)?];
    Ok((own.dev(), own.ino()) == (found.dev(), found.ino()))
}

/// Other systems keep the name of an open file.
#[cfg(not(unix))]
fn is_same(_file: &File, _path: &Path) -> io::Result<bool> {
    Ok(true)
}
