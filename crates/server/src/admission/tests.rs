//! When work is refused, and when it is done.

use super::*;

fn two_places() -> Work {
    let admission = Admission::new();
    admission.set_places(2);
    admission.work.into_inner().unwrap()
}

fn asked(sequences: usize, tokens: u64) -> Asked {
    Asked { client: 0, sequences, tokens, longest: 0 }
}

/// A saturated engine of two places that does 100 tokens per second.
fn saturated(start: Instant) -> Work {
    let mut work = two_places();
    work.admit(asked(4, 4000), start);
    for tenth in 1..=20 {
        work.completed += 10;
        work.progress(10, start + Duration::from_millis(100 * tenth));
    }
    work
}

#[test]
fn work_that_would_come_too_late_is_refused_with_the_time_to_wait() {
    let mut work = saturated(Instant::now());
    assert_eq!(work.rate, Some(100.0));
    // 3,800 tokens are left, so 1,200 more end after 50 s, four fifths of the request's time.
    let time = Duration::from_millis(62_500);
    assert_eq!(work.check(asked(1, 1200), time), Ok(()));
    let error = work.check(asked(1, 1300), time).unwrap_err();
    assert_eq!((error.status.as_u16(), error.code, error.retry_after), (429, Some("overloaded"), Some(1)));
    assert_eq!(work.check(asked(1, 1), Duration::from_secs(10)).unwrap_err().retry_after, Some(31));
    // Sequences that end early give their room back.
    work.release(asked(3, 3000), 150);
    assert_eq!(work.check(asked(1, 1300), time), Ok(()));
    // Alone, a request is never refused.
    work.release(asked(1, 1000), 50);
    assert_eq!(work.check(asked(1, 1_000_000), Duration::ZERO), Ok(()));
}

#[test]
fn a_long_answer_needs_the_time_of_its_tokens_one_after_the_other() {
    let start = Instant::now();
    let mut work = saturated(start);
    work.release(asked(3, 3900), 190);
    // A token of a sequence comes every fifth of a second, whatever the sequences do together.
    work.intervals = (0.2 * 50.0, 50);
    work.progress(100, start + Duration::from_secs(4));
    assert!((work.interval - 0.2).abs() < 1e-9, "{}", work.interval);
    let asked = Asked { longest: 100, ..asked(1, 100) };
    // 190 tokens at 100 a second, and 100 tokens at 5 a second.
    assert_eq!(work.check(asked, Duration::from_secs(28)), Ok(()));
    assert!(work.check(asked, Duration::from_secs(27)).is_err());
    // Sequences usually end after half of their tokens.
    work.used = 0.5;
    assert_eq!(work.check(asked, Duration::from_secs(15)), Ok(()));
}

#[test]
fn the_first_rate_is_known_soon_after_all_places_are_taken() {
    let start = Instant::now();
    let mut work = two_places();
    work.admit(asked(1, 1000), start);
    work.progress(1, start + Duration::from_secs(10));
    work.admit(asked(5, 5000), start + Duration::from_secs(10));
    // This step began before the others came.
    work.progress(1, start + Duration::from_millis(10_100));
    assert_eq!(work.check(asked(1, 1000), Duration::from_secs(1)), Ok(()));
    for step in 1..=5 {
        work.progress(20, start + Duration::from_millis(10_100 + 50 * step));
    }
    assert_eq!(work.rate, Some(400.0));
    assert_eq!(work.check(asked(1, 1000), Duration::from_secs(1)).unwrap_err().status, 429);
}

#[test]
fn one_sequence_says_nothing_about_the_rate_of_a_full_engine() {
    let start = Instant::now();
    let mut work = two_places();
    work.admit(asked(1, 1000), start);
    work.progress(10, start + Duration::from_secs(1));
    work.progress(10, start + Duration::from_secs(2));
    assert_eq!(work.rate, None);
    let mut work = saturated(start);
    work.release(asked(3, 3000), 0);
    let at = start + Duration::from_secs(4);
    work.progress(1, at);
    assert_eq!(work.rate, Some(100.0), "a slow sequence alone does not lower it");
}

