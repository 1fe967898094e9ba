//! Tests of the places and the held-out text of a quickstart.

use std::path::Path;

use clap::Parser;

use super::*;

#[derive(Parser)]
struct Words {
    #[command(flatten)]
    options: QuickstartOptions,
}

fn configured(
    options: &QuickstartOptions,
    root: &Path,
    model: Option<&PretrainedModel>,
) -> Result<(RunDirectory, RunConfig), CliError> {
    let never = AtomicBool::new(false);
    let unsaved = configure(options, RunDirectory::new(root), model, &Progress::hidden(), &never)?.begun()?;
    Ok((unsaved.run, unsaved.config))
}

fn pretrained_model() -> PretrainedModel {
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/../model/tests/fixtures/pretrained");
    PretrainedModel::open(Path::new(model)).unwrap()
}

#[test]
fn the_run_has_the_places_of_its_configuration_when_it_begins_and_when_it_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (root, text) = (folder.path().join("run"), folder.path().join("text"));
    let data = format!("run.data={}", text.display());
    for words in [&["quickstart", "--set", &data][..], &["quickstart"]] {
        let options = Words::parse_from(words).options;
        let (run, config) = configured(&options, &root, None).unwrap();
        assert_eq!((run.data(), config.run.data), (text.clone(), Some(text.clone())), "{words:?}");
    }
}

#[test]
fn a_linked_text_goes_along_with_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let (root, moved) = (folder.path().join("run"), folder.path().join("moved"));
    let of_dense = |root: &PathBuf| RunDirectory::new(root.join("dense"));
    std::fs::create_dir_all(of_dense(&root).root()).unwrap();
    std::fs::create_dir(root.join("data")).unwrap();
    std::fs::write(RunDirectory::new(&root).tokenizer(), "tokens").unwrap();
    dense::link_text(&of_dense(&root)).unwrap();
    dense::link_text(&of_dense(&root)).unwrap();
    std::fs::rename(&root, &moved).unwrap();
    assert_eq!(std::fs::read_to_string(of_dense(&moved).tokenizer()).unwrap(), "tokens");
}

#[test]
fn a_large_text_gives_no_more_validation_text_than_the_programs_own() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("text");
    std::fs::create_dir(&text).unwrap();
    // Larger than the limits allow, but no text.
    std::fs::write(text.join("picture"), vec![0u8; 30_000_000]).unwrap();
    let model = pretrained_model();
    let data = text.to_str().unwrap();
    let fraction = |run: &str, more: &[&str], model: Option<&PretrainedModel>| {
        let words = [&["quickstart", "--data", data][..], more].concat();
        let options = Words::parse_from(words).options;
        configured(&options, &folder.path().join(run), model).unwrap().1.prepare.validation_fraction
    };
    let line = "word ".repeat(800) + "\n";
    let write = |lines: usize| {
        std::fs::write(text.join("words.txt"), line.repeat(lines)).unwrap();
        (line.len() * lines) as f64
    };

    write(300);
    assert_eq!((fraction("small", &[], None), fraction("small-from", &[], Some(&model))), (0.05, 0.03));
    let bytes = write(6_000);
    assert!((bytes * fraction("large", &[], None) - 1_000_000.0).abs() < 1.0);
    assert!((bytes * fraction("large-from", &[], Some(&model)) - 120_000.0).abs() < 1.0);
    // A begun run keeps its fraction, and its tokens with it.
    assert_eq!(fraction("small", &[], None), 0.05);
    let given = ["--set", "prepare.validation_fraction=0.2"];
    assert_eq!(fraction("given", &given, Some(&model)), 0.2, "the user's own fraction");
    let named = ["--validation", data];
    assert_eq!(fraction("named", &named, Some(&model)), 0.03, "no part of --data is held out");
}

#[test]
fn a_text_of_few_and_long_documents_gives_validation_text_too() {
    let folder = tempfile::tempdir().unwrap();
    let (text, model) = (folder.path().join("text.jsonl"), pretrained_model());
    let line = format!("{{\"text\": \"{}\"}}\n", "word ".repeat(20_000));
    let options = || Words::parse_from(["quickstart", "--data", text.to_str().unwrap()]).options;
    let begun = |documents: usize, run: &str, model: Option<&PretrainedModel>| {
        std::fs::write(&text, line.repeat(documents)).unwrap();
        configured(&options(), &folder.path().join(run), model)
    };
    let fraction =
        |documents, run, model| begun(documents, run, model).unwrap().1.prepare.validation_fraction;

    // Eight documents, although 120 kB are one of them.
    assert_eq!((fraction(40, "plain", None), fraction(40, "from", Some(&model))), (0.2, 0.2));
    assert_eq!(fraction(12, "fewer", None), 0.25, "most of the text is left for training");
    let refused = begun(1, "one", None).err().unwrap();
    assert!(refused.to_string().contains("the text is one document"), "{refused}");
    assert!(!folder.path().join("one").exists(), "a refused text begins no run");
    std::fs::write(&text, format!("{line}no JSON\n")).unwrap();
    let refused = configured(&options(), &folder.path().join("lines"), None).err().unwrap().to_string();
    assert!(
        refused.contains("; 1 × invalid JSON, first at") && refused.ends_with("text.jsonl:2"),
        "{refused}"
    );
}
