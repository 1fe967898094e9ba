//! The class `Run`.

use std::path::PathBuf;
use std::sync::Arc;

use dipaco_infer::{GenerateRequest, SamplingParams};
use dipaco_model::WeightFormat;
use dipaco_pipeline::device::TrainDevice;
use dipaco_pipeline::evaluate::{EvaluatedRun, Subject, evaluate};
use dipaco_pipeline::export::{Exported, ThereAlready, check_free, check_places};
use dipaco_pipeline::{PipelineError, Version, phases, prepared};
use dipaco_routing::ShardSet;
use dipaco_telemetry::{EventRecord, EventsError, Progress, read_events};
use dipaco_topology::PathId;
use pyo3::prelude::*;

use crate::answers::{PyGeneration, PyRoute, Score};
use crate::failure::Failure;
use crate::prompt::Prompt;
use crate::session::Session;
use crate::token_set::{PyTokenSet, opened};
use crate::unlocked::unlocked;

/// A run of dipaco, for reading.
#[pyclass(frozen, module = "dipaco", name = "Run")]
pub(crate) struct PyRun {
    /// `None` only while it is dropped.
    session: Option<Session>,
}

impl PyRun {
    fn session(&self) -> Result<&Session, Failure> {
        self.session.as_ref().filter(|session| !session.is_forked()).ok_or(Failure::Forked)
    }
}

impl Drop for PyRun {
    fn drop(&mut self) {
        if let Some(session) = self.session.take().filter(Session::is_forked) {
            // Its threads are those of another process. To wait for their end would never end.
            std::mem::forget(session);
        }
    }
}

#[pymethods]
impl PyRun {
    #[new]
    #[pyo3(signature = (path, *, early_stopping = false))]
    fn new(py: Python<'_>, path: PathBuf, early_stopping: bool) -> PyResult<Self> {
        let version = if early_stopping { Version::Best } else { Version::Current };
        unlocked(py, |_| Ok(Self { session: Some(Session::open(path, version)?) }))
    }

    #[getter]
    fn path(&self) -> PyResult<PathBuf> {
        Ok(self.session()?.run.directory.root().to_owned())
    }

    #[getter]
    fn name(&self) -> PyResult<&str> {
        Ok(&self.session()?.run.config.run.name)
    }

    #[getter]
    fn paths(&self) -> PyResult<u32> {
        Ok(self.session()?.topology.paths())
    }

    #[getter]
    fn context(&self) -> PyResult<usize> {
        Ok(self.session()?.run.config.model.context)
    }

    #[getter]
    fn vocab_size(&self) -> PyResult<usize> {
        Ok(self.session()?.run.config.model.vocab_size)
    }

    fn encode(&self, py: Python<'_>, text: &str) -> PyResult<Vec<u32>> {
        let tokenizer = self.session()?.tokenizer();
        Ok(py.detach(|| tokenizer.encode(text).map_err(Failure::from))?)
    }

    fn decode(&self, py: Python<'_>, tokens: Prompt) -> PyResult<String> {
        match tokens {
            Prompt::Tokens(tokens) => {
                let tokenizer = self.session()?.tokenizer();
                Ok(py.detach(|| tokenizer.decode(&tokens).map_err(Failure::from))?)
            }
            Prompt::Text(_) => Err(Failure::Argument("decode takes token ids, not a text".into()).into()),
        }
    }

    fn route(&self, py: Python<'_>, texts: Vec<Prompt>) -> PyResult<Vec<PyRoute>> {
        let session = self.session()?;
        let routes = unlocked(py, |stop| session.route(texts, stop))?;
        Ok(routes.into_iter().map(PyRoute::from).collect())
    }

    #[pyo3(signature = (texts, *, path = None))]
    fn score(&self, py: Python<'_>, texts: Vec<Prompt>, path: Option<u32>) -> PyResult<Vec<Score>> {
        let session = self.session()?;
        let scored = unlocked(py, |stop| {
            let request = |tokens: Vec<u32>| GenerateRequest {
                path: path.map(PathId),
                max_tokens: 0,
                prompt_log_probs: Some(0),
                route_every: session.route_every(path),
                ..GenerateRequest::new(tokens)
            };
            session.sequences(session.tokens(texts)?.into_iter().map(request).collect(), stop)
        })?;
        Ok(scored.into_iter().map(Score::from).collect())
    }

    #[pyo3(signature = (
        prompts, *, max_tokens = 16, temperature = 1.0, top_p = 1.0, top_k = 0, min_p = 0.0,
        repetition_penalty = 1.0, seed = 0, stop = Vec::new(), path = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are the keyword arguments of Python's method")]
    fn generate(
        &self,
        py: Python<'_>,
        prompts: Vec<Prompt>,
        max_tokens: usize,
        temperature: f32,
        top_p: f32,
        top_k: usize,
        min_p: f32,
        repetition_penalty: f32,
        seed: u64,
        stop: Vec<String>,
        path: Option<u32>,
    ) -> PyResult<Vec<PyGeneration>> {
        let session = self.session()?;
        let sampling = SamplingParams {
            temperature,
            top_p,
            top_k,
            min_p,
            repetition_penalty,
            seed,
            ..SamplingParams::default()
        };
        let stop: Arc<[String]> = stop.into();
        let generated = unlocked(py, |cancel| {
            let request = |tokens: Vec<u32>| GenerateRequest {
                path: path.map(PathId),
                max_tokens,
                sampling: sampling.clone(),
                stop: Arc::clone(&stop),
                log_probs: Some(0),
                route_every: session.route_every(path),
                ..GenerateRequest::new(tokens)
            };
            session.sequences(session.tokens(prompts)?.into_iter().map(request).collect(), cancel)
        })?;
        Ok(generated.into_iter().map(PyGeneration::from).collect())
    }

