//! Guarantees of `/v1/chat/completions`.

use dipaco_infer::{TextCodec, score};
use dipaco_server::{ChatTemplate, EncodeChat, TemplateTokens};
use serde_json::{Value, json};

use super::client::Server;
use super::fake::{Bytes, logits};
use super::server;

fn with_template(server: &Server) {
    let template = "{% for m in messages %}{{ m.content }}{% endfor %}".to_owned();
    let encode: EncodeChat = Box::new(|text| Ok(text.bytes().map(u32::from).collect()));
    server
        .state
        .set_chat_template(ChatTemplate::new(template, TemplateTokens::of_end("<|end|>"), encode).unwrap());
}

#[tokio::test]
async fn a_chat_is_the_completion_of_its_template() {
    let server = server().await;
    with_template(&server);
    let chat = async |body: &Value| server.post("/v1/chat/completions", body).await;
    let parts = json!([{"type": "text", "text": "c"}]);
    let messages = json!([{"role": "system", "content": "a"}, {"role": "user", "content": parts}]);
    let mut body = json!({"messages": messages, "max_completion_tokens": 3, "temperature": 0, "path": 0, "logprobs": true, "top_logprobs": 2});
    let whole = chat(&body).await.json();
    assert!(whole["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!((&whole["object"], &whole["usage"]["prompt_tokens"]), (&json!("chat.completion"), &json!(2)));
    let choice = &whole["choices"][0];
    assert_eq!(choice["message"], json!({"role": "assistant", "content": "def"}));
    assert_eq!(choice["finish_reason"], "length");
    let tokens = choice["logprobs"]["content"].as_array().unwrap();
    assert_eq!((tokens.len(), &tokens[0]["token"], &tokens[0]["bytes"]), (3, &json!("d"), &json!([100])));
    assert_eq!(tokens[0]["top_logprobs"].as_array().unwrap().len(), 2);

    body["stream"] = json!(true);
    let events = chat(&body).await.events();
    let chunks: Vec<Value> = events.iter().filter_map(|event| serde_json::from_str(event).ok()).collect();
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    let text: String = chunks.iter().map(|c| c["choices"][0]["delta"]["content"].as_str().unwrap()).collect();
    assert_eq!((text.as_str(), &chunks[0]["object"]), ("def", &json!("chat.completion.chunk")));
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "length");
    assert_eq!(events.last().unwrap(), "[DONE]");

    // Without a number of tokens a chat goes on to the end of the text.
    let open = json!({"messages": [{"role": "user", "content": "a"}], "temperature": 0, "path": 0});
    let open = chat(&open).await.json();
    assert_eq!(
        (&open["choices"][0]["finish_reason"], &open["usage"]["completion_tokens"]),
        (&json!("stop"), &json!(26))
    );
}

#[tokio::test]
async fn a_chat_has_the_token_ids_of_its_prompt_and_its_answer_if_it_asks_for_them() {
    let server = server().await;
    with_template(&server);
    let mut body = json!({
        "messages": [{"role": "user", "content": "ab"}], "max_tokens": 2, "temperature": 0, "path": 0,
    });
    let chat = async |body: &Value| server.post("/v1/chat/completions", body).await;
    let without = chat(&body).await.json()["choices"][0].clone();
    assert!(without.get("token_ids").is_none() && without.get("prompt_token_ids").is_none(), "{without}");
    body["return_token_ids"] = json!(true);
    let whole = chat(&body).await.json()["choices"][0].clone();
    assert_eq!((&whole["prompt_token_ids"], &whole["token_ids"]), (&json!([97, 98]), &json!([99, 100])));

    body["stream"] = json!(true);
    let events = chat(&body).await.events();
    let chunks = events.iter().filter_map(|event| serde_json::from_str::<Value>(event).ok());
    let choices: Vec<Value> = chunks.map(|mut chunk| chunk["choices"][0].take()).collect();
    assert_eq!(choices[0]["prompt_token_ids"], json!([97, 98]));
    let ids: Vec<&Value> =
        choices.iter().filter_map(|choice| choice["token_ids"].as_array()).flatten().collect();
    assert_eq!(ids, [99, 100]);
}

#[tokio::test]
async fn a_chat_lists_as_many_of_the_likeliest_tokens_as_asked_for_with_the_bytes_of_each() {
    let server = server().await;
    with_template(&server);
    // The first byte of a character. The bias makes it the answer, though many tokens are likelier.
    let scored = score(&logits(97, 0, 0), 0xC3, 20).unwrap();
    assert!(scored.rank > Some(20) && scored.top.len() == 21, "{scored:?}");
    let content = async |top: Value| {
        let body = json!({
            "messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "temperature": 0, "path": 0,
            "logit_bias": {"195": 100}, "logprobs": true, "top_logprobs": top,
        });
        let answer = server.post("/v1/chat/completions", &body).await.json();
        answer["choices"][0]["logprobs"]["content"][0].clone()
    };
    let token = content(json!(20)).await;
    assert_eq!((&token["token"], &token["bytes"]), (&json!("\u{FFFD}"), &json!([195])));
    let likely = |&(id, log_prob): &(u32, f32)| {
        let (text, bytes) = (Bytes.token_text(id), Bytes.token_bytes(id));
        json!({"token": text, "logprob": f64::from(log_prob), "bytes": bytes})
    };
    let expected: Vec<Value> = scored.top.iter().take(20).map(likely).collect();
    assert_eq!(token["top_logprobs"], json!(expected));
    assert_eq!(content(Value::Null).await["top_logprobs"], json!([]));

    // A completion names tokens by their texts, and has the token itself besides.
    let body = json!({
        "prompt": "a", "max_tokens": 1, "temperature": 0, "path": 0, "logit_bias": {"98": 100}, "logprobs": 20,
    });
    let answer = String::from_utf8(server.complete(body).await.body).unwrap();
    assert_eq!(answer.matches("\"\u{FFFD}\":").count(), 1, "{answer}");
    let own = json!({
        "prompt": "a", "max_tokens": 1, "temperature": 0, "path": 0, "logit_bias": {"195": 100}, "logprobs": 0,
    });
    let own = server.complete(own).await.json()["choices"][0]["logprobs"].clone();
    assert_eq!(own["top_logprobs"][0]["\u{FFFD}"], own["token_logprobs"][0]);
}

#[tokio::test]
async fn requests_that_set_no_sampling_get_that_of_the_model() {
    let server = server().await;
    with_template(&server);
    let hello = json!([{"role": "user", "content": "a"}]);
    // The likeliest token follows with the temperature 0 only: with 2 the 20 answers are not all the same.
    let answers = async |temperature: Option<f64>| {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..20 {
            let mut body = json!({"messages": hello, "max_tokens": 4, "path": 0, "seed": seed});
            let mut text = json!({"prompt": "a", "max_tokens": 4, "path": 0, "seed": seed});
            if let Some(temperature) = temperature {
                (body["temperature"], text["temperature"]) = (json!(temperature), json!(temperature));
            }
            let chat = server.post("/v1/chat/completions", &body).await.json();
            let text = server.post("/v1/completions", &text).await.json();
            seen.insert(chat["choices"][0]["message"]["content"].to_string());
            seen.insert(text["choices"][0]["text"].to_string());
        }
        seen.len()
    };
    assert!(answers(None).await > 1 && answers(Some(0.0)).await == 1);
    let settings = json!({"temperature": 0.0, "eos_token_id": 1});
    let defaults = dipaco_server::SamplingDefaults::new(settings.as_object().unwrap()).unwrap();
    server.state.set_sampling_defaults(defaults);
    assert_eq!(answers(None).await, 1);
    assert!(answers(Some(2.0)).await > 1, "a request's own value goes before the model's");
}

#[tokio::test]
async fn chats_that_cannot_be_answered_are_refused_with_the_field() {
    let server = server().await;
    let chat = async |body: Value| server.post("/v1/chat/completions", &body).await.error();
    let hello = json!([{"role": "user", "content": "a"}]);
    let (status, message, ..) = chat(json!({"messages": hello})).await;
    assert!(status == 400 && message.contains("no chat template"), "{message}");
    with_template(&server);
    for (field, body) in [
        ("messages", json!({})),
        ("messages", json!({"messages": []})),
        ("messages", json!({"messages": "a"})),
        ("messages", json!({"messages": [1]})),
        ("messages", json!({"messages": [{"content": "a"}]})),
        (
            "messages",
            json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}),
        ),
        ("tools", json!({"messages": hello, "tools": [{"type": "function"}]})),
        ("response_format", json!({"messages": hello, "response_format": {"type": "json_object"}})),
        ("top_logprobs", json!({"messages": hello, "top_logprobs": 2})),
        ("logprobs", json!({"messages": hello, "logprobs": 3})),
        ("n", json!({"messages": hello, "n": 0})),
    ] {
        let (status, message, _, param, _) = chat(body.clone()).await;
        assert_eq!((status, param), (400, json!(field)), "{body}: {message}");
    }
    let (_, message, ..) = chat(json!({"messages": [1]})).await;
    assert_eq!(message, "a message is 1: it must be a JSON object");
}

