//! Charts of runs and of experiments.

mod by_domain;
mod chart;
mod curves;
mod domains;
mod experiment;
mod run;
#[cfg(test)]
mod testing;

pub use self::chart::Chart;
pub use self::curves::RunCurves;
pub use self::domains::domains;
pub use self::experiment::of_results;
pub use self::run::of_runs;
