//! The head with the cross entropy as one of candle's operations, and scoring without it.

use std::sync::{Mutex, PoisonError};

use candle_core::{CpuStorage, CustomOp2, Layout, Shape, Tensor};
use dipaco_tokens::TokenBatch;
use half::bf16;

use crate::block::Stack;
use crate::check::{check_slot, check_vocabulary, check_weights};
use crate::element::{Element, Precision};
use crate::error::shape;
use crate::gradient_slot::GradientSlot;
use crate::head::{Head, HeadGradients, HeadWeightGradients};
use crate::memory::{elements, read};
use crate::{Backward, OpsError, Phase, kernel_choice};

/// The parts of a head within a flat group of weights.
#[derive(Clone, Debug)]
pub struct HeadPlace {
    /// Where the final norm's weight (D) begins.
    pub norm: usize,
    /// Where the output projection (V, D) begins.
    pub projection: usize,
    /// V.
    pub vocabulary: usize,
}

/// The slots of a head's gradients.
#[derive(Clone, Debug)]
pub struct HeadSlots {
    /// The slot that begins with the gradient of the norm's weight.
    pub norm: GradientSlot,
    /// The slot of the projection's gradient: the slot of the norm when the projection follows the norm, the embedding's
    /// slot when head and embedding are tied.
    pub projection: GradientSlot,
}

/// The final norm, the output projection and the cross entropy: `-Σ ln p(target) / mean_over` in nats, a scalar f32, for
/// x (B, T, D) and the targets of `batch` (B, T). A position whose target is [`crate::IGNORE`] is not counted. `mean_over`
/// is the number of counted targets, of all micro-batches together if their gradients are added up.
///
/// Memory holds the logits of at most 1,024 positions at a time. The same pass computes the gradients of `backward`,
/// so no product is done twice. The result must then be the root of the backward pass.
///
/// # Errors
/// When the shapes do not fit, or the targets are of more than V outputs.
pub fn cross_entropy(
    x: &Tensor,
    weights: &Tensor,
    place: &HeadPlace,
    stack: &Stack,
    batch: &TokenBatch,
    mean_over: usize,
    backward: Backward<&HeadSlots>,
) -> Result<Tensor, OpsError> {
    let mut op = HeadLoss::new("cross_entropy", x, weights, place, stack, batch)?;
    op.scale = 1.0 / mean_over.max(1) as f32;
    let HeadSlots { norm, projection } = match backward {
        // candle must not keep the operation.
        Backward::Nothing => return Ok(x.apply_op2_no_bwd(weights, &op)?),
        Backward::Input => {
            op.backward = Backward::Input;
            return Ok(x.apply_op2(weights, op)?);
        }
        Backward::All(slots) => slots,
    };
    let (norm_len, projection_len) = (stack.shape.width, place.vocabulary * stack.shape.width);
    // One slot holds both, or each has a slot of its own.
    let both = norm_len + projection_len;
    let (first, second) = if norm.is(projection) { (both, both) } else { (norm_len, projection_len) };
    check_slot("cross_entropy", Some(norm), first)?;
    check_slot("cross_entropy", Some(projection), second)?;
    op.backward = Backward::All(HeadSlots { norm: norm.clone(), projection: projection.clone() });
    Ok(x.apply_op2(weights, op)?)
}

/// `ln p(target)` in nats of each position, 0 where the target is [`crate::IGNORE`], without a gradient. Gives B × T numbers.
///
/// # Errors
/// As [`cross_entropy`].
pub fn token_log_probs(
    x: &Tensor,
    weights: &Tensor,
    place: &HeadPlace,
    stack: &Stack,
    batch: &TokenBatch,
) -> Result<Vec<f32>, OpsError> {
    let op = HeadLoss::new("token_log_probs", x, weights, place, stack, batch)?;
    Ok(read(x, |x| {
        read(weights, |weights| match stack.precision {
            Precision::F32 => op.log_probs::<f32>(x, weights),
            Precision::Bf16 => op.log_probs::<bf16>(x, weights),
        })
    })??)
}

