//! Reading, tokenising and writing at the same time.
//!
//! One thread reads, several tokenise, and the calling thread writes in the order of reading. The bytes of text in flight
//! are limited, so slow or long documents hold up the reader instead of filling the memory.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::{PrepareConfig, PrepareReport};
use crate::progress::Watch;
use crate::readers::InputList;
use crate::{ReadRecord, Refusal, ShardsError, TokenFileWriter, Tokenizer, read_documents};

/// A batch is passed on once it has this many bytes of text.
const BATCH_BYTES: usize = 256 * 1024;
/// A batch is passed on once it has this many documents.
const BATCH_DOCUMENTS: usize = 1024;

/// Batches of [`BATCH_BYTES`] in flight for each tokenising thread.
const BATCHES_PER_THREAD: usize = 4;

/// The rule that puts a document into the training or the validation set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Split {
    /// All documents are training documents.
    AllTrain,
    /// All documents are validation documents.
    AllValidation,
    /// Documents with a key below the threshold are validation documents.
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

    /// True if the rule can give validation documents.
    pub(super) fn validates(self) -> bool {
        self != Self::AllTrain
    }
}

/// Two independent numbers from the hash of a text.
pub(super) struct TextKey {
    /// Decides the split.
    pub(super) split: u64,
    /// Decides whether the text is in the tokenizer's sample, independently of the split.
    pub(super) sample: u64,
}

pub(super) fn text_key(text: &str) -> TextKey {
    let hash = blake3::hash(text.as_bytes());
    let number = |at: usize| {
        hash.as_bytes()[at..at + 8].iter().fold(0u64, |number, &byte| number << 8 | u64::from(byte))
    };
    TextKey { split: number(0), sample: number(8) }
}

/// The token files being written.
pub(super) struct Outputs {
    pub(super) train: Option<TokenFileWriter>,
    pub(super) validation: Option<TokenFileWriter>,
}

/// A document in flight; file and line are for the report.
struct Item<T> {
    content: T,
    text_bytes: usize,
    validation: bool,
    file: usize,
    line: u64,
}

struct Batch<T> {
    number: u64,
    /// See [`permits_for`].
    permits: usize,
    items: Vec<Item<T>>,
}

/// The permits of a batch with this many bytes of text, of `in_flight` in all. A batch can be one document of any length, so
/// its bytes count. No batch needs more than all permits, because it would wait for ever.
fn permits_for(bytes: usize, in_flight: usize) -> usize {
    (bytes / BATCH_BYTES).clamp(1, in_flight)
}

/// The threads that turn input files into tokens.
pub(super) struct Pipeline<'a> {
    pub(super) config: &'a PrepareConfig,
    pub(super) inputs: &'a InputList,
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) split: Split,
    pub(super) watch: Watch<'a>,
}

