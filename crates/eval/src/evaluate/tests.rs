use std::sync::Arc;

use dipaco_model::{Device, ModelConfig, Module, ModuleWeights, Path, init, split};
use dipaco_routing::{FeatureKind, RouterConfig, RouterFeatures, assign, fit, silent};
use dipaco_shards::{ShardsError, TokenBatch, TokenFileInfo, TokenFileWriter};
use dipaco_topology::{Topology, TopologyConfig};

use super::*;
use crate::Comparison;

const VOCABULARY: usize = 64;
const CONTEXT: usize = 48;

pub(crate) fn quiet(_: EvaluationProgress) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn model_config() -> ModelConfig {
    ModelConfig {
        hidden_size: 16,
        blocks: 2,
        heads: 2,
        head_dim: 8,
        ffn_size: 24,
        vocab_size: VOCABULARY,
        context: CONTEXT,
        init_std: Some(0.3),
        ..ModelConfig::default()
    }
}

fn compose(weights: &ModuleWeights) -> Path {
    let topology = Topology::new(&TopologyConfig::dense(2), 2).unwrap();
    let modules = split(&model_config(), &topology, weights).unwrap();
    let modules: Vec<_> =
        modules.iter().map(|module| Arc::new(Module::load(module, &Device::Cpu).unwrap())).collect();
    Path::compose(&model_config(), &topology, &modules).unwrap()
}

pub(crate) fn tiny(seed: u64) -> Path {
    compose(&init(&model_config(), seed).unwrap())
}

/// A token file with documents of these lengths, including the end-of-text token 0.
pub(crate) fn token_file(folder: &std::path::Path, lengths: &[usize]) -> TokenSet {
    let path = folder.join("validation.h5");
    let info = TokenFileInfo {
        tokenizer_hash: "tokenizer".into(),
        vocab_size: VOCABULARY as u32,
        ..TokenFileInfo::default()
    };
    let mut writer = TokenFileWriter::create(&path, info).unwrap();
    let mut state = 1u32;
    for &length in lengths {
        let mut tokens: Vec<u32> = (1..length)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                1 + (state >> 16) % (VOCABULARY as u32 - 1)
            })
            .collect();
        tokens.push(0);
        writer.push_document(&tokens).unwrap();
    }
    writer.finish().unwrap();
    TokenSet::open(path).unwrap()
}

pub(crate) const LENGTHS: [usize; 12] = [5, 32, 33, 40, 48, 49, 80, 81, 130, 200, 44, 60];

pub(crate) fn plain(config: &EvaluationConfig) -> Protocol<'_> {
    Protocol { config, token_bytes: None, domains: None }
}

fn run(model: &dyn LanguageModel, file: &TokenSet, config: &EvaluationConfig) -> Evaluation {
    evaluate_dense(model, file, &plain(config), &mut quiet).unwrap()
}

pub(crate) fn shards(folder: &std::path::Path, file: &TokenSet, paths: u32) -> ShardSet {
    let config = RouterConfig { features: FeatureKind::Seed, ..RouterConfig::default() };
    let seed = RouterFeatures::new(config.kind, &config, None, tiny(5).config(), || {
        Ok::<_, dipaco_routing::RoutingError>(tiny(5))
    })
    .unwrap();
    let fitted = fit(&seed, "seed", file, &[paths], 1, &config, &mut silent).unwrap();
    assign(&seed, "seed", &fitted.router, file, &folder.join("shards"), &mut silent).unwrap().shards
}

/// A source that makes paths with a function and records the requested paths.
pub(crate) struct Made<F> {
    make: F,
    expected: Vec<PathId>,
    loaded: Vec<PathId>,
}

impl<F: FnMut(PathId) -> Result<Path, BoxError>> Made<F> {
    pub(crate) fn by(make: F) -> Self {
        Self { make, expected: Vec::new(), loaded: Vec::new() }
    }
}

impl<F: FnMut(PathId) -> Result<Path, BoxError>> PathSource for Made<F> {
    type Model = Path;

    fn context(&self) -> usize {
        CONTEXT
    }

    fn expect(&mut self, paths: &[PathId]) {
        self.expected = paths.to_vec();
    }

    fn load(&mut self, path: PathId) -> Result<Path, BoxError> {
        self.loaded.push(path);
        (self.make)(path)
    }
}

