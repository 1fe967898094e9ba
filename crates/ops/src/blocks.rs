//! A run of transformer blocks as one of candle's operations.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{CpuStorage, CustomOp2, Layout, Shape, Tensor};
use half::bf16;

use crate::block::{
    self, Activations, BatchShape, BlockGradients, BlockInput, BlockShape, BlockWeights, Stack,
    activations_len,
};
use crate::buffer::Buffer;
use crate::check::{check_slot, check_weights};
use crate::element::{Element, Precision};
use crate::error::shape;
use crate::gradient_slot::GradientSlot;
use crate::memory::{elements, read};
use crate::{Backward, OpsError, kernel_choice};

/// Consecutive transformer blocks (arXiv:2302.13971: pre-norm, RoPE, SwiGLU): x (B, T, D) to (B, T, D), f32. The
/// parameters of the `count` blocks lie one after the other from `at` in `weights`, each block's in the order of
/// [`BlockWeights`](crate::kernel::BlockWeights). `backward` says which gradients the backward pass computes, with one
/// slot per block.
///
/// A block is implemented three times, and the three must change together: here (training and scoring), in
/// `packed_block.rs` (serving), and in `crates/cuda/src/passes.rs` (GPU).
///
/// # Errors
/// When there is no block, the shapes do not fit each other, T is more than the positions of the rotations, or the forced set
/// of kernels can't run.
pub fn blocks(
    x: &Tensor,
    weights: &Tensor,
    at: usize,
    count: usize,
    stack: &Stack,
    backward: Backward<&[GradientSlot]>,
) -> Result<Tensor, OpsError> {
    kernel_choice()?;
    let (sequences, time, width) = x.dims3()?;
    let parameters = check_shape(&stack.shape)?;
    if width != stack.shape.width || sequences * time == 0 {
        let problem = format!("x {:?} does not fit blocks of width {}", x.dims(), stack.shape.width);
        return Err(shape("blocks", problem));
    }
    let positions = stack.shape.rope.positions();
    if time > positions {
        let problem = format!("x has {time} positions, more than the {positions} of the rotation table");
        return Err(shape("blocks", problem));
    }
    if count == 0 {
        return Err(shape("blocks", "the count is 0: give at least one block"));
    }
    check_weights("blocks", weights, at, count.saturating_mul(parameters))?;
    if let Some(slots) = backward.slots() {
        if slots.len() != count {
            let problem = format!("{} gradients were given for {count} blocks", slots.len());
            return Err(shape("blocks", problem));
        }
        for slot in *slots {
            check_slot("blocks", Some(slot), parameters)?;
        }
    }
    let backward = match backward {
        Backward::Nothing => Backward::Nothing,
        Backward::Input => Backward::Input,
        Backward::All(slots) => Backward::All(slots.into()),
    };
    let kept = backward.exists();
    let op = Blocks {
        at,
        count,
        batch: BatchShape { sequences, time },
        stack: stack.clone(),
        backward,
        saved: Mutex::default(),
    };
    // Without a backward pass candle must not keep the operation.
    Ok(if kept { x.apply_op2(weights, op)? } else { x.apply_op2_no_bwd(weights, &op)? })
}

/// Checks that a block of this shape can exist, and gives its number of parameters.
fn check_shape(block: &BlockShape) -> Result<usize, OpsError> {
    let BlockShape { width, heads, kv_heads, ffn, ref rope, .. } = *block;
    // Step by step: the sizes come from the caller and their products may overflow.
    let all_heads = kv_heads.checked_add(heads).and_then(|heads| heads.checked_mul(2));
    let columns =
        all_heads.and_then(|heads| heads.checked_mul(rope.head_dim())?.checked_add(ffn.checked_mul(3)?));
    let parameters = columns.and_then(|columns| columns.checked_add(2)?.checked_mul(width));
    let possible = width > 0 && heads > 0 && kv_heads > 0 && heads.is_multiple_of(kv_heads) && ffn > 0;
    parameters.filter(|_| possible).ok_or_else(|| {
        let problem = format!(
            "a block of width {width}, {heads} heads, {kv_heads} heads of keys and values and feed-forward width {ffn} \
             is impossible"
        );
        shape("blocks", problem)
    })
}

/// The activations of one block that the backward pass needs.
struct SavedBlock {
    /// The block's output, which is the input of the next block. Empty for the last block, whose output is the tensor.
    output: Buffer,
    /// `None` with activation checkpointing.
    activations: Option<Buffer>,
}

/// candle's view of [`blocks`].
struct Blocks {
    at: usize,
    count: usize,
    batch: BatchShape,
    stack: Stack,
    backward: Backward<Arc<[GradientSlot]>>,
    /// The way from the forward to the backward pass: candle calls both with a shared reference.
    saved: Mutex<Vec<SavedBlock>>,
}

