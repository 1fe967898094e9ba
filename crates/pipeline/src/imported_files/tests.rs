use std::os::unix::fs::MetadataExt;

use serde_json::json;

use super::*;

struct Test {
    place: tempfile::TempDir,
    folder: ImportedFolder,
}

impl Test {
    fn new() -> Self {
        let place = tempfile::tempdir().unwrap();
        Self { folder: ImportedFolder::new(place.path().to_owned()), place }
    }

    fn write(&self, name: &str, value: &Value) {
        std::fs::write(self.place.path().join(name), value.to_string()).unwrap();
    }
}

#[test]
fn the_default_of_several_chat_templates_is_found() {
    let test = Test::new();
    test.write("config.json", &json!({}));
    let found = |template: Value| {
        let settings = json!({ "chat_template": template });
        test.write("tokenizer_config.json", &settings);
        let found = test.folder.chat_template().map_err(|error| error.to_string());
        // An import refuses what could not be read later.
        let checked = TOKENIZER_CONFIG.check(settings.to_string().as_bytes());
        assert_eq!(checked.map_err(|error| error.to_string()).err(), found.as_ref().err().cloned());
        found
    };
    let named = |name: &str, template: &str| json!({"name": name, "template": template});
    assert_eq!(found(json!("one")), Ok(Some("one".to_owned())));
    let list = json!([named("rag", "no"), named("default", "plain"), named("tool_use", "no")]);
    assert_eq!(found(list), Ok(Some("plain".to_owned())));
    for without in [Value::Null, json!([]), json!([named("tool_use", "no")])] {
        assert_eq!(found(without), Ok(None));
    }
    for wrong in [json!(7), json!({"default": "plain"}), json!([{"name": "default"}]), json!(["plain"])] {
        let error = found(wrong).unwrap_err();
        assert!(error.contains("tokenizer_config.json: chat_template must be a text, or a list"), "{error}");
    }
}

#[test]
fn exported_files_end_a_text_where_the_documents_of_the_run_end() {
    for (config, generation, exported) in [
        (json!(2), json!(2), [json!([2, 0]), json!([2, 0])]),
        (json!([2, 3]), json!(null), [json!([2, 3, 0]), json!([2, 3, 0])]),
        (json!(null), json!([0, 2]), [json!([0, 2]), json!([0, 2])]),
        (json!(null), json!(null), [json!(0), json!(0)]),
    ] {
        let test = Test::new();
        let model =
            json!({"eos_token_id": config, "bos_token_id": 1, "initializer_range": 0.3, "hidden_size": 8});
        test.write("config.json", &model);
        test.write("generation_config.json", &json!({"eos_token_id": generation, "temperature": 0.7}));
        let found = test.folder.exported(0).unwrap().unwrap();
        let [(_, generation)] = found.files.as_slice() else { panic!("{:?}", found.files) };
        let generation: Value = serde_json::from_slice(generation).unwrap();
        let [of_config, of_generation] = exported;
        assert_eq!(
            Value::from(found.special),
            json!({"eos_token_id": of_config, "bos_token_id": 1, "initializer_range": 0.3})
        );
        assert_eq!(generation, json!({"eos_token_id": of_generation, "temperature": 0.7}));
    }
}

#[test]
fn files_that_name_the_end_of_documents_are_exported_as_they_are() {
    let test = Test::new();
    test.write("config.json", &json!({"eos_token_id": [2, 0]}));
    let text = b"{ \"top_k\": 5,  \"eos_token_id\": 0}";
    std::fs::write(test.place.path().join("generation_config.json"), text).unwrap();
    let found = test.folder.exported(0).unwrap().unwrap();
    assert_eq!(found.files, [("generation_config.json".to_owned(), text.to_vec())]);
}

#[test]
fn the_files_of_a_broken_off_import_are_not_read() {
    let test = Test::new();
    test.write("config.json", &json!({"eos_token_id": 2}));
    test.write("generation_config.json", &json!({"eos_token_id": 2}));
    let folder = &test.folder;
    let refused = || {
        [
            folder.exported(0).err(),
            folder.end_tokens().err(),
            folder.generation_settings().err(),
            folder.chat_template().err(),
            folder.template_tokens("<end>").err(),
        ]
    };
    assert!(refused().iter().all(Option::is_none));
    folder.begin().unwrap();
    for error in refused() {
        let error = error.unwrap().to_string();
        assert!(error.contains("an import was broken off"), "{error}");
    }
    // A seed without files of a model takes its place.
    folder.replace(&[]).unwrap();
    assert!(refused().iter().all(Option::is_none));
}

#[test]
fn a_repeated_import_leaves_the_files_as_they_are() {
    let test = Test::new();
    let model = [(CONFIG, b"{}".to_vec()), (TOKENIZER, b"one".to_vec())];
    test.folder.replace(&model).unwrap();
    let config = test.folder.file(CONFIG);
    // A second name keeps the number of the file from being given to another one.
    std::fs::hard_link(&config, test.place.path().join("second name")).unwrap();
    let number = || std::fs::metadata(&config).unwrap().ino();
    let first = number();
    test.folder.replace(&model).unwrap();
    assert_eq!(number(), first);
    // A file more or less is another model.
    for model in [&model[..1], &model[..]] {
        test.folder.replace(model).unwrap();
        assert_ne!(number(), first);
        assert_eq!(test.folder.file(TOKENIZER).exists(), model.len() == 2);
    }
}
