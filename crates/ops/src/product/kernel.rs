//! The choice of a kernel for the processor, and the kernel in plain Rust.

use std::sync::OnceLock;

use super::{Group, MR, NR};

/// One tile of a product.
pub(crate) struct Tile {
    /// Groups to sum.
    pub(crate) groups: usize,
    /// Rows of the tile, 1 to [`MR`].
    pub(crate) rows: usize,
    /// Columns of the tile, 1 to [`NR`]. With at most 16, a kernel may leave the rest of each row of C as it is; otherwise
    /// it writes [`NR`] columns.
    pub(crate) columns: usize,
    /// Group (i, g) of A at `i * a_row + g * a_step`.
    pub(crate) a: *const u32,
    pub(crate) a_row: usize,
    pub(crate) a_step: usize,
    /// Group (g, j) of B at `g * b_step + j`. For a kernel of halves, group g is [`NR`] bf16 from `g * b_step` on.
    pub(crate) b: *const u32,
    pub(crate) b_step: usize,
    /// Element (i, j) of C at `i * c_row + j`.
    pub(crate) c: *mut f32,
    pub(crate) c_row: usize,
    /// True if the tile is added to C, false if it replaces C.
    pub(crate) accumulate: bool,
}

/// Computes a tile.
///
/// # Safety
/// The tile's groups of A and B must be readable and its part of C must be writable by this thread alone: `rows` rows of
/// [`NR`] columns. The processor must have the kernel's instructions.
pub(super) type Kernel = unsafe fn(&Tile);

/// The kernels of this processor.
struct Kernels {
    single: Kernel,
    /// A is f32 and B is bf16. An element has the bits that [`Self::single`] gives for the widened B.
    halves: Kernel,
    pair: Option<Kernel>,
    transpose: Transpose,
    name: &'static str,
}

/// Transposes a block in place.
///
/// # Safety
/// The processor must have its instructions.
type Transpose = unsafe fn(&mut [[u32; BLOCK]; BLOCK]);

/// Lanes and groups that are transposed together: as many as fit a cache line.
pub(super) const BLOCK: usize = 16;

/// The environment variable that limits the instructions of products.
const LIMIT: &str = "DIPACO_SIMD";

const PORTABLE: Kernels = Kernels {
    single: portable,
    halves: halves_portable,
    pair: None,
    transpose: transpose_portable,
    name: "portable",
};

fn kernels() -> &'static Kernels {
    static KERNELS: OnceLock<Kernels> = OnceLock::new();
    KERNELS.get_or_init(|| detect(limit()))
}

/// The value of `DIPACO_SIMD`, empty if it is not set. See [`instructions`].
pub(crate) fn limit() -> &'static str {
    static VALUE: OnceLock<String> = OnceLock::new();
    VALUE.get_or_init(|| std::env::var(LIMIT).unwrap_or_default())
}

/// The best kernels that the processor has and the limit allows.
#[cfg(target_arch = "x86_64")]
fn detect(limit: &str) -> Kernels {
    use super::x86;
    if limit == "portable" {
        return PORTABLE;
    }
    if limit != "avx2" && is_x86_feature_detected!("avx512f") {
        let wide = Kernels {
            single: x86::avx512,
            halves: x86::avx512_halves,
            pair: None,
            transpose: x86::transpose,
            name: "AVX-512",
        };
        return if limit != "avx512" && is_x86_feature_detected!("avx512bf16") {
            Kernels { pair: Some(x86::avx512_bf16), name: "AVX-512 with BF16", ..wide }
        } else {
            wide
        };
    }
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
        return Kernels { single: x86::avx2, halves: x86::avx2_halves, name: "AVX2", ..PORTABLE };
    }
    PORTABLE
}

#[cfg(not(target_arch = "x86_64"))]
fn detect(_limit: &str) -> Kernels {
    PORTABLE
}

/// The instructions that products use on this processor: `"AVX-512 with BF16"`, `"AVX-512"`, `"AVX2"` or `"portable"`
/// (the target's baseline: SSE2, NEON). Products use the best that the processor has. The environment variable
/// `DIPACO_SIMD`, read once, limits them to `avx512` (no bf16 products), `avx2` or `portable`; other values change
/// nothing.
#[must_use]
pub fn instructions() -> &'static str {
    kernels().name
}

/// True if this processor multiplies pairs of bf16.
pub(super) fn has_pairs() -> bool {
    kernels().pair.is_some()
}

/// The kernel for these groups, and for a right operand of f32 or of bf16 that the kernel widens.
pub(super) fn kernel(group: Group, halves: bool) -> Kernel {
    match group {
        Group::Single if halves => kernels().halves,
        Group::Single => kernels().single,
        Group::Pair => kernels().pair.unwrap_or(pairs_portable),
    }
}

