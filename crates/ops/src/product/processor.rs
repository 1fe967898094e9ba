//! What the processor and the system offer to products.

use std::sync::OnceLock;

use crate::KernelSet;
use crate::kernel_set::Int8Kernels;

/// The sets of kernels that a processor can run.
#[derive(Debug)]
pub(crate) struct Processor {
    /// What each set lacks, in the order of [`KernelSet::ALL`].
    lacks: [Option<String>; KernelSet::ALL.len()],
    /// Kernels for int8, the fastest first.
    int8: Vec<Int8Kernels>,
    /// Why tiles that the processor has can't be used.
    tile_problem: Option<String>,
    /// The time of a product of bf16 pairs over that of one of f32; not known for the processor that the program runs on.
    pair_cost: Option<f64>,
}

impl Processor {
    /// The processor that the program runs on.
    pub(crate) fn of_machine() -> &'static Self {
        static PROCESSOR: OnceLock<Processor> = OnceLock::new();
        PROCESSOR.get_or_init(Self::detect)
    }

    /// What keeps a set from running; `None` if nothing does.
    pub(crate) fn lacks(&self, set: KernelSet) -> Option<&str> {
        self.lacks[set.place()].as_deref()
    }

    /// The fastest kernels for int8 that belong to a set.
    pub(crate) fn int8(&self, set: KernelSet) -> Int8Kernels {
        self.int8.iter().copied().find(|int8| int8.belong_to(set)).unwrap_or(Int8Kernels::Portable)
    }

    /// Why tiles that the processor has can't be used.
    pub(crate) fn tile_problem(&self) -> Option<&str> {
        self.tile_problem.as_deref()
    }

    #[cfg(target_arch = "x86_64")]
    fn detect() -> Self {
        let unless = |there: bool, lacks: &str| (!there).then(|| lacks.to_owned());
        let wide = is_x86_feature_detected!("avx512f");
        let pairs = wide && is_x86_feature_detected!("avx512bf16");
        let tiles = super::amx::ready();
        let tile_problem = tiles.as_ref().err().filter(|problem| problem.is_fault()).map(ToString::to_string);
        let lacks = KernelSet::ALL.map(|set| match set {
            KernelSet::Amx => match tiles {
                Ok(()) => unless(wide, "this processor lacks AVX-512"),
                Err(problem) => Some(problem.to_string()),
            },
            KernelSet::Avx512Bf16 => unless(pairs, "this processor lacks the bf16 products of AVX-512"),
            KernelSet::Avx512 => unless(wide, "this processor lacks AVX-512"),
            KernelSet::Avx2 => unless(
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma"),
                "this processor lacks AVX2 or FMA",
            ),
            KernelSet::NeonBf16 | KernelSet::Neon => Some("this processor has no NEON".to_owned()),
            KernelSet::Portable | KernelSet::AmxModel => None,
        });
        Self { lacks, int8: int8(), tile_problem, pair_cost: None }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn detect() -> Self {
        let other = || format!("processors of the kind {} lack these instructions", std::env::consts::ARCH);
        let lacks = KernelSet::ALL.map(|set| match set {
            KernelSet::Portable | KernelSet::AmxModel => None,
            #[cfg(target_arch = "aarch64")]
            KernelSet::Neon => None,
            #[cfg(target_arch = "aarch64")]
            KernelSet::NeonBf16 => (!std::arch::is_aarch64_feature_detected!("bf16"))
                .then(|| "this processor lacks the bf16 products of NEON".to_owned()),
            _ => Some(other()),
        });
        Self { lacks, int8: int8(), tile_problem: None, pair_cost: None }
    }

    /// The time of a product of bf16 pairs over that of one of f32; infinite where the program's processor lacks pairs.
    pub(crate) fn pair_cost(&self) -> f64 {
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        let measured = super::probe::pair_cost;
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let measured = || None;
        self.pair_cost.or_else(measured).unwrap_or(f64::INFINITY)
    }

    /// A processor with these sets, and with all kernels for int8.
    #[cfg(test)]
    pub(crate) fn for_test(sets: &[KernelSet], pair_cost: f64, tile_problem: Option<&str>) -> Self {
        let lacks =
            KernelSet::ALL.map(|set| (!sets.contains(&set)).then(|| "a test leaves it out".to_owned()));
        let tile_problem = tile_problem.map(str::to_owned);
        Self { lacks, int8: Int8Kernels::ALL.to_vec(), tile_problem, pair_cost: Some(pair_cost) }
    }
}

/// The kernels for int8 that this processor has.
fn int8() -> Vec<Int8Kernels> {
    Int8Kernels::ALL.into_iter().filter(|int8| int8.are_there()).collect()
}
