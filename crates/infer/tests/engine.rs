//! Guarantees of the engine for its callers, over a model whose next token is known.
#![allow(clippy::unwrap_used)]

#[path = "support/fake.rs"]
mod fake;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dipaco_infer::{
    Engine, EngineConfig, EngineError, FinishReason, Finished, GenerateRequest, GenerationEvent, Load,
    Observer, Outcome, RequestSummary, SamplingParams, SequenceEvent, StepSummary, StopReason, Submission,
    TextCodec, TokenScore, score,
};
use dipaco_topology::PathId;
use fake::{Bytes, END, Fake, TwoEnds};

#[derive(Default)]
struct Seen(Mutex<Vec<RequestSummary>>, AtomicUsize);

impl Observer for Seen {
    fn token(&self, _: Duration) {}
    fn step(&self, _: &StepSummary) {
        self.1.fetch_add(1, Ordering::SeqCst);
    }
    fn finished(&self, summary: &RequestSummary) {
        self.0.lock().unwrap().push(summary.clone());
    }
}

fn start(slots: usize, queued: usize) -> (Engine, Arc<Fake>, Arc<Seen>) {
    start_with(Arc::new(Bytes), slots, queued)
}

fn start_with(codec: Arc<dyn TextCodec>, slots: usize, queued: usize) -> (Engine, Arc<Fake>, Arc<Seen>) {
    let (model, seen) = (Fake::new(400), Arc::new(Seen::default()));
    let config = EngineConfig {
        slots,
        queued_requests: queued,
        queued_tokens: 10_000,
        kv_bytes: 64 << 20,
        ..EngineConfig::default()
    };
    let engine = Engine::start(model.clone(), codec, seen.clone(), &config).unwrap();
    (engine, model, seen)
}

fn ask(prompt: &str) -> GenerateRequest {
    let tokens: Vec<u32> = prompt.bytes().map(u32::from).collect();
    let sampling = SamplingParams { temperature: 0.0, ..SamplingParams::default() };
    GenerateRequest { path: Some(PathId(0)), sampling, ..GenerateRequest::new(tokens) }
}

/// Longer than any test takes.
const PATIENCE: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
struct Answer {
    text: String,
    tokens: Vec<u32>,
    scores: Vec<TokenScore>,
    path: Option<u32>,
    end: Option<Result<Finished, EngineError>>,
}

impl Answer {
    fn take(&mut self, event: GenerationEvent) {
        match event {
            GenerationEvent::Started { path, .. } => self.path = Some(path.0),
            GenerationEvent::Began { .. } => {}
            GenerationEvent::Prompt(scores) => self.scores = scores,
            GenerationEvent::Token { token, text, score, .. } => {
                self.tokens.push(token);
                self.text.push_str(&text);
                self.scores.extend(score);
            }
            GenerationEvent::Finished(finished) => {
                self.text.push_str(&finished.text);
                self.end = Some(Ok(finished));
            }
        }
    }
}

/// The answer of a submission of one sequence.
async fn collect(mut submission: Submission) -> Answer {
    let mut answer = Answer::default();
    loop {
        match submission.next().await {
            Ok(Some(SequenceEvent { sequence, event })) => {
                assert_eq!(sequence, 0);
                answer.take(event);
            }
            Ok(None) => return answer,
            Err(error) => answer.end = Some(Err(error)),
        }
    }
}

async fn one(engine: &Engine, request: GenerateRequest) -> Answer {
    collect(submit(engine, request).unwrap()).await
}

fn submit(engine: &Engine, request: GenerateRequest) -> Result<Submission, EngineError> {
    engine.submit(vec![request], PATIENCE)
}

fn finished(answer: &Answer) -> &Finished {
    answer.end.as_ref().unwrap().as_ref().unwrap()
}

