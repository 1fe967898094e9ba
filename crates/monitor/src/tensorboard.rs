//! The events of a run as curves for TensorBoard.
//!
//! TensorBoard draws one line for each folder, and one chart for each tag. So a path is a folder, and its loss lies in the
//! chart `loss` beside those of the other paths. docs/metrics.md lists folders and tags.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use dipaco_telemetry::{Event, EventRecord};
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use crate::event_time::seconds_since_1970;
use crate::{EventTail, PathRounds, event_file};

/// Name of the file in each folder. TensorBoard looks for `tfevents`.
const FILE: &str = "events.out.tfevents.dipaco";
/// Most folders. A run has one for each path and for each fragment of a module.
const MOST_FOLDERS: usize = 1 << 16;
/// Bytes of a curve that wait in memory.
const WAITING: usize = 1 << 18;
/// Pause between two looks at the event file of a training.
const PAUSE: Duration = Duration::from_secs(5);

/// Errors of [`TensorBoard`].
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TensorBoardError {
    /// A file can't be read or written.
    #[error("can't {action} {}", path.display())]
    Io {
        /// The attempted action, as a verb.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// Error of the file system.
        #[source]
        source: io::Error,
    },
    /// The event file has more lines for the charts than any run.
    #[error("the event file names more than {MOST_FOLDERS} paths and modules: it belongs to no run")]
    TooManyFolders,
}

/// Writes the values of an event file into files for TensorBoard.
///
/// The files are a function of the event file alone: a second writer, or the same after a restart, writes the same bytes to
/// the same places. A reader that follows them sees only their growth.
#[derive(Debug)]
pub struct TensorBoard {
    events: PathBuf,
    folder: PathBuf,
    tail: EventTail,
    curves: BTreeMap<String, Curve>,
    rounds: PathRounds,
    /// Values that have been passed on.
    values: u64,
}

impl TensorBoard {
    /// A writer of the values in the event file `events`, into folders below `folder`.
    #[must_use]
    pub fn new(events: &Path, folder: &Path) -> Self {
        Self {
            events: events.to_owned(),
            folder: folder.to_owned(),
            tail: EventTail::new(events),
            curves: BTreeMap::new(),
            rounds: PathRounds::default(),
            values: 0,
        }
    }

    /// Writes the values of all new events. Returns the number of values since the file's beginning.
    ///
    /// # Errors
    /// When a file can't be read or written.
    pub fn update(&mut self) -> Result<u64, TensorBoardError> {
        let mut result = Ok(());
        let mut tail = std::mem::replace(&mut self.tail, EventTail::new(&self.events));
        let read = tail.read(|record| {
            if result.is_ok() {
                result = match record {
                    Some(record) => self.add(record),
                    None => self.begin_again(),
                };
            }
        });
        self.tail = tail;
        read.map_err(|source| TensorBoardError::Io { action: "read", path: self.events.clone(), source })?;
        result?;
        for curve in self.curves.values_mut() {
            curve.write()?;
            curve.cut()?;
        }
        Ok(self.values)
    }

    /// Forgets everything: the event file is another one.
    fn begin_again(&mut self) -> Result<(), TensorBoardError> {
        for curve in std::mem::take(&mut self.curves).into_values() {
            fs::remove_file(&curve.path).map_err(|source| TensorBoardError::Io {
                action: "remove",
                path: curve.path,
                source,
            })?;
        }
        (self.rounds, self.values) = (PathRounds::default(), 0);
        Ok(())
    }

