//! Plays damaged inputs, and counts how far they get.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rand::SeedableRng;

use crate::{CaseRng, damage};

/// Seconds that each campaign plays.
const SECONDS: &str = "DIPACO_FUZZ_SECONDS";
/// Cases that each campaign skips, because an earlier run has played them.
const SKIP: &str = "DIPACO_FUZZ_SKIP";
/// The one case that each campaign plays.
const CASE: &str = "DIPACO_FUZZ_CASE";
/// One case in this many begins with the undamaged input, which the decoder must accept.
const UNDAMAGED: u64 = 16;

/// How far an input got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reached {
    /// Refused by the first checks: the format, the length, the checksum.
    Outside,
    /// Refused behind the first checks.
    Inside,
    /// Read without an error.
    Accepted,
}

/// The outcomes of a campaign.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CampaignCounts {
    /// Damaged inputs, without those of the corpus.
    pub cases: u64,
    /// Inputs that were refused by the first checks.
    pub outside: u64,
    /// Inputs that were refused behind the first checks.
    pub inside: u64,
    /// Inputs that were read without an error.
    pub accepted: u64,
    /// Inputs of the corpus.
    pub corpus: u64,
    /// Largest memory that one input took, in bytes.
    pub memory: u64,
    /// Longest time that one input took.
    pub longest: Duration,
}

/// Plays damaged inputs of one decoder.
#[derive(Clone, Debug)]
pub struct Campaign {
    name: &'static str,
    cases: u64,
    memory: u64,
    past: f64,
}

impl Campaign {
    /// A campaign of 2,000 cases. At least 30 % of them must get past the first checks, and none may take more than
    /// 16 MiB of memory. `name` is the folder of its corpus in `tests/fixtures/fuzz`.
    #[must_use]
    pub fn new(name: &'static str) -> Self {
        Self { name, cases: 2000, memory: 16 << 20, past: 0.3 }
    }

    /// Plays another number of cases if no time is given.
    #[must_use]
    pub fn cases(self, cases: u64) -> Self {
        Self { cases, ..self }
    }

    /// Allows another amount of memory for one input, in bytes.
    #[must_use]
    pub fn memory(self, memory: u64) -> Self {
        Self { memory, ..self }
    }

    /// Demands that another share of the damaged inputs gets past the first checks.
    #[must_use]
    pub fn past(self, past: f64) -> Self {
        Self { past, ..self }
    }

    /// Plays the corpus, and then damaged inputs. `valid` makes a valid input, `decode` reads an input.
    ///
    /// # Panics
    /// If `decode` panics, takes too much memory, refuses an undamaged input, or refuses too many inputs at its first
    /// checks. The message names the case and a file with the input.
    #[expect(clippy::print_stdout, reason = "the record of a long run; tests show it only with --nocapture")]
    pub fn play(
        self,
        mut valid: impl FnMut(&mut CaseRng) -> Vec<u8>,
        mut decode: impl FnMut(&[u8]) -> Reached,
    ) -> CampaignCounts {
        let mut counts = CampaignCounts::default();
        for (file, input) in self.corpus() {
            self.one(&format!("the corpus file {}", file.display()), &input, &mut decode, &mut counts);
            counts.corpus += 1;
        }
        let begun = Instant::now();
        let only = number(CASE);
        let seconds = number(SECONDS).map(Duration::from_secs);
        let first = number(SKIP).unwrap_or(0);
        for case in only.unwrap_or(first).. {
            let done = match (only, seconds) {
                (Some(only), _) => case > only,
                (None, Some(seconds)) => begun.elapsed() >= seconds,
                (None, None) => case - first >= self.cases,
            };
            if done {
                break;
            }
            let mut rng = self.rng(case);
            let (bytes, other) = (valid(&mut rng), valid(&mut rng));
            if case.is_multiple_of(UNDAMAGED) {
                let reached =
                    self.one(&format!("the undamaged case {case}"), &bytes, &mut decode, &mut counts);
                assert!(reached == Reached::Accepted, "{}: the undamaged case {case} is refused", self.name);
            }
            let input = damage(&mut rng, &bytes, &other);
            counts.cases += 1;
            match self.one(&format!("case {case}"), &input, &mut decode, &mut counts) {
                Reached::Outside => counts.outside += 1,
                Reached::Inside => counts.inside += 1,
                Reached::Accepted => counts.accepted += 1,
            }
        }
        println!("{}: {counts:?} in {:.0} s", self.name, begun.elapsed().as_secs_f64());
        let past = (counts.inside + counts.accepted) as f64 / counts.cases.max(1) as f64;
        let (name, least) = (self.name, self.past);
        assert!(only.is_some() || past >= least, "{name}: {past:.2} < {least} get past the first checks");
        counts
    }

