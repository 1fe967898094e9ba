//! The fingerprint of answers: what decides the text that a prompt and a seed give.

use dipaco_config::RunConfig;
use dipaco_routing::{Router, TransformerRouter};
use dipaco_server::KvType;
use dipaco_shards::Tokenizer;

use crate::error::PipelineError;
use crate::served_format::format;
use crate::weights::Weights;

/// Hexadecimal digits of a fingerprint's hash.
const DIGITS: usize = 12;

/// What a server keeps while its weights change, and what also decides a text: the tokenizer and the routers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FixedParts {
    /// Hash of the tokenizer.
    pub tokenizer: String,
    /// Tokens that end a generated text.
    pub end_tokens: Vec<u32>,
    /// Hash of the router that reads the first tokens. It covers the seed of its features.
    pub router: String,
    /// Hash of the transformer router's weights; `None` without such a router.
    pub transformer_router: Option<String>,
}

impl FixedParts {
    /// The parts of a server with these routers and this tokenizer.
    #[must_use]
    pub fn new(
        tokenizer: &Tokenizer,
        end_tokens: &[u32],
        router: &Router,
        transformer_router: Option<&TransformerRouter>,
    ) -> Self {
        Self {
            tokenizer: tokenizer.hash().to_owned(),
            end_tokens: end_tokens.to_vec(),
            router: router.hash().to_owned(),
            transformer_router: transformer_router.map(|router| router.weights_hash().to_owned()),
        }
    }
}

/// The fingerprint of the served weights, of what stays beside them, of the number types and of the program. Requests that
/// state the same fields, with the same seed, get the same text from servers with the same fingerprint and the same kind of
/// processor. The chat template and the defaults of fields do not count.
///
/// # Errors
/// [`PipelineError::NotTrained`] when the paths have not been trained.
pub fn fingerprint(
    config: &RunConfig,
    weights: &Weights,
    fixed: &FixedParts,
) -> Result<String, PipelineError> {
    let FixedParts { tokenizer, end_tokens, router, transformer_router } = fixed;
    let mut hasher = blake3::Hasher::new();
    // Each part with its length, so that no two lists of parts are the same bytes.
    let mut add = |part: &[u8]| {
        hasher.update(&(part.len() as u64).to_le_bytes());
        hasher.update(part);
    };
    add(weights.served_hash()?.as_bytes());
    add(tokenizer.as_bytes());
    let ends: Vec<u8> = end_tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    add(&ends);
    add(router.as_bytes());
    if let Some(router) = transformer_router {
        add(router.as_bytes());
    }
    let hash = hasher.finalize().to_hex();
    let kv = match config.serve.kv_type {
        KvType::F32 => "",
        KvType::Bf16 => "-kv16",
    };
    let (format, version) = (format(config.serve.format), env!("CARGO_PKG_VERSION"));
    Ok(format!("fp_{}_{format}{kv}_{version}", &hash[..DIGITS]))
}
