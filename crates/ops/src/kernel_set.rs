//! Sets of kernels, and the choice of one for the processor.

mod int8;
#[cfg(test)]
mod tests;

use std::sync::OnceLock;

use thiserror::Error;

pub use int8::Int8Kernels;

use crate::product::Processor;

/// The environment variable that forces a set.
const VARIABLE: &str = "DIPACO_SIMD";

/// Most products of f32 that may take as long as one of bf16 pairs for pairs to be the faster way. Where it takes two, both ways
/// compute equally much and pairs read half the bytes. Where it took four, widening was 1.5 times as fast.
const MOST_PAIR_COST: f64 = 2.5;

/// Distance of a training step's results and gradients in f32 between two sets, over their Euclidean norm: less than this.
#[cfg(test)]
const F32_TOLERANCE: f64 = 1e-6;
/// The same in bf16. Sets of pairs and tiles round the weights to bf16, sets that widen bf16 take them as they are.
#[cfg(test)]
const BF16_TOLERANCE: f64 = 1e-2;

/// Kernels for the products of one kind of processor. Results of two sets differ: in f32 by less than 1e-6 of their
/// Euclidean norm, in bf16 by less than 1e-2, because pairs and tiles take weights that are rounded to bf16 (a block, a head
/// and their gradients).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KernelSet {
    /// bf16 in tiles (AMX), f32 with AVX-512.
    Amx,
    /// AVX-512, bf16 in pairs.
    Avx512Bf16,
    /// AVX-512, bf16 widened to f32.
    Avx512,
    /// AVX2 and FMA, bf16 widened to f32.
    Avx2,
    /// NEON, bf16 with the matrix instruction of FEAT_BF16.
    NeonBf16,
    /// NEON, bf16 widened to f32.
    Neon,
    /// Plain Rust, compiled for the least processor of the target.
    Portable,
    /// The tiles of [`Self::Amx`] as plain Rust computes them: slow, for tests on any processor.
    AmxModel,
}

impl KernelSet {
    /// All sets, the fastest first.
    pub const ALL: [Self; 8] = [
        Self::Amx,
        Self::Avx512Bf16,
        Self::Avx512,
        Self::Avx2,
        Self::NeonBf16,
        Self::Neon,
        Self::Portable,
        Self::AmxModel,
    ];

    /// The set that widens bf16 and is the better one where pairs are slow; `None` if they are slow nowhere.
    fn widening(self) -> Option<Self> {
        match self {
            Self::Avx512Bf16 => Some(Self::Avx512),
            Self::NeonBf16 => Some(Self::Neon),
            _ => None,
        }
    }

    /// The set's place in [`Self::ALL`].
    pub(crate) const fn place(self) -> usize {
        self as usize
    }

    /// The name that `DIPACO_SIMD` takes.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Amx => "amx",
            Self::Avx512Bf16 => "avx512-bf16",
            Self::Avx512 => "avx512",
            Self::Avx2 => "avx2",
            Self::NeonBf16 => "neon-bf16",
            Self::Neon => "neon",
            Self::Portable => "portable",
            Self::AmxModel => "amx-model",
        }
    }

    /// What computes the products.
    #[must_use]
    pub fn description(self) -> &'static str {
        match self {
            Self::Amx => "f32 with AVX-512, bf16 in AMX tiles",
            Self::Avx512Bf16 => "AVX-512, bf16 in pairs",
            Self::Avx512 => "AVX-512, bf16 widened to f32",
            Self::Avx2 => "AVX2, bf16 widened to f32",
            Self::NeonBf16 => "NEON, bf16 in matrices of 2 × 4",
            Self::Neon => "NEON, bf16 widened to f32",
            Self::Portable => "plain Rust, bf16 widened to f32",
            Self::AmxModel => "plain Rust, bf16 in a model of AMX tiles",
        }
    }
}

// [`KernelSet::place`] relies on it.
const _: () = {
    let mut place = 0;
    while place < KernelSet::ALL.len() {
        assert!(KernelSet::ALL[place].place() == place);
        place += 1;
    }
};

impl std::fmt::Display for KernelSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// The set of kernels of this process, and the reason for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelChoice {
    /// The set.
    pub set: KernelSet,
    /// The set's kernels for weights in blocks of int8, which serving uses.
    pub int8: Int8Kernels,
    /// Why this set.
    pub reason: String,
    /// True if the processor has a faster set, which the system keeps it from running. The reason says why.
    pub has_problem: bool,
}

/// `DIPACO_SIMD` names no set that this processor can run.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum KernelSetError {
    /// There is no set of this name.
    #[error(
        "{VARIABLE} is {value:?}, which names no kernels: give {available}, or leave it out for the fastest"
    )]
    Unknown {
        /// The variable's value.
        value: String,
        /// The names that this processor has.
        available: String,
    },
    /// The processor or the system lacks something.
    #[error("{VARIABLE} is \"{set}\", but {lacks}: give {available}, or leave it out for the fastest")]
    Missing {
        /// The set that the variable names.
        set: KernelSet,
        /// What is missing.
        lacks: String,
        /// The names that this processor has.
        available: String,
    },
}

