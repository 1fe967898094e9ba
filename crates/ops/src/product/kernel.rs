//! The kernels of each set, and the sizes that suit them.

use std::sync::OnceLock;

use super::portable::{halves_portable, pairs_portable, portable, transpose_portable};
use super::tile::{BLOCK, Tile};
use super::{Group, amx};
use crate::KernelSet;
use crate::element::Element;

/// Computes a tile.
///
/// # Safety
/// The tile's groups of A and B must be readable and its part of C must be writable by this thread alone: `rows` rows of
/// [`super::NR`] columns. The processor must have the kernel's instructions. A kernel with a [`Session`] runs in one.
pub(super) type Kernel = unsafe fn(&Tile);

/// Transposes a block in place.
///
/// # Safety
/// The processor must have its instructions.
type Transpose = unsafe fn(&mut [[u32; BLOCK]; BLOCK]);

/// The sizes of the products of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tiling {
    /// Rows of a tile.
    pub(crate) rows: usize,
    /// Rows of a task: whole tiles, and few enough that tasks spread evenly over threads. At most [`MOST_PANEL`].
    pub(crate) panel: usize,
    /// Most rows of a task that goes through several products. They stay in the second-level cache.
    pub(crate) tall: usize,
    /// Groups that are summed before the next column of tiles: a panel of B of this depth stays in the first-level cache.
    pub(crate) depth: usize,
}

/// Most rows of a tile of any kernel.
pub(super) const MOST_ROWS: usize = amx::BLOCK;
/// Most rows of a task of any kernel.
pub(crate) const MOST_PANEL: usize = 64;

/// Most elements of a sum that any set computes in one pass, except for the sets that compute every sum in one. Two sets that
/// differ in the depth of a pass only give a longer sum other bits.
pub const LONGEST_PASS: usize = 1024;

impl Tiling {
    /// Of the kernels that keep 12 × 32 sums in vector registers.
    const VECTOR: Self = Self { rows: 12, panel: 48, tall: 192, depth: 256 };
    /// The same where sums that leave the registers cost more than columns of B that leave the first-level cache.
    const WHOLE_DEPTH: Self = Self { tall: 48, depth: usize::MAX, ..Self::VECTOR };
    /// Of the kernels that compute a tile in quarters, and so read a panel of B four times: it stays in the second-level cache,
    /// with as many rows of A as have room beside it.
    const QUARTERS: Self = Self { tall: 96, depth: 512, ..Self::VECTOR };
    /// Of the kernels that keep 32 × 32 sums in tiles.
    const TILES: Self = Self { rows: amx::BLOCK, panel: 64, tall: 256, depth: usize::MAX };

    /// Of products on E.
    pub(crate) fn of<E: Element>() -> Self {
        Self::of_group(Group::of::<E>())
    }

    pub(super) fn of_group(group: Group) -> Self {
        group_kernel(group).tiling
    }
}

/// The instructions before the first and after the last tile of a product.
#[derive(Clone, Copy, Debug)]
pub(super) struct Session {
    pub(super) begin: unsafe fn(),
    pub(super) end: unsafe fn(),
}

/// A session that ends when it is dropped.
pub(super) struct RunningSession(Session);

impl Drop for RunningSession {
    fn drop(&mut self) {
        // SAFETY: the session began, so the processor has its instructions.
        unsafe { (self.0.end)() }
    }
}

/// How a packed left operand lies in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeftOrder {
    /// Group (i, g) beside group (i + 1, g): a kernel reads a group of all rows at once.
    Lanes,
    /// Group (i, g) beside group (i, g + 1): a kernel reads several groups of a row at once.
    Rows,
}

/// The kernel for one kind of groups.
#[derive(Clone, Copy)]
struct GroupKernel {
    kernel: Kernel,
    tiling: Tiling,
    left: LeftOrder,
    /// Whether operands whose groups lie far apart are read in place. Such groups share a few sets of a cache, and do not stay
    /// there for a kernel that reads them again.
    apart: bool,
    session: Option<Session>,
}

impl GroupKernel {
    const fn vector(kernel: Kernel) -> Self {
        Self { kernel, tiling: Tiling::VECTOR, left: LeftOrder::Lanes, apart: true, session: None }
    }

    const fn tiles(kernel: Kernel, session: Option<Session>) -> Self {
        Self { kernel, tiling: Tiling::TILES, left: LeftOrder::Rows, apart: true, session }
    }
}

/// The kernels of a set.
struct Kernels {
    single: GroupKernel,
    /// A is f32 and B is bf16. An element has the bits that [`Self::single`] gives for the widened B.
    halves: Kernel,
    /// Absent where bf16 is widened to f32.
    pair: Option<GroupKernel>,
    transpose: Transpose,
}

