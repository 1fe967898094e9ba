use dipaco_config::{PathsPerRound, PhaseConfig};
use dipaco_telemetry::WireBytes;
use dipaco_topology::PathId;

use super::*;

fn started() -> Event {
    Event::CoordinatorStarted { rounds: 0 }
}

/// A lease of the first path. Its held-out loss is larger by one.
fn lease(round: u64, steps: u64, loss: f64) -> Event {
    Event::PathCompleted {
        path: PathId(0),
        round,
        worker: "a".to_owned(),
        steps: Some(steps),
        loss,
        heldout_loss: Some(loss + 1.0),
        best: true,
        seconds: 1.0,
        waited_seconds: 0.0,
    }
}

/// A round of a run of one path, and the bytes since the coordinator began.
fn round(round: u64, loss: f64, sent: u64) -> [Event; 2] {
    let path = lease(round, 10, loss);
    let wire_bytes = Some(WireBytes { sent, received: 0 });
    [path, Event::RoundCompleted { round, loss, seconds: 1.0, wire_bytes }]
}

fn validated(rounds: u64, loss: f64) -> Event {
    Event::Validated {
        rounds,
        steps: 10 * rounds,
        trained_tokens: 0,
        seconds: 0.0,
        loss,
        bits_per_byte: None,
        tokens: 1,
    }
}

/// An outer step of a fragment of the first module.
fn stepped(fragment: u32, version: u64, cosine: f64) -> Event {
    Event::ModuleStepped {
        module: ModuleId { level: 0, index: 0 },
        fragment,
        version,
        paths: 2,
        outer_gradient_norm: 1.0,
        cosine: Some(cosine),
    }
}

/// The curves of these events, a second apart.
fn curves(events: Vec<Event>) -> RunCurves {
    curves_of(RunConfig::default(), events)
}

/// The same with these settings and ten inner steps in a round.
fn curves_of(mut config: RunConfig, events: Vec<Event>) -> RunCurves {
    config.train.inner_steps = 10;
    let mut sums = EventSums::new(&config).unwrap();
    for (second, event) in events.into_iter().enumerate() {
        sums.add(EventRecord { time: format!("2026-01-01T00:00:{second:02}.000Z"), event });
    }
    sums.curves(&config).unwrap()
}

fn costs(curves: &RunCurves, points: &[(f64, f64)]) -> Vec<Option<(f64, u64)>> {
    let cost = |step| curves.cost_at(step).map(|cost| (cost.seconds, cost.wire_bytes));
    points.iter().map(|&(step, _)| cost(step)).collect()
}

#[test]
fn losses_have_the_cost_of_their_rounds_over_all_coordinators() {
    let [path, _] = round(2, 3.0, 0);
    let events = [vec![started()], round(0, 5.0, 100).to_vec(), vec![validated(1, 5.5), started()]];
    let later = [round(1, 4.0, 30).to_vec(), vec![path]];
    let curves = curves([events.concat(), later.concat()].concat());
    assert_eq!(curves.training, [(10.0, 5.0), (20.0, 4.0), (30.0, 3.0)]);
    assert_eq!(costs(&curves, &curves.training), [Some((2.0, 100)), Some((4.0, 130)), None]);
    assert_eq!(curves.validation, [(10.0, 5.5)]);
    assert_eq!(costs(&curves, &curves.validation), [Some((2.0, 100))]);
    assert_eq!(costs(&curves, &curves.heldout), [Some((0.0, 0)), Some((2.0, 100)), Some((4.0, 130))]);
}

#[test]
fn a_round_of_several_leases_has_the_mean_over_its_inner_steps() {
    let curves = curves(vec![started(), lease(0, 2, 9.0), lease(0, 8, 4.0), lease(1, 2, 3.0)]);
    assert_eq!(curves.training, [(10.0, 5.0), (20.0, 3.0)]);
    assert_eq!(curves.heldout, [(0.0, 10.0), (10.0, 4.0)], "before the inner steps of the round");
}

