//! What a step needs of the machine that runs it: an NVIDIA GPU, or in the tests the host, which runs the same kernels.

use crate::CudaError;

/// A place in the device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Address(pub(crate) u64);

impl Address {
    /// The address for an argument that is left out.
    pub(crate) const NULL: Self = Self(0);

    /// The place `bytes` further.
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

/// A kernel's run over a grid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Launch {
    pub(crate) kernel: &'static str,
    /// Blocks, in two dimensions.
    pub(crate) grid: (usize, usize),
    /// Threads of a block.
    pub(crate) threads: usize,
}

/// The type of a product's result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Number {
    F32,
    Bf16,
}

impl Number {
    pub(crate) fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

/// `result = left · right (+ added)`, all row-major: left (rows, inner), right (inner, columns).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Product {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    pub(crate) inner: usize,
    /// The factors, of this type.
    pub(crate) factors: Number,
    pub(crate) left: Address,
    pub(crate) right: Address,
    /// Whether `left` is stored as (inner, rows).
    pub(crate) left_transposed: bool,
    /// Whether `right` is stored as (columns, inner).
    pub(crate) right_transposed: bool,
    pub(crate) result: Address,
    pub(crate) result_type: Number,
    /// A matrix like the result, or the result itself.
    pub(crate) added: Option<Address>,
}

/// The machine that runs a step. Everything happens in the order of the calls.
pub(crate) trait Device {
    /// The first byte of the arena, aligned to 256 bytes.
    fn arena(&self) -> Address;

    /// Copies to the device.
    fn upload(&mut self, to: Address, bytes: &[u8]) -> Result<(), CudaError>;

    /// Copies from the device, after all that was asked for before.
    fn download(&mut self, from: Address, bytes: &mut [u8]) -> Result<(), CudaError>;

    /// Fills with zeros.
    fn zero(&mut self, at: Address, bytes: usize) -> Result<(), CudaError>;

    /// Runs a kernel.
    fn launch(&mut self, launch: Launch, arguments: &[Argument]) -> Result<(), CudaError>;

    /// Multiplies two matrices.
    fn multiply(&mut self, product: &Product) -> Result<(), CudaError>;
}
