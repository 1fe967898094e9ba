//! The event file: one JSON object per line, append only.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use thiserror::Error;
use time::OffsetDateTime;

use crate::{Event, EventRecord, RunClock, SystemClock, WireBytes};

/// Errors of the event file.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum EventsError {
    /// The file can't be opened, written or read.
    #[error("the event file {} can't be used", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Error of the file system.
        #[source]
        source: io::Error,
    },
    /// A line is not an event of this version.
    #[error("line {line} of the event file {} is not an event of this version", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Line, counted from 1.
        line: u64,
        /// Error of the parser.
        #[source]
        source: serde_json::Error,
    },
}

/// Reads the bytes on the wire of this process.
pub type WireCounter = Arc<dyn Fn() -> WireBytes + Send + Sync>;

/// Writes events to a file, one JSON object per line. Cheap to clone, and usable from several threads.
#[derive(Clone)]
pub struct Events {
    sink: Option<Arc<Sink>>,
    wire: Option<WireCounter>,
}

struct Sink {
    path: PathBuf,
    lines: Mutex<Lines<File>>,
    clock: Box<dyn RunClock>,
}

impl Sink {
    fn lines(&self) -> MutexGuard<'_, Lines<File>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The lines of an event file.
struct Lines<F> {
    file: F,
    /// True if the last write has failed. It may have left a part of a line.
    failed: bool,
    /// Events that have been dropped since the last one that was written.
    dropped: u64,
}

/// What the log says of a time in which events can't be written.
#[derive(Debug)]
enum Outage {
    Begins(io::Error),
    Over { dropped: u64 },
}

impl<F: Read + Write + Seek> Lines<F> {
    /// Appends a line in a single write.
    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        if self.failed {
            end_torn_line(&mut self.file)?;
        }
        let written = self.file.write_all(line);
        self.failed = written.is_err();
        written
    }

    /// Appends a line, or drops it. Of each outage the log has one line about its beginning and one about its end.
    fn note(&mut self, line: io::Result<Vec<u8>>) -> Option<Outage> {
        match line.and_then(|line| self.append(&line)) {
            Ok(()) => {
                let dropped = std::mem::take(&mut self.dropped);
                (dropped > 0).then_some(Outage::Over { dropped })
            }
            Err(error) => {
                self.dropped += 1;
                (self.dropped == 1).then_some(Outage::Begins(error))
            }
        }
    }
}

impl Events {
    /// Appends to the file at `path`, and creates it if it does not exist.
    ///
    /// # Errors
    /// When the file can't be opened or read.
    pub fn create(path: &Path) -> Result<Self, EventsError> {
        Self::with_clock(path, Box::new(SystemClock::start()))
    }

    /// Like [`Events::create`], with the time from `clock`.
    ///
    /// # Errors
    /// When the file can't be opened or read.
    pub fn with_clock(path: &Path, clock: Box<dyn RunClock>) -> Result<Self, EventsError> {
        let io = |source| EventsError::Io { path: path.to_owned(), source };
        let mut file = OpenOptions::new().create(true).read(true).append(true).open(path).map_err(io)?;
        end_torn_line(&mut file).map_err(io)?;
        let lines = Mutex::new(Lines { file, failed: false, dropped: 0 });
        let sink = Sink { path: path.to_owned(), lines, clock };
        Ok(Self { sink: Some(Arc::new(sink)), wire: None })
    }

    /// Drops all events, for callers without an event file.
    #[must_use]
    pub fn off() -> Self {
        Self { sink: None, wire: None }
    }

    /// The same file for a coordinator: every [`Event::RoundCompleted`] gets the bytes on the wire at its time.
    #[must_use]
    pub fn with_wire_bytes(self, counter: WireCounter) -> Self {
        Self { wire: Some(counter), ..self }
    }

    /// Appends one event as a line, in a single write.
    ///
    /// # Errors
    /// When the line can't be written, for example on a full disk.
    pub fn write(&self, event: Event) -> Result<(), EventsError> {
        let Some(sink) = &self.sink else { return Ok(()) };
        let written = self.line(sink, event).and_then(|line| sink.lines().append(&line));
        written.map_err(|source| EventsError::Io { path: sink.path.clone(), source })
    }

