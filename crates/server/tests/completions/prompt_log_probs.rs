//! Guarantees of `prompt_logprobs`, which has vLLM's form.

use serde_json::{Value, json};

use super::server;

/// The prompt: `b` and `d` are the likeliest after the tokens before, `x` is not.
const PROMPT: &str = "abxcd";

fn ask(extra: &Value) -> Value {
    let mut body = json!({"prompt": PROMPT, "path": 0, "max_tokens": 1, "temperature": 0});
    body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    body
}

async fn choice(extra: Value) -> Value {
    let reply = server().await.complete(ask(&extra)).await;
    assert_eq!(reply.status, 200, "{extra}");
    reply.json()["choices"][0].clone()
}

#[tokio::test]
async fn each_token_has_its_log_probability_its_rank_and_the_likeliest_ones() {
    let found = choice(json!({"prompt_logprobs": 2})).await;
    assert_eq!((&found["text"], &found["logprobs"]), (&json!("e"), &Value::Null), "no echo is asked for");
    let entries = found["prompt_logprobs"].as_array().unwrap();
    assert_eq!((entries.len(), &entries[0]), (5, &Value::Null), "nothing predicts the first token");
    let tokens: Vec<u32> = PROMPT.bytes().map(u32::from).collect();
    for (place, entry) in entries.iter().enumerate().skip(1) {
        let logits = crate::fake::logits(tokens[place - 1], place - 1, 0);
        let expected = dipaco_infer::score(&logits, tokens[place], 2).unwrap();
        let own = &entry[tokens[place].to_string()];
        assert_eq!(own["logprob"], f64::from(expected.log_prob.unwrap()), "{place}");
        let likelier = logits.iter().filter(|&&logit| logit > logits[tokens[place] as usize]).count();
        assert_eq!(own["rank"], likelier + 1, "{place}");
        assert_eq!(own["decoded_token"], PROMPT[place..=place], "{place}");
        let mut ranks: Vec<u64> =
            entry.as_object().unwrap().values().map(|e| e["rank"].as_u64().unwrap()).collect();
        ranks.sort_unstable();
        assert_eq!(ranks[..2], [1, 2], "{place}: the two likeliest tokens");
        assert_eq!(ranks.len(), if likelier < 2 { 2 } else { 3 }, "{place}");
    }
    assert_eq!(entries[1]["98"]["rank"], 1);
    assert!(entries[2]["120"]["rank"].as_u64() > Some(2), "{}", entries[2]);
    assert!(choice(json!({})).await.get("prompt_logprobs").is_none());
}

#[tokio::test]
async fn an_echo_beside_it_keeps_its_own_number_of_tokens() {
    for (echoed, asked) in [(1, 3), (3, 1), (2, 0)] {
        let both = choice(json!({"echo": true, "logprobs": echoed, "prompt_logprobs": asked})).await;
        let echo = choice(json!({"echo": true, "logprobs": echoed})).await;
        assert_eq!((&both["logprobs"], &both["text"]), (&echo["logprobs"], &echo["text"]));
        let alone = choice(json!({"prompt_logprobs": asked})).await;
        assert_eq!(both["prompt_logprobs"], alone["prompt_logprobs"]);
    }
    let text = choice(json!({"echo": true, "prompt_logprobs": 1})).await;
    assert_eq!((&text["text"], &text["logprobs"]), (&json!("abxcde"), &Value::Null));
    let scored = choice(json!({"max_tokens": 0, "prompt_logprobs": 0})).await;
    assert_eq!((&scored["text"], scored["prompt_logprobs"].as_array().unwrap().len()), (&json!(""), 5));
}

#[tokio::test]
async fn a_prompt_whose_tokens_are_scored_is_not_read_from_the_prefix_cache() {
    let server = server().await;
    let body = |extra: &Value| {
        let mut body = ask(extra);
        body["prompt"] = json!("b".repeat(40));
        body
    };
    let cached = async |extra: Value| {
        let answer = server.complete(body(&extra)).await.json();
        (answer["usage"]["prompt_tokens_details"]["cached_tokens"].clone(), answer["choices"][0].clone())
    };
    let first = cached(json!({"prompt_logprobs": 1})).await;
    assert_eq!(cached(json!({})).await.0, 32, "its pages are there for others");
    let again = cached(json!({"prompt_logprobs": 1})).await;
    assert_eq!((&again.0, again.1["prompt_logprobs"].as_array().unwrap().len()), (&json!(0), 40));
    assert_eq!(first, again);
}