impl Blocks {
    fn input<'a>(&'a self, weights: &'a [f32], block: usize, x: &'a [f32]) -> BlockInput<'a> {
        let shape = &self.stack.shape;
        let parameters = shape.parameters();
        let own = &weights[self.at + block * parameters..][..parameters];
        BlockInput { stack: &self.stack, weights: BlockWeights::new(shape, own), x, batch: self.batch }
    }

    /// Memory for the activations of a block: as large as its gradient when that fits, so that the gradient of one block can
    /// later take the memory that the activations of another have left.
    fn memory(&self) -> Buffer {
        let length = activations_len(&self.stack.shape, self.batch, self.stack.precision);
        let gradient = self.stack.shape.parameters();
        self.stack.workspace.take(if gradient <= 2 * length { length.max(gradient) } else { length })
    }

    fn forward<E: Element>(&self, x: &[f32], weights: &[f32]) -> (Vec<f32>, Vec<SavedBlock>) {
        let (stack, save) = (&self.stack, self.backward.exists());
        let mut saved: Vec<SavedBlock> = Vec::new();
        let mut memory = self.memory();
        let mut y = vec![0.0; x.len()];
        for block in 0..self.count {
            let last = block + 1 == self.count;
            let mut output = if last { Buffer::default() } else { stack.workspace.take(x.len()) };
            let input = self.input(weights, block, saved.last().map_or(x, |below| &below.output));
            let mut activations = Activations::<E>::new(&stack.shape, self.batch, &mut memory);
            block::forward(input, if last { &mut y } else { &mut output }, &mut activations);
            // Blocks that do not save their activations use the same memory one after the other.
            let activations = (save && !stack.checkpointing).then(|| {
                let next = if last { Buffer::default() } else { self.memory() };
                std::mem::replace(&mut memory, next)
            });
            if !save {
                // Only the next block needs this output, so the outputs of earlier blocks are free.
                saved.drain(..).for_each(|below| stack.workspace.give(below.output));
            }
            saved.push(SavedBlock { output, activations });
        }
        stack.workspace.give(memory);
        (y, if save { saved } else { Vec::new() })
    }

    fn backward<E: Element>(&self, x: &[f32], dx: &mut [f32], weights: &[f32], mut saved: Vec<SavedBlock>) {
        let stack = &self.stack;
        while let Some(SavedBlock { output, activations }) = saved.pop() {
            // The backward pass needs a block's input, not its output.
            stack.workspace.give(output);
            let block = saved.len();
            let input = self.input(weights, block, saved.last().map_or(x, |below| &below.output));
            let mut memory = activations.unwrap_or_else(|| {
                let mut memory = self.memory();
                let mut y = stack.workspace.take(x.len());
                let mut activations = Activations::<E>::new(&stack.shape, self.batch, &mut memory);
                block::forward(input, &mut y, &mut activations);
                stack.workspace.give(y);
                memory
            });
            let mut activations = Activations::<E>::new(&stack.shape, self.batch, &mut memory);
            match self.backward.slots() {
                Some(slots) => slots[block].add(|gradient, fresh| {
                    let gradients = BlockGradients::new(&stack.shape, gradient, fresh);
                    block::backward(input, &mut activations, dx, Some(gradients));
                }),
                None => block::backward(input, &mut activations, dx, None),
            }
            // Given back before the next block below takes memory for its gradient.
            stack.workspace.give(memory);
        }
    }
}

impl Drop for Blocks {
    /// Gives the memory back of a forward pass that no backward pass followed.
    fn drop(&mut self) {
        for block in self.saved.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            self.stack.workspace.give(block.output);
            self.stack.workspace.give(block.activations.unwrap_or_default());
        }
    }
}

impl CustomOp2 for Blocks {
    fn name(&self) -> &'static str {
        "blocks"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weights: &CpuStorage,
        weights_layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let (x, weights) = (elements(x, x_layout)?, elements(weights, weights_layout)?);
        let (y, saved) = match self.stack.precision {
            Precision::F32 => self.forward::<f32>(x, weights),
            Precision::Bf16 => self.forward::<bf16>(x, weights),
        };
        *self.saved.lock().unwrap_or_else(PoisonError::into_inner) = saved;
        Ok((CpuStorage::F32(y), x_layout.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weights: &Tensor,
        _y: &Tensor,
        dy: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        let saved = std::mem::take(&mut *self.saved.lock().unwrap_or_else(PoisonError::into_inner));
        // The first backward pass overwrites and gives away the activations, so a second one must fail.
        if !self.backward.exists() || saved.len() != self.count {
            candle_core::bail!("blocks have no forward pass to differentiate");
        }
        let mut dx = read(&dy.contiguous()?, <[f32]>::to_vec)?;
        read(x, |x| {
            read(weights, |weights| match self.stack.precision {
                Precision::F32 => self.backward::<f32>(x, &mut dx, weights, saved),
                Precision::Bf16 => self.backward::<bf16>(x, &mut dx, weights, saved),
            })
        })??;
        // The slots hold the weights' gradients.
        Ok((Some(Tensor::from_vec(dx, x.shape(), x.device())?), None))
    }
}
