//! The operations as candle's custom operations: what a path's graph is made of.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{CpuStorage, CustomOp1, CustomOp2, Layout, Shape, Tensor};
use half::bf16;

use crate::block::{self, Batch, BlockShape, BlockWeights, Kept, Stack};
use crate::buffer::Buffer;
use crate::element::{Element, Precision};
use crate::embedding::check_tokens;
use crate::error::shape;
use crate::gradient_slot::GradientSlot;
use crate::head::{Head, HeadGradients};
use crate::memory::{elements, read, scalar};
use crate::{IGNORE, OpsError};

/// The rows of a matrix (V, D), which begins at `at` in `weights`, for `tokens` (B × T, row-major): (B, T, D), f32.
/// With a slot, the backward pass adds to its gradient (V, D), repeated tokens in the order of their positions.
///
/// # Errors
/// When `tokens` is not a whole number of `batch` rows, a token is not below V, or the weights are too short.
pub fn embedding(
    weights: &Tensor,
    at: usize,
    (vocabulary, width): (usize, usize),
    tokens: &[u32],
    batch: usize,
    gradient: Option<&GradientSlot>,
) -> Result<Tensor, OpsError> {
    if batch == 0 || tokens.is_empty() || !tokens.len().is_multiple_of(batch) {
        return Err(shape(
            "embedding",
            format!("{} tokens are not {batch} rows of one length", tokens.len()),
        ));
    }
    if width == 0 {
        return Err(shape("embedding", "a row of 0 elements can't be looked up"));
    }
    check_room("embedding", weights, at, vocabulary.saturating_mul(width))?;
    check_slot("embedding", gradient, vocabulary * width)?;
    check_tokens("embedding", tokens, vocabulary)?;
    let time = tokens.len() / batch;
    let op = Embedding { at, width, tokens: tokens.into(), batch, time, gradient: gradient.cloned() };
    Ok(apply1(weights, op)?)
}

/// Consecutive transformer blocks (arXiv:2302.13971's: pre-norm, RoPE, SwiGLU) whose parameters lie one after the other
/// from `at` in `weights`: x (B, T, D) to (B, T, D), f32. With slots, one per block, the backward pass adds to their
/// gradients. Parameters of a block are in the order input norm (D), q, k, v (H·Dh, D), o (D, H·Dh), post-attention norm
/// (D), gate, up (F, D), down (D, F).
///
/// # Errors
/// When the shapes do not fit each other, or T is more than the rotations' positions.
pub fn blocks(
    x: &Tensor,
    weights: &Tensor,
    at: usize,
    count: usize,
    stack: &Stack,
    gradients: Option<&[GradientSlot]>,
) -> Result<Tensor, OpsError> {
    let (batch, time, width) = x.dims3()?;
    let parameters = check_block(&stack.shape)?;
    if width != stack.shape.width || batch * time == 0 {
        let problem = format!("x {:?} does not fit blocks of width {}", x.dims(), stack.shape.width);
        return Err(shape("blocks", problem));
    }
    if time > stack.shape.rope.positions() {
        let problem =
            format!("{time} positions are more than the {} there are", stack.shape.rope.positions());
        return Err(shape("blocks", problem));
    }
    check_room("blocks", weights, at, count.saturating_mul(parameters))?;
    if let Some(gradients) = gradients {
        if gradients.len() != count {
            let problem = format!("{} gradients were given for {count} blocks", gradients.len());
            return Err(shape("blocks", problem));
        }
        for gradient in gradients {
            check_slot("blocks", Some(gradient), parameters)?;
        }
    }
    let op = Blocks {
        at,
        count,
        batch: Batch { batch, time },
        stack: stack.clone(),
        gradients: gradients.map(Into::into),
        kept: Mutex::default(),
    };
    Ok(if gradients.is_some() { x.apply_op2(weights, op)? } else { x.apply_op2_no_bwd(weights, &op)? })
}