#[tokio::test]
async fn greedy_text_goes_on_to_the_limit_or_the_end_of_the_text() {
    let (engine, ..) = start(2, 8);
    let answer = one(&engine, GenerateRequest { max_tokens: 4, ..ask("a") }).await;
    assert_eq!((answer.text.as_str(), finished(&answer).reason), ("bcde", FinishReason::Length));
    let answer = one(&engine, GenerateRequest { max_tokens: 9, ..ask("x") }).await;
    assert_eq!((answer.text.as_str(), finished(&answer).reason), ("yz", FinishReason::Stop));
    assert_eq!((answer.tokens.last(), finished(&answer).generated_tokens), (Some(&END), 3));
    assert_eq!(finished(&answer).stop, None);
    let answer = one(&engine, GenerateRequest { max_tokens: 3, min_tokens: 3, ..ask("y") }).await;
    assert_eq!(answer.tokens.len(), 3);
    assert!(!answer.tokens.contains(&END));
}

#[tokio::test]
async fn each_of_several_end_tokens_ends_the_text() {
    let (engine, ..) = start_with(Arc::new(TwoEnds(u32::from(b'd'))), 2, 8);
    for (prompt, last, tokens) in [("a", u32::from(b'd'), 3), ("x", END, 3)] {
        let answer = one(&engine, GenerateRequest { max_tokens: 9, ..ask(prompt) }).await;
        assert_eq!((answer.tokens.last(), answer.tokens.len()), (Some(&last), tokens), "{answer:?}");
        assert_eq!((finished(&answer).reason, &finished(&answer).stop), (FinishReason::Stop, &None));
    }
    let answer = one(&engine, GenerateRequest { max_tokens: 4, ignore_eos: true, ..ask("a") }).await;
    assert_eq!((answer.text.as_str(), finished(&answer).reason), ("bcde", FinishReason::Length));
}

#[tokio::test]
async fn stops_are_left_out_or_kept_as_asked() {
    let (engine, ..) = start(1, 8);
    let stop = GenerateRequest { stop: ["ef".to_owned()].into(), ..ask("a") };
    let answer = one(&engine, stop.clone()).await;
    assert_eq!((answer.text.as_str(), answer.tokens.len()), ("bcd", 5));
    assert_eq!(finished(&answer).stop, Some(StopReason::Text("ef".into())));
    let late = GenerateRequest { min_tokens: 4, ..stop.clone() };
    assert_eq!(
        one(&engine, late).await.text,
        "bcd",
        "a stop text may begin before min_tokens and end after it"
    );
    let answer = one(&engine, GenerateRequest { include_stop: true, ..stop }).await;
    assert_eq!(answer.text, "bcdef");
    let other = GenerateRequest { stop: ["ez".to_owned()].into(), max_tokens: 4, ..ask("a") };
    let answer = one(&engine, other).await;
    assert_eq!(answer.text, "bcde", "text that was held back is given at the end");
    let answer = one(&engine, GenerateRequest { stop_token_ids: [u32::from(b'd')].into(), ..ask("a") }).await;
    assert_eq!(answer.text, "bc");
    assert_eq!(finished(&answer).stop, Some(StopReason::Token(u32::from(b'd'))));
}

#[tokio::test]
async fn the_router_reads_the_first_tokens_and_a_pin_overrules_it() {
    let (engine, ..) = start(1, 8);
    let answer = one(&engine, GenerateRequest { path: None, max_tokens: 2, ..ask("bcdefgh") }).await;
    assert_eq!((answer.path, answer.text.as_str()), (Some(2), "kn"));
    let answer =
        one(&engine, GenerateRequest { path: Some(PathId(1)), max_tokens: 2, ..ask("bcdefgh") }).await;
    assert_eq!((answer.path, answer.text.as_str()), (Some(1), "jl"));
    let route = engine.route(&[u32::from(b'b'); 30]).await.unwrap();
    assert_eq!((route.path, route.prefix_tokens, route.distances.len()), (PathId(2), 4, 4));
}

