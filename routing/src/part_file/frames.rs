//! The frames of a part's file: records with a checksum.

use std::fs::File;
use std::io::{BufReader, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::PathBuf;

use dipaco_shards::WorkPart;

use super::{CHECKSUM, PartFiles};
use crate::RoutingError;

/// Reads frames one after the other; ends before a frame that is not whole.
pub(super) struct Frames<'a> {
    files: PartFiles,
    reader: BufReader<&'a File>,
    next: u64,
    end: u64,
    frame: Vec<u8>,
}

impl<'a> Frames<'a> {
    pub(super) fn new(
        mut file: &'a File,
        header: u64,
        files: PartFiles,
        part: WorkPart,
    ) -> std::io::Result<Self> {
        file.seek(SeekFrom::Start(header))?;
        let range = files.range(part);
        let reader = BufReader::with_capacity(1 << 18, file);
        Ok(Self { files, reader, next: range.start, end: range.end, frame: Vec::new() })
    }

    pub(super) fn next(&mut self) -> std::io::Result<Option<&[u8]>> {
        let records = (self.end - self.next).min(self.files.header.frame as u64);
        if records == 0 {
            return Ok(None);
        }
        self.frame.resize(records as usize * self.files.header.record_bytes + CHECKSUM, 0);
        match self.reader.read_exact(&mut self.frame) {
            Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(None),
            result => result?,
        }
        let (records_bytes, sum) = self.frame.split_at(self.frame.len() - CHECKSUM);
        if checksum(self.next, records_bytes) != *sum {
            return Ok(None);
        }
        self.next += records;
        Ok(Some(records_bytes))
    }
}

/// Checksum of a frame. It includes the number of the frame's first record, so that frames cannot be exchanged.
pub(super) fn checksum(first: u64, bytes: &[u8]) -> [u8; CHECKSUM] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&first.to_le_bytes()).update(bytes);
    let mut sum = [0; CHECKSUM];
    hasher.finalize_xof().fill(&mut sum);
    sum
}

/// Appends to the file of a part.
pub(super) struct PartWriter {
    pub(super) file: File,
    pub(super) path: PathBuf,
    /// Number of the next record.
    pub(super) next: u64,
    /// Number behind the last record.
    pub(super) end: u64,
    /// Number of records of a frame.
    pub(super) frame: usize,
}

impl PartWriter {
    /// Records of the next frame; empty at the end.
    pub(super) fn next_frame(&self) -> Range<u64> {
        self.next..self.end.min(self.next + self.frame as u64)
    }

    /// Appends the records of [`Self::next_frame`].
    pub(super) fn push(&mut self, mut records: Vec<u8>) -> Result<(), RoutingError> {
        let sum = checksum(self.next, &records);
        records.extend_from_slice(&sum);
        self.file.write_all(&records).map_err(self.failed())?;
        self.next = self.next_frame().end;
        Ok(())
    }

    /// Makes the appended frames durable.
    pub(super) fn sync(&self) -> Result<(), RoutingError> {
        self.file.sync_all().map_err(self.failed())
    }

    fn failed(&self) -> impl FnOnce(std::io::Error) -> RoutingError {
        let path = self.path.clone();
        |source| RoutingError::Io {
            action: "write results; finished results are kept, and the same command continues once there is space",
            path,
            source,
        }
    }
}
