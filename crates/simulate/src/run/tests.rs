use super::*;

const CHIPS: [u64; 5] = [150_000, 300_000, 600_000, 1_200_000, 2_400_000];

/// Data parallel training for one learner, Decoupled DiLoCo for more; default failures.
fn run(count: u64, learners: u32, elastic: bool) -> LargeRun {
    let scheme = if learners == 1 {
        SimulatedScheme::data_parallel()
    } else {
        SimulatedScheme::decoupled(24, 12, 2, 5.0)
    };
    let chips = Some(Chips { count, elastic, ..Chips::default() });
    // An elastic learner loses time but no steps, so longer steps give the same result with fewer events.
    let step_seconds = if elastic { 10.0 } else { 1.0 };
    let seconds = 600.0 / f64::from(learners) * (365.25 * 86_400.0) / count as f64;
    LargeRun { chips, seconds: seconds.max(14_400.0), ..LargeRun::new(learners, scheme, 1e11, step_seconds) }
}

fn percent(count: u64, learners: u32, elastic: bool) -> f64 {
    play(&run(count, learners, elastic)).unwrap().goodput * 100.0
}

/// arXiv:2604.21428 table 1: learners, elastic or not, goodput in percent for each of [`CHIPS`].
#[test]
fn the_papers_table_comes_out() {
    for (learners, elastic, row) in [
        (1, false, [72.0, 57.0, 38.0, 27.0, 18.0]),
        (1, true, [88.0, 80.0, 69.0, 58.0, 40.0]),
        (2, true, [94.0, 88.0, 80.0, 70.0, 54.0]),
        (4, true, [96.0, 93.0, 89.0, 82.0, 73.0]),
        (8, true, [98.0, 96.0, 94.0, 88.0, 80.0]),
        (16, true, [99.0, 98.0, 96.0, 93.0, 86.0]),
    ] {
        for (chips, paper) in CHIPS.into_iter().zip(row) {
            let found = percent(chips, learners, elastic);
            assert!((found - paper).abs() <= 5.0, "{learners} of {chips}: {found:.1} for {paper}");
        }
    }
}

/// The paper's rule: M learners have the goodput of one elastic learner with the chips of one of them.
#[test]
fn learners_are_as_good_as_one_on_their_chips() {
    for learners in [2, 4, 8] {
        let many = percent(2_400_000, learners, true);
        let one = percent(2_400_000 / u64::from(learners), 1, true);
        assert!((many - one).abs() < 1.5, "{learners}: {many} and {one}");
    }
}

#[test]
fn some_learner_always_trains_when_there_are_four() {
    let uptime = |learners| play(&run(1_200_000, learners, true)).unwrap().uptime;
    assert!(uptime(1) < 0.7);
    assert!(uptime(4) > 0.998, "{}", uptime(4));
}

#[test]
fn the_same_seed_gives_the_same_numbers_and_no_failures_cost_nothing() {
    let some = LargeRun { step_variation: 0.2, ..run(600_000, 2, true) };
    assert_eq!(play(&some).unwrap(), play(&some).unwrap());
    assert_ne!(play(&some).unwrap(), play(&LargeRun { seed: 1, ..some.clone() }).unwrap());
    let chips = Some(Chips { failure_seconds: 1e30, ..Chips::default() });
    let found = play(&LargeRun { chips, ..some }).unwrap();
    assert!((found.goodput - 1.0).abs() < 1e-6 && found.failures == 0, "{found:?}");
}

/// One chip, which dies every 1,000 s on average and returns at once. A lease of L steps of a second ends without a
/// failure with probability exp(-L/1000), so a share of (L/1000) / (exp(L/1000) - 1) of the training is accepted.
#[test]
fn a_dead_learner_repeats_its_lost_lease() {
    let chips = Chips {
        count: 1,
        slice: 1,
        elastic: false,
        failure_seconds: 1000.0,
        restart_seconds: 0.0,
        ..Chips::default()
    };
    for (inner_steps, expected) in [(1, 0.9995), (500, 0.7707), (1000, 0.5820)] {
        let scheme = SimulatedScheme::diloco(inner_steps);
        let run = LargeRun { chips: Some(chips), seconds: 2e7, ..LargeRun::new(1, scheme, 1.0, 1.0) };
        // Short leases show the share in less time, and less time keeps the number of events small.
        let run = if inner_steps == 1 { LargeRun { seconds: 1e5, ..run } } else { run };
        let found = play(&run).unwrap();
        assert!((found.utilisation - 1.0).abs() < 1e-6, "{found:?}");
        assert!((found.goodput - expected).abs() < 0.006, "{inner_steps}: {found:?}");
    }
}