impl Pipeline<'_> {
    /// Tokenises the documents of the inputs into `outputs` and adds to `report`.
    pub(super) fn run(&self, outputs: &mut Outputs, report: &mut PrepareReport) -> Result<(), ShardsError> {
        let threads = self.config.thread_count();
        let in_flight = threads * BATCHES_PER_THREAD;
        // A batch holds its permits from reading to writing. Without permits a slow document would let the batches behind it
        // pile up at the writer, which waits for the slow one.
        let (permits, permits_back) = bounded::<()>(in_flight);
        let (texts, texts_out) = bounded::<Batch<String>>(in_flight);
        let (encoded, encoded_out) = bounded::<Result<Batch<Vec<u32>>, ShardsError>>(in_flight);
        let outcome = std::thread::scope(|scope| {
            let reader =
                scope.spawn(move || Reader { pipeline: self, in_flight, permits, texts, number: 0 }.run());
            for _ in 0..threads {
                let (texts_out, encoded) = (texts_out.clone(), encoded.clone());
                scope.spawn(move || self.tokenise(&texts_out, &encoded));
            }
            drop((texts_out, encoded));
            let written = self.write(&encoded_out, &permits_back, outputs, report);
            // A failed writer drops the channels here, which ends the other threads.
            drop((encoded_out, permits_back));
            let read = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            written.and(read)
        });
        report.merge(&outcome?);
        self.watch.check_cancelled()
    }

    /// Tokenises batches until there are no more, one fails, or the writer is gone.
    fn tokenise(
        &self,
        texts: &Receiver<Batch<String>>,
        encoded: &Sender<Result<Batch<Vec<u32>>, ShardsError>>,
    ) {
        for batch in texts {
            let items: Result<Vec<_>, _> = batch.items.into_iter().map(|item| self.encode(item)).collect();
            let failed = items.is_err();
            let (number, permits) = (batch.number, batch.permits);
            if encoded.send(items.map(|items| Batch { number, permits, items })).is_err() || failed {
                return;
            }
        }
    }

    /// Encodes a document. The error names its place.
    fn encode(&self, item: Item<String>) -> Result<Item<Vec<u32>>, ShardsError> {
        let mut ids = self.tokenizer.encode(&item.content).map_err(|source| ShardsError::NotEncoded {
            path: self.inputs.files[item.file].path.clone(),
            line: item.line,
            source: Box::new(source),
        })?;
        ids.push(self.tokenizer.end_of_text());
        Ok(Item {
            content: ids,
            text_bytes: item.text_bytes,
            validation: item.validation,
            file: item.file,
            line: item.line,
        })
    }

    /// Writes batches in the order of their numbers.
    fn write(
        &self,
        encoded: &Receiver<Result<Batch<Vec<u32>>, ShardsError>>,
        permits: &Receiver<()>,
        outputs: &mut Outputs,
        report: &mut PrepareReport,
    ) -> Result<(), ShardsError> {
        let mut waiting = BTreeMap::new();
        let mut next = 0;
        for batch in encoded {
            let batch = batch?;
            waiting.insert(batch.number, batch);
            while let Some(Batch { items, permits: held, .. }) = waiting.remove(&next) {
                next += 1;
                let documents = items.len() as u64;
                for item in items {
                    // The end-of-text token does not count.
                    if item.content.len() <= self.config.min_document_tokens {
                        report.refused.add(Refusal::TooShort, &self.inputs.files[item.file], item.line);
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
                self.watch.progress.advance(0, documents);
                // The reader sent this batch's permits before the batch, so this does not wait.
                for _ in 0..held {
                    let _ = permits.recv();
                }
            }
        }
        Ok(())
    }
}

/// The thread that reads the input files.
struct Reader<'a> {
    pipeline: &'a Pipeline<'a>,
    /// The number of all permits.
    in_flight: usize,
    permits: Sender<()>,
    texts: Sender<Batch<String>>,
    /// Number of the next batch.
    number: u64,
}

impl Reader<'_> {
    /// Reads all files; returns the reader's share of the report: files, refusals and skipped files. It ends at a file that
    /// cannot be read.
    fn run(mut self) -> Result<PrepareReport, ShardsError> {
        let Pipeline { config, inputs, split, watch, .. } = *self.pipeline;
        let mut report = PrepareReport::default();
        let (mut items, mut bytes) = (Vec::new(), 0);
        for (index, file) in inputs.files.iter().enumerate() {
            let (mut documents, mut refused) = (0, 0);
            let end = read_documents(file, &config.reading(), watch.progress, &mut |record| {
                match record {
                    ReadRecord::Document { text, line } => {
                        documents += 1;
                        bytes += text.len();
                        let validation = split.is_validation(text_key(&text).split);
                        let text_bytes = text.len();
                        items.push(Item { content: text, text_bytes, validation, file: index, line });
                    }
                    ReadRecord::Refused { reason, line } => {
                        refused += 1;
                        report.refused.add(reason, file, line);
                    }
                }
                let full = bytes >= BATCH_BYTES || items.len() >= BATCH_DOCUMENTS;
                if watch.is_cancelled() || full && !self.send(&mut items, &mut bytes) {
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            })?;
            report.add_file(file, end, split == Split::AllValidation, documents, refused);
            if watch.is_cancelled() {
                break;
            }
        }
        if !items.is_empty() {
            self.send(&mut items, &mut bytes);
        }
        Ok(report)
    }

    /// Passes a batch on once there is room for it; false if the writer is gone.
    fn send(&mut self, items: &mut Vec<Item<String>>, bytes: &mut usize) -> bool {
        let permits = permits_for(std::mem::take(bytes), self.in_flight);
        let batch = Batch { number: self.number, permits, items: std::mem::take(items) };
        self.number += 1;
        (0..permits).all(|_| self.permits.send(()).is_ok()) && self.texts.send(batch).is_ok()
    }
}
