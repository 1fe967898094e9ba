use super::*;
use crate::results::{DocumentDifference, DomainMeasurement, Heldout, Shards, ValidationPoint};
use crate::sweep::SweptValue;

fn cell(run: &str, router: &str, seed: u64, perplexities: &[(&str, f64)]) -> CellResult {
    let measurement = |&(name, perplexity): &(&str, f64)| Measurement {
        evaluation: name.into(),
        perplexity,
        bits_per_byte: Some(2.0),
        tokens_counted: 10,
        documents: 1,
        purity: None,
        nmi: None,
        ranking: None,
        domains: Vec::new(),
        against_baseline: None,
    };
    let facts =
        Facts { paths: 2, path_parameters: 1_300_000, steps: 100, step_tokens: 10, ..Facts::default() };
    CellResult {
        run: run.into(),
        router: router.into(),
        seed,
        key: String::new(),
        facts,
        measurements: perplexities.iter().map(measurement).collect(),
    }
}

fn results() -> Results {
    Results {
        name: "two".into(),
        title: "Two".into(),
        notes: String::new(),
        baseline: "dense".into(),
        program: String::new(),
        command: String::new(),
        missing: vec!["2x2 · k-means · seed 3".into()],
        sweeps: Vec::new(),
        cells: vec![
            cell("dense", "", 1, &[("once", 100.0)]),
            cell("2x2", "k-means", 1, &[("once", 90.0), ("best", 80.0)]),
            cell("dense", "", 2, &[("once", 110.0)]),
            cell("2x2", "k-means", 2, &[("once", 88.0), ("best", 77.0)]),
        ],
    }
}

#[test]
fn changes_are_against_the_baseline_of_the_same_seed() {
    let table = ExperimentTable::of(&results());
    let [dense, once, best] = &table.rows[..] else { panic!("three lines") };
    assert!((dense.perplexity.mean - 105.0).abs() < 1e-12);
    let change = once.change.unwrap();
    assert!((change.mean + 0.15).abs() < 1e-12 && (change.lowest + 0.2).abs() < 1e-12);
    assert!((best.change.unwrap().mean + 0.25).abs() < 1e-12, "against the dense model's only evaluation");
}

#[test]
fn perplexities_on_other_tokens_are_not_compared() {
    let mut other = results();
    other.cells[1].measurements[0].tokens_counted = 9;
    let table = ExperimentTable::of(&other);
    let [_, once, best] = &table.rows[..] else { panic!("three lines") };
    assert!(once.counts_other_tokens && !best.counts_other_tokens);
    // The other seed is still compared.
    assert!((once.change.unwrap().mean - (88.0 / 110.0 - 1.0)).abs() < 1e-12);
    assert!(
        table.to_string().contains("`2x2 · k-means · once` counts other tokens or documents than `dense`")
    );
    other.cells[3].measurements[0].documents = 2;
    assert_eq!(ExperimentTable::of(&other).rows[1].change, None);
}

#[test]
fn rows_of_different_machines_are_told_apart() {
    let mut mixed = results();
    let differs = "Not all rows come from the same program and arithmetic";
    for cell in &mut mixed.cells {
        cell.facts.trained_by = Some("0.1.0+a, cpu-avx512-1".into());
    }
    assert!(!ExperimentTable::of(&mixed).to_string().contains(differs));
    mixed.cells[3].facts.trained_by = Some("0.1.0+a, cuda-2".into());
    let text = ExperimentTable::of(&mixed).to_string();
    for says in [differs, "- 0.1.0+a, cpu-avx512-1: dense, 2x2 · k-means", "- 0.1.0+a, cuda-2: 2x2 · k-means"]
    {
        assert!(text.contains(says), "{says}: {text}");
    }
}

#[test]
fn the_table_in_markdown() {
    let text = ExperimentTable::of(&results()).to_string();
    let line = "| 2x2 | k-means | once | 2 | 1.30M | 0.00M | 100 | 2.0k | 89.00 ± 1.41 | 90.00 / 88.00 | \
                -15.0 % (-78.5 to +48.5) | 2.000 |";
    assert!(text.contains(line), "{text}");
    assert!(text.contains("Not finished: 2x2 · k-means · seed 3."), "{text}");
    assert!(!text.contains("purity"), "a column that is empty is left out: {text}");
    assert!(!text.contains("seconds") && !text.contains("Sweeps"), "{text}");
    let mut timed = results();
    timed.cells[0].facts.seconds = 12.34;
    (timed.cells[1].facts.token_gain, timed.cells[3].facts.token_gain) = (Some(0.5), Some(0.75));
    let text = ExperimentTable::of(&timed).to_string();
    assert!(text.contains("| tokens | seconds |") && text.contains("| 2.0k | 12.3 |"), "{text}");
    assert!(
        text.contains("| bits per token of the division |") && text.contains("| 0.625 ± 0.177 |"),
        "{text}"
    );
}

#[test]
fn differences_by_document_stand_seed_by_seed() {
    let mut results = results();
    for (place, bits_per_byte) in [(1, -0.0214), (3, -0.03)] {
        let difference = DocumentDifference { bits_per_byte, low: -0.04, high: 0.001 };
        results.cells[place].measurements[0].against_baseline = Some(difference);
    }
    let text = ExperimentTable::of(&results).to_string();
    assert!(text.contains("| -0.021 (-0.040 to +0.001) / -0.030 (-0.040 to +0.001) |"), "{text}");
    assert!(text.contains("By document: bits per byte less those of `dense`"), "{text}");
    assert!(text.contains("over the documents (Student's t, paired by document)."), "{text}");
}

