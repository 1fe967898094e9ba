//! The output projection and the cross entropy of the next token, without the logits of a whole batch in memory.

use std::sync::{Arc, OnceLock};

use candle_core::{CpuStorage, CustomOp2, Layout, Shape, Tensor};
use rayon::prelude::*;

use crate::embedding::check_tokens;
use crate::error::shape;
use crate::exp::{exp, maximum, sum_exp};
use crate::linear;
use crate::matmul::Threads;
use crate::memory::{elements, scalar};
use crate::{IGNORE, OpsError};

/// Positions whose logits are in memory at the same time; the weight's gradient is summed in this unit.
const ROWS: usize = 512;

/// A loss and what it is the mean of.
#[derive(Clone, Debug)]
pub struct CrossEntropy {
    /// Mean of `-ln p(target)` in nats over the counted positions; 0 when there are none. A scalar, f32.
    pub loss: Tensor,
    /// How many positions have a target that is not [`IGNORE`].
    pub counted: usize,
}

/// Mean cross entropy of `targets` (B × T) under the logits `x · Wᵀ`: x (…, D) with B × T rows, head W (V, D), f32.
///
/// Logits are made for 512 positions at a time. When gradients are wanted they are computed in the same pass, as the
/// loss is a scalar and its own gradient only scales them (the idea of Liger-Kernel's fused linear cross entropy,
/// arXiv:2410.10989 §3.2), so memory holds 512 × V logits, never `B × T × V`, and no product is done twice.
///
/// # Errors
/// When the shapes do not fit, or a target is neither below V nor [`IGNORE`].
pub fn cross_entropy(x: &Tensor, head: &Tensor, targets: &[u32]) -> Result<CrossEntropy, OpsError> {
    check(x, head, targets)?;
    let counted = targets.iter().filter(|&&target| target != IGNORE).count();
    let gradients = x.track_op() || head.track_op();
    let op = HeadLoss { targets: targets.into(), counted, wanted: gradients, saved: OnceLock::new() };
    Ok(CrossEntropy { loss: x.apply_op2(head, op)?, counted })
}

/// `ln p(target)` in nats of each position under the logits `x · Wᵀ`, 0 where the target is [`IGNORE`]; no gradient.
/// x (…, D) with B × T rows, head W (V, D), f32; gives B × T numbers.
///
/// # Errors
/// As [`cross_entropy`].
pub fn token_log_probs(x: &Tensor, head: &Tensor, targets: &[u32]) -> Result<Vec<f32>, OpsError> {
    check(x, head, targets)?;
    let (vocabulary, width) = head.dims2()?;
    let mut log_probs = vec![0.0; targets.len()];
    crate::with_slice(x, |x| {
        crate::with_slice(head, |head| {
            let mut logits = vec![0.0; ROWS.min(targets.len()) * vocabulary];
            let chunks = x.chunks(ROWS * width).zip(targets.chunks(ROWS)).zip(log_probs.chunks_mut(ROWS));
            for ((x, targets), log_probs) in chunks {
                let logits = &mut logits[..targets.len() * vocabulary];
                linear::forward(x, head, logits, (targets.len(), width, vocabulary), Threads::All);
                let rows = logits.par_chunks(vocabulary).zip(targets).zip(log_probs).with_min_len(8);
                rows.for_each(|((row, &target), log_prob)| {
                    if target != IGNORE {
                        *log_prob = row[target as usize] - log_sum_exp(row);
                    }
                });
            }
        })
    })??;
    Ok(log_probs)
}

fn check(x: &Tensor, head: &Tensor, targets: &[u32]) -> Result<(), OpsError> {
    let (vocabulary, width) = head.dims2()?;
    let fits = width > 0 && x.dims().last() == Some(&width) && x.elem_count() == targets.len() * width;
    if !fits {
        let (x, head, targets) = (x.dims(), head.dims(), targets.len());
        return Err(shape(
            "cross_entropy",
            format!("x {x:?}, head {head:?} and {targets} targets do not fit"),
        ));
    }
    match targets.iter().find(|&&target| target != IGNORE && target as usize >= vocabulary) {
        Some(&target) => check_tokens("cross_entropy", &[target], vocabulary),
        None => Ok(()),
    }
}

