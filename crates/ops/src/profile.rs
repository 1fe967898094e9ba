//! Where the time of a training step goes.

use std::sync::{Arc, Mutex, PoisonError};

/// Parts of a training step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The products with a block's weights, with what is folded into them (norms, RoPE, SwiGLU, residual adds).
    Products,
    /// Attention.
    Attention,
    /// The final norm, the output projection and the cross entropy.
    Head,
    /// Gradient clipping and AdamW.
    Optimizer,
}

/// Seconds spent in each [`Phase`]; what is in none of them is the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Phases {
    /// See [`Phase::Products`].
    pub products: f64,
    /// See [`Phase::Attention`].
    pub attention: f64,
    /// See [`Phase::Head`].
    pub head: f64,
    /// See [`Phase::Optimizer`].
    pub optimizer: f64,
}

/// Adds up the time of phases when a clock is given; clones share the sums.
#[derive(Clone, Default)]
pub struct Profile(Option<Arc<(fn() -> f64, Mutex<Phases>)>>);

impl Profile {
    /// A profile that reads the time in seconds from `now`. The default profile measures nothing.
    #[must_use]
    pub fn new(now: fn() -> f64) -> Self {
        Self(Some(Arc::new((now, Mutex::default()))))
    }

    /// Runs a part of a phase.
    pub fn time<R>(&self, phase: Phase, f: impl FnOnce() -> R) -> R {
        let Some(shared) = &self.0 else { return f() };
        let (now, phases) = &**shared;
        let start = now();
        let result = f();
        let seconds = now() - start;
        let mut phases = phases.lock().unwrap_or_else(PoisonError::into_inner);
        match phase {
            Phase::Products => phases.products += seconds,
            Phase::Attention => phases.attention += seconds,
            Phase::Head => phases.head += seconds,
            Phase::Optimizer => phases.optimizer += seconds,
        }
        result
    }

    /// The sums since the last call.
    #[must_use]
    pub fn take(&self) -> Phases {
        let Some(shared) = &self.0 else { return Phases::default() };
        std::mem::take(&mut shared.1.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl std::fmt::Debug for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Profile").field(&self.0.is_some()).finish()
    }
}