    fn add(&mut self, record: EventRecord) -> Result<(), TensorBoardError> {
        // A line without a time is not from a run.
        let Some(time) = seconds_since_1970(&record.time) else { return Ok(()) };
        let values = |values: &[(&'static str, Option<f64>)]| -> Vec<(&'static str, f64)> {
            let finite = |value: &Option<f64>| value.filter(|value| value.is_finite());
            values.iter().filter_map(|(tag, value)| Some((*tag, finite(value)?))).collect()
        };
        let leases = self.rounds.add(&record.event);
        let (folder, step, values) = match record.event {
            Event::SeedStep { step, loss, learning_rate, gradient_norm, tokens_per_second } => {
                let rates = [
                    ("seed/loss", Some(loss)),
                    ("seed/learning_rate", Some(learning_rate)),
                    ("seed/gradient_norm", Some(gradient_norm)),
                    ("seed/tokens_per_second", Some(tokens_per_second)),
                ];
                ("seed".to_owned(), step, values(&rates))
            }
            Event::SeedValidated { step, loss, .. } => {
                ("seed-validation".to_owned(), step, values(&[("seed/loss", Some(loss))]))
            }
            Event::RoundCompleted { round, loss, seconds, .. } => {
                let values = values(&[("loss", Some(loss)), ("seconds", Some(seconds))]);
                ("training".to_owned(), round.saturating_add(1), values)
            }
            Event::Validated { rounds, loss, bits_per_byte, .. } => {
                let values = values(&[("loss", Some(loss)), ("bits_per_byte", bits_per_byte)]);
                ("validation".to_owned(), rounds, values)
            }
            Event::PathCompleted { path, round, heldout_loss, .. } => {
                // A later lease of a round measures weights within the round.
                let first = leases.is_none_or(|leases| leases.leases == 1);
                let begin = values(&[("heldout_loss", heldout_loss.filter(|_| first))]);
                let end = leases.map_or_else(Vec::new, |leases| {
                    values(&[
                        ("loss", leases.loss()),
                        ("seconds", Some(leases.seconds)),
                        ("waited_seconds", Some(leases.waited_seconds)),
                    ])
                });
                self.values += (begin.len() + end.len()) as u64;
                return self.curve(format!("path-{path}"), time)?.add_round(time, round, &begin, &end);
            }
            Event::ModuleStepped { module, fragment, version, outer_gradient_norm, cosine, .. } => {
                let part = if fragment > 0 { format!("-fragment-{fragment}") } else { String::new() };
                let values =
                    values(&[("outer_gradient_norm", Some(outer_gradient_norm)), ("cosine", cosine)]);
                (format!("module-{}-{}{part}", module.level, module.index), version, values)
            }
            _ => return Ok(()),
        };
        self.values += values.len() as u64;
        self.curve(folder, time)?.add(time, step, &values)
    }

    /// The curves of a folder, which may be new.
    fn curve(&mut self, folder: String, time: f64) -> Result<&mut Curve, TensorBoardError> {
        if !self.curves.contains_key(&folder) && self.curves.len() == MOST_FOLDERS {
            return Err(TensorBoardError::TooManyFolders);
        }
        let path = self.folder.join(&folder).join(FILE);
        Ok(self.curves.entry(folder).or_insert_with(|| Curve::new(path, time)))
    }
}

/// The file of a folder.
#[derive(Debug)]
struct Curve {
    path: PathBuf,
    /// Bytes that the file has.
    written: u64,
    /// Bytes that wait.
    waiting: Vec<u8>,
    /// The last step of each tag.
    last: BTreeMap<&'static str, u64>,
}

impl Curve {
    fn new(path: PathBuf, time: f64) -> Self {
        Self { path, written: 0, waiting: event_file::version(time), last: BTreeMap::new() }
    }