#[test]
fn right_continuations_have_a_column() {
    let mut results = results();
    assert!(!ExperimentTable::of(&results).to_string().contains("ranking"));
    (results.cells[1].measurements[0].ranking, results.cells[3].measurements[0].ranking) =
        (Some(0.5), Some(0.75));
    let text = ExperimentTable::of(&results).to_string();
    assert!(text.contains("| bits per byte | ranking |"), "{text}");
    assert!(text.contains("(-78.5 to +48.5) | 2.000 | 0.625 ± 0.177 |"), "mean over the seeds: {text}");
    assert!(text.contains("| +0.0 % | 2.000 |  |"), "the dense model has none: {text}");
}

#[test]
fn domains_have_a_table_of_their_own() {
    let mut results = results();
    assert!(!ExperimentTable::of(&results).to_string().contains("by domain"));
    let domain = |(name, bits_per_byte): (&str, f64)| DomainMeasurement {
        domain: name.into(),
        documents: 1,
        bits_per_byte,
    };
    results.cells[0].measurements[0].domains = [("law", 1.5), ("a|b", 2.0)].map(domain).to_vec();
    results.cells[2].measurements[0].domains = [("law", 1.7)].map(domain).to_vec();
    results.cells[1].measurements[1].domains = [("law", 1.4)].map(domain).to_vec();
    let text = ExperimentTable::of(&results).to_string();
    let table = "| domain | dense · once | 2x2 · k-means · best |\n|---|--:|--:|\n| a\\|b | 2.000 |  |\n\
                 | law | 1.600 | 1.400 |\n";
    assert!(text.contains(table), "{text}");
}

/// A sweep of outer rates that chose the value `chosen`.
fn sweep(chosen: f64, at_end: bool) -> SweepResult {
    let value = |(value, perplexity)| SweptValue { value: toml::Value::Float(value), perplexity };
    SweepResult {
        run: "dense".into(),
        key: "outer.nesterov.learning_rate".into(),
        seeds: vec![1, 2],
        values: [(0.2, Some(91.3)), (0.4, Some(90.12)), (1.0, None)].map(value).to_vec(),
        chosen: Some(toml::Value::Float(chosen)),
        at_end,
    }
}

#[test]
fn sweeps_stand_below_the_table_with_a_warning_at_the_end_of_a_range() {
    let mut results = results();
    results.sweeps = vec![sweep(0.4, false)];
    let text = ExperimentTable::of(&results).to_string();
    let row =
        "| dense | outer.nesterov.learning_rate | 1, 2 | 0.2: 91.30, 0.4: 90.12, 1.0: no result | 0.4 |";
    assert!(text.contains(row), "{text}");
    assert!(!text.contains("the end of the range"), "{text}");
    results.sweeps.push(sweep(0.2, true));
    let text = ExperimentTable::of(&results).to_string();
    let warning = "- dense, outer.nesterov.learning_rate = 0.2: the best value is at the end of the range, so add values";
    assert_eq!(text.matches("the end of the range").count(), 1, "{text}");
    assert!(text.contains(warning), "{text}");
}

#[test]
fn little_data_per_path_is_reported() {
    let mut results = results();
    let facts = &mut results.cells[1].facts;
    facts.shards = Some(Shards { documents: vec![1, 1], tokens: vec![100, 500] });
    facts.heldout = Some(Heldout { best: vec![4.0, 4.0], last: vec![4.1, 4.01] });
    let text = ExperimentTable::of(&results).to_string();
    assert!(text.contains("- 2x2 · k-means, seed 1: training reads the smallest shard 10.0 times"), "{text}");
    assert!(text.contains("the held-out loss of 1 of 2 paths"), "{text}");
    // With padding the training would have read the shard ten times.
    results.cells[1].facts.readings = Some(3.5);
    let text = ExperimentTable::of(&results).to_string();
    assert!(!text.contains("reads the smallest shard"), "{text}");
}

#[test]
fn results_are_read_back() {
    let mut results = results();
    let text = serde_json::to_string(&results).unwrap();
    assert!(!text.contains("sweeps"), "results of earlier versions have no sweeps: {text}");
    assert_eq!(serde_json::from_str::<Results>(&text).unwrap(), results);
    results.sweeps = vec![sweep(0.4, false)];
    let text = serde_json::to_string(&results).unwrap();
    assert!(
        text.contains(r#"{"value":0.2,"perplexity":91.3}"#) && text.contains(r#""chosen":0.4"#),
        "{text}"
    );
    assert_eq!(serde_json::from_str::<Results>(&text).unwrap(), results);
    let table = ExperimentTable::of(&results);
    assert_eq!(table.sweeps, results.sweeps, "the table as JSON has them too");
}

#[test]
fn perplexities_during_training_stand_once_for_each_run() {
    let mut results = results();
    assert!(!ExperimentTable::of(&results).to_string().contains("during training"));
    let point = |steps, loss: f64, seconds, wire_bytes| ValidationPoint { steps, loss, seconds, wire_bytes };
    results.cells[1].facts.validation =
        vec![point(50, 5.0, Some(2.5), Some(3_000_000)), point(100, 4.0, None, None)];
    let text = ExperimentTable::of(&results).to_string();
    let lines: Vec<_> = text.lines().skip_while(|line| !line.contains("during training")).skip(4).collect();
    assert_eq!(
        lines[..2],
        [
            "| 2x2 · k-means | 1 | 50 | 1.0k | 2.5 | 3 | 148.41 |",
            "| 2x2 · k-means | 1 | 100 | 2.0k |  |  | 54.60 |"
        ]
    );
    assert_eq!(text.matches("| 2x2 · k-means | 1 | 50 |").count(), 1, "two evaluations, one training");
}