#[test]
fn a_uniform_model_has_the_vocabulary_as_perplexity() {
    let mut weights = init(&model_config(), 1).unwrap();
    let head = weights.specs.iter().position(|spec| spec.name == "lm_head.weight").unwrap();
    let before: usize = weights.specs[..head].iter().map(|spec| spec.shape.iter().product::<usize>()).sum();
    weights.values[before..].fill(0.0);
    let folder = tempfile::tempdir().unwrap();
    let file = token_file(folder.path(), &LENGTHS);
    let bytes = vec![3; VOCABULARY];
    let config = EvaluationConfig::default();
    let protocol = Protocol { token_bytes: Some(&bytes), ..plain(&config) };
    let found = evaluate_dense(&compose(&weights), &file, &protocol, &mut quiet).unwrap();
    // ln 64 is rounded to f32, so the perplexity can be off by one unit in the last place.
    assert!((found.perplexity / VOCABULARY as f64 - 1.0).abs() < 3e-7, "{}", found.perplexity);
    assert!((found.bits_per_byte.unwrap() - 6.0 / 3.0).abs() < 1e-6);
}

#[test]
fn the_prefix_of_every_sequence_is_read_but_not_counted() {
    let folder = tempfile::tempdir().unwrap();
    let file = token_file(folder.path(), &LENGTHS);
    let model = tiny(2);
    let found = run(&model, &file, &EvaluationConfig::default());
    // The expected value follows the definition: one sequence at a time, without padding.
    let (mut tokens, mut nll, mut sequences) = (0u64, 0f64, 0u64);
    for document in 0..file.documents() {
        for sequence in file.document(document).to_vec().chunks(CONTEXT) {
            let (inputs, targets) = (&sequence[..sequence.len() - 1], &sequence[1..]);
            if inputs.is_empty() {
                continue;
            }
            let batch = file.batch_of(inputs.to_vec(), targets.to_vec(), 1, targets.len()).unwrap();
            let log_probs = Path::token_log_probs(&model, &batch).unwrap();
            let counted = log_probs.iter().skip(31);
            sequences += u64::from(counted.len() > 0);
            tokens += counted.len() as u64;
            nll -= counted.map(|&value| f64::from(value)).sum::<f64>();
        }
    }
    assert_eq!((found.documents, found.sequences, found.tokens_counted), (12, sequences, tokens));
    // Documents of 33, 40, 48, 49, 80, 81, 130, 200, 44 and 60 tokens in sequences of 48, each minus 32.
    assert_eq!(tokens, 1 + 8 + 16 + 16 + 16 + (16 + 1) + (16 + 16 + 2) + 4 * 16 + 12 + 16);
    assert!((found.nll_sum - nll).abs() < 1e-5 * nll, "{} and {nll}", found.nll_sum);
    assert!((found.perplexity - (nll / tokens as f64).exp()).abs() < 1e-5 * found.perplexity);
}

#[test]
fn the_batch_size_changes_nothing_beyond_rounding() {
    let folder = tempfile::tempdir().unwrap();
    let file = token_file(folder.path(), &LENGTHS);
    let model = tiny(3);
    let run =
        |batch_sequences| run(&model, &file, &EvaluationConfig { batch_sequences, ..Default::default() });
    let one = run(1);
    for batch in [2, 5, 64] {
        let other = run(batch);
        assert_eq!(other.tokens_counted, one.tokens_counted);
        assert!((other.nll_sum - one.nll_sum).abs() < 1e-5 * one.nll_sum, "{other:?}");
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let folder = tempfile::tempdir().unwrap();
    let file = token_file(folder.path(), &LENGTHS);
    let model = tiny(4);
    let run = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let config = EvaluationConfig { batch_sequences: 2, ..Default::default() };
        pool.install(|| run(&model, &file, &config)).nll_sum.to_bits()
    };
    assert_eq!(run(1), run(2));
    assert_eq!(run(1), run(3));
}

#[test]
fn a_routed_model_is_the_sum_of_its_shards() {
    let folder = tempfile::tempdir().unwrap();
    let file = token_file(folder.path(), &LENGTHS.repeat(3));
    let shards = shards(folder.path(), &file, 3);
    let config = EvaluationConfig::default();
    let mut done = Vec::new();
    let sequences = run(&tiny(1), &file, &config).sequences;
    let mut progress = |step: EvaluationProgress| {
        done.push(step.done);
        assert_eq!((step.stage, step.total), (Stage::Scoring, sequences));
        ControlFlow::Continue(())
    };
    let mut source = Made::by(|path: PathId| Ok(tiny(10 + u64::from(path.0))));
    let routed =
        evaluate_routed(&shards, &mut source, Choice::Document, &plain(&config), &mut progress).unwrap();
    assert!(done.is_sorted() && done.last() == Some(&sequences), "{done:?}");
    assert_eq!(source.loaded, [PathId(0), PathId(1), PathId(2)]);
    assert_eq!(source.expected, source.loaded);
    let (mut nll, mut tokens) = (0.0, 0);
    for row in &routed.per_path {
        let model = tiny(10 + u64::from(row.path.0));
        let shard = shards.open_shard(row.path).unwrap();
        let own = evaluate_path(row.path, &model, &shard, &plain(&config), &mut quiet).unwrap();
        assert_eq!(own.per_path, std::slice::from_ref(row));
        nll += own.nll_sum;
        tokens += own.tokens_counted;
    }
    assert_eq!((routed.nll_sum, routed.tokens_counted, routed.documents), (nll, tokens, 36));

    // With the same weights on every path the routed model is the dense model.
    let mut source = Made::by(|_| Ok(tiny(7)));
    let same = evaluate_routed(&shards, &mut source, Choice::Document, &plain(&config), &mut quiet).unwrap();
    let dense = run(&tiny(7), &file, &config);
    assert_eq!(same.tokens_counted, dense.tokens_counted);
    assert!((same.nll_sum - dense.nll_sum).abs() < 1e-5 * dense.nll_sum);

    let json = serde_json::to_string(&routed).unwrap();
    assert_eq!(serde_json::from_str::<Evaluation>(&json).unwrap(), routed);
    assert_eq!(routed.to_string().lines().count(), 6);
    let mut comparison = Comparison::default();
    comparison.push("dense", dense);
    comparison.push("routed", routed);
    assert!(comparison.to_string().lines().nth(2).unwrap().starts_with("routed"), "{comparison}");
}

