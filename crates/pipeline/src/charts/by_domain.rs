//! Differences from an experiment's baseline by domain.

use std::collections::BTreeMap;

use dipaco_experiment::{Measurement, Results};
use dipaco_plot::{Axis, DotChart, DotMark, DotRow};

use super::chart::joined;

/// Runs that a reader can tell apart: each has a colour of its own.
const RUNS: usize = 8;

/// Bits per byte of each domain less those of the baseline of the same seed, for the first evaluation of the first [`RUNS`]
/// other runs. `None` without labels or without such a run.
pub(super) fn by_domain(results: &Results) -> Option<DotChart> {
    let first = |measurements: &[Measurement]| -> BTreeMap<String, f64> {
        let domains = measurements.first().map_or(&[][..], |measured| &measured.domains);
        domains.iter().map(|found| (found.domain.clone(), found.bits_per_byte)).collect()
    };
    let baselines = results.cells.iter().filter(|cell| cell.run == results.baseline);
    let mut first_of_seed: BTreeMap<u64, BTreeMap<String, f64>> = BTreeMap::new();
    for cell in baselines {
        // With several routers of the baseline the first counts, as in the table.
        first_of_seed.entry(cell.seed).or_insert_with(|| first(&cell.measurements));
    }
    let mut names: Vec<String> = Vec::new();
    let mut rows: BTreeMap<String, Vec<DotMark>> = BTreeMap::new();
    for cell in results.cells.iter().filter(|cell| cell.run != results.baseline) {
        let Some(baseline) = first_of_seed.get(&cell.seed) else { continue };
        let name = joined(&[&cell.run, &cell.router]);
        for (domain, bits) in first(&cell.measurements) {
            let Some(of_baseline) = baseline.get(&domain) else { continue };
            let colour = names.iter().position(|known| *known == name).unwrap_or(names.len());
            if colour == RUNS {
                continue;
            }
            if colour == names.len() {
                names.push(name.clone());
            }
            let marks = rows.entry(domain).or_default();
            let mark = marks.iter_mut().find(|mark| mark.colour == colour);
            match mark {
                Some(mark) => mark.values.push(bits - of_baseline),
                None => marks.push(DotMark { values: vec![bits - of_baseline], colour }),
            }
        }
    }
    let rows: Vec<DotRow> = rows.into_iter().map(|(label, marks)| DotRow { label, marks }).collect();
    let label = format!(
        "bits per byte less those of {}; each circle is a seed, the dot their mean",
        results.baseline
    );
    let title = results.title.clone();
    (!rows.is_empty()).then(|| DotChart { title, x: Axis::linear(label), rows, names })
}

#[cfg(test)]
mod tests {
    use dipaco_experiment::{CellResult, DomainMeasurement, Facts};

    use super::*;
    use crate::charts::testing::results;

    fn cell(run: &str, seed: u64, bits: &[(&str, f64)]) -> CellResult {
        let domain = |&(name, bits_per_byte): &(&str, f64)| DomainMeasurement {
            domain: name.to_owned(),
            documents: 3,
            bits_per_byte,
        };
        let measured = |bits: &[(&str, f64)]| Measurement {
            evaluation: String::new(),
            perplexity: 2.0,
            bits_per_byte: None,
            tokens_counted: 1,
            documents: 3,
            purity: None,
            nmi: None,
            ranking: None,
            domains: bits.iter().map(domain).collect(),
            against_baseline: None,
        };
        // Later evaluations are not drawn.
        let measurements = vec![measured(bits), measured(&[("law", 99.0)])];
        let (run, router, key) = (run.to_owned(), String::new(), String::new());
        CellResult { run, router, seed, key, facts: Facts::default(), measurements }
    }

    #[test]
    fn a_domain_has_the_difference_from_the_baseline_of_each_seed() {
        let mut results = results(
            "dense",
            vec![
                cell("2 × 2", 1, &[("law", 1.5), ("web", 2.0)]),
                cell("dense", 1, &[("law", 2.0), ("web", 1.75)]),
                cell("dense", 2, &[("law", 3.0)]),
                cell("2 × 2", 2, &[("law", 2.0)]),
                cell("4 × 4", 1, &[("law", 1.0)]),
                cell("4 × 4", 3, &[("law", 1.0)]),
            ],
        );
        let chart = by_domain(&results).unwrap();
        assert_eq!(chart.names, ["2 × 2", "4 × 4"]);
        let rows: Vec<_> = chart.rows.iter().map(|row| (row.label.as_str(), row.marks.clone())).collect();
        let mark = |values: &[f64], colour| DotMark { values: values.to_vec(), colour };
        assert_eq!(
            rows,
            [("law", vec![mark(&[-0.5, -1.0], 0), mark(&[-1.0], 1)]), ("web", vec![mark(&[0.25], 0)]),]
        );
        let mut of_another_router = cell("dense", 1, &[("law", 9.0), ("web", 9.0)]);
        of_another_router.router = "second".to_owned();
        results.cells.push(of_another_router);
        assert_eq!(by_domain(&results).unwrap().rows[1].marks, [mark(&[0.25], 0)]);
        results.cells.retain(|cell| cell.run == "dense");
        assert!(by_domain(&results).is_none());
    }

    #[test]
    fn a_ninth_run_is_not_drawn() {
        let mut cells = vec![cell("dense", 1, &[("law", 2.0)])];
        cells.extend((0..9).map(|i| cell(&i.to_string(), 1, &[("law", 1.0)])));
        let results = results("dense", cells);
        assert_eq!(by_domain(&results).unwrap().names.len(), RUNS);
    }
}