    fn add(&mut self, time: f64, step: u64, values: &[(&'static str, f64)]) -> Result<(), TensorBoardError> {
        self.void(time, step, values);
        self.append(time, step, values);
        self.write_if_long()
    }

    /// Adds the values of a path at the begin of a round and at its end. Those at the end hold for the round so far and replace
    /// earlier ones.
    fn add_round(
        &mut self,
        time: f64,
        round: u64,
        begin: &[(&'static str, f64)],
        end: &[(&'static str, f64)],
    ) -> Result<(), TensorBoardError> {
        let step = round.saturating_add(1);
        self.void(time, step, end);
        // They void nothing: at their step stand the values at the end of the round before.
        self.append(time, round, begin);
        self.append(time, step, end);
        self.write_if_long()
    }

    /// Makes all values from `step` on void if one of these charts has such values.
    fn void(&mut self, time: f64, step: u64, values: &[(&'static str, f64)]) {
        if values.iter().any(|(tag, _)| self.last.get(tag).is_some_and(|last| *last >= step)) {
            self.waiting.extend(event_file::restart(time, step));
        }
    }

    fn append(&mut self, time: f64, step: u64, values: &[(&'static str, f64)]) {
        for (tag, value) in values {
            self.waiting.extend(event_file::scalar(time, step, tag, *value));
            self.last.insert(tag, step);
        }
    }

    fn write_if_long(&mut self) -> Result<(), TensorBoardError> {
        if self.waiting.len() < WAITING { Ok(()) } else { self.write() }
    }

    fn failed(&self) -> impl Fn(io::Error) -> TensorBoardError + use<> {
        let path = self.path.clone();
        move |source| TensorBoardError::Io { action: "write", path: path.clone(), source }
    }

    /// Writes the waiting bytes behind the written ones.
    fn write(&mut self) -> Result<(), TensorBoardError> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let failed = self.failed();
        if let Some(folder) = self.path.parent() {
            fs::create_dir_all(folder).map_err(&failed)?;
        }
        // Not truncated: a reader would lose its place in the bytes that come again.
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&self.path);
        let mut file = file.map_err(&failed)?;
        file.seek(SeekFrom::Start(self.written)).map_err(&failed)?;
        file.write_all(&self.waiting).map_err(&failed)?;
        self.written += self.waiting.len() as u64;
        self.waiting.clear();
        Ok(())
    }

    /// Cuts off the end that a longer file of another event file left.
    fn cut(&self) -> Result<(), TensorBoardError> {
        let failed = self.failed();
        if fs::metadata(&self.path).map_err(&failed)?.len() > self.written {
            let file = OpenOptions::new().write(true).open(&self.path).map_err(&failed)?;
            file.set_len(self.written).map_err(&failed)?;
        }
        Ok(())
    }
}

/// Writes the values of a training as they come, until `shutdown`, and then the last ones. An error ends the writing: it
/// is logged and does not disturb the training.
pub async fn follow(mut board: TensorBoard, shutdown: CancellationToken) {
    loop {
        let last = shutdown.is_cancelled();
        let updated = tokio::task::spawn_blocking(move || {
            let result = board.update();
            (board, result)
        });
        match updated.await {
            Ok((_, Err(error))) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "no more values for TensorBoard are written; `dipaco tensorboard` writes them all"
                );
                return;
            }
            Ok((same, Ok(_))) => board = same,
            Err(error) => {
                tracing::warn!(%error, "no more values for TensorBoard are written");
                return;
            }
        }
        if last {
            return;
        }
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = tokio::time::sleep(PAUSE) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(second: u32, event: &str) -> String {
        format!("{{\"time\":\"2026-01-01T00:00:{second:02}.000Z\",\"event\":{event}}}\n")
    }

    fn round(second: u32, round: u32, loss: &str) -> String {
        line(second, &format!("\"round_completed\",\"round\":{round},\"loss\":{loss},\"seconds\":1.0"))
    }

    /// The bytes of `training` after one update for each of these contents of the event file.
    fn training(contents: &[String]) -> Vec<u8> {
        let folder = tempfile::tempdir().unwrap();
        let (events, out) = (folder.path().join("metrics.jsonl"), folder.path().join("tensorboard"));
        let mut board = TensorBoard::new(&events, &out);
        for content in contents {
            fs::write(&events, content).unwrap();
            board.update().unwrap();
        }
        fs::read(out.join("training").join(FILE)).unwrap()
    }

    #[test]
    fn files_that_grow_are_those_that_are_written_at_once() {
        let steps = [round(1, 0, "5.0"), round(2, 1, "null"), round(3, 1, "4.0"), round(4, 2, "3.0")];
        let growing: Vec<String> = (1..=steps.len()).map(|end| steps[..end].concat()).collect();
        let grown = training(&growing);
        assert_eq!(grown, training(&[steps.concat()]));
        // The second file is shorter, as after a new start in the same folder.
        assert_eq!(training(&[steps.concat(), steps[0].clone()]), training(&[steps[0].clone()]));
        // A repeated round voids its first values.
        let void = event_file::restart(1_767_225_603.0, 2);
        assert_eq!(grown.windows(void.len()).filter(|window| **window == void).count(), 1);
    }

    #[test]
    fn a_path_has_the_mean_over_the_leases_of_a_round_and_its_held_out_loss_at_the_beginning() {
        let lease = |second, round, steps, loss, heldout| {
            let fields =
                format!("\"round\":{round},\"steps\":{steps},\"loss\":{loss}{heldout},\"best\":false");
            let time = format!("\"seconds\":{second}.0,\"waited_seconds\":0.5");
            line(second, &format!("\"path_completed\",\"path\":3,\"worker\":\"a\",{fields},{time}"))
        };
        let events = [
            lease(1, 0, 10, "6.0", ",\"heldout_loss\":7.0"),
            // Of the same round, and with weights of a later step.
            lease(2, 0, 30, "4.0", ",\"heldout_loss\":6.5"),
            lease(3, 1, 40, "3.0", ",\"heldout_loss\":5.0"),
            // Measures the end of the run.
            lease(4, 2, 0, "null", ",\"heldout_loss\":4.5"),
        ];
        let at = |second: u32| 1_767_225_600.0 + f64::from(second);
        let end = |second, step, [loss, seconds, waited]: [f64; 3]| {
            let tags = [("loss", loss), ("seconds", seconds), ("waited_seconds", waited)];
            tags.map(|(tag, value)| event_file::scalar(at(second), step, tag, value)).concat()
        };
        let begin = |second, step, loss| event_file::scalar(at(second), step, "heldout_loss", loss);
        let expected = [
            event_file::version(at(1)),
            begin(1, 0, 7.0),
            end(1, 1, [6.0, 1.0, 0.5]),
            event_file::restart(at(2), 1),
            end(2, 1, [4.5, 3.0, 1.0]),
            begin(3, 1, 5.0),
            end(3, 2, [3.0, 3.0, 0.5]),
            begin(4, 2, 4.5),
        ];
        let folder = tempfile::tempdir().unwrap();
        let (file, out) = (folder.path().join("metrics.jsonl"), folder.path().join("tensorboard"));
        fs::write(&file, events.concat()).unwrap();
        assert_eq!(TensorBoard::new(&file, &out).update().unwrap(), 12);
        assert_eq!(fs::read(out.join("path-3").join(FILE)).unwrap(), expected.concat());
    }

    #[test]
    fn an_older_and_longer_file_is_cut() {
        let folder = tempfile::tempdir().unwrap();
        let (events, out) = (folder.path().join("metrics.jsonl"), folder.path().join("tensorboard"));
        fs::create_dir_all(out.join("training")).unwrap();
        fs::write(out.join("training").join(FILE), [7; 100_000]).unwrap();
        fs::write(&events, round(1, 0, "5.0")).unwrap();
        assert_eq!(TensorBoard::new(&events, &out).update().unwrap(), 2);
        assert_eq!(fs::read(out.join("training").join(FILE)).unwrap(), training(&[round(1, 0, "5.0")]));
    }

    #[test]
    fn a_place_that_can_not_be_written_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let (events, out) = (folder.path().join("metrics.jsonl"), folder.path().join("file"));
        fs::write(&out, "no folder").unwrap();
        fs::write(&events, round(1, 0, "5.0")).unwrap();
        let error = TensorBoard::new(&events, &out).update().unwrap_err();
        assert!(error.to_string().contains("file/training"), "{error}");
    }
}