#[test]
fn a_path_that_can_not_be_loaded_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = token_file(folder.path(), &LENGTHS);
    let shards = shards(folder.path(), &file, 2);
    let config = EvaluationConfig::default();
    let mut gone = Made::by(|_| Err("gone".into()));
    let error =
        evaluate_routed(&shards, &mut gone, Choice::Document, &plain(&config), &mut quiet).unwrap_err();
    assert!(matches!(error, EvalError::Load { path: PathId(0), .. }), "{error}");
    std::fs::write(shards.file(PathId(1)), b"").unwrap();
    let mut source = Made::by(|_| Ok(tiny(5)));
    let error =
        evaluate_routed(&shards, &mut source, Choice::Document, &plain(&config), &mut quiet).unwrap_err();
    assert!(matches!(error, EvalError::Shard { path: PathId(1), .. }), "{error}");
}

#[test]
fn settings_that_do_not_fit_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = token_file(folder.path(), &LENGTHS);
    let model = tiny(6);
    let evaluate =
        |config| evaluate_dense(&model, &file, &plain(&config), &mut quiet).unwrap_err().to_string();
    let default = EvaluationConfig::default;
    for (config, named) in [
        (EvaluationConfig { sequence_tokens: 50, ..default() }, "evaluation.sequence_tokens is 50"),
        (EvaluationConfig { sequence_tokens: 32, ..default() }, "evaluation.sequence_tokens is 32"),
        (EvaluationConfig { prefix_tokens: 48, ..default() }, "evaluation.prefix_tokens is 48"),
        (EvaluationConfig { batch_sequences: 0, ..default() }, "evaluation.batch_sequences is 0"),
        (EvaluationConfig { max_documents: 2, ..default() }, "none of 2 documents"),
    ] {
        let message = evaluate(config);
        assert!(message.contains(named), "{message}");
    }
    // The last token is only predicted, so a sequence may be one token longer than the context.
    let longest = run(&model, &file, &EvaluationConfig { sequence_tokens: 49, ..default() });
    assert_eq!(longest.sequence_tokens, 49);
}

/// A model that returns the same log-probability for every target.
struct Constant(f32);

impl LanguageModel for Constant {
    fn context(&self) -> usize {
        CONTEXT
    }

    fn token_log_probs(&self, batch: &TokenBatch) -> Result<Vec<f32>, BoxError> {
        Ok(vec![self.0; batch.targets().len()])
    }
}

#[test]
fn a_token_outside_of_the_vocabulary_is_not_evaluated() {
    let folder = tempfile::tempdir().unwrap();
    let file = token_file(folder.path(), &[40, 60]);
    let path = file.path().to_owned();
    let second: Vec<u8> = file.document(1).iter().flat_map(|id| (id as u16).to_le_bytes()).collect();
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(second.len()).position(|window| window == second).unwrap();
    bytes[at + 2 * 3] = VOCABULARY as u8;
    drop(file);
    std::fs::write(&path, bytes).unwrap();
    let file = TokenSet::open(&path).unwrap();
    let config = EvaluationConfig::default();
    let refused = evaluate_dense(&tiny(1), &file, &plain(&config), &mut quiet);
    assert!(
        matches!(
            &refused,
            Err(EvalError::Tokens(ShardsError::TokenOutOfVocabulary { token: 64, place, .. })) if place == "place 43"
        ),
        "{refused:?}"
    );
    // A router that chooses paths within the text reads the same tokens.
    let texts = [Text::of(&file, PathId(0), &config)];
    let mut plan = Plan::new(&texts, CONTEXT, 4, 8).unwrap();
    let router = reroute::Flat { score: 0.0, paths: 1 };
    let refused = plan.reroute(&router, 2, &mut |_| Ok(()));
    assert!(
        matches!(refused, Err(EvalError::Tokens(ShardsError::TokenOutOfVocabulary { .. }))),
        "{refused:?}"
    );
}

