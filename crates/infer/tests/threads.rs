//! What callers see when a thread of the engine ends by a bug.
#![allow(clippy::unwrap_used)]

#[path = "support/fake.rs"]
mod fake;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use dipaco_infer::{
    Engine, EngineConfig, EngineError, GenerateRequest, NoObserver, Observer, RequestSummary, StepSummary,
    Submission,
};
use dipaco_topology::PathId;
use fake::{Bytes, Fake};

/// Longer than any test takes.
const PATIENCE: Duration = Duration::from_secs(600);

fn start(observer: Arc<dyn Observer>) -> (Engine, Arc<Fake>) {
    let model = Fake::new(400);
    let config = EngineConfig { slots: 1, kv_bytes: 64 << 20, ..EngineConfig::default() };
    (Engine::start(model.clone(), Arc::new(Bytes), observer, &config).unwrap(), model)
}

/// Submits a sequence. Without a path it needs the thread that routes.
fn submit(engine: &Engine, path: Option<PathId>) -> Result<Submission, EngineError> {
    let request = GenerateRequest { path, ..GenerateRequest::new([97, 98]) };
    engine.submit(vec![request], PATIENCE)
}

/// The end of a submission.
async fn end(mut submission: Submission) -> Result<(), EngineError> {
    while submission.next().await?.is_some() {}
    Ok(())
}

#[tokio::test]
async fn the_end_of_any_thread_ends_all_requests_at_once_and_is_known() {
    for broken in ["dipaco-engine", "dipaco-router"] {
        let (engine, model) = start(Arc::new(NoObserver));
        let mut load = engine.watch_load();
        model.gate.shut();
        let running = submit(&engine, Some(PathId(0))).unwrap();
        load.wait_for(|load| load.running == 1).await.unwrap();
        assert!(engine.failure().is_none());
        model.broken.set(broken);
        let waiting = submit(&engine, None).unwrap();
        if broken == "dipaco-engine" {
            model.gate.open();
        }
        let refused = async {
            engine.failed().await;
            submit(&engine, None).map(drop)
        };
        let ends = tokio::join!(end(running), end(waiting), refused);
        for found in [ends.0, ends.1, ends.2, engine.failure().map_or(Ok(()), Err)] {
            let named = matches!(&found, Err(EngineError::ThreadEnded { thread }) if *thread == broken);
            assert!(named, "{broken}: {found:?}");
        }
        model.gate.open();
    }
}

/// Counts ended requests, and panics each time.
#[derive(Default)]
struct Panics(AtomicUsize);

impl Observer for Panics {
    fn token(&self, _: Duration) {
        panic!("a token can't be counted");
    }
    fn step(&self, _: &StepSummary) {
        panic!("a step can't be counted");
    }
    fn finished(&self, _: &RequestSummary) {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic!("the end of a request can't be counted");
    }
}

#[tokio::test]
async fn an_observer_that_panics_ends_no_request() {
    let seen = Arc::new(Panics::default());
    let (engine, _) = start(seen.clone());
    for _ in 0..2 {
        assert!(end(submit(&engine, Some(PathId(0))).unwrap()).await.is_ok());
    }
    assert!(engine.failure().is_none());
    assert_eq!(seen.0.load(Ordering::SeqCst), 2);
}