#[tokio::test]
async fn scores_are_those_of_one_long_pass_even_for_a_prompt_of_several_chunks() {
    let (engine, ..) = start(1, 8);
    let prompt: Vec<u32> = (0..300).map(|i| 97 + i % 25).collect();
    let request = GenerateRequest {
        max_tokens: 1,
        log_probs: Some(2),
        prompt_log_probs: Some(2),
        prompt: prompt.clone().into(),
        ..ask("-")
    };
    let answer = one(&engine, request.clone()).await;
    assert_eq!(answer.scores.len(), 301);
    assert_eq!((answer.scores[0].log_prob, answer.scores[0].top.len()), (None, 0));
    for i in 1..300 {
        let expected = score(&fake::logits(prompt[i - 1], i - 1, 0), prompt[i], 2).unwrap();
        assert_eq!(answer.scores[i], expected);
    }
    let answer = one(&engine, GenerateRequest { max_tokens: 0, ..request }).await;
    assert_eq!((answer.scores.len(), answer.tokens.len()), (300, 0));
    assert_eq!(finished(&answer).reason, FinishReason::Length);
}

#[tokio::test]
async fn log_probs_do_not_depend_on_how_tokens_are_drawn() {
    let (engine, ..) = start(1, 8);
    let hot =
        SamplingParams { temperature: 2.0, seed: 3, presence_penalty: 1.0, ..SamplingParams::default() };
    let answer = one(&engine, GenerateRequest { sampling: hot, log_probs: Some(0), ..ask("a") }).await;
    let mut before = u32::from(b'a');
    for (i, scored) in answer.scores.iter().enumerate() {
        assert_eq!(*scored, score(&fake::logits(before, i, 0), scored.token, 0).unwrap());
        before = scored.token;
    }
}

#[tokio::test]
async fn a_seed_gives_the_same_text_alone_and_among_others() {
    let (engine, ..) = start(4, 64);
    let request = |seed| GenerateRequest {
        max_tokens: 40,
        ignore_eos: true,
        sampling: SamplingParams { seed, temperature: 1.5, ..SamplingParams::default() },
        ..ask("hello")
    };
    let alone = one(&engine, request(5)).await;
    let mut many = engine.submit((0..24).map(|i| request(i % 6)).collect(), PATIENCE).unwrap();
    let mut together: Vec<Answer> = (0..24).map(|_| Answer::default()).collect();
    while let Some(SequenceEvent { sequence, event }) = many.next().await.unwrap() {
        together[sequence].take(event);
    }
    for (i, answer) in together.iter().enumerate() {
        assert_eq!(answer.tokens == alone.tokens, i % 6 == 5);
        assert_eq!(finished(answer).generated_tokens, 40);
    }
}

#[tokio::test]
async fn a_caller_that_goes_away_frees_its_slot_and_its_place_in_the_queue() {
    let (engine, model, seen) = start(1, 8);
    let mut load = engine.watch_load();
    model.gate.shut();
    let long = || submit(&engine, GenerateRequest { max_tokens: 300, ..ask("a") }).unwrap();
    let mut all = vec![long(), long(), long()];
    load.wait_for(|load| load.running == 1 && load.waiting == 2).await.unwrap();
    drop(all.pop());
    assert_eq!((engine.load().waiting, engine.load().waiting_tokens), (1, 1));
    drop(all.remove(0));
    model.gate.open();
    let answer = collect(all.remove(0)).await;
    assert_eq!(finished(&answer).reason, FinishReason::Stop);
    load.wait_for(|load| load.running + load.waiting == 0).await.unwrap();
    let outcomes: Vec<_> = seen.0.lock().unwrap().iter().map(|s| (s.outcome, s.generated_tokens)).collect();
    assert_eq!(outcomes, [(Outcome::Abort, 0), (Outcome::Abort, 0), (Outcome::Stop, 26)]);
}