/// Where the parts of a head are, and their gradients.
#[derive(Clone, Debug)]
pub struct HeadPlace {
    /// Where the final norm's weight (D) begins.
    pub norm: usize,
    /// Where the output projection (V, D) begins.
    pub projection: usize,
    /// V.
    pub vocabulary: usize,
}

/// The gradients of a head: slots and where in them the parts begin.
#[derive(Clone, Debug)]
pub struct HeadSlots {
    /// The slot that begins with the norm's weight.
    pub norm: GradientSlot,
    /// The projection's slot; the norm's when it follows the norm there, the embedding's when they are tied.
    pub projection: GradientSlot,
}

/// The final norm, the output projection and the cross entropy: `-Σ ln p(target) / mean_over` in nats, a scalar f32, for
/// x (B, T, D) and `targets` (B × T), positions whose target is [`IGNORE`] left out. `mean_over` is the number of counted
/// targets, or that of all micro-batches whose gradients are added up.
///
/// Logits are made for at most 1,024 positions at a time. With slots, gradients are computed in the same pass, so
/// memory never holds B × T × V logits, and no product is done twice. The result must then be the root of the backward
/// pass.
///
/// # Errors
/// When the shapes do not fit, or a target is neither below V nor [`IGNORE`].
pub fn cross_entropy(
    x: &Tensor,
    weights: &Tensor,
    place: &HeadPlace,
    stack: &Stack,
    targets: &[u32],
    mean_over: usize,
    gradients: Option<&HeadSlots>,
) -> Result<Tensor, OpsError> {
    check_head("cross_entropy", x, weights, place, stack, targets)?;
    if let Some(slots) = gradients {
        let (width, projection) = (stack.shape.width, place.vocabulary * stack.shape.width);
        let own = slots.norm.is(&slots.projection);
        check_slot("cross_entropy", Some(&slots.norm), if own { width + projection } else { width })?;
        check_slot(
            "cross_entropy",
            Some(&slots.projection),
            if own { width + projection } else { projection },
        )?;
    }
    let op = HeadLoss {
        place: place.clone(),
        stack: stack.clone(),
        targets: targets.into(),
        scale: 1.0 / mean_over.max(1) as f32,
        gradients: gradients.cloned(),
        dx: Mutex::default(),
    };
    Ok(if gradients.is_some() { x.apply_op2(weights, op)? } else { x.apply_op2_no_bwd(weights, &op)? })
}

/// `ln p(target)` in nats of each position, 0 where the target is [`IGNORE`]; no gradient. Gives B × T numbers.
///
/// # Errors
/// As [`cross_entropy`].
pub fn token_log_probs(
    x: &Tensor,
    weights: &Tensor,
    place: &HeadPlace,
    stack: &Stack,
    targets: &[u32],
) -> Result<Vec<f32>, OpsError> {
    check_head("token_log_probs", x, weights, place, stack, targets)?;
    let mut log_probs = vec![0.0; targets.len()];
    read(x, |x| {
        read(weights, |weights| place.head(stack, x, weights, targets).log_probs_in(stack, &mut log_probs))
    })??;
    Ok(log_probs)
}

fn check_head(
    operation: &'static str,
    x: &Tensor,
    weights: &Tensor,
    place: &HeadPlace,
    stack: &Stack,
    targets: &[u32],
) -> Result<(), OpsError> {
    let width = stack.shape.width;
    if x.dims().last() != Some(&width)
        || x.elem_count() != targets.len() * width
        || place.vocabulary == 0
        || width == 0
    {
        let problem = format!(
            "x {:?}, a head of {} × {width} and {} targets do not fit",
            x.dims(),
            place.vocabulary,
            targets.len()
        );
        return Err(shape(operation, problem));
    }
    check_room(operation, weights, place.norm, width)?;
    check_room(operation, weights, place.projection, place.vocabulary.saturating_mul(width))?;
    match targets.iter().find(|&&target| target != IGNORE && target as usize >= place.vocabulary) {
        Some(&target) => check_tokens(operation, &[target], place.vocabulary),
        None => Ok(()),
    }
}