    /// Appends one event as a line, or drops it if that fails. A long process goes on without its events: it warns once, and
    /// again when the file can be written.
    pub fn note(&self, event: Event) {
        let Some(sink) = &self.sink else { return };
        let line = self.line(sink, event);
        let outage = sink.lines().note(line);
        let file = sink.path.display();
        match outage {
            Some(Outage::Begins(error)) => {
                tracing::warn!(%file, %error, "events are dropped until the event file can be written: check its disk");
            }
            Some(Outage::Over { dropped }) => {
                tracing::warn!(%file, dropped, "the event file can be written again, and lacks some events");
            }
            None => {}
        }
    }

    /// The line of an event that happens now.
    fn line(&self, sink: &Sink, mut event: Event) -> io::Result<Vec<u8>> {
        if let (Event::RoundCompleted { wire_bytes, .. }, Some(counter)) = (&mut event, &self.wire) {
            *wire_bytes = Some(counter());
        }
        let time = rfc3339(sink.clock.now());
        let mut line = serde_json::to_vec(&EventRecord { time, event })?;
        line.push(b'\n');
        Ok(line)
    }
}

/// UTC in RFC 3339, always with milliseconds, so that lines sort as text.
fn rfc3339(time: SystemTime) -> String {
    let time = OffsetDateTime::from(time);
    let (hour, minute, second, millisecond) = time.to_hms_milli();
    format!("{}T{hour:02}:{minute:02}:{second:02}.{millisecond:03}Z", time.date())
}

/// Ends an incomplete last line, left by a process that died while writing or by a write that failed. The next event would
/// otherwise be appended to that line and lost.
fn end_torn_line(file: &mut (impl Read + Write + Seek)) -> io::Result<()> {
    if file.seek(SeekFrom::End(0))? == 0 {
        return Ok(());
    }
    file.seek(SeekFrom::End(-1))?;
    let mut last = [0];
    file.read_exact(&mut last)?;
    if last != *b"\n" { file.write_all(b"\n") } else { Ok(()) }
}

