//! The dashboard of `deploy/grafana`.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::fixtures::root;

/// The metrics that the panels below a row of the dashboard ask for, without the endings of histograms.
///
/// # Panics
/// When the dashboard is no JSON or has no such row.
#[must_use]
pub fn metrics_of_row(title: &str) -> BTreeSet<String> {
    let text = std::fs::read_to_string(root().join("deploy/grafana/dipaco.json")).unwrap();
    let dashboard: Value = serde_json::from_str(&text).unwrap();
    let mut inside = false;
    let mut found = BTreeSet::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        if panel["type"] == "row" {
            inside = panel["title"] == title;
        } else if inside {
            for target in panel["targets"].as_array().unwrap() {
                found.extend(names(target["expr"].as_str().unwrap()));
            }
        }
    }
    assert!(!found.is_empty(), "the dashboard has no row {title} with panels");
    found
}

/// The metrics of a query.
fn names(query: &str) -> impl Iterator<Item = String> + '_ {
    let words = query.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let own = words.filter(|word| word.starts_with("dipaco_"));
    own.map(|word| word.strip_suffix("_bucket").unwrap_or(word).to_owned())
}

/// The names of all metrics in the text of a server: those with a line of help.
#[must_use]
pub fn exported(text: &str) -> BTreeSet<String> {
    let help = text.lines().filter_map(|line| line.strip_prefix("# HELP "));
    help.map(|line| line.split(' ').next().unwrap_or_default().to_owned()).collect()
}
