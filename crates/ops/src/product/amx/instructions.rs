//! The tile instructions. The stable compiler has them in inline assembly only.

use std::arch::asm;

use super::{Block, STEP, TileUnit};
use crate::product::kernel::Session;

/// The processor's own tiles.
pub(in crate::product) struct Instructions;

/// Configures the tiles, and gives them back: tiles in use make a switch between threads slower.
pub(in crate::product) const SESSION: Session = Session { begin: configure, end: release };

/// The argument of `ldtilecfg`.
#[repr(C, align(64))]
struct TileConfig {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    /// Bytes of a row of each tile.
    row_bytes: [u16; 16],
    /// Rows of each tile.
    rows: [u8; 16],
}

/// Eight tiles of 16 rows of 64 bytes.
static CONFIG: TileConfig = TileConfig {
    palette: 1,
    start_row: 0,
    reserved: [0; 14],
    row_bytes: [64, 64, 64, 64, 64, 64, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
    rows: [16, 16, 16, 16, 16, 16, 16, 16, 0, 0, 0, 0, 0, 0, 0, 0],
};

/// # Safety
/// The process must have the permission to use tiles.
unsafe fn configure() {
    // SAFETY: the configuration is valid, and every tile is named as changed.
    unsafe {
        asm!(
            "ldtilecfg [{config}]",
            config = in(reg) &raw const CONFIG,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, preserves_flags, readonly),
        );
    }
}

/// # Safety
/// The processor must have tiles.
unsafe fn release() {
    // SAFETY: every tile is named as changed.
    unsafe {
        asm!(
            "tilerelease",
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack, preserves_flags, nomem),
        );
    }
}

impl TileUnit for Instructions {
    unsafe fn multiply(block: &Block) {
        let Block { steps, a, a_row, b, b_step, c, c_row, accumulate } = *block;
        let lower = size_of::<u32>() * 16;
        // SAFETY: the operands are there by the trait's contract; the tiles and registers that change are named.
        // The processor overlaps loads and products itself: their order here changes no time.
        unsafe {
            asm!(
                "test {accumulate:e}, {accumulate:e}",
                "jnz 3f",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "jmp 2f",
                "3:",
                "tileloadd tmm0, [{c} + {c_row}]",
                "tileloadd tmm1, [{c} + {c_row} + 64]",
                "tileloadd tmm2, [{c_lower} + {c_row}]",
                "tileloadd tmm3, [{c_lower} + {c_row} + 64]",
                "2:",
                "tileloadd tmm4, [{a} + {a_row}]",
                "tileloadd tmm6, [{b} + {b_row}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{b} + {b_row} + 64]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{a_lower} + {a_row}]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {a}, 64",
                "add {a_lower}, 64",
                "add {b}, {b_all}",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{c} + {c_row}], tmm0",
                "tilestored [{c} + {c_row} + 64], tmm1",
                "tilestored [{c_lower} + {c_row}], tmm2",
                "tilestored [{c_lower} + {c_row} + 64], tmm3",
                accumulate = in(reg) u32::from(accumulate),
                a = inout(reg) a => _,
                a_lower = inout(reg) a.wrapping_byte_add(lower * a_row) => _,
                a_row = in(reg) size_of::<u32>() * a_row,
                b = inout(reg) b => _,
                b_row = in(reg) size_of::<u32>() * b_step,
                b_all = in(reg) size_of::<u32>() * b_step * STEP,
                c = in(reg) c,
                c_lower = in(reg) c.wrapping_byte_add(lower * c_row),
                c_row = in(reg) size_of::<f32>() * c_row,
                steps = inout(reg) steps => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}
