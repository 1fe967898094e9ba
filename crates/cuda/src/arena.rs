//! Places of all buffers in the single allocation of a path on the device.

use dipaco_model::{Dtype, ModelConfig, parameters, path_specs};

use crate::device::Address;
use crate::kernels::SQUARES_CHUNK;
use crate::layout::{DecayRun, decay_runs};
use crate::step_numbers::StepNumbers;
use crate::trained::Trained;

/// Parameters that one block of the AdamW kernel updates.
const SEGMENT: usize = 16_384;
/// Rows whose logits are in memory at the same time.
const HEAD_ROWS: usize = 2048;
/// Blocks of RMSNorm's backward kernel, each with a partial gradient of the weight.
pub(crate) const NORM_GROUPS: usize = 512;
/// Numbers of the report: sum of the losses, squared gradient norm, factor that clips the gradient.
pub(crate) const REPORT: usize = 3;

/// Parameters that one block of the AdamW kernel updates; `Segment` of the kernel.
#[repr(C)]
#[derive(Clone, Copy, Debug, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct Segment {
    pub(crate) first: u64,
    pub(crate) length: u32,
    pub(crate) decays: u32,
}

/// Returns the segments of all parameters that train.
pub(crate) fn segments(config: &ModelConfig, trained: &Trained) -> Vec<Segment> {
    let cut = |DecayRun { first, length, decays }| {
        trained.within(first..first + length).flat_map(move |run| {
            let length = move |at| SEGMENT.min(run.end - at) as u32;
            let decays = u32::from(decays);
            run.step_by(SEGMENT).map(move |at| Segment { first: at as u64, length: length(at), decays })
        })
    };
    decay_runs(config).into_iter().flat_map(cut).collect()
}

/// Results of a block's forward pass that its backward pass reads. `element` is `model.dtype`; N rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Saved {
    /// Residual stream between the attention and the feed-forward layer (N, D), f32.
    pub(crate) middle: Address,
    /// Output of the input norm (N, D), element.
    pub(crate) input_normed: Address,
    /// Rotated queries and keys, and values (N, (H + 2 · Hkv) · Dh), element.
    pub(crate) qkv: Address,
    /// Result of the attention (N, H · Dh), element.
    pub(crate) attended: Address,
    /// Logarithms of the sums of the softmax (B, H, T), f32.
    pub(crate) log_sums: Address,
    /// Output of the second norm (N, D), element.
    pub(crate) post_normed: Address,
    /// Gate and up projections (N, 2F), element.
    pub(crate) gate_up: Address,
}

/// Addresses of all buffers. P numbers of parameters; N rows of a micro-batch. A reader has no bytes for what only steps use.
#[derive(Clone, Debug)]
pub(crate) struct Arena {
    /// Weights, both moments and the gradient: P numbers each, f32.
    pub(crate) weights: Address,
    pub(crate) first: Address,
    pub(crate) second: Address,
    pub(crate) gradient: Address,
    /// Weights as products read them (P, element). In f32 this is the address of the weights.
    pub(crate) copy: Address,
    /// Tables of the rotary embedding (T, Dh / 2), f32.
    pub(crate) cosines: Address,
    pub(crate) sines: Address,
    /// [`Segment`]s, with room for those of all parameters.
    pub(crate) segments: Address,
    /// [`REPORT`] numbers, f64.
    pub(crate) report: Address,
    /// [`StepNumbers`].
    pub(crate) numbers: Address,
    /// Partial sums of squares, f64.
    pub(crate) squares: Address,
    /// Tokens, targets, order (N each) and starts (N + 1), u32, uploaded together; see [`crate::batch::BatchOffsets`].
    pub(crate) batch: Address,
    /// `-ln p` of each target (N), f32.
    pub(crate) losses: Address,
    /// Residual stream at the input of each block and after the last block (N, D), f32. A reader has one address for all.
    pub(crate) streams: Vec<Address>,
    /// One per block. With activation checkpointing, and in a reader, all blocks have the same addresses.
    pub(crate) saved: Vec<Saved>,
    /// Output of the final norm (N, D), element.
    pub(crate) normed: Address,
    /// Result of SwiGLU and its gradient (N, F), element.
    pub(crate) activated: Address,
    /// Gradient of the residual stream (N, D): in f32, and as products read it.
    pub(crate) slope: Address,
    pub(crate) slope_copy: Address,
    /// Gradient of the output of a norm (N, D), element.
    pub(crate) normed_slope: Address,
    /// Gradients of the attention's result (N, H · Dh) and of qkv (N, (H + 2 · Hkv) · Dh), element.
    pub(crate) attended_slope: Address,
    pub(crate) qkv_slope: Address,
    /// Sums of y · dy over each head (B, H, T), f32.
    pub(crate) delta: Address,
    /// Partial gradients of a norm's weight (NORM_GROUPS, D), f32.
    pub(crate) norm_partial: Address,
    /// Logits of a chunk of rows (head_rows, V), f32, and their gradient, element. In f32 both have the same address.
    pub(crate) logits: Address,
    pub(crate) logits_slope: Address,
    pub(crate) head_rows: usize,
    /// Features (B, D), f32.
    pub(crate) features: Address,
    /// Bytes of the whole allocation.
    pub(crate) bytes: usize,
}