#[tokio::test]
async fn the_router_reads_nothing_for_callers_that_went_away() {
    let (engine, model, _) = start(1, 8);
    let routed = |prompt| GenerateRequest { path: None, max_tokens: 1, ..ask(prompt) };
    model.router_gate.shut();
    let first = submit(&engine, routed("a")).unwrap();
    while model.routed.load(Ordering::SeqCst) == 0 {
        tokio::task::yield_now().await;
    }
    // The router is in its first pass, so these wait for the next one.
    for prompt in ["b", "c", "d"] {
        drop(submit(&engine, routed(prompt)).unwrap());
    }
    let last = submit(&engine, routed("e")).unwrap();
    model.router_gate.open();
    for submission in [first, last] {
        assert!(collect(submission).await.end.unwrap().is_ok());
    }
    assert_eq!(model.routed.load(Ordering::SeqCst), 2);
}

#[test]
fn a_started_engine_reports_all_its_pages_at_once() {
    let config = EngineConfig { slots: 3, ..EngineConfig::default() };
    let engine = Engine::start(Fake::new(400), Arc::new(Bytes), Arc::new(Seen::default()), &config).unwrap();
    assert_eq!(engine.load(), Load { pages: 3 * 400 / 16, ..Load::default() });
}

#[tokio::test]
async fn a_caller_that_goes_away_frees_its_pages_within_one_step() {
    let (engine, model, seen) = start(4, 8);
    let mut load = engine.watch_load();
    model.gate.shut();
    let prompt: Vec<u32> = (0..50).map(|i| 97 + i % 20).collect();
    let long = GenerateRequest { prompt: prompt.into(), max_tokens: 300, ignore_eos: true, ..ask("-") };
    let gone = submit(&engine, long).unwrap();
    load.wait_for(|load| load.running == 1).await.unwrap();
    assert_eq!(engine.load().used_pages, 4);
    drop(gone);
    model.gate.open();
    load.wait_for(|load| (load.running, load.used_pages) == (0, 0)).await.unwrap();
    assert_eq!(seen.1.load(Ordering::SeqCst), 1, "only the step that was under way");
}

#[tokio::test]
async fn a_full_queue_refuses_the_whole_request_and_estimates_the_wait() {
    let (engine, model, _) = start(1, 2);
    let mut load = engine.watch_load();
    model.gate.shut();
    let running = submit(&engine, ask("a")).unwrap();
    load.wait_for(|load| load.running == 1).await.unwrap();
    let waiting = submit(&engine, ask("a")).unwrap();
    let Err(error) = engine.submit(vec![ask("a"); 2], PATIENCE) else { panic!("admitted") };
    assert!(matches!(error, EngineError::Overloaded { waiting: 1, limit: 2, retry_after, .. }
        if retry_after >= Duration::from_secs(1)));
    assert_eq!(engine.load().waiting, 1);
    assert!(matches!(
        engine.submit(vec![ask("a"); 4], PATIENCE),
        Err(EngineError::TooLarge { given: 4, limit: 3, .. })
    ));
    model.gate.open();
    for submission in [running, waiting] {
        assert!(collect(submission).await.end.unwrap().is_ok());
    }
}

#[tokio::test]
async fn a_request_of_a_lower_priority_number_gets_the_free_place() {
    let (engine, model, seen) = start(1, 8);
    let mut load = engine.watch_load();
    model.gate.shut();
    let running = submit(&engine, ask("a")).unwrap();
    load.wait_for(|load| load.running == 1).await.unwrap();
    let mut waiting = Vec::new();
    for (prompt, priority) in [("aa", 0), ("aaa", 3), ("aaaa", -3)] {
        let mut submission = submit(&engine, GenerateRequest { priority, ..ask(prompt) }).unwrap();
        // Its path is known, so it waits for the place only.
        let started = submission.next().await.unwrap().unwrap();
        assert!(matches!(started.event, GenerationEvent::Started { .. }));
        waiting.push(submission);
    }
    model.gate.open();
    for submission in std::iter::once(running).chain(waiting) {
        assert!(collect(submission).await.end.unwrap().is_ok());
    }
    let order: Vec<usize> = seen.0.lock().unwrap().iter().map(|summary| summary.prompt_tokens).collect();
    assert_eq!(order, [1, 4, 2, 3]);
}

