//! Matrices as they lie in memory.

/// How a matrix of `depth` × `lanes` elements lies in memory. The depth k is summed over; a lane is a column of a right
/// operand (k × n) or a row of a left operand (m × k).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Element (k, lane) at `k * stride + lane`.
    Rows,
    /// Element (k, lane) at `lane * stride + k`.
    Columns,
}

/// A matrix of `depth` × `lanes` elements that is to be packed or read as an operand.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a, E> {
    pub(crate) data: &'a [E],
    pub(crate) order: Order,
    /// Elements from the start of one row ([`Order::Rows`]) or column ([`Order::Columns`]) to the next.
    pub(crate) stride: usize,
    pub(crate) depth: usize,
    pub(crate) lanes: usize,
}

impl<'a, E> Matrix<'a, E> {
    /// A matrix (depth, lanes), row-major without gaps.
    pub(crate) fn rows(data: &'a [E], depth: usize, lanes: usize) -> Self {
        Self { data, order: Order::Rows, stride: lanes, depth, lanes }
    }

    /// The transpose of a matrix (lanes, depth), row-major without gaps.
    pub(crate) fn columns(data: &'a [E], depth: usize, lanes: usize) -> Self {
        Self { data, order: Order::Columns, stride: depth, depth, lanes }
    }
}

/// Rows of a left operand A (count × depth), each without gaps.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LeftRows<'a, E> {
    pub(crate) data: &'a [E],
    pub(crate) count: usize,
    pub(crate) depth: usize,
    /// Elements from the start of one row to the next.
    pub(crate) stride: usize,
}

impl<'a, E> LeftRows<'a, E> {
    /// All rows of a matrix (rows, depth) without gaps.
    pub(crate) fn contiguous(data: &'a [E], depth: usize) -> Self {
        Self { data, count: data.len() / depth, depth, stride: depth }
    }
}