/// The parameters of a block, when it has any.
fn check_block(block: &BlockShape) -> Result<usize, OpsError> {
    let BlockShape { width, heads, ffn, ref rope, .. } = *block;
    let products =
        heads.checked_mul(rope.head_dim()).and_then(|a| a.checked_mul(4)?.checked_add(ffn.checked_mul(3)?));
    let parameters = products.and_then(|columns| columns.checked_add(2)?.checked_mul(width));
    match parameters.filter(|_| width > 0 && heads > 0 && ffn > 0) {
        Some(parameters) => Ok(parameters),
        None => {
            let problem =
                format!("a block of width {width}, {heads} heads and feed-forward width {ffn} can't be");
            Err(shape("blocks", problem))
        }
    }
}

/// Checks that a flat group of weights has `length` elements from `at`.
fn check_room(operation: &'static str, weights: &Tensor, at: usize, length: usize) -> Result<(), OpsError> {
    let elements = weights.elem_count();
    if weights.rank() == 1 && at.checked_add(length).is_some_and(|end| end <= elements) {
        return Ok(());
    }
    let problem = format!("weights {:?} do not hold {length} elements from {at}", weights.dims());
    Err(shape(operation, problem))
}

fn check_slot(operation: &'static str, slot: Option<&GradientSlot>, length: usize) -> Result<(), OpsError> {
    match slot.map(GradientSlot::parameters).filter(|&parameters| parameters != length) {
        Some(found) => Err(shape(operation, format!("a gradient of {found} elements is not {length}"))),
        None => Ok(()),
    }
}

fn apply1(x: &Tensor, op: Embedding) -> candle_core::Result<Tensor> {
    if op.gradient.is_some() { x.apply_op1(op) } else { x.apply_op1_no_bwd(&op) }
}

struct Embedding {
    at: usize,
    width: usize,
    tokens: Arc<[u32]>,
    batch: usize,
    time: usize,
    gradient: Option<GradientSlot>,
}

impl CustomOp1 for Embedding {
    fn name(&self) -> &'static str {
        "embedding"
    }

    fn cpu_fwd(&self, weights: &CpuStorage, layout: &Layout) -> candle_core::Result<(CpuStorage, Shape)> {
        let mut y = vec![0.0; self.tokens.len() * self.width];
        let weights = &elements(weights, layout)?[self.at..];
        crate::embedding::forward(weights, &self.tokens, self.width, &mut y);
        Ok((CpuStorage::F32(y), Shape::from((self.batch, self.time, self.width))))
    }

    fn bwd(&self, _weights: &Tensor, _y: &Tensor, dy: &Tensor) -> candle_core::Result<Option<Tensor>> {
        let Some(gradient) = &self.gradient else {
            candle_core::bail!("the embedding has no place for its gradient");
        };
        let dy = dy.contiguous()?;
        read(&dy, |dy| {
            gradient.add(|dw, fresh| {
                if fresh {
                    dw.fill(0.0);
                }
                crate::embedding::backward(dy, &self.tokens, self.width, dw);
            });
        })?;
        Ok(None)
    }
}

/// What a block keeps for its backward pass.
struct KeptBlock {
    /// Its output, the next block's input; empty for the last one, whose output is the tensor.
    output: Buffer,
    /// `None` with activation checkpointing.
    activations: Option<Buffer>,
}

struct Blocks {
    at: usize,
    count: usize,
    batch: Batch,
    stack: Stack,
    gradients: Option<Arc<[GradientSlot]>>,
    kept: Mutex<Vec<KeptBlock>>,
}

