//! Compares the tile instructions of the processor with their model.

use super::{BLOCK, CHUNK, Instructions, Model, SESSION, STEP, TileUnit, kernel};
use crate::product::NR;
use crate::product::Tile;

/// Most groups of a case.
const GROUPS: usize = 2 * CHUNK;
/// From one row of C to the next: a neighbour's columns lie between.
const C_ROW: usize = BLOCK + 8;

/// The sizes of a case: rows, groups, and whether C is added to. Whole blocks, and edges of rows and groups.
const CASES: [(usize, usize, bool); 5] = [
    (BLOCK, GROUPS, false),
    (BLOCK, STEP, true),
    (BLOCK, STEP + 5, false),
    (7, CHUNK + 3, true),
    (1, 1, false),
];

/// Computes small products with the instructions and with the model. The operands have few bits, so that the sums are exact and
/// must be equal.
///
/// # Safety
/// The process must be allowed to use tiles.
pub(super) unsafe fn run() -> Result<(), String> {
    for (rows, groups, accumulate) in CASES {
        // SAFETY: by this function's contract.
        let found = unsafe {
            (SESSION.begin)();
            let found = product::<Instructions>(rows, groups, accumulate);
            (SESSION.end)();
            found
        };
        // SAFETY: the model needs no instructions.
        let expected = unsafe { product::<Model>(rows, groups, accumulate) };
        if let Some(at) = (0..found.len()).find(|&at| found[at].to_bits() != expected[at].to_bits()) {
            let (row, column) = (at / C_ROW, at % C_ROW);
            return Err(format!(
                "element ({row}, {column}) of {rows} rows and {groups} groups is {}, not {}",
                found[at], expected[at]
            ));
        }
    }
    Ok(())
}

/// C of a product of fixed operands.
///
/// # Safety
/// The unit's instructions must be there, within a session if they need one.
unsafe fn product<U: TileUnit>(rows: usize, groups: usize, accumulate: bool) -> Vec<f32> {
    let a: Vec<u32> = (0..BLOCK * GROUPS).map(|i| pair(i * 37)).collect();
    let b: Vec<u32> = (0..GROUPS * NR).map(|i| pair(i * 53 + 11)).collect();
    let mut c = vec![1.5f32; BLOCK * C_ROW];
    let tile = Tile {
        groups,
        rows,
        columns: NR,
        a: a.as_ptr(),
        a_row: GROUPS,
        a_step: 1,
        b: b.as_ptr(),
        b_step: NR,
        c: c.as_mut_ptr(),
        c_row: C_ROW,
        accumulate,
    };
    // SAFETY: the operands have all rows and groups of the largest case; the rest by this function's contract.
    unsafe { kernel::<U>(&tile) };
    c
}

/// Two bf16 of -1 to 1 in steps of 1/8.
fn pair(i: usize) -> u32 {
    let one = |i: usize| ((i % 17) as f32 - 8.0) / 8.0;
    one(i).to_bits() >> 16 | one(i / 3 + 1).to_bits() & 0xffff_0000
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The check's own cases: the model against sums in f64, so that a wrong model can't pass wrong instructions.
    #[test]
    fn the_model_computes_the_cases_of_the_check() {
        let value = |pair: u32, half: usize| {
            f64::from(f32::from_bits(if half == 0 { pair << 16 } else { pair & 0xffff_0000 }))
        };
        for (rows, groups, accumulate) in CASES {
            // SAFETY: the model needs no instructions.
            let found = unsafe { product::<Model>(rows, groups, accumulate) };
            for (i, row) in found.chunks_exact(C_ROW).enumerate() {
                for (j, found) in row.iter().enumerate() {
                    let before = if accumulate || i >= rows || j >= NR { 1.5 } else { 0.0 };
                    let sum: f64 = (0..if i < rows && j < NR { groups } else { 0 })
                        .flat_map(|g| [0, 1].map(|half| (g, half)))
                        .map(|(g, half)| {
                            value(pair((i * GROUPS + g) * 37), half)
                                * value(pair((g * NR + j) * 53 + 11), half)
                        })
                        .sum();
                    assert_eq!(f64::from(*found), before + sum, "({i}, {j}) of {rows} × {groups}");
                }
            }
        }
    }
}
