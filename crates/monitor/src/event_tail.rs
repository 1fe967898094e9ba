//! Reads an event file that grows.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use dipaco_telemetry::EventRecord;

/// Longest line that is read, in bytes. The coordinator writes shorter ones.
const LONGEST_LINE: u64 = 1 << 20;

/// A reader that goes on where it stopped.
#[derive(Debug)]
pub struct EventTail {
    path: PathBuf,
    /// Bytes that have been read.
    offset: u64,
}

impl EventTail {
    /// A reader at the beginning of the file, which need not exist yet.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), offset: 0 }
    }

    /// Passes every complete new line to `take`. Lines that are no events of this version are skipped, and so is the end of
    /// a line that is being written. When the file has become shorter, it passes `None` and begins again.
    ///
    /// # Errors
    /// When the file can't be read. An absent file has no lines.
    pub fn read(&mut self, mut take: impl FnMut(Option<EventRecord>)) -> io::Result<()> {
        let mut file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        if file.metadata()?.len() < self.offset {
            self.offset = 0;
            take(None);
        }
        file.seek(SeekFrom::Start(self.offset))?;
        let mut reader = BufReader::new(file);
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = reader.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line)? as u64;
            let whole = line.ends_with(b"\n");
            if !whole && read < LONGEST_LINE {
                return Ok(());
            }
            self.offset += read;
            if let Ok(record) = serde_json::from_slice(&line) {
                take(Some(record));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_growing_file_is_read_once_and_a_new_file_from_its_beginning() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut tail = EventTail::new(&path);
        let read = |tail: &mut EventTail| {
            let mut times = Vec::new();
            tail.read(|record| {
                times.push(record.map_or_else(|| "new file".to_owned(), |record| record.time));
            })
            .unwrap();
            times
        };
        assert!(read(&mut tail).is_empty());
        let line = |time: &str| format!("{{\"time\":\"{time}\",\"event\":\"round_started\",\"round\":1}}\n");
        let mut file = File::create(&path).unwrap();
        file.write_all(format!("{}damaged\n{}", line("a"), &line("b")[..20]).as_bytes()).unwrap();
        assert_eq!(read(&mut tail), ["a"]);
        file.write_all(&line("b").as_bytes()[20..]).unwrap();
        assert_eq!(read(&mut tail), ["b"]);
        assert!(read(&mut tail).is_empty());
        std::fs::write(&path, line("c")).unwrap();
        assert_eq!(read(&mut tail), ["new file", "c"]);
    }
}
