//! The parts of a product that one call of a kernel computes.

/// One tile of a product.
pub(crate) struct Tile {
    /// Groups to sum.
    pub(crate) groups: usize,
    /// Rows of the tile, 1 to [`Tiling::rows`](super::Tiling::rows).
    pub(crate) rows: usize,
    /// Columns of the tile, 1 to [`super::NR`]. With at most 16, a kernel may leave the rest of each row of C as it is;
    /// otherwise it writes [`super::NR`] columns.
    pub(crate) columns: usize,
    /// Group (i, g) of A at `i * a_row + g * a_step`.
    pub(crate) a: *const u32,
    pub(crate) a_row: usize,
    pub(crate) a_step: usize,
    /// Group (g, j) of B at `g * b_step + j`. For a kernel of halves, group g is [`super::NR`] bf16 from `g * b_step` on.
    pub(crate) b: *const u32,
    pub(crate) b_step: usize,
    /// Element (i, j) of C at `i * c_row + j`.
    pub(crate) c: *mut f32,
    pub(crate) c_row: usize,
    /// True if the tile is added to C, false if it replaces C.
    pub(crate) accumulate: bool,
}

/// Lanes and groups that are transposed together: as many as fit a cache line.
pub(super) const BLOCK: usize = 16;
