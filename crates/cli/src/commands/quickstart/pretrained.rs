//! The quickstart from a pretrained model: finding the model, and the configuration that suits it.

use std::path::Path;

use dipaco_model::ModelConfig;
use dipaco_pipeline::import::PretrainedModel;
use dipaco_pipeline::published::SMOLLM2;
use dipaco_telemetry::{Progress, human};
use toml::{Table, Value};

use crate::error::CliError;
use crate::interrupt::Interrupt;

/// The configuration for a small model. Its model and topology give way to those of the user's model.
const CONFIG: &str = include_str!("../../../../../configs/smollm2-2x2.toml");
/// Longest context, in tokens. Pretrained models have up to a hundred thousand, and nothing here is that long.
const CONTEXT: usize = 2048;
/// Tokens of a sequence in training.
const SEQUENCE_TOKENS: usize = 256;
/// Bytes that are held out of a large text of the user for validation, about 40,000 tokens of English: as many as of the
/// program's own text, 3 % of 4 MB.
pub(super) const HELD_OUT_BYTES: u64 = 120_000;

/// Opens the model in a folder or file, or the published model of this name, which is downloaded into `folder`.
pub(super) fn open(
    source: &str,
    folder: &Path,
    url: Option<&str>,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Result<PretrainedModel, CliError> {
    let path = Path::new(source);
    if path.exists() {
        return Ok(PretrainedModel::open(path)?);
    }
    if source != SMOLLM2.name {
        return Err(CliError::Usage {
            message: format!("there is no {source}, and no model of this name can be downloaded"),
            remedy: format!(
                "name a folder in Hugging Face's format, a GGUF file, or {} for SmolLM2-135M",
                SMOLLM2.name
            ),
        });
    }
    progress.line(&format!(
        "SmolLM2-135M-Instruct (Apache-2.0): {} once, to {}",
        human::bytes(SMOLLM2.bytes),
        folder.display()
    ));
    Ok(PretrainedModel::open(&SMOLLM2.fetch(folder, url, progress, &interrupt.flag())?)?)
}

/// The configuration of a run that begins with a model: the blocks in two halves with two modules each, and one embedding
/// and head for all paths. Few and short steps, because the model can write already.
pub(super) fn config(model: &ModelConfig) -> Result<String, CliError> {
    let refused = |problem: &str| CliError::Usage {
        message: format!("the model has {problem}"),
        remedy: "train it with a configuration of your own: dipaco seed --import".to_owned(),
    };
    if model.blocks < 2 {
        return Err(refused("one block, and this quickstart divides the blocks into two levels"));
    }
    let mut config: Table = CONFIG
        .parse()
        .map_err(|source| CliError::OwnFile { file: "smollm2-2x2.toml", source: Box::new(source) })?;
    let (half, blocks) = (model.blocks.div_ceil(2), model.blocks);
    let level = |blocks: String| Table::from_iter([set("modules", 2), set("blocks", blocks)]);
    let ends = Table::from_iter([set("modules", 1), set("embedding", true), set("head", true)]);
    let levels = [level(format!("0..{half}")), level(format!("{half}..{blocks}")), ends].map(Value::Table);
    config.insert("topology".to_owned(), Table::from_iter([set("levels", levels.to_vec())]).into());
    let context = model.context.min(CONTEXT);
    config.insert("model".to_owned(), Table::from_iter([set("context", number(context))]).into());
    let tokens = number(context.min(SEQUENCE_TOKENS));
    for (section, keys) in [
        ("run", vec![set("name", "quickstart")]),
        ("prepare", vec![set("validation_fraction", 0.03), set("text_document_bytes", 4096)]),
        ("seed_model", vec![set("steps", 10), set("sequence_tokens", tokens), set("validate_every", 0)]),
        (
            "train",
            vec![
                set("rounds", 2),
                set("inner_steps", 5),
                set("sequence_tokens", tokens),
                set("holdout_sequences", 0),
            ],
        ),
    ] {
        let section = config.entry(section).or_insert_with(|| Table::new().into());
        if let Some(section) = section.as_table_mut() {
            section.extend(keys);
        }
    }
    Ok(config.to_string())
}

fn set(key: &str, value: impl Into<Value>) -> (String, Value) {
    (key.to_owned(), value.into())
}

fn number(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use dipaco_config::RunConfig;

    use super::*;

    #[test]
    fn the_configuration_suits_models_of_any_depth() {
        let mut model = ModelConfig { blocks: 30, vocab_size: 100, context: 8192, ..ModelConfig::default() };
        for (blocks, first, second) in [(30, "0..15", "15..30"), (3, "0..2", "2..3"), (2, "0..1", "1..2")] {
            model.blocks = blocks;
            let text = config(&model).unwrap();
            let text = text.replace("[model]", &format!("[model]\nblocks = {blocks}\ntie_embeddings = true"));
            let config = RunConfig::from_toml(&text, Path::new("test.toml")).unwrap();
            let levels: Vec<&str> =
                config.topology.levels.iter().map(|level| level.blocks.as_str()).collect();
            assert_eq!(levels, [first, second, ""]);
            assert_eq!((config.model.context, config.train.sequence_tokens), (2048, 256));
        }
        assert!(config(&ModelConfig { blocks: 1, ..model }).is_err());
    }
}
