//! The sources keep to the rules of `docs/ARCHITECTURE.md`, and the pages state the types and versions of the sources.
#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, Metadata, MetadataCommand};
use dipaco_tests::fixtures::root;

fn page(name: &str) -> String {
    fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// The part of a page below a heading, up to the next heading of the same level.
fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let start = page.find(heading).unwrap_or_else(|| panic!("no heading `{heading}`")) + heading.len();
    page[start..].split("\n## ").next().unwrap()
}

/// The rows of the first table of Markdown in `text` whose head begins with `columns`, cell by cell.
fn table<const N: usize>(text: &str, columns: [&str; N]) -> Vec<[String; N]> {
    let cells = |line: &str| -> Option<[String; N]> {
        let line = line.strip_prefix('|')?.strip_suffix('|')?;
        let cells: Vec<String> = line.split('|').map(|cell| cell.trim().to_owned()).collect();
        Some(cells.try_into().unwrap_or_else(|cells| panic!("{N} cells are expected: {cells:?}")))
    };
    let is_head = |line: &&str| {
        let found: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let matches = |(cell, column): (&&str, &str)| {
            cell.strip_prefix(column).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        };
        line.starts_with('|') && found.len() == N && found.iter().zip(columns).all(matches)
    };
    let mut lines = text.lines().skip_while(|line| !is_head(line)).skip(2);
    let rows: Vec<_> = lines.by_ref().map_while(cells).collect();
    assert!(!rows.is_empty(), "no table with the columns {columns:?}");
    rows
}

fn metadata() -> Metadata {
    MetadataCommand::new().manifest_path(root().join("Cargo.toml")).no_deps().exec().unwrap()
}

/// The files of Rust below `folder`, each by its path from the repository's root.
fn rust_files(folder: &str) -> Vec<String> {
    fn collect(folder: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                collect(&path, found);
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                found.push(path);
            }
        }
    }
    let (root, mut found) = (root(), Vec::new());
    collect(&root.join(folder), &mut found);
    let mut found: Vec<String> =
        found.iter().map(|path| path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned()).collect();
    found.sort();
    found
}

/// The files of Rust of all packages.
fn all_rust_files() -> Vec<String> {
    ["crates", "routing", "shards", "tests"].into_iter().flat_map(rust_files).collect()
}

/// The lines of a file of Rust without comments.
fn code(file: &str) -> Vec<String> {
    let text = page(file);
    text.lines().filter(|line| !line.trim_start().starts_with("//")).map(str::to_owned).collect()
}

/// The line without its string literals and without a comment at its end.
fn without_strings(line: &str) -> String {
    let line = line.replace("'\"'", "").replace("\\\"", "");
    let outside: String = line.split('"').step_by(2).collect();
    outside.split("//").next().unwrap().to_owned()
}

/// Returns whether `line` holds `word` with no letter, digit or underscore beside it.
fn has_word(line: &str, word: &str) -> bool {
    line.split(|character: char| !(character.is_alphanumeric() || character == '_'))
        .any(|found| found == word)
}

#[test]
fn every_package_uses_exactly_the_packages_of_its_row() {
    let own = |name: &str| name.strip_prefix("dipaco-").map(str::to_owned);
    let rows = table(&page("docs/ARCHITECTURE.md"), ["package", "holds", "may use"]);
    let allowed: BTreeMap<String, BTreeSet<String>> = rows
        .into_iter()
        .map(|[package, _, uses]| {
            let uses = uses.split(',').map(str::trim).filter(|name| *name != "–").map(str::to_owned);
            (package, uses.collect())
        })
        .collect();
    let mut used = BTreeMap::new();
    for package in metadata().workspace_packages() {
        let name = own(&package.name).expect("packages are named dipaco-…");
        // What this package uses stands in its dependencies for tests.
        let counts = |kind| name == "tests" || kind != DependencyKind::Development;
        let uses = package.dependencies.iter().filter(|dependency| counts(dependency.kind));
        let uses: BTreeSet<String> = uses.filter_map(|dependency| own(&dependency.name)).collect();
        used.insert(name, uses);
    }
    let mut wrong = Vec::new();
    for name in used.keys().chain(allowed.keys()).collect::<BTreeSet<_>>() {
        match (used.get(name), allowed.get(name)) {
            (Some(used), Some(allowed)) => {
                wrong.extend(used.difference(allowed).map(|other| format!("{name} uses {other}")));
                wrong.extend(allowed.difference(used).map(|other| format!("{name} does not use {other}")));
            }
            (Some(_), None) => wrong.push(format!("{name} is not in the table")),
            _ => wrong.push(format!("{name} is in the table and not in the workspace")),
        }
    }
    assert!(wrong.is_empty(), "the table of packages in docs/ARCHITECTURE.md differs: {}", wrong.join("; "));
}