/// `ln Σ exp(logit)` of one row.
pub(crate) fn log_sum_exp(row: &[f32]) -> f32 {
    let largest = maximum(row);
    largest + sum_exp(row, largest).ln()
}

struct HeadLoss {
    targets: Arc<[u32]>,
    counted: usize,
    /// Whether the gradients are computed with the loss.
    wanted: bool,
    /// The gradients of x and of the head when the gradient of the loss is 1.
    saved: OnceLock<(Vec<f32>, Vec<f32>)>,
}

impl HeadLoss {
    /// Adds up the loss of a chunk and turns its logits into their gradient.
    fn chunk(&self, logits: &mut [f32], targets: &[u32], vocabulary: usize) -> f64 {
        let scale = 1.0 / self.counted.max(1) as f32;
        let rows = logits.par_chunks_mut(vocabulary).zip(targets).with_min_len(8);
        let losses: Vec<f32> = rows
            .map(|(row, &target)| {
                if target == IGNORE {
                    row.fill(0.0);
                    return 0.0;
                }
                let log_sum = log_sum_exp(row);
                let loss = log_sum - row[target as usize];
                if self.wanted {
                    for logit in row.iter_mut() {
                        *logit = exp(*logit - log_sum) * scale;
                    }
                    row[target as usize] -= scale;
                }
                loss
            })
            .collect();
        losses.into_iter().map(f64::from).sum()
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
        head: &CpuStorage,
        head_layout: &Layout,
    ) -> candle_core::Result<(CpuStorage, Shape)> {
        let (vocabulary, width) = head_layout.shape().dims2()?;
        let (x, head) = (elements(x, x_layout)?, elements(head, head_layout)?);
        let mut logits = vec![0.0; ROWS.min(self.targets.len()) * vocabulary];
        let (mut dx, mut dw) =
            if self.wanted { (vec![0.0; x.len()], vec![0.0; head.len()]) } else { (vec![], vec![]) };
        let mut loss = 0.0;
        for (i, (x, targets)) in x.chunks(ROWS * width).zip(self.targets.chunks(ROWS)).enumerate() {
            let sizes = (targets.len(), width, vocabulary);
            let logits = &mut logits[..targets.len() * vocabulary];
            linear::forward(x, head, logits, sizes, Threads::All);
            loss += self.chunk(logits, targets, vocabulary);
            if self.wanted {
                linear::input_gradient(logits, head, &mut dx[i * ROWS * width..][..x.len()], sizes);
                linear::weight_gradient(logits, x, &mut dw, sizes, i > 0);
            }
        }
        if self.wanted {
            // A second forward pass of the same op would find the same gradients here.
            let _ = self.saved.set((dx, dw));
        }
        Ok((CpuStorage::F32(vec![(loss / self.counted.max(1) as f64) as f32]), Shape::from(())))
    }

    fn bwd(
        &self,
        x: &Tensor,
        head: &Tensor,
        _loss: &Tensor,
        gradient: &Tensor,
    ) -> candle_core::Result<(Option<Tensor>, Option<Tensor>)> {
        let Some((dx, dw)) = self.saved.get() else {
            candle_core::bail!("cross_entropy kept no gradients: neither of its inputs was trainable");
        };
        let scale = scalar(gradient)?;
        let scaled = |values: &[f32]| values.par_iter().map(|value| value * scale).collect::<Vec<f32>>();
        let dx = Tensor::from_vec(scaled(dx), x.shape(), x.device())?;
        Ok((Some(dx), Some(Tensor::from_vec(scaled(dw), head.shape(), x.device())?)))
    }
}
