//! The kernels of each kind of processor, and those in plain Rust.

use super::tile::{QuantizedTile, TileRows};
use super::{GROUP, GROUPS, Layout, scale};
use crate::kernel_set::{Int8Kernels, chosen};
use crate::product::{NR, Processor};

/// Computes a tile.
///
/// # Safety
/// The processor must have the kernel's instructions.
pub(super) type Kernel = unsafe fn(&QuantizedTile<'_>, &mut TileRows);

/// The kernels for one kind of instructions.
#[derive(Clone, Copy)]
pub(super) struct Kernels {
    pub(super) q8: Kernel,
    pub(super) q4: Kernel,
}

impl Kernels {
    const PORTABLE: Self = Self { q8: portable::<8>, q4: portable::<4> };

    pub(super) fn of(int8: Int8Kernels) -> Self {
        #[cfg(target_arch = "aarch64")]
        use super::neon;
        #[cfg(target_arch = "x86_64")]
        use super::x86;
        match int8 {
            #[cfg(target_arch = "x86_64")]
            Int8Kernels::Avx512Vnni => Self { q8: x86::q8_vnni, q4: x86::q4_vnni },
            #[cfg(target_arch = "x86_64")]
            Int8Kernels::AvxVnni => Self { q8: x86::avx_vnni::q8, q4: x86::avx_vnni::q4 },
            #[cfg(target_arch = "x86_64")]
            Int8Kernels::Avx2 => Self { q8: x86::q8_avx2, q4: x86::q4_avx2 },
            #[cfg(target_arch = "aarch64")]
            Int8Kernels::NeonDot => Self { q8: neon::q8, q4: neon::q4 },
            _ => Self::PORTABLE,
        }
    }

    pub(super) fn layout(self, layout: Layout) -> Kernel {
        match layout {
            Layout::Q8 => self.q8,
            Layout::Q4 => self.q4,
        }
    }
}

/// The kernel of the chosen set.
pub(super) fn kernel(layout: Layout) -> Kernel {
    Kernels::of(Processor::of_machine().int8(chosen())).layout(layout)
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
                    add(&mut dots, weights, x.quants[g + GROUPS / 2], |byte| i32::from(byte >> 4));
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
