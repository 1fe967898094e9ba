//! Heat maps of domains by path.

use dipaco_plot::HeatMap;
use serde_json::Value;

use super::chart::{Chart, plain};

/// A heat map of the documents by domain and path. `json` is the output of `dipaco evaluate --json` with a label file, or
/// the record of a cell; the first result with several paths is drawn. `None` when there is no such result.
pub fn domains(name: &str, json: &Value) -> Option<Chart> {
    let mut rows = table(json)?;
    let paths = rows.iter().map(|(_, documents)| documents.len()).max()?;
    // Domains of the same path lie together.
    let most = |documents: &[f64]| {
        let best =
            |best: usize, (path, count): (usize, &f64)| if *count > documents[best] { path } else { best };
        documents.iter().enumerate().fold(0, best)
    };
    rows.sort_by_key(|(_, documents)| most(documents));
    let share = |documents: Vec<f64>| -> Vec<f64> {
        let all: f64 = documents.iter().sum();
        documents.into_iter().map(|count| if all > 0.0 { count / all } else { f64::NAN }).collect()
    };
    let chart = HeatMap {
        title: format!("Where the documents of each domain go: {name}"),
        x: "path".into(),
        y: "domain".into(),
        value: "share of the domain's documents".into(),
        columns: (0..paths).map(|path| path.to_string()).collect(),
        rows: rows.into_iter().map(|(domain, documents)| (domain, share(documents))).collect(),
        range: Some((0.0, 1.0)),
    };
    Some(Chart::heat(format!("domains-{}", plain(name)), &chart))
}

/// Domains and their documents by path.
fn table(json: &Value) -> Option<Vec<(String, Vec<f64>)>> {
    match json {
        Value::Object(object) => {
            let found = object.get("per_domain").and_then(Value::as_array).and_then(|rows| {
                let rows = rows.iter().map(row).collect::<Option<Vec<_>>>()?;
                rows.iter().any(|(_, documents)| documents.len() > 1).then_some(rows)
            });
            found.or_else(|| object.values().find_map(table))
        }
        Value::Array(array) => array.iter().find_map(table),
        _ => None,
    }
}

fn row(json: &Value) -> Option<(String, Vec<f64>)> {
    let documents = json.get("documents_of_path")?.as_array()?.iter().map(Value::as_f64);
    Some((json.get("domain")?.as_str()?.to_owned(), documents.collect::<Option<_>>()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_result_with_several_paths_is_drawn() {
        let json = serde_json::json!([
            { "model": "dense", "per_domain": [{ "domain": "law", "documents_of_path": [] }] },
            { "model": "routed", "per_domain": [
                { "domain": "news", "documents_of_path": [1, 9] },
                { "domain": "law", "documents_of_path": [8, 2] },
            ] },
        ]);
        let chart = domains("a b", &json).unwrap();
        assert_eq!(chart.name, "domains-a-b");
        assert!(
            chart.svg.find("law").unwrap() < chart.svg.find("news").unwrap(),
            "in the order of the paths"
        );
        assert!(domains("a", &json[0]).is_none());
    }
}