impl Blocks {
    fn weights<'a>(&self, all: &'a [f32], block: usize) -> BlockWeights<'a> {
        let parameters = self.stack.shape.parameters();
        BlockWeights::new(&self.stack.shape, &all[self.at + block * parameters..][..parameters])
    }

    /// Memory for what a block keeps: as large as its gradient when that fits, so that one can take the other's place.
    fn memory(&self) -> Buffer {
        let length = self.stack.shape.kept(self.batch.rows(), self.batch.batch, self.stack.precision);
        let gradient = self.stack.shape.parameters();
        self.stack.workspace.take(if gradient <= 2 * length { length.max(gradient) } else { length })
    }

    fn forward<E: Element>(&self, x: &[f32], weights: &[f32]) -> (Vec<f32>, Vec<KeptBlock>) {
        let (stack, rows, keep) = (&self.stack, self.batch.rows(), self.gradients.is_some());
        let mut kept: Vec<KeptBlock> = Vec::new();
        let mut memory = self.memory();
        let mut y = vec![0.0; x.len()];
        for block in 0..self.count {
            let last = block + 1 == self.count;
            let mut output = if last { Buffer::default() } else { stack.workspace.take(x.len()) };
            let input = kept.last().map_or(x, |below| &below.output);
            let to = if last { &mut y[..] } else { &mut output };
            let mut own = Kept::<E>::new(&stack.shape, rows, self.batch.batch, &mut memory);
            block::forward(stack, self.weights(weights, block), input, to, &mut own, self.batch);
            let activations = (keep && !stack.checkpointing).then(|| {
                let next = if last { Buffer::default() } else { self.memory() };
                std::mem::replace(&mut memory, next)
            });
            if !keep {
                // Only the block above needs an output that is not kept.
                kept.drain(..).for_each(|below| stack.workspace.give(below.output));
            }
            kept.push(KeptBlock { output, activations });
        }
        stack.workspace.give(memory);
        (y, if keep { kept } else { Vec::new() })
    }

    fn backward<E: Element>(
        &self,
        x: &[f32],
        dx: &mut [f32],
        weights: &[f32],
        mut kept: Vec<KeptBlock>,
        slots: &[GradientSlot],
    ) {
        let (stack, rows) = (&self.stack, self.batch.rows());
        while let Some(KeptBlock { output, activations }) = kept.pop() {
            stack.workspace.give(output);
            let block = kept.len();
            let own = self.weights(weights, block);
            let input = kept.last().map_or(x, |below| &below.output);
            let mut memory = activations.unwrap_or_else(|| {
                let mut memory = self.memory();
                let mut y = stack.workspace.take(x.len());
                let mut kept = Kept::<E>::new(&stack.shape, rows, self.batch.batch, &mut memory);
                block::forward(stack, own, input, &mut y, &mut kept, self.batch);
                stack.workspace.give(y);
                memory
            });
            let mut kept_here = Kept::<E>::new(&stack.shape, rows, self.batch.batch, &mut memory);
            slots[block].add(|gradients, fresh| {
                block::backward(stack, own, input, &mut kept_here, dx, gradients, fresh, self.batch);
            });
            stack.workspace.give(memory);
        }
    }
}

impl Drop for Blocks {
    fn drop(&mut self) {
        for block in self.kept.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
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
        let (y, kept) = match self.stack.precision {
            Precision::F32 => self.forward::<f32>(x, weights),
            Precision::Bf16 => self.forward::<bf16>(x, weights),
        };
        *self.kept.lock().unwrap_or_else(PoisonError::into_inner) = kept;
        Ok((CpuStorage::F32(y), x_layout.shape().clone()))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weights: &Tensor,
        _y: &Tensor,
        dy: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        let kept = std::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner));
        let (Some(slots), true) = (&self.gradients, kept.len() == self.count) else {
            candle_core::bail!("blocks have no forward pass to differentiate");
        };
        let mut dx = read(&dy.contiguous()?, <[f32]>::to_vec)?;
        read(x, |x| {
            read(weights, |weights| match self.stack.precision {
                Precision::F32 => self.backward::<f32>(x, &mut dx, weights, kept, slots),
                Precision::Bf16 => self.backward::<bf16>(x, &mut dx, weights, kept, slots),
            })
        })??;
        Ok((Some(Tensor::from_vec(dx, x.shape(), x.device())?), None))
    }
}

