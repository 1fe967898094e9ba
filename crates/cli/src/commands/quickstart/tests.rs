//! Tests of the places of a quickstart.

use clap::Parser;

use super::*;

#[derive(Parser)]
struct Words {
    #[command(flatten)]
    options: QuickstartOptions,
}

#[test]
fn the_run_has_the_places_of_its_configuration_when_it_begins_and_when_it_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let (root, text) = (folder.path().join("run"), folder.path().join("text"));
    let data = format!("run.data={}", text.display());
    for words in [&["quickstart", "--set", &data][..], &["quickstart"]] {
        let options = Words::parse_from(words).options;
        let (run, config) = configure(&options, RunDirectory::new(&root), None).unwrap();
        assert_eq!((run.data(), config.run.data), (text.clone(), Some(text.clone())), "{words:?}");
    }
}

#[test]
fn a_linked_text_goes_along_with_its_folder() {
    let folder = tempfile::tempdir().unwrap();
    let (root, moved) = (folder.path().join("run"), folder.path().join("moved"));
    let dense = |root: &PathBuf| RunDirectory::new(root.join("dense"));
    std::fs::create_dir_all(dense(&root).root()).unwrap();
    std::fs::create_dir(root.join("data")).unwrap();
    std::fs::write(RunDirectory::new(&root).tokenizer(), "tokens").unwrap();
    link_text(&dense(&root)).unwrap();
    link_text(&dense(&root)).unwrap();
    std::fs::rename(&root, &moved).unwrap();
    assert_eq!(std::fs::read_to_string(dense(&moved).tokenizer()).unwrap(), "tokens");
}
