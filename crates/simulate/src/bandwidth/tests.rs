use super::*;
use crate::SimulatedScheme;

const SHARES: [f64; 5] = [0.5, 0.8, 0.9, 0.95, 0.99];

/// arXiv:2501.18512 table 4: parameters, seconds of a step, fragments, and for data parallel, DiLoCo, streaming,
/// streaming with overlap and that with 4 bits the Gbit/s for each of [`SHARES`].
const TABLE: [(f64, f64, u32, [[f64; 5]; 5]); 3] = [
    (
        1e9,
        0.1,
        8,
        [
            [86.8, 152.6, 184.2, 222.3, 569.0],
            [1.4, 6.2, 13.3, 23.3, 86.8],
            [1.4, 5.2, 9.1, 16.0, 28.1],
            [1.4, 4.3, 6.2, 9.1, 11.0],
            [0.4, 0.9, 1.7, 2.0, 3.0],
        ],
    ),
    (
        1e10,
        0.8,
        16,
        [
            [104.8, 222.3, 222.3, 268.3, 471.5],
            [1.7, 7.5, 16.0, 33.9, 104.8],
            [1.7, 5.2, 9.1, 13.3, 19.3],
            [1.7, 3.6, 5.2, 6.2, 7.5],
            [0.4, 0.9, 1.4, 1.4, 1.7],
        ],
    ),
    (
        1e11,
        4.9,
        36,
        [
            [184.2, 323.8, 390.7, 390.7, 471.5],
            [3.0, 11.0, 23.3, 49.4, 184.2],
            [2.4, 6.2, 9.1, 11.0, 19.3],
            [1.7, 3.6, 4.3, 5.2, 5.2],
            [0.5, 0.9, 1.1, 1.1, 1.4],
        ],
    ),
];

#[test]
fn the_papers_table_comes_out() {
    let (mut near, mut off) = (0, Vec::new());
    for (parameters, step_seconds, fragments, rows) in TABLE {
        let schemes = [
            SimulatedScheme::data_parallel(),
            SimulatedScheme::diloco(100),
            SimulatedScheme::streaming(100, fragments, 0, 16.0),
            SimulatedScheme::streaming(100, fragments, 1, 16.0),
            SimulatedScheme::streaming(100, fragments, 1, 4.0),
        ];
        for (scheme, row) in schemes.into_iter().zip(rows) {
            let run = LargeRun::new(2, scheme, parameters, step_seconds);
            for (share, paper) in SHARES.into_iter().zip(row) {
                let found = required_bandwidth(&run, share).unwrap().unwrap() / 1e9;
                if (found / paper).max(paper / found) <= 1.5 {
                    near += 1;
                } else {
                    off.push((parameters, run.scheme.clone(), share, found, paper));
                }
            }
        }
    }
    // The outlier is data parallel training of the smallest model at 99 %. It depends on details of the paper's
    // graph of operations, which are unpublished.
    assert!(near >= 74, "{near} of 75 cells are within 1.5 times; others: {off:?}");
}

#[test]
fn a_small_model_needs_less_than_the_papers_smallest_bandwidth() {
    // DiLoCo sends 2.4e9 bits after each 750 s of training, and half of the time may be transfers.
    let needed = needed(SimulatedScheme::diloco(150), 1.5e8, 5.0, 0.5) * 1e9;
    assert!((1e6..1e7).contains(&needed), "{needed}");
    let alone = LargeRun::new(1, SimulatedScheme::data_parallel(), 1.5e8, 5.0);
    assert_eq!(required_bandwidth(&alone, 0.99).unwrap(), Some(0.0));
}

#[test]
fn a_link_that_is_fast_enough_costs_nothing_and_one_site_needs_none() {
    let utilisation = |learners, scheme, bits_per_second| {
        let link = Some(Link { bits_per_second, latency_seconds: 0.0 });
        play(&LargeRun { link, ..LargeRun::new(learners, scheme, 1e9, 1.0) }).unwrap().utilisation
    };
    let overlapped = SimulatedScheme::streaming(100, 10, 2, 16.0);
    assert!((utilisation(4, overlapped.clone(), 1e12) - 1.0).abs() < 1e-9);
    assert!((utilisation(1, SimulatedScheme::data_parallel(), 1.0) - 1.0).abs() < 1e-9);
    let slow = utilisation(4, overlapped, 1e6);
    assert!(slow > 0.0 && slow < 0.1, "{slow}");
}

