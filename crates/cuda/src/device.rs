//! The device interface of a step: an NVIDIA GPU, or in the tests the host, which runs the same kernels.

use dipaco_model::Dtype;

use crate::CudaError;
use crate::pass::Pass;

/// An address in the memory of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Address(pub(crate) u64);

impl Address {
    /// The address of an omitted argument.
    pub(crate) const NULL: Self = Self(0);

    /// Returns the address `bytes` further.
    pub(crate) fn plus(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }
}

/// An argument of a kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Argument {
    /// A pointer.
    Address(Address),
    /// An `int`.
    I32(i32),
    /// An `unsigned long long`.
    U64(u64),
    /// A `float`.
    F32(f32),
    /// A `double`.
    F64(f64),
}

macro_rules! argument_from {
    ($($variant:ident $type:ty),*) => {
        $(impl From<$type> for Argument {
            fn from(value: $type) -> Self {
                Self::$variant(value)
            }
        })*
    };
}
argument_from!(Address Address, I32 i32, U64 u64, F32 f32, F64 f64);

/// Blocks of a launch, in two dimensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    pub(crate) x: usize,
    pub(crate) y: usize,
}

impl Grid {
    /// Returns a grid of `blocks` blocks in one dimension.
    pub(crate) fn line(blocks: usize) -> Self {
        Self { x: blocks, y: 1 }
    }
}

/// One run of a kernel over a grid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch {
    pub(crate) kernel: &'static str,
    pub(crate) grid: Grid,
    /// Threads per block.
    pub(crate) threads: usize,
}

/// A matrix product `result = left · right (+ added)` of row-major matrices: left (rows, inner), right (inner,
/// columns).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) inner: usize,
    /// Type of both factors.
    pub(crate) factors: Dtype,
    pub(crate) left: Address,
    pub(crate) right: Address,
    /// True if `left` is stored as (inner, rows).
    pub(crate) left_transposed: bool,
    /// True if `right` is stored as (columns, inner).
    pub(crate) right_transposed: bool,
    pub(crate) result: Address,
    pub(crate) result_type: Dtype,
    /// A matrix of the size and type of the result. It may be the result itself.
    pub(crate) added: Option<Address>,
}

/// The device that runs a step. It executes all calls in their order.
pub(crate) trait KernelDevice {
    /// Returns the first byte of the arena, aligned to 256 bytes.
    fn arena(&self) -> Address;

    /// Begins a pass. True if the device has run it from its record; otherwise the caller makes the calls of the pass, which
    /// the device may record instead of running them.
    fn begin_pass(&mut self, pass: Pass) -> Result<bool, CudaError>;

    /// Ends a pass after its calls, and runs it if they were recorded. `complete` is false if a call failed. False if the
    /// recording is spoilt, and nothing has run.
    fn end_pass(&mut self, pass: Pass, complete: bool) -> Result<bool, CudaError>;

    /// Drops the records of all passes, because their calls would be others now.
    fn forget_passes(&mut self);

    /// Copies bytes to the device.
    fn upload(&mut self, to: Address, bytes: &[u8]) -> Result<(), CudaError>;

    /// Copies bytes from the device after all earlier calls have finished.
    fn download(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), CudaError>;

    /// Fills memory with zeros.
    fn zero(&mut self, at: Address, bytes: usize) -> Result<(), CudaError>;

    /// Runs a kernel.
    fn launch(&mut self, launch: Launch, arguments: &[Argument]) -> Result<(), CudaError>;

    /// Multiplies two matrices.
    fn multiply(&mut self, product: &Product) -> Result<(), CudaError>;
}
