//! What the engine reports about the prompts that it reads.
#![allow(clippy::unwrap_used)]

#[path = "support/fake.rs"]
mod fake;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dipaco_infer::{
    Engine, EngineConfig, GenerateRequest, Observer, RequestSummary, SamplingParams, StepSummary, Submission,
};
use dipaco_topology::PathId;
use fake::{Bytes, Fake};

/// Prompt tokens and preemptions of all steps, and the prompt tokens of each ended request.
#[derive(Default)]
struct Seen {
    prompt_tokens: AtomicUsize,
    preempted: AtomicUsize,
    ended: Mutex<Vec<usize>>,
}

impl Observer for Seen {
    fn token(&self, _: Duration) {}
    fn step(&self, step: &StepSummary) {
        self.prompt_tokens.fetch_add(step.prompt_tokens, Ordering::SeqCst);
        self.preempted.fetch_add(step.preempted, Ordering::SeqCst);
    }
    fn finished(&self, summary: &RequestSummary) {
        self.ended.lock().unwrap().push(summary.read_tokens);
    }
}

impl Seen {
    /// The prompt tokens of the steps since the last call. Those of the requests that ended since then, largest first.
    fn take(&self) -> (usize, Vec<usize>) {
        let mut ended = std::mem::take(&mut *self.ended.lock().unwrap());
        ended.sort_unstable();
        ended.reverse();
        (self.prompt_tokens.swap(0, Ordering::SeqCst), ended)
    }
}

/// Longer than any test takes.
const PATIENCE: Duration = Duration::from_secs(600);

/// A request with a prompt of letters from `first` on.
fn ask(first: u8, length: u32, max_tokens: usize) -> GenerateRequest {
    let prompt: Vec<u32> = (0..length).map(|i| u32::from(first) + i % 20).collect();
    let sampling = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    GenerateRequest {
        path: Some(PathId(0)),
        max_tokens,
        sampling,
        ignore_eos: true,
        ..GenerateRequest::new(prompt)
    }
}

fn submit(engine: &Engine, requests: Vec<GenerateRequest>) -> Submission {
    engine.submit(requests, PATIENCE).unwrap()
}

async fn end(mut submission: Submission) {
    while submission.next().await.unwrap().is_some() {}
}

#[tokio::test]
async fn each_prompt_token_counts_once_read_or_cached_shared_or_read_again() {
    let (model, seen) = (Fake::new(400), Arc::new(Seen::default()));
    // 25 pages hold one of the long sequences below, and not two.
    let config = EngineConfig { slots: 4, kv_bytes: 25 << 20, ..EngineConfig::default() };
    let engine = Engine::start(model.clone(), Arc::new(Bytes), seen.clone(), &config).unwrap();
    end(submit(&engine, vec![ask(b'a', 50, 2)])).await;
    assert_eq!(seen.take(), (50, vec![50]));
    end(submit(&engine, vec![ask(b'a', 50, 2)])).await;
    assert_eq!(seen.take(), (50, vec![50]), "48 of them were in the cache");

    let choice = ask(b'@', 40, 2);
    end(submit(&engine, vec![choice.clone(); 3])).await;
    assert_eq!(seen.take(), (40, vec![40, 0, 0]));
    let scored = GenerateRequest { prompt_log_probs: Some(0), ..choice };
    end(submit(&engine, vec![scored; 2])).await;
    assert_eq!(seen.take(), (80, vec![40, 40]), "a scored prompt is read for each choice");

    let mut load = engine.watch_load();
    model.gate.shut();
    let first = submit(&engine, vec![ask(b'c', 150, 150)]);
    load.wait_for(|load| load.running == 1).await.unwrap();
    let mut second = submit(&engine, vec![ask(b'E', 150, 150)]);
    // Its path is known, so it begins with the next step.
    assert!(second.next().await.unwrap().is_some());
    model.gate.open();
    end(first).await;
    end(second).await;
    assert!(seen.preempted.load(Ordering::SeqCst) > 0);
    assert_eq!(seen.take(), (300, vec![150, 150]));
}
