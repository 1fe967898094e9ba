//! Results of a long computation over many documents, in files that survive interruptions and travel between machines.
//!
//! Every part of the computation ([`WorkPart`]) appends to its own file. A file begins with a header that identifies the
//! computation. Then come frames of a fixed number of records (the last frame may be shorter), each with a checksum. A
//! computation that was stopped, or found the disk full, continues behind the last whole frame. Frames begin at the same
//! records for every division of the computation, so batches, and with them the results, are the same.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use dipaco_shards::WorkPart;
use serde::{Deserialize, Serialize};

use crate::RoutingError;
use crate::progress::{ProgressFn, RoutingProgress, report};

mod devices;
mod frames;

use frames::{Frames, PartWriter};

/// The command that divides the text, for messages about missing parts.
pub(crate) const MISSING_COMMAND: &str = "dipaco route assign";

const MAGIC: &[u8; 8] = b"DIPACOPF";
const VERSION: u32 = 1;
/// Bytes of BLAKE3 behind the header and behind each frame.
const CHECKSUM: usize = 16;

/// Computes the records of a frame from their numbers.
type Compute<'a> = dyn FnMut(Range<u64>) -> Result<Vec<u8>, RoutingError> + 'a;
/// Receives a frame: the number of its first record, and its bytes.
type Visit<'a> = dyn FnMut(u64, &[u8]) -> Result<(), RoutingError> + 'a;

/// The files of all parts of one computation.
#[derive(Clone, Debug)]
pub(crate) struct PartFiles {
    folder: PathBuf,
    header: Header,
    /// The command that makes a part, for messages.
    command: &'static str,
    /// The device that computes, if its kind shows in the records.
    device: Option<String>,
}

/// Header of the files, the same for all parts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    version: u32,
    /// Inputs and settings of the records.
    of: serde_json::Value,
    record_bytes: usize,
    /// Number of records of a frame.
    frame: usize,
    /// Number of records of all parts.
    records: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnHeader {
    part: WorkPart,
    all: Header,
}

/// State of the computation in the folder.
#[derive(Debug, PartialEq)]
enum Found {
    /// No divided computation has begun, and no computation is finished.
    Nothing,
    /// All of these parts are finished; in their order.
    All(Vec<WorkPart>),
}

/// State of a part's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileState {
    /// There is no file, or it belongs to another computation.
    Absent,
    /// The file does not have its full length.
    Begun,
    /// The file has its full length.
    Whole,
}

impl PartFiles {
    /// Files in `folder` for `records` records of `record_bytes` bytes, `frame` at a time. `of` identifies inputs and
    /// settings.
    pub(crate) fn new(
        folder: PathBuf,
        of: serde_json::Value,
        record_bytes: usize,
        frame: usize,
        records: u64,
        command: &'static str,
    ) -> Self {
        let header = Header { version: VERSION, of, record_bytes, frame: frame.max(1), records };
        Self { folder, header, command, device: None }
    }

    /// Records of a part; the first begins a frame.
    pub(crate) fn range(&self, part: WorkPart) -> Range<u64> {
        let frame = self.header.frame as u64;
        let frames = part.range(self.header.records.div_ceil(frame));
        let border = |at: u64| (at * frame).min(self.header.records);
        border(frames.start)..border(frames.end)
    }

    /// The folder of the files.
    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    fn file(&self, part: WorkPart) -> PathBuf {
        self.folder.join(format!("part-{:05}-of-{:05}.bin", part.index(), part.count()))
    }

    fn io(&self, action: &'static str, part: WorkPart) -> impl Fn(std::io::Error) -> RoutingError {
        let path = self.file(part);
        move |source| RoutingError::Io { action, path: path.clone(), source }
    }

