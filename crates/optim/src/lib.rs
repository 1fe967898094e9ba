//! AdamW, Nesterov momentum, learning-rate schedules and gradient clipping.
