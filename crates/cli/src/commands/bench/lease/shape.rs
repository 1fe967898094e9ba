//! The shape of the model of `dipaco bench lease`: the size of a path, and the grid.

use clap::ValueEnum;

/// The values of `--size`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum LeaseSize {
    /// 5.3M parameters.
    #[default]
    S,
    /// 180M parameters: a path of the paper.
    L,
    /// 135M parameters: SmolLM2-135M.
    #[value(name = "135m")]
    Million135,
}

impl LeaseSize {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::S => "s",
            Self::L => "l",
            Self::Million135 => "135m",
        }
    }

    /// The settings of the model, and V.
    pub(super) fn model(self) -> (String, usize) {
        let (blocks, width, heads, kv_heads, ffn, vocabulary, tied) = match self {
            Self::S => (4, 256, 4, 4, 704, 4096, false),
            Self::L => (12, 896, 16, 16, 2432, 32_000, false),
            Self::Million135 => (30, 576, 9, 3, 1536, 49_152, true),
        };
        let settings = format!(
            "model.blocks={blocks} model.hidden_size={width} model.heads={heads} model.kv_heads={kv_heads} \
             model.ffn_size={ffn} model.tie_embeddings={tied}"
        );
        (settings, vocabulary)
    }
}

/// The levels of a grid. Embedding and head are in one level, so that tied embeddings fit too.
pub(super) fn levels(blocks: usize, grid: u32) -> String {
    if grid == 1 {
        return format!(
            "topology.levels=[{{ modules = 1, blocks = \"0..{blocks}\", embedding = true, head = true }}]"
        );
    }
    let half = blocks / 2;
    format!(
        "topology.levels=[{{ modules = 1, blocks = \"\", embedding = true, head = true }}, \
         {{ modules = {grid}, blocks = \"0..{half}\" }}, {{ modules = {grid}, blocks = \"{half}..{blocks}\" }}]"
    )
}
