//! The transformer router, which decides during a text (arXiv:2403.10616 §2.4.3): the seed model, fine-tuned to predict at
//! every token the best path for the tokens behind it.

use std::fs::{self, File};
use std::io::Read;
use std::path::Path as FilePath;
use std::sync::Arc;

use dipaco_model::{Device, ModelConfig, Module, ModuleWeights, Path, path_specs};
use dipaco_shards::TokenRows;
use dipaco_topology::{Topology, TopologyConfig};
use serde::{Deserialize, Serialize};

use crate::{BoxError, RoutingError};

const FORMAT: &str = "dipaco-transformer-router";
/// Version of the transformer router format that this program writes and reads.
pub const TRANSFORMER_ROUTER_FORMAT_VERSION: u32 = 1;
const WEIGHTS: &str = "transformer.safetensors";
const HEADER: &str = "transformer.json";
/// Largest header that is read, in bytes.
const LARGEST_HEADER: u64 = 1 << 20;

/// Data and settings of a transformer router's fit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TransformerFittedOn {
    /// Content hash of the token file with the reserved documents.
    pub tokens_hash: String,
    /// Hash of the tokenizer that made the token file.
    pub tokenizer_hash: String,
    /// Hash of the weights of the seed model, the start of the fine-tuning.
    pub seed_hash: String,
    /// Hash over the weights of all modules of the scoring paths.
    pub modules_hash: String,
    /// Hash over the paths' scores.
    pub scores_hash: String,
    /// JSON with the settings and everything else that the weights depend on.
    pub settings: String,
    /// Number of reserved documents.
    pub documents: u64,
    /// Number of optimizer steps of these weights; fewer than the fit took if the held-out loss rose later.
    pub steps: u64,
    /// Mean of `-ln p(best path)` over the positions of held-out documents, in nats; absent if none were held out.
    pub held_out_loss: Option<f64>,
    /// The same loss for a guess by the frequency of each path as the best path, the best possible guess without reading
    /// the text.
    pub blind_loss: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    format: String,
    version: u32,
    /// P.
    paths: u32,
    /// Shape of the transformer, with the vocabulary.
    model: ModelConfig,
    fitted_on: TransformerFittedOn,
    /// BLAKE3 hash of the weights' file.
    weights_hash: String,
}

/// A transformer with one output for each path.
#[derive(Clone, Debug)]
pub struct TransformerRouter {
    header: Header,
    path: Path,
}