    /// Gives one input to the decoder.
    fn one(
        &self,
        what: &str,
        input: &[u8],
        decode: &mut impl FnMut(&[u8]) -> Reached,
        counts: &mut CampaignCounts,
    ) -> Reached {
        let begun = Instant::now();
        let mut played = None;
        let memory = allocation_counter::measure(|| {
            played = Some(catch_unwind(AssertUnwindSafe(|| decode(input))));
        });
        counts.longest = counts.longest.max(begun.elapsed());
        counts.memory = counts.memory.max(memory.bytes_max);
        match played {
            Some(Ok(reached)) if memory.bytes_max <= self.memory => reached,
            Some(Err(panic)) => {
                self.keep(what, input);
                resume_unwind(panic)
            }
            _ => {
                let file = self.keep(what, input);
                let (name, found, most) = (self.name, memory.bytes_max, self.memory);
                panic!("{name}: {what} takes {found} bytes of memory, more than {most}: {}", file.display());
            }
        }
    }

    /// Keeps an input that did harm, and names it.
    #[expect(clippy::print_stderr, reason = "the way to repeat the failure of a test")]
    fn keep(&self, what: &str, input: &[u8]) -> PathBuf {
        let hash = blake3::hash(input).to_hex();
        let file = std::env::temp_dir().join(format!("{}-{}.bin", self.name, &hash[..12]));
        let kept = fs::write(&file, input);
        eprintln!("{}: {what} did harm; its input is in {} ({kept:?})", self.name, file.display());
        file
    }

    /// The random numbers of a case.
    fn rng(&self, case: u64) -> CaseRng {
        let mut rng = CaseRng::from_seed(*blake3::hash(self.name.as_bytes()).as_bytes());
        rng.set_stream(case);
        rng
    }

    /// The files of the corpus, by name.
    fn corpus(&self) -> Vec<(PathBuf, Vec<u8>)> {
        let folder =
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/fuzz").join(self.name);
        let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
        let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        files.sort();
        let read = |file: PathBuf| {
            let content = fs::read(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            (file, content)
        };
        files.into_iter().map(read).collect()
    }
}

/// The number in a variable of the environment.
fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is {text:?}, not a number")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A format with a magic and a length.
    fn decode(bytes: &[u8]) -> Reached {
        let Some(rest) = bytes.strip_prefix(b"magic") else { return Reached::Outside };
        match rest.split_first() {
            Some((&length, rest)) if rest.len() == usize::from(length) => Reached::Accepted,
            _ => Reached::Inside,
        }
    }

    fn valid(_: &mut CaseRng) -> Vec<u8> {
        b"magic\x03abc".to_vec()
    }

    #[test]
    fn a_campaign_counts_how_far_inputs_get() {
        let counts = Campaign::new("none").cases(500).play(valid, decode);
        if counts.cases == 500 {
            assert!(counts.outside > 50 && counts.inside > 50 && counts.accepted > 50, "{counts:?}");
        }
    }

    #[test]
    #[should_panic(expected = "get past the first checks")]
    fn inputs_that_stay_outside_are_an_error() {
        Campaign::new("none")
            .cases(100)
            .play(valid, |bytes| if bytes == b"magic\x03abc" { Reached::Accepted } else { Reached::Outside });
    }

    #[test]
    #[should_panic(expected = "is refused")]
    fn a_refused_valid_input_is_an_error() {
        Campaign::new("none").cases(1).play(|_| b"other".to_vec(), decode);
    }

    #[test]
    #[should_panic(expected = "more than 16777216")]
    fn too_much_memory_is_an_error() {
        Campaign::new("none").cases(100).play(valid, |bytes| {
            let memory = vec![1u8; if bytes == b"magic\x03abc" { 1 } else { 17 << 20 }];
            if memory.len() > 1 { Reached::Inside } else { Reached::Accepted }
        });
    }

    #[test]
    #[should_panic(expected = "the bug")]
    fn a_panic_is_an_error() {
        Campaign::new("none").cases(500).play(valid, |bytes| {
            assert!(bytes.len() >= 8, "the bug");
            decode(bytes)
        });
    }
}