#[tokio::test]
async fn a_server_whose_template_has_a_fault_refuses_chats_and_says_why() {
    let server = server().await;
    let template = "{% generation %}{{ messages }}{% endgeneration %}".to_owned();
    let encode: EncodeChat = Box::new(|_| Ok(Vec::new()));
    let fault = ChatTemplate::new(template, TemplateTokens::default(), encode).err().unwrap();
    let reason = std::error::Error::source(&fault).unwrap().to_string();
    assert!(reason.contains("generation"), "{reason}");
    server.state.refuse_chats(reason.clone());
    let chat = json!({"messages": [{"role": "user", "content": "a"}]});
    for address in ["/v1/chat/completions", "/tokenize"] {
        let (status, message, _, param, code) = server.post(address, &chat).await.error();
        assert_eq!((status, param, code), (400, json!("messages"), json!("no_chat_template")), "{address}");
        assert!(message.contains(&reason) && message.contains("/v1/completions"), "{address}: {message}");
    }
    assert_eq!(server.get("/tokenizer_info").await.json()["chat_template"], Value::Null);
    assert_eq!(server.complete(json!({"prompt": "a", "max_tokens": 1})).await.status, 200);
}

#[tokio::test]
async fn the_tokenizer_knows_the_template_and_the_tokens_of_a_chat() {
    let server = server().await;
    assert_eq!(server.get("/tokenizer_info").await.json()["chat_template"], Value::Null);
    let template =
        "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}>{% endif %}";
    let encode: EncodeChat = Box::new(|text| Ok(text.bytes().map(u32::from).collect()));
    let chats = ChatTemplate::new(template.into(), TemplateTokens::of_end("<|end|>"), encode).unwrap();
    server.state.set_chat_template(chats);
    assert_eq!(server.get("/tokenizer_info").await.json()["chat_template"], template);

    let messages = json!([{"role": "system", "content": "a"}, {"role": "user", "content": "bc"}]);
    let tokens = server.post("/tokenize", &json!({"messages": messages})).await.json();
    assert_eq!((&tokens["tokens"], &tokens["count"]), (&json!([97, 98, 99, 62]), &json!(4)));
    let chat = json!({"messages": messages, "max_tokens": 5, "seed": 1});
    let chat = server.post("/v1/chat/completions", &chat).await.json();
    let same = json!({"prompt": tokens["tokens"], "max_tokens": 5, "seed": 1});
    let same = server.complete(same).await.json();
    assert_eq!(chat["choices"][0]["message"]["content"], same["choices"][0]["text"]);
    assert_eq!(chat["usage"]["prompt_tokens"], same["usage"]["prompt_tokens"]);
    let open = json!({"messages": messages, "add_generation_prompt": false, "return_token_strs": true});
    let open = server.post("/tokenize", &open).await.json();
    assert_eq!((&open["tokens"], &open["token_strs"]), (&json!([97, 98, 99]), &json!(["a", "b", "c"])));
    let both = server.post("/tokenize", &json!({"messages": messages, "prompt": "a"})).await;
    assert_eq!((both.error().0, both.error().3), (400, json!("messages")));
}