    #[pyo3(signature = (*, path = None, seed = false))]
    fn evaluate(&self, py: Python<'_>, path: Option<u32>, seed: bool) -> PyResult<Py<PyAny>> {
        let session = self.session()?;
        let subject = match (path, seed) {
            (None, false) => Subject::Routed(session.run.config.evaluation.route),
            (Some(path), false) => Subject::Path(PathId(path)),
            (None, true) => Subject::Seed,
            (Some(_), true) => {
                return Err(Failure::Argument("give a path or seed=True, not both".into()).into());
            }
        };
        let text = unlocked(py, |stop| {
            let (run, weights) = (&session.run, session.weights()?);
            let hidden = Progress::hidden();
            let evaluated = EvaluatedRun {
                run: &run.directory,
                config: &run.config,
                weights: &weights,
                device: &TrainDevice::Cpu,
            };
            let mut found = evaluate(evaluated, subject, None, &hidden, stop)?;
            // A result for people, not a list of thousands of documents.
            found.document_losses.clear();
            Ok(serde_json::to_string(&found)?)
        })?;
        loads(py, &text)
    }

    #[pyo3(signature = (path = None, *, validation = false))]
    fn tokens(&self, py: Python<'_>, path: Option<u32>, validation: bool) -> PyResult<PyTokenSet> {
        let session = self.session()?;
        let run = &session.run.directory;
        opened(py, || {
            let Some(path) = path.map(PathId) else {
                let file = if validation { run.validation_tokens() } else { run.train_tokens() };
                return Ok(prepared::token_file(run, &file)?);
            };
            let paths = session.topology.paths();
            if path.0 >= paths {
                return Err(PipelineError::NoSuchPath { path, paths }.into());
            }
            let routing = run.routing(session.runtime().block_on(phases::current(run))?);
            let folder = if validation { routing.validation() } else { routing.train() };
            if !folder.exists() {
                return Err(PipelineError::NotRouted { folder }.into());
            }
            Ok(Arc::new(ShardSet::open(&folder)?.open_shard(path)?))
        })
    }

    #[pyo3(signature = (event = None))]
    fn metrics(&self, py: Python<'_>, event: Option<&str>) -> PyResult<Py<PyAny>> {
        let file = self.session()?.run.directory.events();
        let text = unlocked(py, |_| {
            let mut lines = Vec::new();
            // A run before its seed has no events.
            let records = if file.exists() { Some(read_events(&file)?) } else { None };
            for record in records.into_iter().flatten() {
                lines.push(match record {
                    Ok(record) => line(&record)?,
                    // A cut line of a killed process.
                    Err(EventsError::Line { .. }) => continue,
                    Err(error) => return Err(error.into()),
                });
            }
            Ok(format!("[{}]", lines.join(",")))
        })?;
        let all = loads(py, &text)?;
        let Some(event) = event else { return Ok(all) };
        let named = |found: &Bound<'_, PyAny>| found.get_item("event")?.eq(event);
        let mut kept = Vec::new();
        for found in all.bind(py).try_iter()? {
            let found = found?;
            if named(&found)? {
                kept.push(found);
            }
        }
        Ok(kept.into_pyobject(py)?.into_any().unbind())
    }

    #[pyo3(signature = (out, *, path = None, seed = false, gguf = None, force = false))]
    fn export(
        &self,
        py: Python<'_>,
        out: PathBuf,
        path: Option<u32>,
        seed: bool,
        gguf: Option<&str>,
        force: bool,
    ) -> PyResult<()> {
        let session = self.session()?;
        if path.is_some() == seed {
            return Err(Failure::Argument("give a path, or seed=True for the seed".into()).into());
        }
        let format = gguf.map(weight_format).transpose()?;
        unlocked(py, |_| {
            let target = Some(out.as_path());
            let (folder, file) = if format.is_some() { (None, target) } else { (target, None) };
            check_places(folder, file).map_err(|wrong| Failure::Argument(wrong.to_string()))?;
            if !force {
                check_free(folder, file).map_err(|ThereAlready { file }| Failure::ThereAlready { file })?;
            }
            let (run, config) = (&session.run.directory, &session.run.config);
            let exported = Exported::compose(&session.weights()?, path.map(PathId))?;
            match format {
                Some(format) => exported.write_gguf(run, config, format, &out)?,
                None => exported.write_checkpoint(run, config, &out)?,
            }
            Ok(())
        })
    }

    fn __repr__(&self) -> PyResult<String> {
        let session = self.session()?;
        let (root, paths) = (session.run.directory.root().display(), session.topology.paths());
        Ok(format!("Run('{root}', name='{}', paths={paths})", session.run.config.run.name))
    }
}

fn line(record: &EventRecord) -> Result<String, Failure> {
    Ok(serde_json::to_string(record)?)
}

/// A format of weights by the name that `dipaco export --format` has for it.
fn weight_format(name: &str) -> Result<WeightFormat, Failure> {
    match name {
        "f32" => Ok(WeightFormat::F32),
        "bf16" => Ok(WeightFormat::Bf16),
        "q8_0" => Ok(WeightFormat::Q8_0),
        "q4_0" => Ok(WeightFormat::Q4_0),
        other => Err(Failure::Argument(format!("gguf is \"{other}\": it must be f32, bf16, q8_0 or q4_0"))),
    }
}

/// JSON as values of Python.
fn loads(py: Python<'_>, text: &str) -> PyResult<Py<PyAny>> {
    Ok(py.import("json")?.call_method1("loads", (text,))?.unbind())
}
