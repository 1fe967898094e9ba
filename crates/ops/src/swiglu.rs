//! The gated activation of the feed-forward layer (arXiv:2002.05202): `silu(gate) · up`, element by element.

use crate::element::Element;
use crate::exp::sigmoid;
use crate::vector;

/// `y = silu(gate) · up`.
pub(crate) fn forward<E: Element>(gate: &[f32], up: &[f32], y: &mut [E]) {
    vector::dispatch_with(
        #[inline(always)]
        |units| {
            for ((y, gate), up) in y.iter_mut().zip(gate).zip(up) {
                *y = E::from_f32(gate * sigmoid(units, *gate) * up);
            }
        },
    );
}

/// Replaces gate and up by their gradients, given the gradient of y, and computes y once more.
pub(crate) fn backward<E: Element>(dy: &[f32], gate: &mut [E], up: &mut [E], y: &mut [E]) {
    vector::dispatch_with(
        #[inline(always)]
        |units| {
            for (((dy, gate), up), y) in dy.iter().zip(gate).zip(up).zip(y) {
                let (g, u) = (gate.to_f32(), up.to_f32());
                let s = sigmoid(units, g);
                let silu = g * s;
                *gate = E::from_f32(dy * u * (s + silu * (1.0 - s)));
                *up = E::from_f32(dy * silu);
                *y = E::from_f32(silu * u);
            }
        },
    );
}