/// Returns whether a text of Rust names an item of a package.
fn names_package(text: &str, package: &str) -> bool {
    text.match_indices(&format!("{package}::")).any(|(at, _)| {
        let is_inside = |before: char| before.is_alphanumeric() || before == '_' || before == ':';
        !text[..at].ends_with(is_inside)
    })
}

#[test]
fn every_package_names_each_of_its_dependencies() {
    let mut unused = Vec::new();
    for package in metadata().workspace_packages() {
        let manifest = package.manifest_path.strip_prefix(root()).unwrap();
        let texts: Vec<String> =
            rust_files(manifest.parent().unwrap().as_str()).iter().map(|file| page(file)).collect();
        for dependency in &package.dependencies {
            let name = dependency.rename.as_ref().unwrap_or(&dependency.name).replace('-', "_");
            if !texts.iter().any(|text| names_package(text, &name)) {
                unused.push(format!("{manifest}: {}", dependency.name));
            }
        }
    }
    assert!(unused.is_empty(), "no code names these dependencies, so remove their lines: {unused:?}");
}

#[test]
fn every_type_of_the_glossary_exists() {
    let text = page("docs/ARCHITECTURE.md");
    let words = section(&text, "## Words\n");
    let rows = table(words, ["word", "type", "meaning"]);
    let declared: BTreeSet<String> = all_rust_files()
        .iter()
        .filter(|file| !file.contains("/tests") && !file.starts_with("tests/"))
        .flat_map(|file| code(file))
        .filter_map(|line| declared_type(&line))
        .collect();
    let mut wrong = Vec::new();
    for [word, types, meaning] in rows {
        assert!(!word.is_empty() && !meaning.is_empty(), "a row lacks its word or its meaning: `{word}`");
        if types == "–" {
            continue;
        }
        for name in types.split(',').map(str::trim) {
            let Some(name) = name.strip_prefix('`').and_then(|name| name.strip_suffix('`')) else {
                wrong.push(format!("{word}: {name} is neither `–` nor a type in backticks"));
                continue;
            };
            if !declared.contains(name) {
                wrong.push(format!("{word}: there is no type `{name}`"));
            }
        }
    }
    assert!(wrong.is_empty(), "the glossary of docs/ARCHITECTURE.md: {}", wrong.join("; "));
}

/// The name of the type that a line declares.
fn declared_type(line: &str) -> Option<String> {
    let mut words = line.split_whitespace().skip_while(|word| word.starts_with("pub"));
    let kind = words.next()?;
    if !["struct", "enum", "trait", "type"].contains(&kind) {
        return None;
    }
    let name = words.next()?;
    name.split(|character: char| !(character.is_alphanumeric() || character == '_')).next().map(str::to_owned)
}

/// The value of the one constant with this name and type below `place`, a folder or a file.
fn constant(place: &str, name: &str, kind: &str) -> String {
    let files = if place.ends_with(".rs") { vec![place.to_owned()] } else { rust_files(place) };
    let start = format!("const {name}: {kind} = ");
    let lines = files.iter().flat_map(|file| code(file)).filter_map(|line| {
        let line = line.strip_prefix("pub ").or(line.strip_prefix("pub(crate) ")).unwrap_or(&line);
        line.strip_prefix(&start).and_then(|value| value.strip_suffix(';')).map(str::to_owned)
    });
    let found: Vec<String> = lines.collect();
    assert_eq!(found.len(), 1, "`{start}…;` in {place}: {found:?}");
    found[0].trim_start_matches('b').trim_matches('"').to_owned()
}

/// The number that stands at most 20 characters behind the word "version", in the same cell and sentence: exactly one.
fn documented_version(text: &str, place: &str) -> String {
    let numbers: Vec<String> = text
        .split("version")
        .skip(1)
        .filter_map(|behind| {
            let start = behind.find(|character: char| character.is_ascii_digit())?;
            let between = &behind[..start];
            let near = between.chars().count() <= 20 && !between.contains(['.', '|', '\n', '`']);
            near.then(|| behind[start..].chars().take_while(char::is_ascii_digit).collect())
        })
        .collect();
    assert_eq!(numbers.len(), 1, "{place} states one version: {numbers:?}");
    numbers[0].clone()
}

