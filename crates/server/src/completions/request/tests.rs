use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::SamplingDefaults;

fn read(body: Value) -> Result<CompletionRequest, ApiError> {
    CompletionRequest::read(&mut Fields::new("body", body)?)
}

#[test]
fn all_forms_of_prompts_are_read() {
    let prompts = |prompt: Value| read(json!({"prompt": prompt})).map(|c| c.prompts);
    let text = |text: &str| Prompt::Text(text.into());
    assert_eq!(prompts(json!("a")).unwrap(), [text("a")]);
    assert_eq!(prompts(json!(["a", "b"])).unwrap(), [text("a"), text("b")]);
    assert_eq!(prompts(json!([1, 2])).unwrap(), [Prompt::Tokens(vec![1, 2])]);
    assert_eq!(prompts(json!([[1], [2, 3]])).unwrap(), [Prompt::Tokens(vec![1]), Prompt::Tokens(vec![2, 3])]);
    for empty in [json!(""), json!([]), json!([[]]), json!(["a", ""])] {
        assert_eq!(prompts(empty).unwrap_err().code, Some("empty_prompt"));
    }
    for bad in [json!({}), json!(true), json!([1, "a"]), json!([-1]), json!([1.5]), json!([5e9])] {
        assert_eq!(prompts(bad).unwrap_err().param.as_deref(), Some("prompt"));
    }
}

#[test]
fn wrong_fields_are_named_and_unknown_fields_accepted() {
    for (field, value) in [
        ("temperature", json!(2.5)),
        ("temperature", json!("hot")),
        ("top_p", json!(-0.1)),
        ("n", json!(0)),
        ("n", json!(129)),
        ("max_tokens", json!(-1)),
        ("max_tokens", json!(1.5)),
        ("logprobs", json!(true)),
        ("echo", json!(1)),
        ("stop", json!([1])),
        ("logit_bias", json!({"a": 1})),
        ("seed", json!(1.5)),
        ("stream_options", json!({"include_usage": true})),
        ("best_of", json!(4)),
        ("suffix", json!("end")),
        ("path", json!(-1)),
        ("truncate_prompt_tokens", json!(0)),
        ("truncate_prompt_tokens", json!(-2)),
        ("return_token_ids", json!("yes")),
        ("add_special_tokens", json!(0)),
        ("user", json!(7)),
    ] {
        let error = read(json!({"prompt": "a", field: value})).unwrap_err();
        assert_eq!((error.param.as_deref(), error.status.as_u16()), (Some(field), 400), "{}", error.message);
        assert!(error.message.starts_with(field), "{}", error.message);
    }
    let options = read(json!({"prompt": "a", "stream": true, "stream_options": 1})).unwrap_err();
    assert_eq!(options.message, "stream_options is 1: it must be a JSON object");
    let plain = read(json!({"prompt": "a"})).unwrap();
    let plain_priority = plain.priority;
    let body = json!({"prompt": "a", "do_sample": false, "user": "u", "suffix": "", "max_tokens": null, "best_of": 1});
    let unknown = vec!["do_sample".to_owned()];
    assert_eq!(read(body).unwrap(), CompletionRequest { unknown, ..plain });
    assert_eq!(read(json!({"prompt": "a", "max_tokens": 5.0})).unwrap().max_tokens, Some(5));
    let seed = |seed: i64| read(json!({"prompt": "a", "seed": seed})).unwrap().sampling.seed;
    assert_eq!((seed(-1), seed(0), seed(-2)), (None, Some(0), Some(-2i64 as u64)));
    let seed = |seed: Value| read(json!({"prompt": "a", "seed": seed})).unwrap().sampling.seed;
    assert_eq!((seed(json!(5.0)), seed(json!(-1.0)), seed(json!(u64::MAX))), (Some(5), None, Some(u64::MAX)));
    let priority = |priority: i64| read(json!({"prompt": "a", "priority": priority})).map(|c| c.priority);
    assert_eq!(
        (plain_priority, priority(-5).unwrap(), priority(i64::from(i32::MAX)).unwrap()),
        (0, -5, i32::MAX)
    );
    assert_eq!(priority(1 << 31).unwrap_err().param.as_deref(), Some("priority"));
}

#[test]
fn the_names_of_unknown_fields_can_not_fill_the_log() {
    let mut body = json!({"prompt": "a"});
    for number in 0..1000 {
        body[format!("{number:03}{}", "é".repeat(100))] = json!(1);
    }
    let unknown = read(body).unwrap().unknown;
    assert_eq!((unknown.len(), unknown[15].chars().count()), (16, 65), "{unknown:?}");
    assert!(unknown[15].starts_with("015é") && unknown[15].ends_with("é…"), "{}", unknown[15]);
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 6, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
            proptest::collection::btree_map(".{0,4}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn any_json_is_read_or_refused_with_400(values in proptest::collection::vec(any_json(), 22)) {
        const NAMES: [&str; 22] = [
            "prompt", "model", "max_tokens", "temperature", "top_p", "n", "stream", "stream_options", "logprobs",
            "echo", "stop", "seed", "logit_bias", "path", "top_k", "stop_token_ids", "suffix", "best_of",
            "min_tokens", "presence_penalty", "ignore_eos", "other",
        ];
        for (name, value) in NAMES.iter().zip(&values) {
            let mut body = json!({"prompt": "a"});
            body[*name] = value.clone();
            if let Err(error) = read(body) {
                prop_assert_eq!(error.status.as_u16(), 400);
                prop_assert!(error.message.len() < 400);
            }
        }
        let _ = read(NAMES.iter().map(ToString::to_string).zip(values.clone()).collect());
        let _ = read(values[0].clone());
    }
}

fn defaults(settings: &Value) -> Result<SamplingDefaults, crate::ServerError> {
    SamplingDefaults::new(settings.as_object().unwrap())
}

#[test]
fn a_request_keeps_its_own_values_and_gets_the_others() {
    let settings = json!({
        "temperature": 0.2, "top_p": 0.9, "top_k": null, "repetition_penalty": 1.1, "do_sample": true,
        "eos_token_id": [0, 2], "max_new_tokens": 40,
    });
    let defaults = defaults(&settings).unwrap();
    let mut fields = Fields::new("body", json!({"temperature": 0, "top_p": null})).unwrap();
    defaults.fill(&mut fields);
    let mut names = fields.rest();
    names.sort_unstable();
    assert_eq!(names, ["repetition_penalty", "temperature", "top_p"]);
    let mut values = |name: &str| fields.take(name).unwrap();
    assert_eq!((values("temperature"), values("top_p")), (json!(0), json!(0.9)));
    assert_eq!(values("repetition_penalty"), json!(1.1));
}

#[test]
fn values_that_no_request_can_have_are_refused_by_name() {
    for (name, value) in [("temperature", json!(9)), ("top_p", json!("high")), ("top_k", json!(-2))] {
        let error = defaults(&json!({ name: value })).unwrap_err().to_string();
        assert!(error.contains(&format!("{name} is {value}")), "{error}");
    }
}