impl TransformerRouter {
    /// Writes a router into a folder: the weights, then the header that vouches for them. `model` is the configuration of
    /// the seed with its vocabulary; `weights` have the shape of [`dipaco_model::ModelConfig::with_outputs`] of it.
    ///
    /// # Errors
    ///
    /// The weights do not fit the model, or a file can't be written.
    pub fn save(
        folder: &FilePath,
        model: &ModelConfig,
        paths: u32,
        weights: &ModuleWeights,
        fitted_on: TransformerFittedOn,
    ) -> Result<Self, RoutingError> {
        let path = compose(model, paths, weights).map_err(|source| damaged(folder, source.to_string()))?;
        let bytes = weights.to_safetensors(None).map_err(|error| damaged(folder, error.to_string()))?;
        let header = Header {
            format: FORMAT.into(),
            version: TRANSFORMER_ROUTER_FORMAT_VERSION,
            paths,
            model: model.clone(),
            fitted_on,
            weights_hash: dipaco_files::content_hash(&bytes),
        };
        let failed = |action| move |source| RoutingError::Io { action, path: folder.to_owned(), source };
        fs::create_dir_all(folder).map_err(failed("create the folder of the transformer router"))?;
        // The old header must not vouch for the new weights, also if this call is killed between the two files.
        match fs::remove_file(folder.join(HEADER)) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                return Err(failed("remove the old transformer router")(source));
            }
            _ => {}
        }
        dipaco_files::publish(&folder.join(WEIGHTS), &bytes)?;
        let mut json =
            serde_json::to_vec_pretty(&header).map_err(|error| damaged(folder, error.to_string()))?;
        json.push(b'\n');
        dipaco_files::publish(&folder.join(HEADER), &json)?;
        Ok(Self { header, path })
    }

    /// Reads the router of a folder; `None` if the folder has none.
    ///
    /// # Errors
    ///
    /// The router is damaged, of another version, or can't be read.
    pub fn open(folder: &FilePath) -> Result<Option<Self>, RoutingError> {
        let name = folder.join(HEADER);
        let io = |path: &FilePath, source| RoutingError::Io {
            action: "read the transformer router",
            path: path.to_owned(),
            source,
        };
        let mut text = Vec::new();
        match File::open(&name) {
            Ok(file) => {
                file.take(LARGEST_HEADER).read_to_end(&mut text).map_err(|source| io(&name, source))?
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(io(&name, source)),
        };
        let header = decode(&text).map_err(|problem| damaged(&name, problem))?;
        let file = folder.join(WEIGHTS);
        let model = header.model.with_outputs(header.paths as usize);
        let length = fs::metadata(&file).map_err(|source| io(&file, source))?.len();
        // Before the tensors are listed: the header may promise a million blocks.
        if weight_bytes(&model) > length.into() {
            return Err(damaged(&name, "its model has more weights than their file".to_owned()));
        }
        let specs: Arc<[_]> = path_specs(&model).into();
        // The size of the header's tensors bounds the memory; a longer file is not theirs and fails the hash.
        let room = 4 * dipaco_model::parameters(&specs) as u64 + LARGEST_HEADER;
        let mut bytes = Vec::new();
        File::open(&file)
            .and_then(|file| file.take(room).read_to_end(&mut bytes))
            .map_err(|source| io(&file, source))?;
        if dipaco_files::content_hash(&bytes) != header.weights_hash {
            let problem = "its weights do not have the hash in its header".to_owned();
            return Err(damaged(&file, problem));
        }
        let weights = ModuleWeights::from_safetensors(&bytes, specs)
            .map_err(|error| damaged(&file, error.to_string()))?;
        let path = compose(&header.model, header.paths, &weights)
            .map_err(|source| damaged(&file, source.to_string()))?;
        Ok(Some(Self { header, path }))
    }

    /// True if the folder has a router, whole or damaged.
    #[must_use]
    pub fn exists(folder: &FilePath) -> bool {
        folder.join(HEADER).exists()
    }

    /// P, the number of paths.
    #[must_use]
    pub fn paths(&self) -> u32 {
        self.header.paths
    }

    /// Data and settings of the fit.
    #[must_use]
    pub fn fitted_on(&self) -> &TransformerFittedOn {
        &self.header.fitted_on
    }

    /// BLAKE3 of the file with its weights, in hexadecimal.
    #[must_use]
    pub fn weights_hash(&self) -> &str {
        &self.header.weights_hash
    }

    /// Largest number of tokens that it reads.
    #[must_use]
    pub fn context(&self) -> usize {
        self.path.config().context
    }

    /// Scores of the paths after some positions of each row: (B, positions, P), row-major, the logarithm of the probability
    /// that the path is best, up to a constant of each position. `tokens` is (B, T); scores depend only on the tokens up to
    /// their position.
    ///
    /// # Errors
    ///
    /// The tokens do not fit the model.
    pub fn scores(&self, tokens: &TokenRows, positions: &[usize]) -> Result<Vec<f32>, BoxError> {
        Ok(self.path.position_logits(tokens, positions)?)
    }

    /// Checks that the router was made for a run: its tokenizer, its seed and its number of paths.
    ///
    /// # Errors
    ///
    /// [`RoutingError::Mismatch`] if it was made for another run.
    pub fn check(&self, tokenizer_hash: &str, seed_hash: &str, paths: u32) -> Result<(), RoutingError> {
        let fitted = self.fitted_on();
        let own = self.paths().to_string();
        let compared = [
            ("the transformer router's tokenizer", fitted.tokenizer_hash.as_str(), tokenizer_hash),
            ("the transformer router's seed model", fitted.seed_hash.as_str(), seed_hash),
            ("the transformer router's number of paths", own.as_str(), &paths.to_string()),
        ];
        for (what, expected, actual) in compared {
            if expected != actual {
                return Err(RoutingError::Mismatch {
                    what,
                    expected: expected.to_owned(),
                    actual: actual.to_owned(),
                    remedy: "run route score and route fit-transformer for this run",
                });
            }
        }
        Ok(())
    }
}

fn compose(model: &ModelConfig, paths: u32, weights: &ModuleWeights) -> Result<Path, BoxError> {
    let model = model.with_outputs(paths as usize);
    let topology = Topology::new(&TopologyConfig::dense(model.blocks), model.blocks)?;
    let module = Arc::new(Module::load(weights, &Device::Cpu)?);
    Ok(Path::compose(&model, &topology, &[module])?)
}

/// Bytes of the weights of a checked model, whose dimensions are below 2^24. Norms and a tied head are left out.
fn weight_bytes(model: &ModelConfig) -> u128 {
    let [d, a, f, v, heads, blocks] = [
        model.hidden_size,
        model.attention_size(),
        model.ffn_size,
        model.vocab_size,
        model.head_size(),
        model.blocks,
    ]
    .map(|size| size as u128);
    4 * d * (v + heads + blocks * (4 * a + 3 * f))
}