/// Reads an event file. A line cut off by a dying process is an error item, which the reader can skip.
///
/// # Errors
/// When the file can't be opened. Each item can be an error of its own.
pub fn read_events(
    path: &Path,
) -> Result<impl Iterator<Item = Result<EventRecord, EventsError>> + use<>, EventsError> {
    let path = path.to_owned();
    let file = File::open(&path).map_err(|source| EventsError::Io { path: path.clone(), source })?;
    let lines = io::BufReader::new(file).split(b'\n').enumerate();
    Ok(lines.map(move |(index, line)| {
        let line = line.map_err(|source| EventsError::Io { path: path.clone(), source })?;
        let number = index as u64 + 1;
        serde_json::from_slice(&line).map_err(|source| EventsError::Line {
            path: path.clone(),
            line: number,
            source,
        })
    }))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use dipaco_topology::{ModuleId, PathId};

    use super::*;

    struct Fixed;

    impl RunClock for Fixed {
        fn elapsed(&self) -> Duration {
            Duration::ZERO
        }
        fn now(&self) -> SystemTime {
            SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_123)
        }
    }

    fn step(loss: f64) -> Event {
        Event::SeedStep { step: 1, loss, learning_rate: 4e-4, gradient_norm: 0.5, tokens_per_second: 1e4 }
    }

    #[test]
    fn an_event_is_a_line_with_its_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        let events = Events::with_clock(&path, Box::new(Fixed)).unwrap();
        let module = ModuleId { level: 0, index: 3 };
        events
            .write(Event::ModuleStepped {
                module,
                fragment: 0,
                version: 2,
                paths: 4,
                outer_gradient_norm: 1.5,
                cosine: Some(0.25),
            })
            .unwrap();
        assert_eq!(
            std::fs::read_to_string(&path).unwrap(),
            "{\"time\":\"2023-11-14T22:13:20.123Z\",\"event\":\"module_stepped\",\"module\":{\"level\":0,\"index\":3},\
             \"version\":2,\"paths\":4,\"outer_gradient_norm\":1.5,\"cosine\":0.25}\n"
        );
    }

    #[test]
    fn events_are_read_back_and_appended() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        let expired = Event::LeaseExpired { path: PathId(3), round: 1, worker: "w".into(), fence: 9 };
        for event in [step(2.5), expired.clone()] {
            Events::create(&path).unwrap().write(event).unwrap();
        }
        let read: Vec<Event> = read_events(&path).unwrap().map(|record| record.unwrap().event).collect();
        assert_eq!(read, [step(2.5), expired]);
    }

    #[test]
    fn a_completed_round_has_the_bytes_at_its_time_and_older_files_have_none() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        let older =
            "{\"time\":\"t\",\"event\":\"round_completed\",\"round\":0,\"loss\":4.0,\"seconds\":1.0}\n";
        std::fs::write(&path, older).unwrap();
        let sent = Arc::new(AtomicU64::new(10));
        let counted = sent.clone();
        let counter = Arc::new(move || WireBytes { sent: counted.load(Ordering::Relaxed), received: 5 });
        let events = Events::create(&path).unwrap().with_wire_bytes(counter);
        for (round, bytes) in [(1, 20), (2, 30)] {
            sent.store(bytes, Ordering::Relaxed);
            events.write(Event::RoundCompleted { round, loss: 3.0, seconds: 1.0, wire_bytes: None }).unwrap();
        }
        let read = read_events(&path).unwrap().map(|record| match record.unwrap().event {
            Event::RoundCompleted { wire_bytes, .. } => wire_bytes.map(WireBytes::total),
            event => panic!("{event:?}"),
        });
        assert_eq!(read.collect::<Vec<_>>(), [None, Some(25), Some(35)]);
    }

    #[test]
    fn a_line_that_was_cut_off_costs_only_itself() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        std::fs::write(&path, b"{\"time\":\"2023-11-14T22:1").unwrap();
        Events::create(&path).unwrap().write(step(1.0)).unwrap();
        let read: Vec<_> = read_events(&path).unwrap().collect();
        assert!(matches!(&read[0], Err(EventsError::Line { line: 1, .. })));
        assert_eq!(read[1].as_ref().unwrap().event, step(1.0));
    }

    /// A file on a disk with so many bytes left.
    struct Disk {
        file: File,
        room: usize,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.room == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let written = self.file.write(&bytes[..bytes.len().min(self.room)])?;
            self.room -= written;
            Ok(written)
        }
        fn flush(&mut self) -> io::Result<()> {
            self.file.flush()
        }
    }

    impl Read for Disk {
        fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
            self.file.read(bytes)
        }
    }

    impl Seek for Disk {
        fn seek(&mut self, place: SeekFrom) -> io::Result<u64> {
            self.file.seek(place)
        }
    }

    #[test]
    fn a_disk_that_is_full_for_a_while_costs_the_events_of_that_time_and_the_log_says_so_twice() {
        // The disk becomes full in the middle of a line, or between two lines.
        for (room, left) in [(9, "sec\n"), (6, "")] {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("metrics.jsonl");
            let file = OpenOptions::new().create(true).read(true).append(true).open(&path).unwrap();
            let mut lines = Lines { file: Disk { file, room }, failed: false, dropped: 0 };
            assert!(lines.note(Ok(b"first\n".to_vec())).is_none());
            let begins = lines.note(Ok(b"second\n".to_vec()));
            assert!(
                matches!(&begins, Some(Outage::Begins(error)) if error.kind() == io::ErrorKind::StorageFull),
                "{begins:?}"
            );
            assert!(lines.note(Ok(b"third\n".to_vec())).is_none());
            lines.file.room = 100;
            let over = lines.note(Ok(b"fourth\n".to_vec()));
            assert!(matches!(over, Some(Outage::Over { dropped: 2 })), "{over:?}");
            assert!(lines.note(Ok(b"fifth\n".to_vec())).is_none());
            let found = std::fs::read_to_string(&path).unwrap();
            assert_eq!(found, format!("first\n{left}fourth\nfifth\n"));
        }
    }

    #[test]
    fn a_loss_that_is_not_finite_is_null_and_comes_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("metrics.jsonl");
        Events::create(&path).unwrap().write(step(f64::INFINITY)).unwrap();
        assert!(std::fs::read_to_string(&path).unwrap().contains("\"loss\":null"));
        let record = read_events(&path).unwrap().next().unwrap().unwrap();
        assert!(matches!(record.event, Event::SeedStep { loss, .. } if loss.is_nan()));
    }

    #[test]
    fn a_place_that_can_not_be_written_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("none/metrics.jsonl");
        let error = Events::create(&path).err().unwrap();
        assert!(error.to_string().contains("none/metrics.jsonl"), "{error}");
    }
}
