//! Measures how many tokens a second the engine generates on a grid of random modules.
//!
//! ```text
//! cargo run --release -p dipaco-infer --example decode_rate -- [--grid 4] [--size paper] [--repeats 3] [--prompt 32] [--tokens 48]
//!     [--format f32]
//! ```
//!
//! Prints one line of JSON for each case: 1, 8 and 32 sequences, all on one path, or on paths that are spread over the
//! grid. Every sequence has a prompt of `--prompt` tokens. The rate counts generated tokens, and its time includes the prompts.
#![allow(clippy::print_stdout, clippy::print_stderr, missing_docs)]

use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dipaco_infer::{
    BoxError, Engine, EngineConfig, GenerateRequest, GenerationEvent, ModuleCache, ModuleKey, NoObserver,
    PathModules, PathVersion, PrefixRouter, RunModel, RunPaths, SamplingParams, TextCodec, TextStream,
    TokenizerInfo,
};
use dipaco_model::{ModelConfig, PackedModule, WeightFormat, init, parameters, path_specs, split};
use dipaco_topology::{LevelConfig, ModuleId, Modules, PathId, Topology, TopologyConfig};

const LONGEST: Duration = Duration::from_secs(3600);

struct Options {
    grid: u32,
    size: String,
    repeats: usize,
    prompt: u32,
    tokens: usize,
    format: WeightFormat,
}

fn format(name: &str) -> Result<WeightFormat, String> {
    let all = [WeightFormat::F32, WeightFormat::Bf16, WeightFormat::Q8_0, WeightFormat::Q4_0];
    let found = all.into_iter().find(|format| format.to_string() == name);
    found.ok_or_else(|| format!("unknown format {name}: it is `f32`, `bf16`, `q8_0` or `q4_0`"))
}

impl Options {
    fn read() -> Result<Self, Box<dyn Error>> {
        let mut options = Self {
            grid: 4,
            size: "paper".into(),
            repeats: 3,
            prompt: 32,
            tokens: 48,
            format: WeightFormat::F32,
        };
        let mut arguments = std::env::args().skip(1);
        while let Some(name) = arguments.next() {
            let value = arguments.next().ok_or_else(|| format!("{name} needs a value"))?;
            match name.as_str() {
                "--grid" => options.grid = value.parse()?,
                "--size" => options.size = value,
                "--repeats" => options.repeats = value.parse()?,
                "--prompt" => options.prompt = value.parse()?,
                "--tokens" => options.tokens = value.parse()?,
                "--format" => options.format = format(&value)?,
                _ => return Err(format!("unknown option {name}").into()),
            }
        }
        Ok(options)
    }

    fn model(&self) -> Result<ModelConfig, Box<dyn Error>> {
        let small = ModelConfig { vocab_size: 8_000, context: 1_024, blocks: 6, ..ModelConfig::default() };
        match self.size.as_str() {
            // The path of configs/paper/16x16.toml, 151M parameters.
            "paper" => Ok(ModelConfig {
                hidden_size: 896,
                blocks: 12,
                heads: 16,
                ffn_size: 2_432,
                vocab_size: 32_000,
                tie_embeddings: true,
                ..small
            }),
            "small" => Ok(small),
            other => Err(format!("unknown size {other}: it is `paper` or `small`").into()),
        }
    }

    fn topology(&self, blocks: usize) -> Result<Topology, Box<dyn Error>> {
        let level = |blocks, ends| LevelConfig {
            modules: Modules::Count(self.grid),
            blocks,
            embedding: ends,
            head: ends,
            frozen: false,
        };
        let half = blocks / 2;
        let levels = vec![level(format!("0..{half}"), true), level(format!("{half}..{blocks}"), false)];
        Ok(Topology::new(&TopologyConfig::grid(1, levels), blocks)?)
    }
}

