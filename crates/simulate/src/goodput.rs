//! What failures of chips cost (arXiv:2604.21428, the failure simulation and its table 1).
//!
//! Chips fail at random, each independently of the others. Training in one piece stops as a whole for every failure;
//! learners that wait for nobody stop one by one. An *elastic* learner goes on without the slice of chips that failed and
//! takes it back when it returns; both stop it for a while.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::SimulateError;

/// Failures that are played at least, over all learners, when nothing else says how long to play.
const FAILURES: f64 = 20_000.0;
/// The most learners that are played; the others are like them.
const PLAYED: u32 = 32;

/// Chips, how they fail, and what is done about it. Times are in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Fleet {
    /// Chips in all.
    pub chips: u64,
    /// M, learners that the chips are divided among evenly; none waits for another. 1 is data parallel training.
    pub learners: u32,
    /// Whether a learner goes on with the chips that are left.
    pub elastic: bool,
    /// Mean time between failures of one chip; default one year.
    pub chip_failure_seconds: f64,
    /// Chips that one failure takes away: those that share its host and its network; default 64.
    pub slice_chips: u64,
    /// Time until they are back; default 4 hours.
    pub return_seconds: f64,
    /// What going on without them costs an elastic learner; default 10 s.
    pub downscale_seconds: f64,
    /// What taking them back costs it; default 10 s.
    pub upscale_seconds: f64,
    /// What a failure costs a learner that is not elastic: spare chips take over from the last checkpoint; default 75 s.
    pub restart_seconds: f64,
    /// Virtual time that is played; 0, the default, plays as long as it takes for the numbers to settle.
    pub seconds: f64,
    /// Seed of the failures.
    pub seed: u64,
}

