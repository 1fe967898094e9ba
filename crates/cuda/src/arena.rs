//! Where everything is in the one allocation that a path has on the device.

use crate::device::Address;
use crate::kernels::SQUARES_CHUNK;
use crate::{CudaOptions, PathShape, Precision};

/// Parameters that one block of the AdamW kernel updates.
const SEGMENT: usize = 16_384;
/// Rows whose logits are in memory at the same time.
const HEAD_ROWS: usize = 2048;
/// Blocks of RMSNorm's backward kernel, each with a partial gradient of the weight.
pub(crate) const NORM_GROUPS: usize = 512;
/// Numbers of the report: the sum of losses, the squared gradient norm, the factor that clips.
pub(crate) const REPORT: usize = 3;

/// A run of parameters that are decayed alike; the kernel's `Segment`.
#[repr(C)]
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct Segment {
    pub(crate) first: u64,
    pub(crate) length: u32,
    pub(crate) decays: u32,
}

/// The segments of all parameters.
pub(crate) fn segments(shape: &PathShape) -> Vec<Segment> {
    let cut = |(first, length, decays): (usize, usize, bool)| {
        (0..length).step_by(SEGMENT).map(move |at| Segment {
            first: (first + at) as u64,
            length: SEGMENT.min(length - at) as u32,
            decays: u32::from(decays),
        })
    };
    shape.runs().into_iter().flat_map(cut).collect()
}

/// What a block's backward pass needs of its forward pass. `element` is f32 or bf16; N rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Saved {
    /// The residual stream between attention and feed-forward layer (N, D), f32.
    pub(crate) middle: Address,
    /// The input norm's output (N, D), element.
    pub(crate) input_normed: Address,
    /// Turned queries and keys, and values (N, 3 · H · Dh), element.
    pub(crate) qkv: Address,
    /// The attention's result (N, H · Dh), element.
    pub(crate) attended: Address,
    /// The logarithms of the attention's sums (B, H, T), f32.
    pub(crate) log_sums: Address,
    /// The second norm's output (N, D), element.
    pub(crate) post_normed: Address,
    /// Gate and up projections (N, 2F), element.
    pub(crate) gate_up: Address,
}

/// The addresses of all buffers. P numbers of parameters; N rows of a micro-batch.
#[derive(Clone, Debug)]
pub(crate) struct Arena {
    /// P each, f32.
    pub(crate) weights: Address,
    pub(crate) first: Address,
    pub(crate) second: Address,
    pub(crate) gradient: Address,
    /// The weights as products read them (P, element); the weights themselves in f32.
    pub(crate) copy: Address,
    /// (T, Dh / 2), f32.
    pub(crate) cosines: Address,
    pub(crate) sines: Address,
    /// [`Segment`]s.
    pub(crate) segments: Address,
    pub(crate) segment_count: usize,
    /// [`REPORT`] numbers, f64.
    pub(crate) report: Address,
    /// Partial sums of squares, f64.
    pub(crate) squares: Address,
    /// tokens, targets, order (N each), starts (N + 1), u32: uploaded together.
    pub(crate) batch: Address,
    /// -ln p of each target (N), f32.
    pub(crate) losses: Address,
    /// The residual stream at the input of each block and at the end (N, D), f32.
    pub(crate) streams: Vec<Address>,
    /// One per block, or the same for all with activation checkpointing.
    pub(crate) saved: Vec<Saved>,
    /// The final norm's output (N, D), element.
    pub(crate) normed: Address,
    /// SwiGLU's result and its gradient (N, F), element.
    pub(crate) activated: Address,
    /// The gradient of the residual stream (N, D), f32, and as products read it.
    pub(crate) slope: Address,
    pub(crate) slope_copy: Address,
    /// The gradient of a norm's output (N, D), element.
    pub(crate) normed_slope: Address,
    /// The gradient of the attention's result (N, H · Dh) and of qkv (N, 3 · H · Dh), element.
    pub(crate) attended_slope: Address,
    pub(crate) qkv_slope: Address,
    /// (B, H, T), f32.
    pub(crate) delta: Address,
    /// (NORM_GROUPS, D), f32.
    pub(crate) norm_partial: Address,
    /// Logits of a chunk of rows (head_rows, V), f32, and their gradient, element (the same place in f32).
    pub(crate) logits: Address,
    pub(crate) logits_slope: Address,
    pub(crate) head_rows: usize,
    /// Features (B, D), f32.
    pub(crate) features: Address,
    /// All bytes.
    pub(crate) bytes: usize,
}

impl Arena {
    /// Lays the buffers out from `base` on, for micro-batches of at most `options.micro_batch` sequences.
    pub(crate) fn new(shape: &PathShape, options: &CudaOptions, base: Address) -> Self {
        let mut bytes = 0;
        let mut take = |count: usize, size: usize| {
            let address = base.plus(bytes);
            bytes += (count * size).next_multiple_of(256);
            address
        };
        let element = options.precision.bytes();
        let bf16 = options.precision == Precision::Bf16;
        let parameters = shape.parameters();
        let rows = options.micro_batch * shape.context;
        let (d, a, f) = (shape.hidden_size, shape.attention(), shape.ffn_size);
        let head_rows = HEAD_ROWS.min(rows);
        let segment_count = segments(shape).len();
        let weights = take(parameters, 4);
        let slots = if options.checkpointing { 1 } else { shape.blocks };
        let first = take(parameters, 4);
        let second = take(parameters, 4);
        let gradient = take(parameters, 4);
        let copy = if bf16 { take(parameters, 2) } else { weights };
        let cosines = take(shape.context * shape.head_dim / 2, 4);
        let sines = take(shape.context * shape.head_dim / 2, 4);
        let segments = take(segment_count, size_of::<Segment>());
        let report = take(REPORT, 8);
        let squares = take(parameters.div_ceil(SQUARES_CHUNK), 8);
        let batch = take(4 * rows + 1, 4);
        let losses = take(rows, 4);
        let streams = (0..=shape.blocks).map(|_| take(rows * d, 4)).collect();
        let slots: Vec<Saved> = (0..slots)
            .map(|_| Saved {
                middle: take(rows * d, 4),
                input_normed: take(rows * d, element),
                qkv: take(rows * 3 * a, element),
                attended: take(rows * a, element),
                log_sums: take(rows * shape.heads, 4),
                post_normed: take(rows * d, element),
                gate_up: take(rows * 2 * f, element),
            })
            .collect();
        let slope = take(rows * d, 4);
        let logits = take(head_rows * shape.vocab_size, 4);
        Self {
            weights,
            first,
            second,
            gradient,
            copy,
            cosines,
            sines,
            segments,
            segment_count,
            report,
            squares,
            batch,
            losses,
            streams,
            saved: (0..shape.blocks).map(|i| slots[i.min(slots.len() - 1)]).collect(),
            normed: take(rows * d, element),
            activated: take(rows * f, element),
            slope,
            slope_copy: if bf16 { take(rows * d, 2) } else { slope },
            normed_slope: take(rows * d, element),
            attended_slope: take(rows * a, element),
            qkv_slope: take(rows * 3 * a, element),
            delta: take(rows * shape.heads, 4),
            norm_partial: take(NORM_GROUPS * d, 4),
            logits,
            logits_slope: if bf16 { take(head_rows * shape.vocab_size, 2) } else { logits },
            head_rows,
            features: take(options.micro_batch * d, 4),
            bytes,
        }
    }
}