struct HeadLoss {
    place: HeadPlace,
    stack: Stack,
    targets: Arc<[u32]>,
    scale: f32,
    gradients: Option<HeadSlots>,
    /// The gradient of x.
    dx: Mutex<Option<Vec<f32>>>,
}

impl HeadPlace {
    fn head<'a>(&self, stack: &'a Stack, x: &'a [f32], weights: &'a [f32], targets: &'a [u32]) -> Head<'a> {
        let width = stack.shape.width;
        Head {
            workspace: &stack.workspace,
            x,
            norm: &weights[self.norm..][..width],
            projection: &weights[self.projection..][..self.vocabulary * width],
            epsilon: stack.shape.epsilon,
            targets,
        }
    }
}

impl Head<'_> {
    fn log_probs_in(&self, stack: &Stack, log_probs: &mut [f32]) {
        match stack.precision {
            Precision::F32 => self.log_probs::<f32>(log_probs),
            Precision::Bf16 => self.log_probs::<bf16>(log_probs),
        }
    }

    fn gradients_in(&self, stack: &Stack, log_probs: &mut [f32], gradients: HeadGradients<'_>) {
        match stack.precision {
            Precision::F32 => self.gradients::<f32>(log_probs, gradients),
            Precision::Bf16 => self.gradients::<bf16>(log_probs, gradients),
        }
    }
}

impl HeadLoss {
    fn run(&self, x: &[f32], weights: &[f32]) -> f32 {
        let width = self.stack.shape.width;
        let head = self.place.head(&self.stack, x, weights, &self.targets);
        let mut log_probs = vec![0.0; self.targets.len()];
        match &self.gradients {
            None => head.log_probs_in(&self.stack, &mut log_probs),
            Some(slots) => {
                let mut dx = vec![0.0; x.len()];
                let dx_slice = dx.as_mut_slice();
                let scale = self.scale;
                slots.norm.add(|first, norm_fresh| {
                    let (norm, rest) = first.split_at_mut(width);
                    if norm_fresh {
                        norm.fill(0.0);
                    }
                    let mut run = |projection: &mut [f32], fresh| {
                        let gradients =
                            HeadGradients { dx: &mut *dx_slice, norm: &mut *norm, projection, fresh, scale };
                        head.gradients_in(&self.stack, &mut log_probs, gradients);
                    };
                    // A head of its own follows the norm in one slot; a tied one is in the embedding's.
                    if rest.is_empty() { slots.projection.add(run) } else { run(rest, norm_fresh) }
                });
                *self.dx.lock().unwrap_or_else(PoisonError::into_inner) = Some(dx);
            }
        }
        let sum: f64 = log_probs.into_iter().map(f64::from).sum();
        (-sum * f64::from(self.scale)) as f32
    }
}

impl CustomOp2 for HeadLoss {
    fn name(&self) -> &'static str {
        "cross_entropy"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        x_layout: &Layout,
        weights: &CpuStorage,
        weights_layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let (x, weights) = (elements(x, x_layout)?, elements(weights, weights_layout)?);
        let loss = self.stack.profile.time(crate::Phase::Head, || self.run(x, weights));
        Ok((CpuStorage::F32(vec![loss]), Shape::from(())))
    }

    fn bwd(
        &self,
        x: &Tensor,
        _weights: &Tensor,
        _loss: &Tensor,
        gradient: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        let dx = self.dx.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (Some(dx), true) = (dx, scalar(gradient)? == 1.0) else {
            candle_core::bail!(
                "cross_entropy must be the root of one backward pass, and have been given slots"
            );
        };
        Ok((Some(Tensor::from_vec(dx, x.shape(), x.device())?), None))
    }
}