fn request(prompt: &Arc<[u32]>) -> GenerateRequest {
    GenerateRequest { max_tokens: 20, client: 7, ..GenerateRequest::new(Arc::clone(prompt)) }
}

/// The summary of a request that generated all its tokens.
fn ended(request: &GenerateRequest, shares_prompt: bool, read_tokens: usize) -> RequestSummary {
    RequestSummary {
        client: request.client,
        path: None,
        outcome: Outcome::Length,
        prompt_tokens: request.prompt.len(),
        shares_prompt,
        cached_tokens: 0,
        read_tokens,
        reads_cache: request.prompt_log_probs.is_none(),
        generated_tokens: request.max_tokens,
        reroutes: 0,
        max_tokens: request.max_tokens,
        queued: Duration::ZERO,
        routing: None,
        prefill: None,
        first_token: None,
        total: Duration::ZERO,
    }
}

#[test]
fn prompts_that_are_read_or_cached_delay_nobody() {
    let admission = Admission::new();
    admission.set_places(100);
    admission.lock().rate = Some(100.0);
    let request = request(&vec![1; 1000].into());
    admission.admit(Asked::of(std::slice::from_ref(&request)), Duration::ZERO).unwrap();
    // 1,020 tokens at 100 a second.
    let (one, time) = (asked(1, 1), Duration::from_secs(2));
    let late = |admission: &Admission| admission.check(Asked { client: 7, ..one }, time).is_err();
    assert!(late(&admission));
    admission.step(&StepSummary { tokens: 40, prompt_tokens: 40, preempted: 0 });
    assert!(late(&admission));
    // The others were in the cache.
    admission.step(&StepSummary { tokens: 40, prompt_tokens: 960, preempted: 0 });
    assert!(!late(&admission), "only 20 tokens are to come");
    (0..19).for_each(|_| admission.token(Duration::ZERO));
    admission.finished(&ended(&request, false, 1000));
    let work = admission.lock();
    assert_eq!((work.sequences, work.admitted, work.completed), (0, 0, 0));
    assert_eq!(work.clients.share(7), Share { tokens: 0, clients: 1 });
}

#[test]
fn the_choices_of_a_prompt_count_it_once_unless_each_is_scored() {
    let prompt: Arc<[u32]> = vec![1; 1000].into();
    let choices = vec![request(&prompt); 8];
    assert_eq!(Asked::of(&choices).tokens, 1000 + 8 * 20);
    let scored = GenerateRequest { prompt_log_probs: Some(0), ..request(&prompt) };
    let scored = vec![scored; 8];
    assert_eq!(Asked::of(&scored).tokens, 8 * 1020);
    // The ends of all choices give back what was admitted.
    let admission = Admission::new();
    admission.admit(Asked::of(&choices), Duration::ZERO).unwrap();
    for (number, choice) in choices.iter().enumerate() {
        admission.finished(&ended(choice, number > 0, if number > 0 { 0 } else { 1000 }));
    }
    let work = admission.lock();
    assert_eq!((work.sequences, work.admitted), (0, 0));
}

#[test]
fn the_work_of_one_client_delays_another_only_as_much_as_the_others_own() {
    let now = Instant::now();
    let mut work = two_places();
    work.rate = Some(100.0);
    let busy = Asked { client: 1, ..asked(4, 100_000) };
    work.admit(busy, now);
    // Four fifths of the time do 4,800 tokens.
    let minute = Duration::from_secs(60);
    assert!(work.check(Asked { client: 1, ..asked(1, 1) }, minute).is_err());
    let small = Asked { client: 2, ..asked(1, 2000) };
    assert_eq!(work.check(small, minute), Ok(()), "2,000 tokens, and as many of the first client");
    work.admit(small, now);
    assert!(work.check(small, minute).is_err(), "4,000 tokens, and as many of the first client");
    work.release(busy, 0);
    assert_eq!(work.check(small, minute), Ok(()), "4,000 tokens");
}