/// candle's view of [`cross_entropy`].
struct HeadLoss {
    place: HeadPlace,
    stack: Stack,
    batch: TokenBatch,
    /// Factor of each counted position's loss, such as `1 / counted`.
    scale: f32,
    backward: Backward<HeadSlots>,
    /// The gradient of x, which the forward pass computes and the backward pass hands over: candle calls both with a shared
    /// reference.
    dx: Mutex<Option<Vec<f32>>>,
}

impl HeadLoss {
    /// An operation without a backward pass, after the check that x, weights and targets fit each other. `operation`
    /// is its name for errors.
    fn new(
        operation: &'static str,
        x: &Tensor,
        weights: &Tensor,
        place: &HeadPlace,
        stack: &Stack,
        batch: &TokenBatch,
    ) -> Result<Self, OpsError> {
        kernel_choice()?;
        let (width, vocabulary, count) = (stack.shape.width, place.vocabulary, batch.targets().len());
        let fits = x.dims().last() == Some(&width) && x.elem_count() == count * width;
        if !fits || vocabulary == 0 || width == 0 {
            let dims = x.dims();
            let problem =
                format!("x {dims:?}, a head of {vocabulary} × {width} and {count} targets do not fit");
            return Err(shape(operation, problem));
        }
        check_weights(operation, weights, place.norm, width)?;
        check_weights(operation, weights, place.projection, vocabulary.saturating_mul(width))?;
        check_vocabulary(operation, batch.outputs(), vocabulary)?;
        let (place, stack, batch) = (place.clone(), stack.clone(), batch.clone());
        Ok(Self { place, stack, batch, scale: 1.0, backward: Backward::Nothing, dx: Mutex::default() })
    }

    /// `ln p(target)` of each position. With a backward pass, also keeps the gradient of x, and adds the
    /// weights' gradients to their slots.
    fn log_probs<E: Element>(&self, x: &[f32], weights: &[f32]) -> Vec<f32> {
        let (place, width, scale) = (&self.place, self.stack.shape.width, self.scale);
        let head = Head {
            workspace: &self.stack.workspace,
            x,
            norm: &weights[place.norm..][..width],
            projection: &weights[place.projection..][..place.vocabulary * width],
            epsilon: self.stack.shape.epsilon,
            targets: self.batch.targets(),
        };
        let mut log_probs = vec![0.0; head.targets.len()];
        if !self.backward.exists() {
            head.log_probs::<E>(&mut log_probs, None);
            return log_probs;
        }
        let mut dx = vec![0.0; x.len()];
        let Some(slots) = self.backward.slots() else {
            head.log_probs::<E>(&mut log_probs, Some(HeadGradients { dx: &mut dx, scale, weights: None }));
            self.keep(dx);
            return log_probs;
        };
        slots.norm.add(|first, norm_fresh| {
            let (norm, rest) = first.split_at_mut(width);
            if norm_fresh {
                norm.fill(0.0);
            }
            let mut run = |projection: &mut [f32], fresh| {
                let weights = Some(HeadWeightGradients { norm, projection, fresh });
                head.log_probs::<E>(&mut log_probs, Some(HeadGradients { dx: &mut dx, scale, weights }));
            };
            // A slot is locked while it is added to, so one that holds both parts must not be asked for twice.
            if rest.is_empty() { slots.projection.add(run) } else { run(rest, norm_fresh) }
        });
        self.keep(dx);
        log_probs
    }

    /// Keeps the gradient of x for the backward pass.
    fn keep(&self, dx: Vec<f32>) {
        *self.dx.lock().unwrap_or_else(PoisonError::into_inner) = Some(dx);
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
        let log_probs = self.stack.profile.time(Phase::Head, || match self.stack.precision {
            Precision::F32 => self.log_probs::<f32>(x, weights),
            Precision::Bf16 => self.log_probs::<bf16>(x, weights),
        });
        // In f64: an f32 sum over thousands of positions would lose digits.
        let sum: f64 = log_probs.into_iter().map(f64::from).sum();
        let loss = (-sum * f64::from(self.scale)) as f32;
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
        // The forward pass has computed the gradient for a gradient of the loss of 1.
        let (Some(dx), true) = (dx, gradient.to_scalar::<f32>()? == 1.0) else {
            candle_core::bail!(
                "cross_entropy must be the root of one backward pass, and have been asked for gradients"
            );
        };
        Ok((Some(Tensor::from_vec(dx, x.shape(), x.device())?), None))
    }
}