/// The use of a path on the device. It decides which buffers the path has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// Steps.
    Training {
        /// [`crate::CudaOptions::checkpointing`].
        checkpointing: bool,
    },
    /// Forward passes only: no gradient, no moments, and the activations of one block.
    Reading,
}

impl Arena {
    /// Lays out the buffers from `base`, for micro-batches of at most `micro_batch` sequences. A buffer without a use has no
    /// bytes.
    pub(crate) fn new(config: &ModelConfig, micro_batch: usize, purpose: Purpose, base: Address) -> Self {
        let mut bytes = 0;
        let mut take = |count: usize, size: usize| {
            let address = base.plus(bytes);
            bytes += (count * size).next_multiple_of(256);
            address
        };
        let element = config.dtype.bytes();
        let bf16 = config.dtype == Dtype::Bf16;
        let trains = purpose != Purpose::Reading;
        let of_training = |count: usize| if trains { count } else { 0 };
        let parameters = parameters(&path_specs(config));
        let rows = micro_batch * config.context;
        let trained_rows = of_training(rows);
        let (d, a, f) = (config.hidden_size, config.attention_size(), config.ffn_size);
        let qkv = a + 2 * config.key_value_size();
        let head_rows = HEAD_ROWS.min(rows);
        let segment_count = of_training(segments(config, &Trained::all(config)).len());
        let weights = take(parameters, 4);
        let slots = if purpose == (Purpose::Training { checkpointing: false }) { config.blocks } else { 1 };
        let [first, second, gradient] = [(); 3].map(|()| take(of_training(parameters), 4));
        let copy = if bf16 { take(parameters, 2) } else { weights };
        let [cosines, sines] = [(); 2].map(|()| take(config.context * config.head_dim / 2, 4));
        let segments = take(segment_count, size_of::<Segment>());
        let report = take(REPORT, 8);
        let numbers = take(of_training(1), size_of::<StepNumbers>());
        let squares = take(of_training(parameters.div_ceil(SQUARES_CHUNK)), 8);
        let batch = take(4 * rows + 1, 4);
        let losses = take(rows, 4);
        // A forward pass reads a block's input for the last time before it writes the block's output, so a reader has one
        // stream for all blocks.
        let first_stream = take(rows * d, 4);
        let mut stream = |i| if trains && i > 0 { take(rows * d, 4) } else { first_stream };
        let streams = (0..=config.blocks).map(&mut stream).collect();
        let slots: Vec<Saved> = (0..slots)
            .map(|_| Saved {
                middle: take(rows * d, 4),
                input_normed: take(rows * d, element),
                qkv: take(rows * qkv, element),
                attended: take(rows * a, element),
                log_sums: take(rows * config.heads, 4),
                post_normed: take(rows * d, element),
                gate_up: take(rows * 2 * f, element),
            })
            .collect();
        let slope = take(trained_rows * d, 4);
        let logits = take(head_rows * config.vocab_size, 4);
        Self {
            weights,
            first,
            second,
            gradient,
            copy,
            cosines,
            sines,
            segments,
            report,
            numbers,
            squares,
            batch,
            losses,
            streams,
            saved: (0..config.blocks).map(|i| slots[i.min(slots.len() - 1)]).collect(),
            normed: take(rows * d, element),
            activated: take(rows * f, element),
            slope,
            slope_copy: if bf16 { take(trained_rows * d, 2) } else { slope },
            normed_slope: take(trained_rows * d, element),
            attended_slope: take(trained_rows * a, element),
            qkv_slope: take(trained_rows * qkv, element),
            delta: take(trained_rows * config.heads, 4),
            norm_partial: take(of_training(NORM_GROUPS * d), 4),
            logits,
            logits_slope: if bf16 { take(of_training(head_rows * config.vocab_size), 2) } else { logits },
            head_rows,
            features: take(micro_batch * d, 4),
            bytes,
        }
    }
}