#[test]
fn undone_rounds_have_no_points_and_cost_nevertheless() {
    let rounds = [vec![started()], round(0, 5.0, 10).to_vec(), round(1, 9.0, 20).to_vec()];
    let undone = vec![validated(2, 9.5), Event::RolledBack { from: 2, to: 1, undone: vec![2] }];
    let mut events = [rounds.concat(), undone].concat();
    assert_eq!(curves(events.clone()).training, [(10.0, 5.0)]);
    events.extend([vec![started()], round(1, 4.0, 7).to_vec()].concat());
    let curves = curves(events);
    assert_eq!(curves.training, [(10.0, 5.0), (20.0, 4.0)]);
    assert!(curves.validation.is_empty(), "{:?}", curves.validation);
    assert_eq!(costs(&curves, &curves.training), [Some((2.0, 10)), Some((6.0, 27))]);
}

#[test]
fn fragments_have_cosines_of_their_own() {
    let curves = curves(vec![started(), stepped(0, 1, 0.5), stepped(1, 1, 0.25)]);
    let points: Vec<_> = curves.cosines.into_values().collect();
    assert_eq!(points, [[(1.0, 0.5)], [(1.0, 0.25)]]);
}

#[test]
fn undone_rounds_have_no_cosines() {
    let mut config = RunConfig::default();
    config.sync.fragments = 2;
    let mut events = vec![started()];
    for at in 0..3 {
        // One fragment steps before its round is complete, and the other one after it.
        events.push(stepped(0, at + 1, 0.5));
        events.extend(round(at, 5.0, 10));
        events.push(stepped(1, at + 1, 0.25));
    }
    events.push(Event::RolledBack { from: 3, to: 1, undone: vec![2, 3] });
    let points: Vec<_> = curves_of(config, events).cosines.into_values().collect();
    assert_eq!(points, [[(1.0, 0.5)], [(1.0, 0.25)]]);
}

#[test]
fn a_repeated_outer_step_undoes_the_cosines_of_later_versions() {
    let ahead = [1, 2, 3].map(|version| stepped(0, version, 0.5));
    let back = Event::RolledBack { from: 1, to: 1, undone: vec![] };
    let mut events = [vec![started()], ahead.to_vec(), round(0, 5.0, 10).to_vec(), vec![back]].concat();
    // The events do not tell which of the steps ahead of their round the checkpoint has.
    events.push(stepped(0, 2, 0.25));
    let points: Vec<_> = curves(events).cosines.into_values().collect();
    assert_eq!(points, [[(1.0, 0.5), (2.0, 0.25)]]);
}

#[test]
fn the_cosines_of_a_fragment_that_is_sent_more_than_once_a_round_stay() {
    let mut config = RunConfig::default();
    config.sync.fragments = 2;
    config.routing.phases = vec![PhaseConfig { round: 2, ..PhaseConfig::default() }];
    // In the first phase the first fragment is sent after steps 5, 15 and 20.
    let mut events = vec![started(), stepped(0, 1, 0.5)];
    events.extend(round(0, 5.0, 10));
    events.push(stepped(0, 2, 0.5));
    events.extend(round(1, 5.0, 10));
    events.extend([3, 4].map(|version| stepped(0, version, 0.5)));
    events.push(Event::RolledBack { from: 2, to: 2, undone: vec![] });
    let points: Vec<_> = curves_of(config, events).cosines.into_values().collect();
    assert_eq!(points, [[(1.0, 0.5), (2.0, 0.5), (3.0, 0.5)]]);
}

#[test]
fn a_path_takes_no_steps_in_a_round_in_which_it_rests() {
    let of = |paths_per_round| {
        let mut config = RunConfig::default();
        (config.train.inner_steps, config.train.batch, config.train.sequence_tokens) = (10, 2, 100);
        config.train.paths_per_round = paths_per_round;
        let curves = EventSums::new(&config).unwrap().curves(&config).unwrap();
        assert_eq!(curves.trained, 4);
        move |step| (curves.path_steps(step), curves.tokens_at(step))
    };
    let all = of(PathsPerRound::default());
    assert_eq!([all(0.0), all(25.0)], [(0.0, 0.0), (25.0, 20_000.0)]);
    let two = of(PathsPerRound::Always(2));
    assert_eq!([two(20.0), two(25.0)], [(10.0, 8_000.0), (12.5, 10_000.0)]);
    let changing = of(PathsPerRound::Changing(vec![(0, 1), (2, 0)]));
    assert_eq!([changing(20.0), changing(25.0)], [(5.0, 4_000.0), (10.0, 8_000.0)]);
}
