use super::*;
use dipaco_config::RunConfig;

/// A sweep of one seed over values written in TOML.
fn sweep(values: &[&str]) -> Sweep {
    let trial = |text: &&str| {
        let value = format!("value = {text}").parse::<toml::Table>().unwrap()["value"].clone();
        let cell = Cell {
            run: "dense".into(),
            router: String::new(),
            swept: format!("key = {value}"),
            seed: 1,
            config: RunConfig::default(),
            evaluations: Vec::new(),
        };
        Trial { value, cells: vec![cell] }
    };
    let trials = values.iter().map(trial).collect();
    Sweep { run: "dense".into(), key: "key".into(), seeds: vec![1], trials }
}

fn judge(values: &[&str], perplexities: &[f64]) -> SweepResult {
    let measured: Vec<Vec<f64>> = perplexities.iter().map(|perplexity| vec![*perplexity]).collect();
    sweep(values).judge(&measured)
}

#[test]
fn the_lowest_mean_perplexity_wins_and_the_first_of_equal_ones() {
    let chosen = |perplexities: &[f64]| judge(&["0.2", "0.4", "0.7"], perplexities).chosen;
    assert_eq!(chosen(&[9.0, 8.0, 10.0]), Some(Value::Float(0.4)));
    assert_eq!(chosen(&[9.0, 8.0, 8.0]), Some(Value::Float(0.4)));
    let mut seeds = sweep(&["0.2", "0.4"]);
    for trial in &mut seeds.trials {
        trial.cells.push(trial.cells[0].clone());
    }
    let result = seeds.judge(&[vec![7.0, 12.0], vec![9.0, 9.0]]);
    assert_eq!(result.chosen, Some(Value::Float(0.4)), "the mean counts, not the best seed");
    assert_eq!(result.values[0].perplexity, Some(9.5));
    let result = seeds.judge(&[vec![7.0], vec![9.0, 9.0]]);
    assert_eq!(result.chosen, Some(Value::Float(0.4)), "a value that lacks a seed does not count");
}

#[test]
fn a_value_without_all_its_results_is_not_chosen() {
    let three = sweep(&["0.2", "0.4", "0.7"]);
    let result = three.judge(&[vec![], vec![9.0], vec![f64::INFINITY]]);
    assert_eq!(result.chosen, Some(Value::Float(0.4)));
    let perplexities: Vec<Option<f64>> = result.values.iter().map(|swept| swept.perplexity).collect();
    assert_eq!(perplexities, [None, Some(9.0), None]);
    assert!(!result.at_end, "both neighbours are worse");
    let nothing = three.judge(&[]);
    assert_eq!((nothing.values.len(), nothing.chosen, nothing.at_end), (3, None, false));
}

#[test]
fn the_smallest_and_the_largest_number_are_ends_in_any_order() {
    let at_end = |values: &[&str], perplexities: &[f64]| judge(values, perplexities).at_end;
    assert!(at_end(&["1", "2", "3"], &[7.0, 8.0, 9.0]));
    assert!(at_end(&["1", "2", "3"], &[9.0, 8.0, 7.0]));
    assert!(!at_end(&["1", "2", "3"], &[9.0, 7.0, 8.0]));
    assert!(
        !at_end(&["2.0", "1.0", "3.0"], &[7.0, 8.0, 9.0]),
        "the first in the file lies between the others"
    );
    assert!(!at_end(&["\"f32\"", "\"bf16\""], &[7.0, 8.0]), "names have no range");
}