fn decode(text: &[u8]) -> Result<Header, String> {
    #[derive(Deserialize)]
    struct Version {
        format: String,
        version: u32,
    }
    let unreadable = |error| format!("it can't be read ({error})");
    let found: Version = serde_json::from_slice(text).map_err(unreadable)?;
    if found.format != FORMAT || found.version != TRANSFORMER_ROUTER_FORMAT_VERSION {
        return Err(format!(
            "it is {:?} version {}, this program reads {FORMAT:?} version {TRANSFORMER_ROUTER_FORMAT_VERSION}",
            found.format, found.version
        ));
    }
    let header: Header = serde_json::from_slice(text).map_err(unreadable)?;
    let model = header.model.with_outputs(header.paths as usize);
    if header.paths == 0 || model.vocab_size == 0 {
        return Err("it has no paths or no vocabulary".to_owned());
    }
    model.check().map_err(|error| error.to_string())?;
    Ok(header)
}

fn damaged(path: &FilePath, problem: String) -> RoutingError {
    RoutingError::Manifest {
        path: path.to_owned(),
        problem: format!("{problem}; run route fit-transformer again"),
    }
}

#[cfg(test)]
mod tests {
    use dipaco_model::init;

    use super::*;
    use crate::testing::transformer_fitted_on as fitted_on;

    fn model() -> ModelConfig {
        ModelConfig {
            hidden_size: 8,
            blocks: 1,
            heads: 1,
            head_dim: 8,
            ffn_size: 8,
            vocab_size: 20,
            context: 12,
            tie_embeddings: true,
            ..ModelConfig::default()
        }
    }

    fn saved(folder: &FilePath) -> TransformerRouter {
        let weights = init(&model().with_outputs(5), 1).unwrap();
        TransformerRouter::save(folder, &model(), 5, &weights, fitted_on()).unwrap()
    }

    #[test]
    fn a_router_survives_its_files_and_depends_on_nothing_behind_a_position() {
        let folder = tempfile::tempdir().unwrap();
        assert!(TransformerRouter::open(folder.path()).unwrap().is_none());
        let router = saved(folder.path());
        let read = TransformerRouter::open(folder.path()).unwrap().unwrap();
        let ids: Vec<u32> = (0..24).map(|i| i * 7 % 20).collect();
        let tokens = TokenRows::new(ids.clone(), 2, 20).unwrap();
        let scores = router.scores(&tokens, &[3, 8]).unwrap();
        assert_eq!(scores.len(), 2 * 2 * 5);
        assert_eq!(read.scores(&tokens, &[3, 8]).unwrap(), scores);
        assert_eq!(read.fitted_on(), &fitted_on());
        let mut other = ids;
        other[9..12].fill(1);
        other[21..24].fill(2);
        let other = TokenRows::new(other, 2, 20).unwrap();
        assert_eq!(read.scores(&other, &[3, 8]).unwrap(), scores);
        assert!(read.scores(&tokens, &[12]).is_err());
        read.check("tokenizer", "seed", 5).unwrap();
        for (tokenizer, seed, paths, named) in
            [("x", "seed", 5, "tokenizer"), ("tokenizer", "x", 5, "seed"), ("tokenizer", "seed", 4, "paths")]
        {
            let message = read.check(tokenizer, seed, paths).unwrap_err().to_string();
            assert!(message.contains(named) && message.contains("fit-transformer"), "{message}");
        }
    }

    #[test]
    fn damaged_and_other_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let refused = |named: &str| {
            let message = TransformerRouter::open(folder.path()).unwrap_err().to_string();
            assert!(message.contains(named) && message.contains("fit-transformer"), "{message}");
        };
        saved(folder.path());
        let weights = folder.path().join(WEIGHTS);
        let bytes = fs::read(&weights).unwrap();
        fs::write(&weights, &bytes[..bytes.len() - 4]).unwrap();
        refused("weights");
        saved(folder.path());
        let header = folder.path().join(HEADER);
        let text = fs::read_to_string(&header).unwrap();
        fs::write(&header, text.replace("\"version\": 1", "\"version\": 9")).unwrap();
        refused("version 9");
        fs::write(&header, text.replace("\"paths\": 5", "\"paths\": 6")).unwrap();
        refused("lm_head");
        fs::write(&header, text.replace("\"paths\": 5", "\"paths\": 0")).unwrap();
        refused("no paths");
    }
}