const PORTABLE: Kernels = Kernels {
    single: GroupKernel::vector(portable),
    halves: halves_portable,
    pair: None,
    transpose: transpose_portable,
};

/// Pairs in plain Rust, for tests of vector kernels.
const PAIRS: GroupKernel = GroupKernel::vector(pairs_portable);

impl Kernels {
    /// The kernels of a set. Only those that the processor has may run.
    #[cfg(target_arch = "x86_64")]
    fn of(set: KernelSet) -> Self {
        use super::x86;
        let wide = Self {
            single: GroupKernel::vector(x86::avx512),
            halves: x86::avx512_halves,
            pair: None,
            transpose: x86::transpose_512,
        };
        match set {
            // These processors have slow vector products of pairs, and sums that go to the last-level cache cost them most.
            KernelSet::Amx => Self {
                single: GroupKernel { tiling: Tiling::WHOLE_DEPTH, ..wide.single },
                pair: Some(GroupKernel::tiles(amx::kernel::<amx::Instructions>, Some(amx::SESSION))),
                ..wide
            },
            KernelSet::Avx512Bf16 => Self { pair: Some(GroupKernel::vector(x86::avx512_bf16)), ..wide },
            KernelSet::Avx512 => wide,
            KernelSet::Avx2 => Self {
                single: GroupKernel {
                    tiling: Tiling::QUARTERS,
                    apart: false,
                    ..GroupKernel::vector(x86::avx2)
                },
                halves: x86::avx2_halves,
                pair: None,
                transpose: x86::transpose_256,
            },
            KernelSet::NeonBf16 | KernelSet::Neon | KernelSet::Portable => PORTABLE,
            KernelSet::AmxModel => Self::AMX_MODEL,
        }
    }

    /// The kernels of a set. Only those that the processor has may run.
    #[cfg(target_arch = "aarch64")]
    fn of(set: KernelSet) -> Self {
        use super::neon;
        let widening =
            Self { single: GroupKernel::vector(neon::neon), halves: neon::neon_halves, ..PORTABLE };
        match set {
            KernelSet::NeonBf16 => Self { pair: Some(GroupKernel::vector(neon::neon_bf16)), ..widening },
            KernelSet::Neon => widening,
            KernelSet::AmxModel => Self::AMX_MODEL,
            _ => PORTABLE,
        }
    }

    /// The kernels of a set. Only those that the processor has may run.
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    fn of(set: KernelSet) -> Self {
        if set == KernelSet::AmxModel { Self::AMX_MODEL } else { PORTABLE }
    }

    const AMX_MODEL: Self = Self {
        single: GroupKernel { tiling: Tiling::WHOLE_DEPTH, ..PORTABLE.single },
        pair: Some(GroupKernel::tiles(amx::kernel::<amx::Model>, None)),
        ..PORTABLE
    };
}

/// The kernels of the chosen set.
fn kernels() -> &'static Kernels {
    static ALL: OnceLock<[Kernels; KernelSet::ALL.len()]> = OnceLock::new();
    &ALL.get_or_init(|| KernelSet::ALL.map(Kernels::of))[crate::kernel_set::chosen().place()]
}

/// True if products on bf16 sum over pairs.
pub(super) fn has_pairs() -> bool {
    kernels().pair.is_some()
}

fn group_kernel(group: Group) -> &'static GroupKernel {
    match group {
        Group::Single => &kernels().single,
        Group::Pair => kernels().pair.as_ref().unwrap_or(&PAIRS),
    }
}

/// The kernel for these groups, and for a right operand of f32 or of bf16 that the kernel widens.
pub(super) fn kernel(group: Group, halves: bool) -> Kernel {
    if halves && group == Group::Single { kernels().halves } else { group_kernel(group).kernel }
}

/// How a packed left operand of these groups lies in memory.
pub(super) fn left_order(group: Group) -> LeftOrder {
    group_kernel(group).left
}

/// Whether operands whose groups lie far apart are read in place.
pub(super) fn reads_apart(group: Group) -> bool {
    group_kernel(group).apart
}

/// Begins the session of the kernel for these groups, if it has one.
pub(super) fn session(group: Group) -> Option<RunningSession> {
    let session = group_kernel(group).session?;
    // SAFETY: the kernel was chosen for this processor, and its session needs the same instructions.
    unsafe { (session.begin)() };
    Some(RunningSession(session))
}

/// Transposes a block in place.
pub(super) fn transpose(block: &mut [[u32; BLOCK]; BLOCK]) {
    // SAFETY: the function was chosen for this processor.
    unsafe { (kernels().transpose)(block) }
}
