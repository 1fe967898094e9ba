//! Memory for decoding.

/// The residual stream (rows, D) and intermediate results (rows, columns). All blocks and all passes of a sequence use
/// the same memory. Kernels overwrite it before they read it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scratch {
    pub(crate) x: Vec<f32>,
    pub(crate) h: Vec<f32>,
    pub(crate) q: Vec<f32>,
    pub(crate) y: Vec<f32>,
    pub(crate) gate: Vec<f32>,
    pub(crate) up: Vec<f32>,
    pub(crate) gated: Vec<f32>,
}

impl Scratch {
    /// Gives every buffer its length for `rows` positions. A shorter pass keeps the memory of a longer one.
    pub(crate) fn resize(&mut self, rows: usize, width: usize, attention: usize, ffn: usize) {
        let Self { x, h, q, y, gate, up, gated } = self;
        for (buffer, columns) in
            [(x, width), (h, width), (q, attention), (y, attention), (gate, ffn), (up, ffn), (gated, ffn)]
        {
            buffer.resize(rows * columns, 0.0);
        }
    }
}
