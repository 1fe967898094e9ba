//! The forward pass over whole sequences: losses, scores and features.

use candle_core::Tensor;
use dipaco_ops::kernel::{self, LinearShape};
use dipaco_ops::{self as ops, Backward, EmbeddingPlace, GradientSlot, HeadSlots, TokenBatch, TokenRows};

use crate::gradients::by_part;
use crate::path::Place;
use crate::{Gradients, ModelError, Path};

/// The loss of a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Loss {
    /// Mean of `-ln p(target)` in nats over the counted targets; 0 without any.
    pub mean: f32,
    /// Number of counted targets.
    pub counted: usize,
}

impl Path {
    /// Returns the mean cross entropy of the targets. A target of [`crate::IGNORE`] is not counted. Keeps no graph.
    ///
    /// # Errors
    /// T is over the context, or the batch is of a larger vocabulary than the path.
    pub fn loss(&self, batch: &TokenBatch) -> Result<Loss, ModelError> {
        let counted = batch.counted();
        let x = self.stream(batch.tokens(), None)?;
        let (place, flat) = (self.head_place(), &self.head().flat);
        let loss = ops::cross_entropy(&x, flat, &place, &self.stack, batch, counted, Backward::Nothing)?;
        Ok(Loss { mean: loss.to_scalar()?, counted })
    }

    /// Returns the loss of a batch, as [`Path::loss`] does, and the gradient of every parameter that trains.
    ///
    /// Modules that were loaded with [`crate::Module::load`] are frozen: the gradient passes through them on its way to
    /// modules below that train. The backward pass ends at the lowest part that trains.
    ///
    /// Each forward and backward pass takes `micro_batch` sequences; the last pass takes the rest. The gradients of the
    /// passes are added up in their order. A smaller micro-batch needs less memory for activations and gives the same
    /// step up to rounding.
    ///
    /// # Errors
    /// As [`Path::loss`]. Also if `micro_batch` is 0, or no module was loaded as trainable.
    pub fn gradients(&self, batch: &TokenBatch, micro_batch: usize) -> Result<(Loss, Gradients), ModelError> {
        if micro_batch == 0 {
            let problem = "it is 0: a pass needs at least one sequence".to_owned();
            return Err(ModelError::Batch { what: "micro_batch", problem });
        }
        if self.trained_specs().is_empty() {
            let tensor = self.specs().first().map_or_else(String::new, |spec| spec.name.clone());
            return Err(ModelError::NoGradient { tensor });
        }
        let counted = batch.counted();
        let slot = |part: &Place| GradientSlot::new(&self.stack.workspace, part.parameters);
        let slots: Vec<_> = self.parts().iter().map(|part| part.trains().then(|| slot(part))).collect();
        let (place, flat) = (self.head_place(), &self.head().flat);
        let head = &slots[1 + self.config.blocks];
        // A tied projection adds its gradient to the slot of the embedding, which lies in the same level.
        let projection = if self.config.tie_embeddings { &slots[0] } else { head };
        let head = head.clone().zip(projection.clone());
        let head = head.map(|(norm, projection)| HeadSlots { norm, projection });
        let head = head.as_ref().map_or(Backward::Input, Backward::All);
        let mut mean = 0f64;
        for part in batch.parts(micro_batch) {
            let x = self.stream(part.tokens(), Some(&slots))?;
            // Divided by the counted targets of the whole batch, so that the passes add up to the mean of the batch.
            let loss = ops::cross_entropy(&x, flat, &place, &self.stack, &part, counted, head)?;
            mean += f64::from(loss.to_scalar::<f32>()?);
            loss.backward()?;
        }
        let mut parts = Vec::with_capacity(slots.len());
        for (specs, slot) in by_part(self.trained_specs()).zip(slots.iter().flatten()) {
            let missing = || ModelError::NoGradient { tensor: specs[0].name.clone() };
            parts.push(slot.take().ok_or_else(missing)?);
        }
        let gradients = Gradients { specs: self.trained_specs().clone(), parts };
        Ok((Loss { mean: mean as f32, counted }, gradients))
    }

    /// Returns `ln p(target)` in nats of each position (B, T); 0 where the target is [`crate::IGNORE`]. Keeps no graph.
    ///
    /// # Errors
    /// As [`Path::loss`].
    pub fn token_log_probs(&self, batch: &TokenBatch) -> Result<Vec<f32>, ModelError> {
        let x = self.stream(batch.tokens(), None)?;
        let (place, flat) = (self.head_place(), &self.head().flat);
        Ok(ops::token_log_probs(&x, flat, &place, &self.stack, batch)?)
    }

    /// Returns the outputs of the head after some positions of each row: (B, positions, V), row-major, where V is
    /// [`crate::ModelConfig::head_size`]. `tokens` is (B, T). Keeps no graph.
    ///
    /// # Errors
    /// A position is not below T, T is over the context, or the tokens are of a larger vocabulary than the path.
    pub fn position_logits(&self, tokens: &TokenRows, positions: &[usize]) -> Result<Vec<f32>, ModelError> {
        let time = tokens.time();
        if let Some(position) = positions.iter().find(|&&position| position >= time) {
            let problem = format!("position {position} is outside of rows of {time} tokens");
            return Err(ModelError::Batch { what: "positions", problem });
        }
        let width = self.config.hidden_size;
        let x = self.stream(tokens, None)?;
        let gather = |x: &[f32]| -> Vec<f32> {
            let rows = x.chunks_exact(time * width);
            rows.flat_map(|row| positions.iter().flat_map(|&at| &row[at * width..][..width]))
                .copied()
                .collect()
        };
        self.logits(&ops::with_slice(&x, gather)?)
    }

