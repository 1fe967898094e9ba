//! A path's arithmetic on the weights of a fragment at a send and at a receive.

use serde::{Deserialize, Serialize};

/// Blend of a path's own weights and the global weights at a receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Blend {
    /// α: share of the path's own weights, 0 to 1. 0 takes the global weights, 1 only makes them the base.
    pub own: f32,
}

/// The outer gradient of a fragment: base minus local weights (arXiv:2501.18512, algorithm 2). The local weights
/// become the new base. So no change is sent twice, even if the path sends again before it receives.
///
/// Both have one length. The outer gradient lies in the memory of the local weights.
#[must_use]
pub fn send(base: &mut [f32], mut local: Vec<f32>) -> Vec<f32> {
    for (base, local) in base.iter_mut().zip(&mut local) {
        let gradient = *base - *local;
        *base = *local;
        *local = gradient;
    }
    local
}

/// The outer gradient of [`send`] without a new base, for a fragment whose next base are global weights.
#[must_use]
pub fn last_send(base: &[f32], mut local: Vec<f32>) -> Vec<f32> {
    local.iter_mut().zip(base).for_each(|(local, base)| *local = *base - *local);
    local
}

/// Takes over the global weights of a fragment: `local = α local + (1 - α) global` (arXiv:2501.18512 §2.3). The global
/// weights become the base of the next outer gradient, never the blend. All slices have one length.
pub fn receive(base: &mut [f32], local: &mut [f32], global: &[f32], blend: Blend) {
    base.copy_from_slice(global);
    if blend.own == 0.0 {
        local.copy_from_slice(global);
        return;
    }
    // Without rounding, which the formula below has.
    if blend.own == 1.0 {
        return;
    }
    for (local, &global) in local.iter_mut().zip(global) {
        // As torch.lerp computes it, from the global weights towards the path's own.
        *local = global + blend.own * (*local - global);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sent_is_what_was_done_since_the_last_time() {
        let mut base = [1.0, 2.0];
        assert_eq!(send(&mut base, vec![0.5, 4.0]), [0.5, -2.0]);
        // Sent again before a receive.
        assert_eq!(send(&mut base, vec![0.25, 4.0]), [0.25, 0.0]);
        assert_eq!(last_send(&base, vec![0.5, 3.0]), [-0.25, 1.0]);
    }

    #[test]
    fn the_next_base_is_global_and_not_blended() {
        let (mut base, mut local) = ([9.0], [4.0]);
        receive(&mut base, &mut local, &[2.0], Blend { own: 0.5 });
        assert_eq!((base, local), ([2.0], [3.0]));
        receive(&mut base, &mut local, &[7.0], Blend::default());
        assert_eq!((base, local), ([7.0], [7.0]));
        receive(&mut base, &mut local, &[1.0], Blend { own: 1.0 });
        assert_eq!((base, local), ([1.0], [7.0]));
    }
}