#[tokio::test]
async fn a_deadline_ends_a_waiting_and_a_running_request() {
    let (engine, model, seen) = start(1, 8);
    let mut load = engine.watch_load();
    model.gate.shut();
    let running = submit(&engine, ask("a")).unwrap();
    load.wait_for(|load| load.running == 1).await.unwrap();
    let late = || engine.submit(vec![ask("a")], Duration::ZERO).unwrap();
    assert!(matches!(collect(late()).await.end, Some(Err(EngineError::Deadline { .. }))));
    assert_eq!(engine.load().waiting, 0);
    model.gate.open();
    assert!(collect(running).await.end.unwrap().is_ok());
    assert!(matches!(collect(late()).await.end, Some(Err(EngineError::Deadline { .. }))));
    load.wait_for(|load| load.running + load.waiting == 0).await.unwrap();
    assert_eq!(seen.0.lock().unwrap()[0].outcome, Outcome::Deadline);
}

#[tokio::test]
async fn a_running_request_that_reaches_its_deadline_counts_as_late() {
    let (engine, model, seen) = start(1, 8);
    let mut load = engine.watch_load();
    model.gate.shut();
    let late = engine.submit(vec![ask("a")], Duration::from_millis(50)).unwrap();
    load.wait_for(|load| load.running == 1).await.unwrap();
    assert!(matches!(collect(late).await.end, Some(Err(EngineError::Deadline { .. }))));
    model.gate.open();
    load.wait_for(|load| load.running == 0).await.unwrap();
    assert_eq!(seen.0.lock().unwrap()[0].outcome, Outcome::Deadline);
}

#[tokio::test]
async fn prompts_that_begin_alike_share_what_was_computed_and_scored_prompts_do_not() {
    let (engine, _, seen) = start(4, 8);
    let prompt: Vec<u32> = (0..50).map(|i| 97 + i % 20).collect();
    let request = GenerateRequest { prompt: prompt.clone().into(), max_tokens: 4, ..ask("-") };
    let first = one(&engine, request.clone()).await;
    let again = one(&engine, request.clone()).await;
    assert_eq!((finished(&first).cached_tokens, finished(&again).cached_tokens), (0, 48));
    assert_eq!(first.tokens, again.tokens);
    let scored = GenerateRequest { log_probs: Some(0), prompt_log_probs: Some(0), ..request.clone() };
    let scored = one(&engine, scored).await;
    assert_eq!((finished(&scored).cached_tokens, scored.scores.len()), (0, 54));
    // Another path has other keys and values.
    let other = one(&engine, GenerateRequest { path: Some(PathId(1)), ..request.clone() }).await;
    assert_eq!(finished(&other).cached_tokens, 0);
    // Another client does not learn that somebody has sent the prompt.
    let other = one(&engine, GenerateRequest { client: 1, ..request }).await;
    assert_eq!((finished(&other).cached_tokens, other.tokens), (0, first.tokens));
    let cached: Vec<_> = seen.0.lock().unwrap().iter().map(|summary| summary.cached_tokens).collect();
    assert_eq!(cached, [0, 48, 0, 0, 0]);
}

#[tokio::test]
async fn a_failure_or_panic_ends_the_request_but_not_the_slot() {
    let (engine, ..) = start(1, 8);
    let error = one(&engine, ask("a!")).await.end.unwrap().unwrap_err();
    assert_eq!(error.to_string(), "reading the prompt on path 0 failed");
    // Pages of a failed sequence are not read by the next one, which fails in the same way.
    for _ in 0..2 {
        let long = one(&engine, ask("abcdefghijklmnopqrstuvw!abcdefghijklmn")).await;
        assert!(long.end.unwrap().is_err());
    }
    let error = one(&engine, ask("a#")).await.end.unwrap().unwrap_err();
    assert!(error.to_string().contains("asked to panic"), "{error}");
    for log_probs in [None, Some(1)] {
        let end = one(&engine, GenerateRequest { log_probs, ..ask("a$") }).await.end;
        assert!(
            matches!(end, Some(Err(EngineError::NotFinite { path: PathId(0) }))),
            "{log_probs:?}: {end:?}"
        );
    }
    assert_eq!(one(&engine, GenerateRequest { max_tokens: 1, ..ask("a") }).await.text, "b");
}

