//! `dipaco simulate`: tables, JSON, pictures and refusals.
#![allow(clippy::unwrap_used)]

use dipaco_tests::process::dipaco;

#[test]
fn bandwidth_is_printed_for_the_requested_sizes() {
    let table = dipaco("simulate bandwidth").succeeded().says("data parallel").says("Gbit/s").stdout;
    assert_eq!(table.lines().filter(|line| line.contains("streaming, overlap 1, 4 bits")).count(), 5);
    assert_eq!(table.lines().filter(|line| line.contains("eager, 4 bits")).count(), 5);
    let rows = dipaco("simulate bandwidth --parameters 1e10 --step-seconds 0.8 --json").succeeded().json();
    let row = |scheme: &str| {
        let found = rows.as_array().unwrap().iter().find(|row| row["scheme"] == scheme).unwrap();
        found["required"][3].as_f64().unwrap()
    };
    // 95 %: the paper has 268.3 and 1.4 Gbit/s (arXiv:2501.18512, table 4).
    assert!((row("data parallel") / 268.3e9 - 1.0).abs() < 0.5);
    assert!((row("streaming, overlap 1, 4 bits") / 1.4e9 - 1.0).abs() < 0.5);
    let _ =
        dipaco("simulate bandwidth --sites 0").failed(2, &["sites = 0", "dipaco simulate bandwidth --help"]);
    let _ = dipaco("simulate bandwidth --parameters 1e10").failed(2, &["--step-seconds"]);
    let _ = dipaco("simulate bandwidth --fragments 200").failed(2, &["fragments = 200", "inner steps"]);
    let _ = dipaco("simulate bandwidth --parameters NaN --step-seconds 1").failed(2, &["parameters = NaN"]);
}

#[test]
fn goodput_is_printed_and_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().display();
    let rows = dipaco(&format!("simulate goodput --chips 1200000 --learners 8 --json --out {out}"))
        .succeeded()
        .json();
    let goodput = rows[0]["cells"][0]["goodput"].as_f64().unwrap();
    // The paper has 88 % (arXiv:2604.21428, table 1).
    assert!((goodput - 0.88).abs() < 0.05, "{goodput}");
    for name in ["goodput.png", "goodput.svg"] {
        assert!(folder.path().join(name).metadata().unwrap().len() > 1000, "{name}");
    }
    let _ = dipaco("simulate goodput --learners 0").failed(2, &["learners = 0", "simulate goodput --help"]);
    let _ = dipaco("simulate goodput --chip-failure-days 0").failed(2, &["failures of a chip"]);
}

#[test]
fn learners_of_different_speeds_wait_only_if_the_scheme_makes_them() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().display();
    let rows = dipaco(&format!("simulate speeds --learners 4 --json --out {out}")).succeeded().json();
    let found = |name: &str, what: &str| {
        let row = rows.as_array().unwrap().iter().find(|row| row["name"] == name).unwrap();
        row[what].as_f64().unwrap()
    };
    // The slower half takes 18 % longer, and a learner that waits is as fast as the slowest: it uses 1 / 1.18 of its time.
    assert!(found("all wait for all, no overlap", "goodput") < 0.88);
    assert!(found("quorum of one", "goodput") > 0.99);
    // A throttle of 0.9 lets a fragment take an outer step in nine tenths of the fastest learner's round, without anyone
    // waiting: 1 / 0.9 in its round, and a fifth more in a mean one, where half are 18 % slower and all vary by 10 %.
    assert!(found("quorum of one, grace, throttle", "goodput") > 0.99);
    let (free, throttled) = ("quorum of one", "quorum of one, grace, throttle");
    let steps = |name| found(name, "outer_steps_a_round");
    assert!(steps(free) > 2.0 && steps(throttled) < 1.5, "{} {}", steps(free), steps(throttled));
    assert!(folder.path().join("speeds.png").metadata().unwrap().len() > 1000);
    let _ = dipaco("simulate speeds --learners 0").failed(2, &["learners = 0"]);
}

#[test]
fn serving_by_module_gains_over_serving_by_path() {
    let words = "simulate serve --requests 300 --json";
    let rows = dipaco(words).succeeded().json();
    assert_eq!(rows, dipaco(words).succeeded().json(), "the same arguments give the same numbers");
    let found = |batching: &str, what: &str| {
        let row = rows.as_array().unwrap().iter().find(|row| row["batching"] == batching).unwrap();
        row[what].as_f64().unwrap()
    };
    let gain = found("module", "gain");
    assert!(gain > 1.0 && found("path", "gain") == 1.0 && found("copies", "gain") < gain, "{rows}");
    assert!(found("copies", "loads") > found("module", "loads"), "{rows}");
    assert!(found("module", "most_memory") <= 1e9 && found("module", "loads") > 32.0, "{rows}");
    let _ = dipaco("simulate serve --requests 300").succeeded().says("by module").says("tokens/s");
    let _ = dipaco("simulate serve --memory 1e8").failed(2, &["memory = 100000000", "one path"]);
}