    /// Returns the outputs of the head (rows, V) for rows (rows, D) of the last block's output.
    fn logits(&self, x: &[f32]) -> Result<Vec<f32>, ModelError> {
        let (width, place) = (self.config.hidden_size, self.head_place());
        let (rows, outputs) = (x.len() / width, place.vocabulary);
        let mut normed = vec![0.0; x.len()];
        let mut logits = vec![0.0; rows * outputs];
        ops::with_slice(&self.head().flat, |weights| {
            let norm = &weights[place.norm..][..width];
            let projection = &weights[place.projection..][..outputs * width];
            kernel::rms_norm(x, norm, &mut normed, self.config.rms_norm_eps as f32);
            kernel::linear(&normed, projection, &mut logits, LinearShape { rows, inputs: width, outputs });
        })?;
        Ok(logits)
    }

    /// Returns the features of the router (arXiv:2403.10616 §2.4): [`Path::early_features`] after all blocks.
    ///
    /// # Errors
    /// As [`Path::early_features`].
    pub fn features(&self, tokens: &TokenRows, lengths: &[usize]) -> Result<Vec<f32>, ModelError> {
        self.early_features(self.config.blocks, tokens, lengths)
    }

    /// Returns features after the first `blocks` blocks, (B, D), row-major: the mean of their output, before the final norm,
    /// over the first `lengths` tokens of each row. With 0 blocks it is the mean of the token embeddings. `tokens` is (B, T),
    /// rows padded on the right. Later blocks are not computed.
    ///
    /// # Errors
    /// The path has fewer blocks, there is not one length a row, a length is 0 or over T, T is over the context, or the tokens
    /// are of a larger vocabulary than the path.
    pub fn early_features(
        &self,
        blocks: usize,
        tokens: &TokenRows,
        lengths: &[usize],
    ) -> Result<Vec<f32>, ModelError> {
        if blocks > self.config.blocks {
            let problem = format!("{blocks} is over {}", self.config.blocks);
            return Err(ModelError::Batch { what: "the number of blocks of features", problem });
        }
        let (batch, time) = (tokens.rows(), tokens.time());
        let wrong = |problem: String| Err(ModelError::Batch { what: "lengths", problem });
        if lengths.len() != batch {
            return wrong(format!("{} lengths were given for {batch} rows", lengths.len()));
        }
        if let Some(length) = lengths.iter().find(|&&length| length == 0 || length > time) {
            return wrong(format!("{length} is not from 1 to {time}"));
        }
        let width = self.config.hidden_size;
        let x = self.stream_after(blocks, tokens, None)?;
        let mean = |x: &[f32]| {
            let mut features = vec![0.0; batch * width];
            let rows = x.chunks_exact(time * width).zip(features.chunks_exact_mut(width)).zip(lengths);
            for ((x, features), &length) in rows {
                // In f64, so that the rounding of a long sum does not show in the mean.
                let mut sums = vec![0f64; width];
                for position in x.chunks_exact(width).take(length) {
                    sums.iter_mut().zip(position).for_each(|(sum, &value)| *sum += f64::from(value));
                }
                features
                    .iter_mut()
                    .zip(sums)
                    .for_each(|(feature, sum)| *feature = (sum / length as f64) as f32);
            }
            features
        };
        Ok(ops::with_slice(&x, mean)?)
    }

    /// Returns the last block's output (B, T, D), before the final norm. With slots for the gradients of the parts that
    /// train it can be differentiated.
    fn stream(
        &self,
        tokens: &TokenRows,
        slots: Option<&[Option<GradientSlot>]>,
    ) -> Result<Tensor, ModelError> {
        self.stream_after(self.config.blocks, tokens, slots)
    }

    /// Returns the output (B, T, D) of the first `blocks` blocks, as [`Self::stream`] does for all of them.
    fn stream_after(
        &self,
        blocks: usize,
        tokens: &TokenRows,
        slots: Option<&[Option<GradientSlot>]>,
    ) -> Result<Tensor, ModelError> {
        let (positions, context) = (tokens.time(), self.config.context);
        if positions > context {
            return Err(ModelError::Context { positions, context });
        }
        let (vocabulary, width) = (self.config.vocab_size, self.config.hidden_size);
        let embedding = self.embedding();
        let place = EmbeddingPlace { at: embedding.at, vocabulary, width };
        let slots = slots.unwrap_or_default();
        let slot = slots.first().and_then(Option::as_ref);
        // True once a part below trains: the gradient must reach it.
        let mut trains = slot.is_some();
        let mut x = ops::embedding(&embedding.flat, place, tokens, slot)?;
        let mut first = 0;
        // Blocks with consecutive parameters are one operation.
        let follows = |a: &Place, b: &Place| a.flat.id() == b.flat.id() && b.at == a.at + a.parameters;
        let own = self.blocks();
        for run in own[..blocks.min(own.len())].chunk_by(follows) {
            // A run lies in one module, so all of its blocks train or none.
            let own: Vec<GradientSlot> =
                slots.iter().skip(1 + first).take(run.len()).flatten().cloned().collect();
            let backward = match (own.is_empty(), trains) {
                (false, _) => Backward::All(own.as_slice()),
                (true, true) => Backward::Input,
                (true, false) => Backward::Nothing,
            };
            x = ops::blocks(&x, &run[0].flat, run[0].at, run.len(), &self.stack, backward)?;
            trains |= !own.is_empty();
            first += run.len();
        }
        Ok(x)
    }
}