/// Two learners, one with half the speed.
#[test]
fn synchronous_learners_have_the_slowest_speed_and_others_their_own() {
    let scheme = SimulatedScheme::streaming(24, 12, 2, 16.0);
    let waits = LargeRun { speed_gap: 1.0, ..LargeRun::new(2, scheme, 1e9, 1.0) };
    // The slower learner trains all the time, the other learner half of it.
    let found = play(&waits).unwrap();
    assert!((found.goodput - 0.75).abs() < 0.01, "{found:?}");
    assert_eq!(found.contributors, 2.0);
    let quorum = |grace| LargeRun { scheme: SimulatedScheme::decoupled(24, 12, 0, grace), ..waits.clone() };
    let alone = play(&quorum(0.0)).unwrap();
    assert!((alone.goodput - 1.0).abs() < 1e-9, "{alone:?}");
    // A grace period costs the learners nothing, and more of them contribute to outer steps.
    let patient = play(&quorum(30.0)).unwrap();
    assert!((patient.goodput - 1.0).abs() < 1e-9, "{patient:?}");
    assert!(patient.contributors > alone.contributors + 0.3, "{patient:?} {alone:?}");
}

/// Four paths and four learners, two of them slow: if states move, any free learner helps.
#[test]
fn paths_with_movable_state_keep_all_learners_busy() {
    let stays = LargeRun {
        speed_gap: 0.5,
        ..LargeRun::new(4, SimulatedScheme::streaming(24, 12, 2, 16.0), 1e9, 1.0)
    };
    let moves = LargeRun { state_stays: false, ..stays.clone() };
    let (stays, moves) = (play(&stays).unwrap().utilisation, play(&moves).unwrap().utilisation);
    assert!(stays < 0.87 && moves > 0.93, "{stays} {moves}");
}

/// The core completes a lease after the arrival of all its outer gradients. With an overlap the learner trains the lease
/// that follows meanwhile, and waits only where the transfer is longer than that.
#[test]
fn an_overlap_hides_a_transfer_also_at_the_end_of_a_lease() {
    let utilisation = |fragments, overlap, transfer: f64| {
        let bits_per_second = 1e9 / f64::from(fragments) / transfer;
        let link = Some(Link { bits_per_second, latency_seconds: 0.0 });
        let scheme = SimulatedScheme::streaming(24, fragments, overlap, 1.0);
        play(&LargeRun { link, ..LargeRun::new(2, scheme, 1e9, 1.0) }).unwrap().utilisation
    };
    // With H = 24 and τ = 2, eight fragments leave each send two of three steps for its transfer. With twelve fragments
    // each send is at the end of a lease of two steps.
    assert!((utilisation(8, 2, 1.0) - 1.0).abs() < 1e-9);
    assert!((utilisation(12, 2, 1.0) - 1.0).abs() < 1e-9, "{}", utilisation(12, 2, 1.0));
    // Three seconds of transfer for each two seconds of training.
    assert!((utilisation(12, 2, 3.0) - 2.0 / 3.0).abs() < 0.01, "{}", utilisation(12, 2, 3.0));
    // Without an overlap a learner waits for the part of the transfer that the last backward pass does not hide.
    let hidden = 2.0 / 3.0 * (1.0 - 1.0 / 128.0);
    let waits = 2.0 / (2.0 + 1.0 - hidden);
    assert!((utilisation(12, 0, 1.0) - waits).abs() < 2e-3, "{}", utilisation(12, 0, 1.0));
}

#[test]
fn invalid_runs_are_refused() {
    let fine = run(150_000, 2, true);
    let chips = |chips: Chips| LargeRun { chips: Some(chips), ..fine.clone() };
    let link = |bits_per_second| LargeRun {
        link: Some(Link { bits_per_second, latency_seconds: 0.0 }),
        ..fine.clone()
    };
    for (bad, why) in [
        (LargeRun { learners: 0, ..fine.clone() }, "learners = 0"),
        (LargeRun { learners: 5000, ..fine.clone() }, "learners = 5000"),
        (LargeRun { parameters: f64::NAN, ..fine.clone() }, "parameters = NaN"),
        (LargeRun { step_seconds: 0.0, ..fine.clone() }, "seconds of a step = 0"),
        (LargeRun { seconds: 1e30, ..fine.clone() }, "seconds to play = 1"),
        (link(0.0), "bits per second = 0"),
        (chips(Chips { count: 0, ..Chips::default() }), "chips = 0"),
        (chips(Chips { count: 1, ..Chips::default() }), "chips = 1:"),
        (
            chips(Chips { failure_seconds: f64::NAN, ..Chips::default() }),
            "seconds between failures of a chip",
        ),
        (chips(Chips { downscale_seconds: -1.0, ..Chips::default() }), "seconds to go on with fewer chips"),
    ] {
        let told = play(&bad).unwrap_err().to_string();
        assert!(told.contains(why), "{told} for {why}");
    }
    // A transfer that ends beyond representable time.
    let endless = LargeRun { chips: None, seconds: 0.0, ..link(1e-30) };
    assert!(matches!(play(&endless), Err(SimulateError::Stuck { .. })), "{:?}", play(&endless));
}