/// arXiv:2503.09799 table 6: parameters, seconds of a step, H (1 is data parallel), and the Gbit/s for each of [`SHARES`].
const LAWS_TABLE: [(f64, f64, u32, [f64; 5]); 10] = [
    (1e10, 0.8, 1, [104.8, 184.2, 222.3, 222.3, 390.7]),
    (1e10, 0.8, 10, [16.0, 49.4, 86.8, 152.6, 222.3]),
    (1e10, 0.8, 50, [3.0, 11.0, 23.3, 41.0, 126.5]),
    (1e10, 0.8, 100, [1.4, 6.2, 13.3, 23.3, 86.8]),
    (1e10, 0.8, 300, [0.5, 2.0, 4.3, 9.1, 41.0]),
    // Llama of 405B parameters.
    (4.05e11, 26.0, 100, [2.0, 7.5, 16.0, 33.9, 126.5]),
    (4.05e11, 26.0, 300, [0.7, 3.0, 6.2, 13.3, 59.6]),
    // DeepSeek-V3, 671B parameters. The table says "1000+" for the last cell.
    (6.71e11, 20.0, 1, [323.8, 569.0, 686.6, 686.6, 1000.0]),
    (6.71e11, 20.0, 100, [4.3, 16.0, 41.0, 72.0, 268.3]),
    (6.71e11, 20.0, 300, [1.7, 6.2, 13.3, 28.1, 126.5]),
];

fn needed(scheme: SimulatedScheme, parameters: f64, step_seconds: f64, share: f64) -> f64 {
    let run = LargeRun::new(2, scheme, parameters, step_seconds);
    required_bandwidth(&run, share).unwrap().unwrap() / 1e9
}

#[test]
fn the_table_of_the_scaling_laws_comes_out() {
    let (mut near, mut off) = (0, Vec::new());
    for (parameters, step_seconds, inner_steps, row) in LAWS_TABLE {
        for (share, paper) in SHARES.into_iter().zip(row) {
            let found = needed(SimulatedScheme::diloco(inner_steps), parameters, step_seconds, share);
            let ratio = (found / paper).max(paper / found);
            assert!(ratio <= 1.8, "{parameters} {inner_steps} {share}: {found} for {paper}");
            if ratio <= 1.5 {
                near += 1;
            } else {
                off.push((parameters, inner_steps, share, found, paper));
            }
        }
    }
    assert!(near >= 48, "{near} of 50 cells are within 1.5 times; others: {off:?}");
    // The same table, Llama 405B: the text read has the first and the last data parallel cell only.
    for (share, paper) in [(0.5, 126.5), (0.99, 323.8)] {
        let found = needed(SimulatedScheme::data_parallel(), 4.05e11, 26.0, share);
        assert!((found / paper).max(paper / found) <= 1.5, "{share}: {found} for {paper}");
    }
}

/// arXiv:2501.18512 §3.1: at 4 Gbit/s DeepSeek-V3 computes nearly all of the time, and data parallel training of it needs
/// about 1 Tbit/s.
#[test]
fn four_gigabits_keep_deepseek_busy() {
    let streaming = SimulatedScheme::streaming(100, 40, 1, 4.0);
    assert!(needed(streaming, 6.71e11, 20.1, 0.99) <= 4.0);
    let data_parallel = needed(SimulatedScheme::data_parallel(), 6.71e11, 20.1, 0.99);
    assert!((700.0..1300.0).contains(&data_parallel), "{data_parallel}");
}

#[test]
fn eager_updates_need_only_the_mean_rate_of_what_they_send() {
    let notch = 10f64.powf(4.0 / f64::from(NOTCHES));
    for (parameters, step_seconds) in [(1e9, 0.1), (1e10, 0.8), (1e11, 4.9)] {
        for inner_steps in [30, 100] {
            let scheme = SimulatedScheme::eager(inner_steps, 4.0);
            // Two sites send each value once in a round. All of it travels while they compute.
            let mean = parameters * 4.0 / (f64::from(inner_steps) * step_seconds) / 1e9;
            for share in SHARES {
                let found = needed(scheme.clone(), parameters, step_seconds, share);
                let least = share * mean;
                assert!((least * 0.99..=least * notch * 1.01).contains(&found), "{found} for {least}");
            }
            let fragments = 8.min(inner_steps);
            let overlapped = SimulatedScheme::streaming(inner_steps, fragments, 1, 4.0);
            let (eager, overlapped) = (
                needed(scheme, parameters, step_seconds, 0.99),
                needed(overlapped, parameters, step_seconds, 0.99),
            );
            assert!(eager < overlapped, "{eager} and {overlapped}");
        }
    }
    // arXiv:2502.12996: from 471.5 Gbit/s to 0.4, a factor of 1,177. The paper has less than half of the mean rate of
    // these bits (0.82 Gbit/s), so its count of them differs; this one ends at a factor of about 600.
    let data_parallel = needed(SimulatedScheme::data_parallel(), 1e11, 4.9, 0.99);
    let eager = needed(SimulatedScheme::eager(100, 4.0), 1e11, 4.9, 0.99);
    assert!((500.0..1200.0).contains(&(data_parallel / eager)), "{data_parallel} and {eager}");
}

#[test]
fn a_lease_that_sends_nothing_completes_after_the_one_before_it() {
    // 16 fragments in 30 steps leave leases without a send, which end while the lease before them still uploads.
    for bits in [16.0, 4.0] {
        let found = SHARES.map(|share| needed(SimulatedScheme::streaming(30, 16, 1, bits), 1e10, 0.8, share));
        assert!(found.is_sorted(), "{found:?}");
    }
}
