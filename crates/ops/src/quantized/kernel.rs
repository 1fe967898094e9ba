//! The choice of a kernel for the processor, and the kernel in plain Rust.

use std::sync::OnceLock;

use super::tile::{QuantizedTile, TileRows};
use super::{BLOCK, GROUP, Layout, scale};
use crate::KernelSet;
use crate::product::NR;

/// Computes a tile.
///
/// # Safety
/// The processor must have the kernel's instructions.
pub(super) type Kernel = unsafe fn(&QuantizedTile<'_>, &mut TileRows);

/// The kernels of one set of instructions.
#[derive(Clone, Copy)]
pub(super) struct Kernels {
    pub(super) q8: Kernel,
    pub(super) q4: Kernel,
}

const PORTABLE: Kernels = Kernels { q8: portable::<8>, q4: portable::<4> };

/// The kernel of this processor.
pub(super) fn kernel(layout: Layout) -> Kernel {
    static KERNELS: OnceLock<Kernels> = OnceLock::new();
    let kernels = KERNELS.get_or_init(|| available(crate::kernel_set::chosen())[0]);
    match layout {
        Layout::Q8 => kernels.q8,
        Layout::Q4 => kernels.q4,
    }
}

/// The kernels that the processor has and that belong to a set or to a slower one, best first.
#[cfg(target_arch = "x86_64")]
pub(super) fn available(set: KernelSet) -> Vec<Kernels> {
    use super::x86;
    let mut all = Vec::new();
    if !matches!(set, KernelSet::Portable | KernelSet::AmxModel) {
        let vnni = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vnni");
        if set != KernelSet::Avx2 && vnni {
            all.push(Kernels { q8: x86::q8_vnni, q4: x86::q4_vnni });
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
            all.push(Kernels { q8: x86::q8_avx2, q4: x86::q4_avx2 });
        }
    }
    all.push(PORTABLE);
    all
}

#[cfg(not(target_arch = "x86_64"))]
pub(super) fn available(_set: KernelSet) -> Vec<Kernels> {
    vec![PORTABLE]
}

/// The reference, for weights of 8 or 4 bits.
fn portable<const BITS: usize>(tile: &QuantizedTile<'_>, rows: &mut TileRows) {
    for (i, sums) in rows.0[..tile.rows()].iter_mut().enumerate() {
        *sums = [0.0; NR];
        for b in 0..tile.blocks {
            let (x, (scales, vectors)) = (tile.x(i, b), tile.weights(b));
            // Four bits hold the weight plus 8.
            let mut dots = [if BITS == 4 { -8 * x.sum } else { 0 }; NR];
            for (g, weights) in vectors.chunks_exact(NR * GROUP).enumerate() {
                if BITS == 4 {
                    add(&mut dots, weights, x.quants[g], |byte| i32::from(byte & 15));
                    add(&mut dots, weights, x.quants[g + BLOCK / GROUP / 2], |byte| i32::from(byte >> 4));
                } else {
                    add(&mut dots, weights, x.quants[g], |byte| i32::from(byte as i8));
                }
            }
            for (column, (sum, dot)) in sums.iter_mut().zip(dots).enumerate() {
                *sum += dot as f32 * (scale(scales, column) * x.scale);
            }
        }
    }
}

/// Adds the products of a group of each column.
#[inline(always)]
fn add(dots: &mut [i32; NR], weights: &[u8], x: [i8; GROUP], of_byte: impl Fn(u8) -> i32) {
    for (dot, weights) in dots.iter_mut().zip(weights.as_chunks::<GROUP>().0) {
        *dot += weights.iter().zip(x).map(|(&byte, x)| of_byte(byte) * i32::from(x)).sum::<i32>();
    }
}
