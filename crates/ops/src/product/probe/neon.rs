//! The kernels of NEON on a tile: how fast the bf16 kernel is depends on its shuffles too.

use crate::product::Tile;
use crate::product::kernel::Kernel;
use crate::product::neon::{neon, neon_bf16};
use crate::product::{MR, NR};

/// Groups of the tile. Its operands take 22 KiB, so they stay in the first-level cache, and a sample takes some microseconds.
const GROUPS: usize = 128;
/// One group: as an f32 0.50, as bf16 twice 0.5.
const HALF: u32 = 0x3f00_3f00;

/// The time of a tile of bf16 pairs over that of a tile of as many f32; `None` if the processor lacks the bf16 products.
pub(in crate::product) fn pair_cost() -> Option<f64> {
    if !std::arch::is_aarch64_feature_detected!("bf16") {
        return None;
    }
    let (a, b, mut c) = (vec![HALF; MR * GROUPS], vec![HALF; GROUPS * NR], vec![0f32; MR * NR]);
    let tile = Tile {
        groups: GROUPS,
        rows: MR,
        columns: NR,
        a: a.as_ptr(),
        a_row: GROUPS,
        a_step: 1,
        b: b.as_ptr(),
        b_step: NR,
        c: c.as_mut_ptr(),
        c_row: NR,
        accumulate: false,
    };
    // SAFETY: the operands have all groups of the tile, and the processor has both kernels.
    let run = |kernel: Kernel| unsafe { kernel(&tile) };
    Some(super::ratio(|| run(neon), || run(neon_bf16)))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_probe_gives_a_ratio_of_two_times() {
        let cost = super::pair_cost();
        // An emulator takes longer than any processor for bf16, so the bounds are wide.
        assert!(cost.is_none_or(|cost| (0.1..1000.0).contains(&cost)), "{cost:?}");
    }
}
