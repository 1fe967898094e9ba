//! An opened run: its files, and the engine of `dipaco serve`, which starts at the first text.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dipaco_infer::{Engine, GenerateRequest, Route, SequenceEvent};
use dipaco_pipeline::{PipelineError, Run, Version, Weights, pins_ended, prepared, serve};
use dipaco_shards::Tokenizer;
use dipaco_topology::Topology;
use tokio::runtime::{Builder, Runtime};

use crate::answers::Sequence;
use crate::failure::Failure;
use crate::prompt::Prompt;

/// Sequences of one call in the engine at a time.
const GROUP: usize = 256;
/// Sequences and tokens that may wait in the engine. They only bound the number of threads that call at a time: a caller
/// waits for its group.
const QUEUED_SEQUENCES: usize = GROUP << 12;
const QUEUED_TOKENS: usize = 1 << 40;
/// Time between two looks whether the caller wants to stop.
const LOOK: Duration = Duration::from_millis(50);

/// A run and its opened parts. Functions block.
pub(crate) struct Session {
    engine: Mutex<Option<Arc<Engine>>>,
    pub(crate) run: Run,
    pub(crate) topology: Topology,
    tokenizer: Tokenizer,
    version: Version,
    runtime: Runtime,
    process: u32,
}

impl Drop for Session {
    fn drop(&mut self) {
        // The engine holds weights, whose pin a task of the runtime removes.
        *self.engine.get_mut().unwrap_or_else(PoisonError::into_inner) = None;
        self.runtime.block_on(pins_ended());
    }
}

impl Session {
    /// Reads the configuration and the tokenizer of a run.
    pub(crate) fn open(folder: PathBuf, version: Version) -> Result<Self, Failure> {
        let run = Run::open(folder)?;
        let config = &run.config;
        let topology = Topology::new(&config.topology, config.model.blocks).map_err(PipelineError::from)?;
        let tokenizer = prepared::tokenizer(&run.directory)?;
        let runtime =
            Builder::new_multi_thread().worker_threads(2).enable_all().build().map_err(Failure::Threads)?;
        let (engine, process) = (Mutex::new(None), std::process::id());
        Ok(Self { engine, run, topology, tokenizer, version, runtime, process })
    }

    /// True in a process that was forked after the run was opened.
    pub(crate) fn is_forked(&self) -> bool {
        self.process != std::process::id()
    }

    pub(crate) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The weights as they are now.
    pub(crate) fn weights(&self) -> Result<Weights, Failure> {
        let Run { directory, config } = &self.run;
        Ok(self.runtime.block_on(Weights::open(directory, config, self.version))?)
    }

    /// The engine. The first call starts it.
    fn engine(&self) -> Result<Arc<Engine>, Failure> {
        let mut engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(engine) = engine.as_ref() {
            return Ok(Arc::clone(engine));
        }
        let Run { directory, config } = &self.run;
        let mut limits = config.serve.clone();
        limits.queued_requests = QUEUED_SEQUENCES;
        limits.queued_tokens = QUEUED_TOKENS;
        let started = self.runtime.block_on(serve::engine(directory, config, &limits, self.version))?;
        Ok(Arc::clone(engine.insert(Arc::new(started))))
    }

    /// Tokens after which the path of a sequence is chosen anew, as by the server: a path that the caller names stays.
    pub(crate) fn route_every(&self, path: Option<u32>) -> Option<usize> {
        Some(self.run.config.serve.route_every).filter(|&every| every > 0 && path.is_none())
    }

    /// The tokens of each prompt.
    pub(crate) fn tokens(&self, prompts: Vec<Prompt>) -> Result<Vec<Vec<u32>>, Failure> {
        let tokens = |(number, prompt)| match prompt {
            Prompt::Text(text) => {
                self.tokenizer.encode(&text).map_err(|source| Failure::Text { number, source })
            }
            Prompt::Tokens(tokens) => Ok(tokens),
        };
        prompts.into_iter().enumerate().map(tokens).collect()
    }

    /// The route of each prompt.
    pub(crate) fn route(&self, prompts: Vec<Prompt>, stop: &AtomicBool) -> Result<Vec<Route>, Failure> {
        let (engine, tokens) = (self.engine()?, self.tokens(prompts)?);
        let route = |(number, tokens): (usize, &Vec<u32>)| {
            if stop.load(Ordering::Relaxed) {
                return Err(Failure::Stopped);
            }
            self.runtime.block_on(engine.route(tokens)).map_err(|source| Failure::Prompt { number, source })
        };
        tokens.iter().enumerate().map(route).collect()
    }

    /// Generates or scores sequences, a group at a time.
    pub(crate) fn sequences(
        &self,
        requests: Vec<GenerateRequest>,
        stop: &AtomicBool,
    ) -> Result<Vec<Sequence>, Failure> {
        let engine = self.engine()?;
        let model = engine.model();
        for (number, request) in requests.iter().enumerate() {
            request
                .check(model.context(), model.vocab_size(), model.topology().paths())
                .map_err(|source| Failure::Prompt { number, source })?;
        }
        let (mut done, mut rest) = (Vec::with_capacity(requests.len()), requests.into_iter());
        loop {
            let group: Vec<_> = rest.by_ref().take(GROUP).collect();
            if group.is_empty() {
                return Ok(done);
            }
            done.extend(self.group(&engine, group, stop)?);
        }
    }

    fn group(
        &self,
        engine: &Engine,
        group: Vec<GenerateRequest>,
        stop: &AtomicBool,
    ) -> Result<Vec<Sequence>, Failure> {
        let mut sequences: Vec<Sequence> = group.iter().map(|_| Sequence::default()).collect();
        let mut submission = engine.submit(group, Duration::MAX)?;
        self.runtime.block_on(async {
            while !stop.load(Ordering::Relaxed) {
                let Ok(next) = tokio::time::timeout(LOOK, submission.next()).await else { continue };
                let Some(SequenceEvent { sequence, event }) = next? else { return Ok(sequences) };
                if let Some(sequence) = sequences.get_mut(sequence) {
                    sequence.take(event);
                }
            }
            Err(Failure::Stopped)
        })
    }
}