fn load(options: &Options) -> Result<RunModel, Box<dyn Error>> {
    let config = options.model()?;
    let topology = options.topology(config.blocks)?;
    // Module i of a level is that level of a random path with the seed i.
    let paths = topology.path_ids().map(|path| {
        let mut version = PathVersion([0; 32]);
        version.0[..4].copy_from_slice(&path.0.to_le_bytes());
        let key = |module: ModuleId| ModuleKey { level: module.level, content: [module.index as u8; 32] };
        PathModules { version, modules: topology.modules_of(path).into_iter().map(key).collect() }
    });
    let paths: Vec<PathModules> = paths.collect();
    let (model, levels, format) = (config.clone(), topology.clone(), options.format);
    let load = move |path: PathId, level: u16| {
        let module = levels.modules_of(path)[usize::from(level)];
        let modules = split(&model, &levels, &init(&model, module.index.into())?)?;
        Ok(PackedModule::new(&model, &levels, level.into(), &modules[usize::from(level)], format)?)
    };
    let refuse = |_: &[&[u32]]| Err("every request names its path".into());
    let router = PrefixRouter { prefix_tokens: 32, route: Box::new(refuse) };
    let paths = RunPaths::new("random weights", &ModuleCache::new(None), paths, Box::new(load));
    paths.preload()?;
    let model = RunModel::new(config, topology, Some(router), paths)?;
    Ok(model)
}

/// Seconds to generate `tokens` tokens after `prompt` tokens, for each of `sequences` sequences.
async fn seconds(
    engine: &Engine,
    sequences: u32,
    mixed: bool,
    prompt: u32,
    tokens: usize,
) -> Result<f64, Box<dyn Error>> {
    let (paths, vocabulary) = (engine.model().topology().paths(), engine.model().vocab_size() as u32);
    let request = |number: u32| {
        let prompt: Vec<u32> = (0..prompt).map(|i| (i * i * 7 + number * 31 + 1) % vocabulary).collect();
        GenerateRequest {
            // Steps through all paths, so that 32 sequences spread evenly over the grid.
            path: Some(PathId(if mixed { number * 5 % paths } else { 0 })),
            max_tokens: tokens,
            ignore_eos: true,
            sampling: SamplingParams { seed: number.into(), ..SamplingParams::default() },
            ..GenerateRequest::new(prompt)
        }
    };
    let began = Instant::now();
    let mut submission = engine.submit((0..sequences).map(request).collect(), LONGEST)?;
    let mut generated = 0;
    while let Some(event) = submission.next().await? {
        generated += usize::from(matches!(event.event, GenerationEvent::Token { .. }));
    }
    let expected = tokens * sequences as usize;
    if generated != expected {
        return Err(format!("{generated} tokens came, not {expected}").into());
    }
    Ok(began.elapsed().as_secs_f64())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::read()?;
    let model = Arc::new(load(&options)?);
    let size = parameters(&path_specs(&options.model()?));
    eprintln!("{} × {} paths of {size} parameters are loaded", options.grid, options.grid);
    let engine = Engine::start(model, Arc::new(Numbers), Arc::new(NoObserver), &EngineConfig::default())?;
    seconds(&engine, 2, true, options.prompt, 2).await?;
    for repeat in 0..options.repeats {
        for sequences in [1, 8, 32] {
            for mixed in [false, true] {
                if sequences == 1 && mixed {
                    continue;
                }
                let took = seconds(&engine, sequences, mixed, options.prompt, options.tokens).await?;
                let rate = (options.tokens * sequences as usize) as f64 / took;
                let paths = if mixed { "mixed" } else { "one" };
                println!(
                    "{{\"repeat\":{repeat},\"sequences\":{sequences},\"paths\":\"{paths}\",\
                     \"seconds\":{took:.4},\"tokens_per_second\":{rate:.2}}}"
                );
            }
        }
    }
    Ok(())
}

/// A tokenizer whose texts are of no interest.
struct Numbers;

impl TextCodec for Numbers {
    fn encode(&self, _: &str) -> Result<Vec<u32>, BoxError> {
        Err("the prompts are token ids".into())
    }

    fn decode(&self, _: &[u32]) -> Result<String, BoxError> {
        Ok(String::new())
    }

    fn token_text(&self, _: u32) -> String {
        String::new()
    }

    fn stream(&self, _: &[u32]) -> Box<dyn TextStream> {
        Box::new(Self)
    }

    fn end_of_text(&self) -> u32 {
        0
    }

    fn vocab_size(&self) -> usize {
        1
    }

    fn info(&self) -> TokenizerInfo {
        TokenizerInfo { class: String::new(), end_of_text: String::new() }
    }
}

impl TextStream for Numbers {
    fn push(&mut self, _: u32) -> Result<String, BoxError> {
        Ok("x".into())
    }

    fn finish(&mut self) -> String {
        String::new()
    }
}
