//! Tests of the parts that paths keep.

use dipaco_config::RunConfig;
use dipaco_topology::TopologyConfig;

use super::*;

/// The plan of a scheme in two phases of three rounds of twelve steps.
fn plan(scheme: impl FnOnce(&mut WorkerPlan)) -> WorkerPlan {
    let config = RunConfig { topology: TopologyConfig::dense(1), ..RunConfig::default() };
    let mut plan = WorkerPlan::new(&config);
    (plan.train.rounds, plan.train.inner_steps, plan.boundaries) = (6, 12, vec![3]);
    scheme(&mut plan);
    plan
}

/// The parts that a path may keep after some lease of the scheme.
fn found(plan: &WorkerPlan) -> KeptParts {
    let schedule = plan.schedule().unwrap();
    let mut found = KeptParts { own: false, base: false, residual: false, ahead: false };
    let mut step = 0;
    while step < schedule.total() {
        // A path with steps of its own choice stops anywhere.
        step = if plan.sync.dynamic_steps { step + 1 } else { schedule.next_stop(step) };
        for (path, index) in (0..4).flat_map(|path| (0..plan.sync.fragments).map(move |index| (path, index)))
        {
            let KeptParts { own, base, residual, ahead } =
                KeptParts::of(plan, &schedule, PathId(path), step, index);
            found.own |= own;
            found.base |= base;
            found.residual |= residual;
            found.ahead |= ahead;
        }
    }
    found
}

#[test]
fn a_scheme_has_the_parts_of_all_its_leases_and_no_other() {
    let schemes = [
        ("DiPaCo", plan(|_| {}), 0),
        (
            "Streaming DiLoCo",
            plan(|p| (p.sync.fragments, p.sync.overlap_steps, p.sync.blend) = (3, 2, 0.5)),
            2,
        ),
        ("fragments without overlap", plan(|p| p.sync.fragments = 4), 2),
        ("an overlap", plan(|p| p.sync.overlap_steps = 5), 0),
        ("delayed updates", plan(|p| p.sync.overlap_steps = 12), 0),
        ("a blend", plan(|p| (p.sync.overlap_steps, p.sync.blend) = (3, 0.5)), 1),
        ("eager updates", plan(|p| (p.sync.overlap_steps, p.sync.eager) = (12, true)), 3),
        ("SparseLoCo", plan(|p| p.outer.error_feedback = 0.9), 1),
        ("drops", plan(|p| p.sync.drop_rate = 0.5), 1),
        ("own steps", plan(|p| (p.sync.quorum, p.sync.dynamic_steps) = (1, true)), 0),
    ];
    for (name, plan, vectors) in schemes {
        let of_scheme = KeptParts::of_scheme(&plan);
        assert_eq!(of_scheme, found(&plan), "{name}");
        assert_eq!(of_scheme.vectors(), vectors, "{name}");
    }
}

#[test]
fn a_lead_has_all_of_its_parts() {
    let parts = KeptParts { own: false, base: false, residual: false, ahead: true };
    assert_eq!(parts.violation(&LEAD), None);
    assert_eq!(parts.violation(&[]), None);
    assert_eq!(parts.violation(&LEAD[1..]), Some("has a part of a lead without the others"));
}