impl Default for Fleet {
    fn default() -> Self {
        Self {
            chips: 150_000,
            learners: 1,
            elastic: true,
            chip_failure_seconds: 365.25 * 86_400.0,
            slice_chips: 64,
            return_seconds: 4.0 * 3600.0,
            downscale_seconds: 10.0,
            upscale_seconds: 10.0,
            restart_seconds: 75.0,
            seconds: 0.0,
            seed: 0,
        }
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Goodput {
    /// Share of all chips' time that is spent on training, from 0 to 1.
    pub goodput: f64,
    /// Share of the time in which at least one learner trains, when learners fail independently, from 0 to 1.
    pub uptime: f64,
    /// Failures that were played.
    pub failures: u64,
    /// Virtual seconds that were played.
    pub seconds: f64,
}

/// Plays the failures of a fleet.
///
/// # Errors
///
/// [`SimulateError`] for a setting that can't be played.
pub fn goodput(fleet: &Fleet) -> Result<Goodput, SimulateError> {
    check(fleet)?;
    let chips = fleet.chips as f64 / f64::from(fleet.learners);
    let played = fleet.learners.min(PLAYED);
    let seconds = if fleet.seconds > 0.0 {
        fleet.seconds
    } else {
        // Long enough for chips that were taken away to have come back many times.
        let failures = FAILURES / f64::from(played) * fleet.chip_failure_seconds / chips;
        failures.max(50.0 * fleet.return_seconds)
    };
    let (mut good, mut up, mut failures) = (0.0, 0.0, 0);
    for learner in 0..played {
        let mut random = ChaCha8Rng::seed_from_u64(fleet.seed);
        random.set_stream(u64::from(learner));
        let played = play(fleet, chips, seconds, &mut random);
        good += played.trained;
        up += played.up;
        failures += played.failures;
    }
    let (good, up) = (good / f64::from(played) / seconds, up / f64::from(played) / seconds);
    let all_down = (1.0 - up).powi(i32::try_from(fleet.learners).unwrap_or(i32::MAX));
    Ok(Goodput { goodput: good, uptime: 1.0 - all_down, failures, seconds })
}

fn check(fleet: &Fleet) -> Result<(), SimulateError> {
    SimulateError::positive("learners", f64::from(fleet.learners))?;
    SimulateError::positive("chips", fleet.chips as f64)?;
    SimulateError::positive("chips of a slice", fleet.slice_chips as f64)?;
    if fleet.chips < u64::from(fleet.learners) {
        let problem = "there must be a chip for each learner at least";
        return Err(SimulateError { what: "chips", value: fleet.chips as f64, problem });
    }
    SimulateError::positive("seconds between failures of a chip", fleet.chip_failure_seconds)?;
    for (what, value) in [
        ("seconds until chips return", fleet.return_seconds),
        ("seconds to go on with fewer chips", fleet.downscale_seconds),
        ("seconds to take chips back", fleet.upscale_seconds),
        ("seconds to restart", fleet.restart_seconds),
        ("seconds to play", fleet.seconds),
    ] {
        SimulateError::not_negative(what, value)?;
    }
    // Bounds the events that are played.
    let events = fleet.seconds / fleet.chip_failure_seconds * fleet.chips as f64;
    if events > 1e8 {
        let problem = "that would be more than 100 million failures: play a shorter time";
        return Err(SimulateError { what: "seconds to play", value: fleet.seconds, problem });
    }
    Ok(())
}

/// What one learner did.
struct Played {
    /// Seconds of training, those with fewer chips counted in proportion.
    trained: f64,
    /// Seconds of training.
    up: f64,
    failures: u64,
}

/// Plays one learner of `chips` chips. A failure in the middle of a stop is dealt with in the same stop.
fn play(fleet: &Fleet, chips: f64, seconds: f64, random: &mut ChaCha8Rng) -> Played {
    let slice = (fleet.slice_chips as f64).min(chips);
    let mut played = Played { trained: 0.0, up: 0.0, failures: 0 };
    // Times at which slices return. The bits of a number above 0 are in its order.
    let mut away: BinaryHeap<Reverse<u64>> = BinaryHeap::new();
    let mut next_failure = |now: f64, alive: f64| {
        let unit: f64 = random.random();
        now - (1.0 - unit).ln() * fleet.chip_failure_seconds / alive
    };
    let (mut now, mut alive, mut stopped_until) = (0.0f64, chips, 0.0f64);
    let mut failure = next_failure(now, alive);
    loop {
        let back = away.peek().map_or(f64::INFINITY, |&Reverse(bits)| f64::from_bits(bits));
        let event = failure.min(back).min(seconds);
        let worked = event - now.max(stopped_until.min(event));
        played.trained += worked * alive / chips;
        played.up += if alive > 0.0 { worked } else { 0.0 };
        now = event;
        if now >= seconds {
            return played;
        }
        let stop = if back <= failure {
            away.pop();
            alive = (alive + slice).min(chips);
            fleet.upscale_seconds
        } else {
            played.failures += 1;
            if fleet.elastic {
                alive = (alive - slice).max(0.0);
                away.push(Reverse((now + fleet.return_seconds).to_bits()));
                fleet.downscale_seconds
            } else {
                fleet.restart_seconds
            }
        };
        if now >= stopped_until {
            stopped_until = now + stop;
        }
        failure = next_failure(now, alive);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHIPS: [u64; 5] = [150_000, 300_000, 600_000, 1_200_000, 2_400_000];

    fn percent(chips: u64, learners: u32, elastic: bool) -> f64 {
        goodput(&Fleet { chips, learners, elastic, ..Fleet::default() }).unwrap().goodput * 100.0
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

    /// The paper's rule: the goodput of M learners is that of one elastic learner on as many chips as each of them has.
    #[test]
    fn learners_are_as_good_as_one_on_their_chips() {
        for learners in [2, 4, 8, 16] {
            let (many, one) =
                (percent(2_400_000, learners, true), percent(2_400_000 / u64::from(learners), 1, true));
            assert!((many - one).abs() < 1.0, "{learners}: {many} and {one}");
        }
    }

    #[test]
    fn some_learner_always_trains_when_there_are_four() {
        let uptime =
            |learners| goodput(&Fleet { chips: 1_200_000, learners, ..Fleet::default() }).unwrap().uptime;
        assert!(uptime(1) < 0.7);
        assert!(uptime(4) > 0.999, "{}", uptime(4));
    }

    #[test]
    fn the_same_seed_gives_the_same_numbers_and_no_failures_cost_nothing() {
        let fleet = Fleet { seconds: 1e6, ..Fleet::default() };
        assert_eq!(goodput(&fleet).unwrap(), goodput(&fleet).unwrap());
        assert_ne!(goodput(&fleet).unwrap(), goodput(&Fleet { seed: 1, ..fleet }).unwrap());
        let sturdy = Fleet { chip_failure_seconds: 1e30, ..fleet };
        let found = goodput(&sturdy).unwrap();
        assert_eq!((found.goodput, found.failures), (1.0, 0));
    }

    #[test]
    fn what_can_not_be_played_is_refused() {
        let fleet = Fleet::default();
        for bad in [
            Fleet { chips: 0, ..fleet },
            Fleet { learners: 0, ..fleet },
            Fleet { chips: 3, learners: 4, ..fleet },
            Fleet { chip_failure_seconds: f64::NAN, ..fleet },
            Fleet { downscale_seconds: -1.0, ..fleet },
            Fleet { seconds: 1e15, ..fleet },
        ] {
            assert!(goodput(&bad).is_err(), "{bad:?}");
        }
    }
}
