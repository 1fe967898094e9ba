//! Reading, tokenising and writing at the same time.
//!
//! One thread reads, several tokenise, the calling thread writes in the order of reading. At most a fixed number of
//! batches is on its way, so memory is bounded and a slow document holds up the reader rather than filling the memory.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_channel::{Receiver, Sender, bounded};

use super::{FileReport, PrepareConfig, PrepareReport, check_cancelled};
use crate::readers::InputList;
use crate::{Progress, Record, Refusal, ShardsError, TokenFileWriter, Tokenizer, read_documents};

/// A batch is handed on when it has so much text, or so many documents.
const BATCH_BYTES: usize = 256 * 1024;
const BATCH_DOCUMENTS: usize = 1024;

/// Batches on their way for each tokenising thread.
const BATCHES_PER_THREAD: usize = 4;

/// On which side a document falls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Split {
    /// All documents are training documents.
    AllTrain,
    /// All documents are validation documents.
    AllValidation,
    /// Documents whose key is below the threshold are validation documents.
    ByHash(u64),
}

impl Split {
    pub(super) fn new(config: &PrepareConfig, own_validation: bool) -> Self {
        if own_validation || config.validation_fraction == 0.0 {
            return Self::AllTrain;
        }
        Self::ByHash((config.validation_fraction * u64::MAX as f64) as u64)
    }

    pub(super) fn is_validation(self, key: u64) -> bool {
        match self {
            Self::AllTrain => false,
            Self::AllValidation => true,
            Self::ByHash(threshold) => key < threshold,
        }
    }

    /// Whether it gives validation documents.
    pub(super) fn validates(self) -> bool {
        self != Self::AllTrain
    }
}

/// Two independent numbers from the hash of a text: the first decides the split, the second the tokenizer's sample.
pub(super) fn text_key(text: &str) -> (u64, u64) {
    let hash = blake3::hash(text.as_bytes());
    let number = |at: usize| {
        hash.as_bytes()[at..at + 8].iter().fold(0u64, |number, &byte| number << 8 | u64::from(byte))
    };
    (number(0), number(8))
}

/// The token files being written.
pub(super) struct Outputs {
    pub(super) train: Option<TokenFileWriter>,
    pub(super) validation: Option<TokenFileWriter>,
}

/// A document on its way; its place is for the report.
struct Item<T> {
    content: T,
    text_bytes: usize,
    validation: bool,
    file: usize,
    line: u64,
}

struct Batch<T> {
    number: u64,
    items: Vec<Item<T>>,
}

/// Tokenises the documents of `inputs` into `outputs` and adds to `report`.
#[allow(clippy::too_many_arguments)]
pub(super) fn run(
    config: &PrepareConfig,
    inputs: &InputList,
    tokenizer: &Tokenizer,
    split: Split,
    outputs: &mut Outputs,
    report: &mut PrepareReport,
    progress: &dyn Progress,
    cancel: &AtomicBool,
) -> Result<(), ShardsError> {
    let threads = config.thread_count();
    let on_their_way = threads * BATCHES_PER_THREAD;
    let (permits, permits_back) = bounded::<()>(on_their_way);
    let (texts, texts_out) = bounded::<Batch<String>>(on_their_way);
    let (encoded, encoded_out) = bounded::<Result<Batch<Vec<u32>>, ShardsError>>(on_their_way);
    let outcome = std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            Reader { config, inputs, split, permits, texts, progress, cancel, number: 0 }.run()
        });
        for _ in 0..threads {
            let (texts_out, encoded) = (texts_out.clone(), encoded.clone());
            scope.spawn(move || tokenise(tokenizer, &texts_out, &encoded));
        }
        drop((texts_out, encoded));
        // When writing fails, the channels are dropped here, which ends the other threads.
        let written = write(config, inputs, &encoded_out, &permits_back, outputs, report, progress);
        drop((encoded_out, permits_back));
        let read = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        written.map(|()| read)
    });
    report.merge(outcome?);
    check_cancelled(cancel)?;
    Ok(())
}

struct Reader<'a> {
    config: &'a PrepareConfig,
    inputs: &'a InputList,
    split: Split,
    permits: Sender<()>,
    texts: Sender<Batch<String>>,
    progress: &'a dyn Progress,
    cancel: &'a AtomicBool,
    number: u64,
}