/// Transposes a block in place.
pub(super) fn transpose(block: &mut [[u32; BLOCK]; BLOCK]) {
    // SAFETY: the function was chosen for this processor.
    unsafe { (kernels().transpose)(block) }
}

/// [`transpose`] in plain Rust.
pub(super) fn transpose_portable(block: &mut [[u32; BLOCK]; BLOCK]) {
    for i in 1..BLOCK {
        let (above, row) = block.split_at_mut(i);
        for (j, above) in above.iter_mut().enumerate() {
            std::mem::swap(&mut row[0][j], &mut above[i]);
        }
    }
}

/// Columns that the portable kernels sum at a time: with [`ROWS`] rows of them, the sums fit the 16 or 32 vector
/// registers of any processor.
const COLUMNS: usize = 8;
/// Rows that the portable kernels sum at a time.
const ROWS: usize = 4;

/// f32 in plain Rust, which the compiler turns into vector code for the target's baseline (SSE2, NEON).
///
/// # Safety
/// See [`Kernel`].
pub(super) unsafe fn portable(tile: &Tile) {
    // SAFETY: passed on.
    unsafe { sum(tile, columns_of_groups, |sum, a, b| *sum += f32::from_bits(a) * f32::from_bits(b)) }
}

/// f32 and bf16 in plain Rust.
///
/// # Safety
/// See [`Kernel`].
pub(super) unsafe fn halves_portable(tile: &Tile) {
    let widened = |tile: &Tile, g: usize, j: usize| {
        // SAFETY: columns j to j + COLUMNS of group g of B are readable by the kernel's contract.
        let halves = unsafe { &*tile.b.add(g * tile.b_step).cast::<u16>().add(j).cast::<[u16; COLUMNS]>() };
        halves.map(|half| u32::from(half) << 16)
    };
    // SAFETY: passed on.
    unsafe { sum(tile, widened, |sum, a, b| *sum += f32::from_bits(a) * f32::from_bits(b)) }
}

/// bf16 pairs in plain Rust: the reference of the vector kernel.
///
/// # Safety
/// See [`Kernel`].
pub(super) unsafe fn pairs_portable(tile: &Tile) {
    let halves = |pair: u32| (f32::from_bits(pair << 16), f32::from_bits(pair & 0xffff_0000));
    // SAFETY: passed on.
    unsafe {
        sum(tile, columns_of_groups, |sum, a, b| {
            let ((a0, a1), (b0, b1)) = (halves(a), halves(b));
            *sum += a0 * b0;
            *sum += a1 * b1;
        });
    }
}

/// Groups (g, j) to (g, j + [`COLUMNS`]) of B.
#[inline(always)]
fn columns_of_groups(tile: &Tile, g: usize, j: usize) -> [u32; COLUMNS] {
    // SAFETY: columns j to j + COLUMNS of group g of B are readable by the kernel's contract.
    unsafe { *tile.b.add(g * tile.b_step + j).cast::<[u32; COLUMNS]>() }
}

/// Computes a tile; `load` reads [`COLUMNS`] columns of a group of B from a column on, and `add` adds the product of a group
/// of A and a group of B to a sum.
///
/// # Safety
/// See [`Kernel`].
#[inline(always)]
unsafe fn sum(
    tile: &Tile,
    load: impl Fn(&Tile, usize, usize) -> [u32; COLUMNS],
    add: impl Fn(&mut f32, u32, u32),
) {
    const { assert!(MR.is_multiple_of(ROWS) && NR.is_multiple_of(COLUMNS)) }
    for i in (0..tile.rows).step_by(ROWS) {
        let rows = ROWS.min(tile.rows - i);
        for j in (0..NR).step_by(COLUMNS) {
            let mut sums = [[0f32; COLUMNS]; ROWS];
            for g in 0..tile.groups {
                let b = load(tile, g, j);
                for (r, sums) in sums.iter_mut().enumerate() {
                    // Rows past the last repeat it, so that the loop has a fixed length and the sums stay in registers.
                    let row = i + r.min(rows - 1);
                    // SAFETY: group g of a row of A is readable by the kernel's contract.
                    let a = unsafe { *tile.a.add(row * tile.a_row + g * tile.a_step) };
                    for (sum, b) in sums.iter_mut().zip(b) {
                        add(sum, a, b);
                    }
                }
            }
            for (r, sums) in sums.iter().enumerate().take(rows) {
                // SAFETY: columns j to j + COLUMNS of row i + r of C are ours by the kernel's contract.
                let c =
                    unsafe { std::slice::from_raw_parts_mut(tile.c.add((i + r) * tile.c_row + j), COLUMNS) };
                for (c, sum) in c.iter_mut().zip(sums) {
                    *c = if tile.accumulate { *c + sum } else { *sum };
                }
            }
        }
    }
}