    fn own_header(&self, part: WorkPart) -> Result<Vec<u8>, RoutingError> {
        let own = OwnHeader { part, all: self.header.clone() };
        let json = serde_json::to_vec(&own)
            .map_err(|error| self.io("write the header of results", part)(error.into()))?;
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&(json.len() as u32).to_le_bytes());
        bytes.extend_from_slice(&json);
        let checksum = blake3::hash(&bytes);
        bytes.extend_from_slice(&checksum.as_bytes()[..CHECKSUM]);
        Ok(bytes)
    }

    /// Length of a part's finished file in bytes.
    fn whole_length(&self, part: WorkPart, header: usize) -> u64 {
        let range = self.range(part);
        let records = range.end - range.start;
        let frames = records.div_ceil(self.header.frame as u64);
        header as u64 + records * self.header.record_bytes as u64 + frames * CHECKSUM as u64
    }

    /// State of a part's file.
    fn state(&self, part: WorkPart) -> Result<FileState, RoutingError> {
        let expected = self.own_header(part)?;
        let Ok(mut file) = File::open(self.file(part)) else { return Ok(FileState::Absent) };
        let mut found = vec![0; expected.len()];
        if file.read_exact(&mut found).is_err() || found != expected {
            return Ok(FileState::Absent);
        }
        let length = file.metadata().map_err(self.io("read", part))?.len();
        let whole = length == self.whole_length(part, expected.len());
        Ok(if whole { FileState::Whole } else { FileState::Begun })
    }

    /// State of the computation, for every division into parts that has a file.
    ///
    /// # Errors
    ///
    /// [`RoutingError::MissingParts`] if some parts of a divided computation are missing.
    fn found(&self) -> Result<Found, RoutingError> {
        let mut counts: Vec<u32> = self.present()?.iter().map(|part| part.count()).collect();
        counts.sort_unstable();
        counts.dedup();
        let mut nearest: Option<Vec<WorkPart>> = None;
        for count in counts {
            let Ok(one) = WorkPart::new(1, count) else { continue };
            let mut missing = Vec::new();
            for part in one.all() {
                if self.state(part)? != FileState::Whole {
                    missing.push(part);
                }
            }
            if missing.is_empty() {
                return Ok(Found::All(one.all().collect()));
            }
            // Of several divisions the message is about the nearest to completion. Undivided work (a count of 1) has no
            // missing parts: the caller continues it.
            if count > 1 && nearest.as_ref().is_none_or(|nearest| missing.len() <= nearest.len()) {
                nearest = Some(missing);
            }
        }
        match nearest {
            None => Ok(Found::Nothing),
            Some(parts) => {
                Err(RoutingError::MissingParts { folder: self.folder.clone(), parts, command: self.command })
            }
        }
    }

    /// Parts with a file of this computation.
    fn present(&self) -> Result<Vec<WorkPart>, RoutingError> {
        let io = |source| RoutingError::Io { action: "read the folder", path: self.folder.clone(), source };
        let entries = match std::fs::read_dir(&self.folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.map_err(io)?,
        };
        let mut parts = Vec::new();
        for entry in entries {
            let name = entry.map_err(io)?.file_name().to_string_lossy().into_owned();
            let part = name.strip_prefix("part-").and_then(|name| {
                let (index, count) = name.strip_suffix(".bin")?.split_once("-of-")?;
                WorkPart::new(index.parse().ok()?, count.parse().ok()?).ok()
            });
            if let Some(part) = part
                && self.state(part)? != FileState::Absent
            {
                parts.push(part);
            }
        }
        Ok(parts)
    }

    /// Computes the missing records of a part, frame by frame; returns the number of records of the part.
    ///
    /// # Errors
    ///
    /// Errors of `compute`, a full disk, or [`RoutingError::Cancelled`].
    pub(crate) fn compute(
        &self,
        part: WorkPart,
        progress: &mut ProgressFn<'_>,
        compute: &mut Compute<'_>,
    ) -> Result<u64, RoutingError> {
        let mut writer = self.resume(part)?;
        let first = writer.next;
        let range = self.range(part);
        let total = range.end - range.start;
        loop {
            let frame = writer.next_frame();
            report(progress, RoutingProgress::Documents { done: frame.start - range.start, total })?;
            if frame.is_empty() {
                writer.sync()?;
                return Ok(total);
            }
            if writer.next == first {
                self.note_device(part)?;
            }
            writer.push(compute(frame)?)?;
        }
    }

    /// The parts that hold all records. Undivided work is completed by this call.
    ///
    /// # Errors
    ///
    /// As [`Self::compute`], and [`RoutingError::MissingParts`] if the work was divided and parts are missing.
    pub(crate) fn all(
        &self,
        progress: &mut ProgressFn<'_>,
        compute: &mut Compute<'_>,
    ) -> Result<Vec<WorkPart>, RoutingError> {
        match self.found()? {
            Found::All(parts) => Ok(parts),
            Found::Nothing => {
                self.compute(WorkPart::WHOLE, progress, compute)?;
                Ok(vec![WorkPart::WHOLE])
            }
        }
    }

    /// Opens a part's file for appending behind its last whole frame.
    fn resume(&self, part: WorkPart) -> Result<PartWriter, RoutingError> {
        std::fs::create_dir_all(&self.folder).map_err(|source| RoutingError::Io {
            action: "create the folder",
            path: self.folder.clone(),
            source,
        })?;
        let path = self.file(part);
        let failed = self.io("open", part);
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(&failed)?;
        let header = self.own_header(part)?;
        let mut done = 0;
        let mut end = header.len() as u64;
        if self.state(part)? != FileState::Absent {
            let mut frames = Frames::new(&file, end, self.clone(), part).map_err(&failed)?;
            while let Ok(Some(frame)) = frames.next() {
                done += (frame.len() / self.header.record_bytes.max(1)) as u64;
                end += (frame.len() + CHECKSUM) as u64;
            }
        } else {
            self.forget_devices(part)?;
            let failed = self.io("write", part);
            file.set_len(0).and_then(|()| file.write_all(&header)).map_err(failed)?;
        }
        file.set_len(end).and_then(|()| file.seek(SeekFrom::Start(end))).map_err(&failed)?;
        let range = self.range(part);
        Ok(PartWriter { file, path, next: range.start + done, end: range.end, frame: self.header.frame })
    }

    /// Passes the frames of a part to `visit` in their order, each with the number of its first record.
    ///
    /// # Errors
    ///
    /// [`RoutingError::DamagedPart`] if the file is damaged or cut, and errors of `visit`.
    pub(crate) fn read(&self, part: WorkPart, visit: &mut Visit<'_>) -> Result<(), RoutingError> {
        let failed = self.io("read", part);
        let damaged = || RoutingError::DamagedPart { path: self.file(part), part, command: self.command };
        if self.state(part)? == FileState::Absent {
            return Err(damaged());
        }
        let file = File::open(self.file(part)).map_err(&failed)?;
        let mut frames =
            Frames::new(&file, self.own_header(part)?.len() as u64, self.clone(), part).map_err(&failed)?;
        let range = self.range(part);
        let mut at = range.start;
        while at < range.end {
            let Some(frame) = frames.next().map_err(&failed)? else { return Err(damaged()) };
            visit(at, frame)?;
            at += (frame.len() / self.header.record_bytes.max(1)) as u64;
        }
        Ok(())
    }

    /// Removes the file of a part whose results are used up.
    pub(crate) fn remove_part(&self, part: WorkPart) -> Result<(), RoutingError> {
        self.forget_devices(part)?;
        std::fs::remove_file(self.file(part)).map_err(self.io("remove", part))
    }

    /// Removes the folder of the files.
    pub(crate) fn remove(&self) -> Result<(), RoutingError> {
        match std::fs::remove_dir_all(&self.folder) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => Err(RoutingError::Io {
                action: "remove the folder of finished parts",
                path: self.folder.clone(),
                source,
            }),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