#[test]
fn numbers_that_are_not_finite_and_tokens_without_length_are_errors() {
    let folder = tempfile::tempdir().unwrap();
    let file = token_file(folder.path(), &LENGTHS);
    let config = EvaluationConfig::default();
    for value in [f32::NAN, f32::NEG_INFINITY] {
        let error = evaluate_dense(&Constant(value), &file, &plain(&config), &mut quiet).unwrap_err();
        assert!(matches!(error, EvalError::NotFinite { .. }), "{error}");
    }
    let protocol = Protocol { token_bytes: Some(&[1]), ..plain(&config) };
    let error = evaluate_dense(&Constant(-1.0), &file, &protocol, &mut quiet).unwrap_err();
    assert!(matches!(error, EvalError::TokenBytes { tokens: 1, .. }), "{error}");
    let mut stop = |_| ControlFlow::Break(());
    let error = evaluate_dense(&Constant(-1.0), &file, &plain(&config), &mut stop).unwrap_err();
    assert!(matches!(error, EvalError::Cancelled));
}

#[test]
fn the_number_of_paths_in_memory_changes_no_bit() {
    let folder = tempfile::tempdir().unwrap();
    let file = token_file(folder.path(), &LENGTHS.repeat(3));
    let shards = shards(folder.path(), &file, 3);
    let run = |parallel_paths| {
        let config = EvaluationConfig { parallel_paths, batch_sequences: 2, ..Default::default() };
        let mut source = Made::by(|path: PathId| Ok(tiny(10 + u64::from(path.0))));
        evaluate_routed(&shards, &mut source, Choice::Document, &plain(&config), &mut quiet).unwrap()
    };
    assert_eq!(run(1), run(2));
    assert_eq!(run(1), run(0));
}

#[test]
fn domains_divide_the_documents() {
    let folder = tempfile::tempdir().unwrap();
    let file = token_file(folder.path(), &LENGTHS.repeat(3));
    let shards = shards(folder.path(), &file, 3);
    let mut domains = Domains::of_documents(&file);
    assert_eq!((domains.documents(), domains.unlabelled()), (36, 36));
    for document in 0..30 {
        let tokens = file.document(document).to_vec();
        domains.label(&tokens, if document < 12 { "first" } else { "second" });
        domains.label(&tokens, "too late");
    }
    domains.label(&[1, 2, 3], "not among them");
    assert_eq!(domains.unlabelled(), 6);
    let config = EvaluationConfig::default();
    let bytes = vec![3; VOCABULARY];
    let protocol = Protocol { config: &config, token_bytes: Some(&bytes), domains: Some(&domains) };
    let mut source = Made::by(|path: PathId| Ok(tiny(10 + u64::from(path.0))));
    let found = evaluate_routed(&shards, &mut source, Choice::Document, &protocol, &mut quiet).unwrap();
    let names: Vec<_> = found.per_domain.iter().map(|row| (row.domain.as_str(), row.documents)).collect();
    assert_eq!(names, [(UNLABELLED, 6), ("first", 12), ("second", 18)]);
    let sum = |of: fn(&DomainEvaluation) -> f64| found.per_domain.iter().map(of).sum::<f64>();
    assert_eq!(sum(|row| row.tokens_counted as f64), found.tokens_counted as f64);
    assert!((sum(|row| row.nll_sum) - found.nll_sum).abs() < 1e-9 * found.nll_sum);
    for path in 0..3 {
        let routed: u64 = found.per_domain.iter().map(|row| row.documents_of_path[path]).sum();
        assert_eq!(routed, found.per_path[path].documents);
    }
    // The first domain holds exactly the documents of a file of their own, so both must give the same result.
    let dense = evaluate_dense(&tiny(4), &file, &protocol, &mut quiet).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let first = run(&tiny(4), &token_file(folder.path(), &LENGTHS), &config);
    let row = &dense.per_domain[1];
    assert_eq!(row.tokens_counted, first.tokens_counted);
    assert!((row.nll_sum - first.nll_sum).abs() < 1e-5 * first.nll_sum);
    assert!(row.documents_of_path.is_empty());
    assert!(found.to_string().contains("purity"), "{found}");
    // The documents are random, so a router can't know their domain and the agreement is low.
    let Agreement { purity, nmi } = found.agreement.unwrap();
    assert!((0.6..0.9).contains(&purity) && (0.0..0.3).contains(&nmi), "{purity} {nmi}");
    assert_eq!(dense.agreement, None);
}

mod mixture;
#[cfg(target_os = "linux")]
mod open_shards;
mod reroute;
mod windows;