impl Reader<'_> {
    /// Reads all files; returns what the reader alone knows.
    fn run(mut self) -> PrepareReport {
        let mut report = PrepareReport::default();
        let (mut items, mut bytes) = (Vec::new(), 0);
        for (index, file) in self.inputs.files.iter().enumerate() {
            let (mut documents, mut refused) = (0, 0);
            let end = read_documents(file, &self.config.limits(), self.progress, &mut |record| {
                match record {
                    Record::Document { text, line } => {
                        documents += 1;
                        bytes += text.len();
                        let validation = self.split.is_validation(text_key(&text).0);
                        let text_bytes = text.len();
                        items.push(Item { content: text, text_bytes, validation, file: index, line });
                    }
                    Record::Refused { reason, line } => {
                        refused += 1;
                        report.refused.add(reason, file, line);
                    }
                }
                let full = bytes >= BATCH_BYTES || items.len() >= BATCH_DOCUMENTS;
                if self.cancel.load(Ordering::Relaxed) || full && !self.send(&mut items, &mut bytes) {
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            });
            if let Some(reason) = end.skipped {
                *report.skipped_files.entry(reason).or_default() += 1;
            }
            report.files.push(FileReport {
                path: file.path.clone(),
                bytes: file.bytes,
                hash: end.hash.unwrap_or_default(),
                validation: self.split == Split::AllValidation,
                lines: end.lines,
                documents,
                refused,
                damage: end.damage,
                skipped: end.skipped,
            });
            if self.cancel.load(Ordering::Relaxed) {
                break;
            }
        }
        if !items.is_empty() {
            self.send(&mut items, &mut bytes);
        }
        report
    }

    /// Hands a batch on, when there is room for one; false when nobody takes it any more.
    fn send(&mut self, items: &mut Vec<Item<String>>, bytes: &mut usize) -> bool {
        *bytes = 0;
        let batch = Batch { number: self.number, items: std::mem::take(items) };
        self.number += 1;
        self.permits.send(()).is_ok() && self.texts.send(batch).is_ok()
    }
}

fn tokenise(
    tokenizer: &Tokenizer,
    texts: &Receiver<Batch<String>>,
    encoded: &Sender<Result<Batch<Vec<u32>>, ShardsError>>,
) {
    for batch in texts {
        let items = batch.items.into_iter().map(|item| {
            let mut ids = tokenizer.encode(&item.content)?;
            ids.push(tokenizer.end_of_text());
            Ok(Item {
                content: ids,
                text_bytes: item.text_bytes,
                validation: item.validation,
                file: item.file,
                line: item.line,
            })
        });
        let items: Result<Vec<_>, ShardsError> = items.collect();
        let failed = items.is_err();
        if encoded.send(items.map(|items| Batch { number: batch.number, items })).is_err() || failed {
            return;
        }
    }
}

/// Writes batches in the order of their numbers.
fn write(
    config: &PrepareConfig,
    inputs: &InputList,
    encoded: &Receiver<Result<Batch<Vec<u32>>, ShardsError>>,
    permits: &Receiver<()>,
    outputs: &mut Outputs,
    report: &mut PrepareReport,
    progress: &dyn Progress,
) -> Result<(), ShardsError> {
    let mut waiting = BTreeMap::new();
    let mut next = 0;
    for batch in encoded {
        let batch = batch?;
        waiting.insert(batch.number, batch.items);
        while let Some(items) = waiting.remove(&next) {
            next += 1;
            let documents = items.len() as u64;
            for item in items {
                // The end-of-text token does not count.
                if item.content.len() <= config.min_document_tokens {
                    report.refused.add(Refusal::TooShort, &inputs.files[item.file], item.line);
                    continue;
                }
                let (writer, split) = if item.validation {
                    (&mut outputs.validation, &mut report.validation)
                } else {
                    (&mut outputs.train, &mut report.train)
                };
                if let Some(writer) = writer {
                    writer.push_document(&item.content)?;
                    split.documents += 1;
                    split.tokens += item.content.len() as u64;
                    split.text_bytes += item.text_bytes as u64;
                }
            }
            progress.advance(0, documents);
            // The reader has sent a permit for each batch before it, so this does not wait.
            let _ = permits.recv();
        }
    }
    Ok(())
}