/// The words in backticks that begin with `start` and go on with a digit.
fn quoted(text: &str, start: &str) -> BTreeSet<String> {
    text.split('`')
        .skip(1)
        .step_by(2)
        .filter(|word| {
            word.strip_prefix(start).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        })
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_documented_protocol_and_token_are_those_of_the_code() {
    let protocol = constant("crates/net/src", "PROTOCOL", "&str");
    let token = constant("crates/net/src/token.rs", "PREFIX", "&str");
    for name in ["docs/wire-protocol.md", "crates/net/README.md"] {
        let text = page(name);
        assert_eq!(quoted(&text, "dipaco/"), BTreeSet::from([protocol.clone()]), "the protocol in {name}");
    }
    let text = page("docs/wire-protocol.md");
    assert_eq!(quoted(&text, "dipaco"), BTreeSet::from([token]), "the start of a join token");
}

#[test]
fn the_documented_formats_are_those_of_the_code() {
    let text = page("docs/token-files.md");
    for (heading, place, version) in [
        ("## Router (`router.bin`)\n", "routing/src/router", "ROUTER_FORMAT_VERSION"),
        ("## Outer gradients\n", "crates/codec/src/format.rs", "VERSION"),
    ] {
        let section = section(&text, heading);
        assert_eq!(documented_version(section, heading), constant(place, version, "u32"), "{heading}");
        let magic = constant(place, "MAGIC", "&[u8; 8]");
        assert!(section.contains(&format!("`{magic}`")), "{heading} does not name `{magic}`");
    }
    let magic = constant("routing/src/part_file.rs", "MAGIC", "&[u8; 8]");
    assert!(section(&text, "## Parts of a routing").contains(&format!("`{magic}`")), "{magic}");
}

#[test]
fn the_core_knows_no_io_and_no_clock() {
    let forbidden = ["tokio", "quinn", "candle-core", "object_store", "hdf5-metno"];
    for package in ["sync", "ledger"] {
        let used = direct(&metadata(), &format!("dipaco-{package}"));
        let used: Vec<_> = used.iter().filter(|name| forbidden.contains(&name.as_str())).collect();
        assert!(used.is_empty(), "dipaco-{package} depends on {used:?}");
        for file in rust_files(&format!("crates/{package}/src")) {
            let text = page(&file);
            for word in ["std::fs", "std::net", "std::thread", "SystemTime", "Instant::now"] {
                assert!(!text.contains(word), "{file} uses {word}");
            }
        }
    }
}

/// The packages that a package of the workspace uses itself, without those of its tests.
fn direct(metadata: &Metadata, name: &str) -> BTreeSet<String> {
    let packages = metadata.workspace_packages();
    let package = packages.iter().find(|package| package.name.as_str() == name);
    let package = package.unwrap_or_else(|| panic!("no package {name}"));
    let normal = package.dependencies.iter().filter(|found| found.kind == DependencyKind::Normal);
    normal.map(|found| found.name.clone()).collect()
}

/// The packages that a package of the workspace uses, itself or through other packages of the workspace.
fn reached(metadata: &Metadata, name: &str) -> BTreeSet<String> {
    let (mut reached, mut next) = (BTreeSet::new(), vec![name.to_owned()]);
    while let Some(name) = next.pop() {
        for used in direct(metadata, &name) {
            if reached.insert(used.clone()) && used.starts_with("dipaco-") {
                next.push(used);
            }
        }
    }
    reached
}

#[test]
fn the_build_id_covers_every_package_that_training_is_built_of() {
    let metadata = metadata();
    let folder = |name: &str| {
        let packages = metadata.workspace_packages();
        let package = packages.iter().find(|package| package.name.as_str() == name).unwrap();
        package.manifest_path.parent().unwrap().strip_prefix(root()).unwrap().to_string()
    };
    let built_of = reached(&metadata, "dipaco-train").into_iter().chain(["dipaco-train".to_owned()]);
    let built_of: BTreeSet<String> =
        built_of.filter(|name| name.starts_with("dipaco-")).map(|name| folder(&name)).collect();
    let script = page("crates/train/build.rs");
    let list = script.split("const PACKAGES").nth(1).and_then(|rest| rest.split("];").next()).unwrap();
    let covered: BTreeSet<String> = list.split('"').skip(1).step_by(2).map(str::to_owned).collect();
    assert_eq!(covered, built_of, "a coordinator must refuse workers with other code of any of these");
}

#[test]
fn training_reaches_no_service_and_a_path_no_network() {
    let metadata = metadata();
    for (package, forbidden) in [
        ("dipaco-config", ["dipaco-server", "dipaco-infer", "dipaco-eval"].as_slice()),
        ("dipaco-train", &["dipaco-server", "dipaco-infer", "dipaco-eval"]),
        ("dipaco-server", &["dipaco-train", "dipaco-routing", "dipaco-shards", "hdf5"]),
    ] {
        let reached = reached(&metadata, package);
        let wrong: Vec<_> = forbidden.iter().filter(|name| reached.contains(**name)).collect();
        assert!(wrong.is_empty(), "{package} reaches {wrong:?}");
    }
    let path = direct(&metadata, "dipaco-path");
    assert!(!["tokio", "quinn", "dipaco-net"].iter().any(|name| path.contains(*name)), "{path:?}");
}

#[test]
fn every_place_that_architecture_names_exists() {
    let text = page("docs/ARCHITECTURE.md");
    let rows = table(section(&text, "## Where to look"), ["question", "place"]);
    for [question, places] in rows {
        let named: Vec<&str> = places.split('`').skip(1).step_by(2).collect();
        assert!(!named.is_empty(), "{question} has no place");
        for place in named {
            assert!(root().join(place).exists(), "{question} {place} does not exist");
        }
    }
}

/// Folders and files that hold unsafe code: tensor kernels, calls of the driver of a GPU and of a stand-in that tests
/// load, and the memory maps of token files.
const UNSAFE: [&str; 5] = [
    "crates/ops/",
    "crates/cuda/src/gpu.rs",
    "crates/cuda/src/host.rs",
    "crates/cuda/src/nvidia",
    "shards/src/token_file/map.rs",
];

#[test]
fn packages_without_unsafe_code_forbid_it() {
    let mut wrong = Vec::new();
    for package in metadata().workspace_packages() {
        let folder = package.manifest_path.parent().unwrap();
        let holds_unsafe = UNSAFE.iter().any(|place| root().join(place).starts_with(folder));
        for file in ["src/lib.rs", "src/main.rs"].map(|file| folder.join(file)) {
            let Ok(text) = fs::read_to_string(&file) else { continue };
            let forbids = text.lines().any(|line| line == "#![forbid(unsafe_code)]");
            if forbids == holds_unsafe {
                wrong.push(format!("{file}: forbids is {forbids}, holds is {holds_unsafe}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn unsafe_code_has_its_places() {
    let files = all_rust_files();
    let is_unsafe = |file: &&String| code(file).iter().any(|line| has_word(&without_strings(line), "unsafe"));
    let found: Vec<&String> = files.iter().filter(is_unsafe).collect();
    let elsewhere: Vec<_> =
        found.iter().filter(|file| !UNSAFE.iter().any(|place| file.starts_with(place))).collect();
    assert!(elsewhere.is_empty(), "unsafe code is only allowed in {UNSAFE:?}: {elsewhere:?}");
    let unused: Vec<_> =
        UNSAFE.iter().filter(|place| !found.iter().any(|file| file.starts_with(*place))).collect();
    assert!(unused.is_empty(), "these hold no unsafe code and need no exception: {unused:?}");
}

/// Packages besides this one with a file that reads outside its package, and its reason.
const READERS: [(&str, &str); 8] = [
    (
        "crates/cli",
        "Cargo.lock, configs/quickstart.toml and configs/smollm2-2x2.toml as parts of the program; configs/tiny.toml and tests/fixtures in tests",
    ),
    ("crates/config", "configs/ and docs/configuration.md in tests: each file is checked against the keys"),
    ("crates/experiment", "configs/experiments in a test"),
    ("crates/fuzz", "the kept damaged inputs in tests/fixtures/fuzz"),
    ("crates/pipeline", "the pretrained model of the tests of crates/model"),
    ("crates/server", "the stand-in for a model of the tests of crates/infer"),
    ("crates/train", "tests/fixtures/tiny.toml in tests"),
    ("shards", "damaged text beside the repository, in a test that is skipped without it"),
];

#[test]
fn no_other_package_reads_the_repository() {
    let mut found = BTreeSet::new();
    for package in metadata().workspace_packages() {
        let folder =
            package.manifest_path.parent().unwrap().strip_prefix(root()).unwrap().as_str().to_owned();
        if folder == "tests" {
            continue;
        }
        let leaves = |file: &String| code(file).iter().any(|line| leaves_package(line, file, &folder));
        if rust_files(&folder).iter().any(leaves) {
            found.insert(folder);
        }
    }
    let listed: BTreeSet<String> = READERS.iter().map(|(folder, _)| (*folder).to_owned()).collect();
    assert_eq!(found, listed, "only tests/ and the listed packages read files outside their folders");
}

/// Returns whether a line of `file` names a path that leads out of the package's folder: relative to the package's
/// manifest, or relative to the file in an include or a module's path.
fn leaves_package(line: &str, file: &str, folder: &str) -> bool {
    let depth = if line.contains("CARGO_MANIFEST_DIR") {
        0
    } else if ["include_str!", "include_bytes!", "include!", "#[path"].iter().any(|word| line.contains(word))
    {
        file[folder.len()..].matches('/').count() - 1
    } else {
        return false;
    };
    line.matches("../").count() + line.matches("/..\"").count() > depth
}