/// The set of kernels that this process computes products with. The first call chooses it: `DIPACO_SIMD` forces one,
/// otherwise it is the fastest. The choice between pairs and widened bf16 is measured, in less than a millisecond.
///
/// # Errors
/// `DIPACO_SIMD` names no set, or one that this processor can't run. Functions without an error of their own then compute
/// with the fastest set, so a program calls this function when it starts.
pub fn kernel_choice() -> Result<&'static KernelChoice, KernelSetError> {
    static CHOICE: OnceLock<Result<KernelChoice, KernelSetError>> = OnceLock::new();
    let choice = CHOICE.get_or_init(|| {
        let forced = std::env::var_os(VARIABLE).map(|value| value.to_string_lossy().into_owned());
        choose(forced.as_deref().unwrap_or_default(), Processor::of_machine())
    });
    choice.as_ref().map_err(Clone::clone)
}

/// The set that products use.
#[cfg(not(test))]
pub(crate) fn chosen() -> KernelSet {
    of_process()
}

/// The set that products use: the one that [`with_set`] gave this thread, or the process's.
#[cfg(test)]
pub(crate) fn chosen() -> KernelSet {
    FORCED.get().unwrap_or_else(of_process)
}

/// The set that the process uses.
fn of_process() -> KernelSet {
    static SET: OnceLock<KernelSet> = OnceLock::new();
    *SET.get_or_init(|| {
        kernel_choice().map_or_else(|_| fastest(Processor::of_machine()).set, |choice| choice.set)
    })
}

#[cfg(test)]
thread_local! {
    static FORCED: std::cell::Cell<Option<KernelSet>> = const { std::cell::Cell::new(None) };
}

/// Runs `f` with a set that the processor has in place of the chosen one, in this thread only. `None` is the chosen one.
#[cfg(test)]
pub(crate) fn with_set<R>(set: Option<KernelSet>, f: impl FnOnce() -> R) -> R {
    let before = FORCED.replace(set);
    let result = f();
    FORCED.set(before);
    result
}

/// Gives this thread a set for good.
#[cfg(test)]
pub(crate) fn set_for_thread(set: Option<KernelSet>) {
    FORCED.set(set);
}

/// The set that this thread was given.
#[cfg(test)]
pub(crate) fn forced() -> Option<KernelSet> {
    FORCED.get()
}

/// The sets that this processor can run, the fastest first.
#[cfg(test)]
pub(crate) fn available() -> Vec<KernelSet> {
    KernelSet::ALL.into_iter().filter(|set| Processor::of_machine().lacks(*set).is_none()).collect()
}

/// The set that `forced` names, or the fastest if it is empty.
fn choose(forced: &str, processor: &Processor) -> Result<KernelChoice, KernelSetError> {
    if forced.is_empty() {
        return Ok(fastest(processor));
    }
    let available = || {
        let sets = KernelSet::ALL.into_iter().filter(|set| processor.lacks(*set).is_none());
        let names: Vec<&str> = sets.map(KernelSet::name).collect();
        match names.split_last() {
            Some((last, [])) => (*last).to_owned(),
            Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
            None => String::new(),
        }
    };
    let Some(set) = KernelSet::ALL.into_iter().find(|set| set.name() == forced) else {
        return Err(KernelSetError::Unknown { value: forced.to_owned(), available: available() });
    };
    match processor.lacks(set) {
        Some(lacks) => Err(KernelSetError::Missing { set, lacks: lacks.to_owned(), available: available() }),
        None => {
            let reason = format!("{VARIABLE} forces it");
            Ok(KernelChoice { set, int8: processor.int8(set), reason, has_problem: false })
        }
    }
}

/// The first set that the processor can run, or the one after it where pairs are slow.
fn fastest(processor: &Processor) -> KernelChoice {
    let has = |set: &KernelSet| processor.lacks(*set).is_none();
    let mut set = KernelSet::ALL.into_iter().find(has).unwrap_or(KernelSet::Portable);
    let mut reason = "the fastest set of this processor".to_owned();
    if let Some(widening) = set.widening() {
        let cost = processor.pair_cost();
        if cost > MOST_PAIR_COST {
            set = widening;
        }
        reason = format!(
            "measured: a product of bf16 pairs takes as long as {cost:.1} of f32, and pairs are faster up to {MOST_PAIR_COST}"
        );
    }
    // A machine with tiles that can't be used loses several times its speed: its user must see the reason.
    if let Some(problem) = processor.tile_problem() {
        reason = format!("{problem}; {reason}");
    }
    let has_problem = processor.tile_problem().is_some();
    KernelChoice { set, int8: processor.int8(set), reason, has_problem }
}