#[tokio::test]
async fn the_first_failure_ends_all_sequences_of_a_submission() {
    let (engine, _, seen) = start(1, 8);
    let mut load = engine.watch_load();
    let mut submission = engine.submit(vec![ask("a"), ask("a!"), ask("a"), ask("a")], PATIENCE).unwrap();
    let mut finished = Vec::new();
    let error = loop {
        match submission.next().await {
            Ok(Some(SequenceEvent { sequence, event: GenerationEvent::Finished(_) })) => {
                finished.push(sequence);
            }
            Ok(event) => assert!(event.is_some(), "the submission ended without its failure"),
            Err(error) => break error,
        }
    };
    assert_eq!((error.to_string().as_str(), finished), ("reading the prompt on path 0 failed", vec![0]));
    assert!(submission.next().await.unwrap().is_none());
    load.wait_for(|load| load.running + load.waiting == 0).await.unwrap();
    let outcomes: Vec<_> = seen.0.lock().unwrap().iter().map(|summary| summary.outcome).collect();
    assert_eq!(outcomes, [Outcome::Length, Outcome::Error, Outcome::Error, Outcome::Error]);
}

#[tokio::test]
async fn all_sequences_that_the_engine_ends_count_under_its_reason() {
    let (engine, model, seen) = start(2, 8);
    let mut load = engine.watch_load();
    let all_ended = |load: &Load| load.running + load.waiting == 0;
    // Two run and two wait when one of the two fails.
    model.gate.shut();
    let long = GenerateRequest { max_tokens: 300, ignore_eos: true, ..ask("a") };
    let requests = vec![long.clone(), ask("a!"), long.clone(), long];
    let submission = engine.submit(requests, PATIENCE).unwrap();
    load.wait_for(|load| load.running > 0).await.unwrap();
    model.gate.open();
    load.wait_for(all_ended).await.unwrap();
    // The caller asks for no event, so the engine finds the deadline.
    let late = engine.submit(vec![ask("a"); 4], Duration::ZERO).unwrap();
    load.wait_for(all_ended).await.unwrap();
    drop((submission, late));
    let outcomes: Vec<_> = seen.0.lock().unwrap().iter().map(|summary| summary.outcome).collect();
    assert_eq!(outcomes, [[Outcome::Error; 4], [Outcome::Deadline; 4]].concat());
}

#[tokio::test]
async fn stopping_ends_running_requests_and_refuses_new_ones() {
    let (engine, model, _) = start(1, 8);
    model.gate.shut();
    let submission = submit(&engine, ask("a")).unwrap();
    engine.watch_load().wait_for(|load| load.running == 1).await.unwrap();
    engine.abort();
    model.gate.open();
    assert!(matches!(collect(submission).await.end, Some(Err(EngineError::ShuttingDown))));
    assert!(matches!(submit(&engine, ask("a")), Err(EngineError::ShuttingDown)));
}

#[test]
fn invalid_requests_are_refused_before_the_model_runs() {
    let (engine, ..) = start(1, 8);
    let refused = |request: GenerateRequest| match submit(&engine, request) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("admitted"),
    };
    assert!(refused(ask("")).contains("empty"));
    let message = refused(GenerateRequest { max_tokens: 400, ..ask("a") });
    assert!(message.contains("1 tokens") && message.contains("max_model_len is 400"), "{message}");
    assert!(refused(GenerateRequest { path: Some(PathId(4)), ..ask("a") }).contains("paths 0 to 3"));
    assert!(refused(GenerateRequest { prompt: vec![257].into(), ..ask("a") }).contains("below 257"));
    let sampling = SamplingParams { temperature: f32::NAN, ..SamplingParams::default() };
    assert!(refused(GenerateRequest { sampling, ..ask("a") }).starts_with("temperature is NaN"));
}
