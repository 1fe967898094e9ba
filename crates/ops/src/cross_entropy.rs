//! The head with the cross entropy as one of candle's operations, and scoring without it.

use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{CpuStorage, CustomOp2, Layout, Shape, Tensor};
use half::bf16;

use crate::block::Stack;
use crate::check::{check_ids, check_slot, check_weights};
use crate::element::Precision;
use crate::error::shape;
use crate::gradient_slot::GradientSlot;
use crate::head::{Head, HeadGradients};
use crate::memory::{elements, read};
use crate::{IGNORE, OpsError, Phase};

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
/// x (B, T, D) and `targets` (B × T). A position whose target is [`IGNORE`] is not counted. `mean_over` is the number of
/// counted targets, of all micro-batches together if their gradients are added up.
///
/// Memory holds the logits of at most 1,024 positions at a time. With slots, the same pass computes the gradients, so no
/// product is done twice. The result must then be the root of the backward pass.
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
    if let Some(HeadSlots { norm, projection }) = gradients {
        let (norm_len, projection_len) = (stack.shape.width, place.vocabulary * stack.shape.width);
        // One slot holds both, or each has a slot of its own.
        let both = norm_len + projection_len;
        let (first, second) = if norm.is(projection) { (both, both) } else { (norm_len, projection_len) };
        check_slot("cross_entropy", Some(norm), first)?;
        check_slot("cross_entropy", Some(projection), second)?;
    }
    let op = HeadLoss {
        place: place.clone(),
        stack: stack.clone(),
        targets: targets.into(),
        scale: 1.0 / mean_over.max(1) as f32,
        gradients: gradients.cloned(),
        dx: Mutex::default(),
    };
    // Without slots there is no backward pass, so candle must not keep the operation.
    Ok(if gradients.is_some() { x.apply_op2(weights, op)? } else { x.apply_op2_no_bwd(weights, &op)? })
}

/// `ln p(target)` in nats of each position, 0 where the target is [`IGNORE`], without a gradient. Gives B × T numbers.
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
        read(weights, |weights| place.head(stack, x, weights, targets).run(stack, &mut log_probs, None))
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
    let (width, vocabulary) = (stack.shape.width, place.vocabulary);
    let fits = x.dims().last() == Some(&width) && x.elem_count() == targets.len() * width;
    if !fits || vocabulary == 0 || width == 0 {
        let (dims, targets) = (x.dims(), targets.len());
        let problem =
            format!("x {dims:?}, a head of {vocabulary} × {width} and {targets} targets do not fit");
        return Err(shape(operation, problem));
    }
    check_weights(operation, weights, place.norm, width)?;
    check_weights(operation, weights, place.projection, vocabulary.saturating_mul(width))?;
    // The only check of targets: the loss indexes logits with them.
    check_ids(operation, targets.iter().filter(|&&target| target != IGNORE), vocabulary)
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
    /// [`Head::log_probs`] in the stack's precision.
    fn run(&self, stack: &Stack, log_probs: &mut [f32], gradients: Option<HeadGradients<'_>>) {
        match stack.precision {
            Precision::F32 => self.log_probs::<f32>(log_probs, gradients),
            Precision::Bf16 => self.log_probs::<bf16>(log_probs, gradients),
        }
    }
}

/// candle's view of [`cross_entropy`].
struct HeadLoss {
    place: HeadPlace,
    stack: Stack,
    targets: Arc<[u32]>,
    scale: f32,
    gradients: Option<HeadSlots>,
    /// The gradient of x, which the forward pass computes and the backward pass hands over: candle calls both with a shared
    /// reference.
    dx: Mutex<Option<Vec<f32>>>,
}

impl HeadLoss {
    fn loss(&self, x: &[f32], weights: &[f32]) -> f32 {
        let head = self.place.head(&self.stack, x, weights, &self.targets);
        let mut log_probs = vec![0.0; self.targets.len()];
        match &self.gradients {
            None => head.run(&self.stack, &mut log_probs, None),
            Some(slots) => {
                let dx = self.add_gradients(head, slots, &mut log_probs);
                *self.dx.lock().unwrap_or_else(PoisonError::into_inner) = Some(dx);
            }
        }
        // In f64: an f32 sum over thousands of positions would lose digits.
        let sum: f64 = log_probs.into_iter().map(f64::from).sum();
        (-sum * f64::from(self.scale)) as f32
    }

    /// Adds the weights' gradients to the slots and gives the gradient of x.
    fn add_gradients(&self, head: Head<'_>, slots: &HeadSlots, log_probs: &mut [f32]) -> Vec<f32> {
        let mut dx = vec![0.0; head.x.len()];
        slots.norm.add(|first, norm_fresh| {
            let (norm, rest) = first.split_at_mut(head.norm.len());
            if norm_fresh {
                norm.fill(0.0);
            }
            let mut run = |projection: &mut [f32], fresh| {
                let gradients = HeadGradients { dx: &mut dx, norm, projection, fresh, scale: self.scale };
                head.run(&self.stack, log_probs, Some(gradients));
            };
            // A slot is locked while it is added to, so one that holds both parts must not be asked for twice.
            if rest.is_empty() { slots.projection.add(run) } else { run(rest, norm_fresh) }
        });
        dx
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
        let loss = self.stack.profile.time(Phase::Head, || self.loss(x, weights));
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
                "cross_entropy must be the root of one backward pass, and have been given slots"
            );
        };
        Ok((Some(Tensor::from_vec(dx, x.shape(), x.device())?), None))
    }
}
