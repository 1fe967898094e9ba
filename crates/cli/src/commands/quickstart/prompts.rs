//! Two prompts for the trained run, completed over HTTP as any client would.

use std::net::SocketAddr;
use std::time::Duration;

use dipaco_pipeline::RunDirectory;
use dipaco_pipeline::prepared::tokenizer;
use dipaco_routing::ShardSet;
use dipaco_topology::PathId;
use serde_json::{Value, json};

use crate::error::CliError;

/// Tokens of a prompt: the prefix that the router reads.
const PROMPT_TOKENS: usize = 32;
/// Number of documents of each shard that may become prompts.
const PER_SHARD: usize = 3;
/// Number of completions, each by another path.
const WANTED: usize = 2;

/// A prompt and a path's completion of it.
pub(crate) struct ServedText {
    pub(crate) path: PathId,
    pub(crate) modules: Vec<String>,
    pub(crate) prompt: String,
    pub(crate) text: String,
}

/// Beginnings of the validation documents nearest to the centre of their shard. Those that end within a sentence of prose
/// come first: the continuation of a link, or of a text after a sentence, says little about a model.
pub(crate) fn candidates(run: &RunDirectory, phase: u32) -> Result<Vec<String>, CliError> {
    let tokenizer = tokenizer(run)?;
    let shards = ShardSet::open(&run.routing(phase).validation())?;
    let mut prompts = Vec::new();
    for nearest in 0..PER_SHARD {
        for shard in shards.shards() {
            let Some(example) = shard.nearest.get(nearest) else { continue };
            let document = shards.open_shard(shard.path)?.document(example.document).to_vec();
            let length = document.len().saturating_sub(1).min(PROMPT_TOKENS);
            if length > 0 {
                prompts.push(tokenizer.decode(&document[..length])?);
            }
        }
    }
    // Stable, so that the documents nearest to a centre stay first among equals.
    prompts.sort_by_key(|prompt| std::cmp::Reverse(prose(prompt)));
    Ok(prompts)
}

/// How well a text reads as prose that goes on: true if it ends in the middle of a sentence, in a word of letters alone or with a
/// comma after it, and the tenths of its characters that are letters or spaces.
fn prose(text: &str) -> (bool, usize) {
    // White space at the end leaves no last word: the paragraph may have ended there.
    let last = text.rsplit(char::is_whitespace).next().unwrap_or_default();
    let word = last.strip_suffix(',').unwrap_or(last);
    let goes_on = !word.is_empty() && word.chars().all(char::is_alphabetic);
    let (all, plain) = text.chars().fold((0, 0), |(all, plain), character| {
        (all + 1, plain + usize::from(character.is_alphabetic() || character == ' '))
    });
    (goes_on, 10 * plain / all.max(1))
}

/// Completes prompts until two different paths have answered.
pub(crate) fn complete(
    server: SocketAddr,
    model: &str,
    prompts: &[String],
) -> Result<Vec<ServedText>, CliError> {
    let agent: ureq::Agent = ureq::Agent::config_builder()
        .timeout_global(Some(Duration::from_secs(60)))
        .proxy(None)
        .build()
        .into();
    let post = |path: &str, body: &Value| -> Result<Value, CliError> {
        let url = format!("http://{server}{path}");
        let failed = |source: ureq::Error| CliError::Request { url: url.clone(), source: Box::new(source) };
        let mut answer = agent.post(&url).send_json(body).map_err(failed)?;
        answer.body_mut().read_json().map_err(failed)
    };
    let mut completions: Vec<ServedText> = Vec::new();
    for prompt in prompts {
        let route = post("/v1/route", &json!({ "model": model, "prompt": prompt }))?;
        let Some(path) = route["path"].as_u64().and_then(|path| u32::try_from(path).ok()).map(PathId) else {
            return Err(CliError::Answer { what: "/v1/route" });
        };
        if completions.iter().any(|completion| completion.path == path) {
            continue;
        }
        let request = json!({
            "model": model, "prompt": prompt, "max_tokens": 32, "temperature": 0.7, "seed": 1, "return_route": true,
        });
        let answer = post("/v1/completions", &request)?;
        let Some(text) = answer["choices"][0]["text"].as_str() else {
            return Err(CliError::Answer { what: "/v1/completions" });
        };
        let levels = route["levels"].as_array().into_iter().flatten();
        let modules = levels.map(|level| format!("{}/{}", level["level"], level["module"])).collect();
        completions.push(ServedText { path, modules, prompt: prompt.clone(), text: text.to_owned() });
        if completions.len() == WANTED {
            break;
        }
    }
    Ok(completions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_within_a_sentence_comes_before_one_at_its_end() {
        let goes_on = ["You can override the default, which", "In addition, you can,"];
        let ends = [
            "In addition, you can override the default.",
            "You can override the default;",
            "# The default\n\n",
            "You can override the ",
        ];
        assert_eq!(goes_on.map(|text| prose(text).0), [true; 2]);
        assert_eq!(ends.map(|text| prose(text).0), [false; 4]);
    }

    #[test]
    fn prose_comes_before_links_and_lists() {
        let texts = [
            "The router reads the beginning of a text, and chooses one path for",
            "The format of this file is based on the one of [Keep a Changelog](",
            "- [Install](#install)\n- [Use](#use)\n- [Licence](#licence)",
            "[![CI](https://ci.example/x.svg)](https://ci.example/x)",
            "",
        ];
        assert_eq!(texts.map(prose), [(true, 9), (false, 9), (false, 6), (false, 6), (false, 0)]);
        assert_eq!((prose("Größe"), prose("1 2 3")), ((true, 10), (false, 4)), "letters of any language");
    }
}
