//! The time that each phase of a training step takes.

use std::sync::{Arc, Mutex, PoisonError};

/// Parts of a training step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The products with a block's weights, and the operations fused with them (norms, RoPE, SwiGLU, residual adds).
    Products,
    /// Attention.
    Attention,
    /// The final norm, the output projection and the cross entropy.
    Head,
    /// Gradient clipping and the step of the optimizer: AdamW, Muon or plain descent.
    Optimizer,
}

/// Seconds spent in each [`Phase`]. The rest of a step belongs to no phase.
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

/// A clock and the times that it measured.
struct Measured {
    /// Gives the time in seconds.
    now: fn() -> f64,
    phases: Mutex<Phases>,
}

/// Adds up the time of phases when a clock is given; clones share the sums.
#[derive(Clone, Default)]
pub struct Profile(Option<Arc<Measured>>);

impl Profile {
    /// A profile that reads the time in seconds from `now`. The default profile measures nothing.
    #[must_use]
    pub fn new(now: fn() -> f64) -> Self {
        Self(Some(Arc::new(Measured { now, phases: Mutex::default() })))
    }

    /// Runs `f` and adds the time that it takes to a phase.
    pub fn time<R>(&self, phase: Phase, f: impl FnOnce() -> R) -> R {
        let Some(shared) = &self.0 else { return f() };
        let start = (shared.now)();
        let result = f();
        let seconds = (shared.now)() - start;
        let mut phases = shared.phases.lock().unwrap_or_else(PoisonError::into_inner);
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
        std::mem::take(&mut shared.phases.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl std::fmt::Debug for Profile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Profile").field(&self.0.is_some()).finish()
    }
}
