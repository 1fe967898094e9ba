//! The scheduler in virtual time.

mod clients;
mod queue;

use proptest::prelude::*;

use super::*;
use crate::PageCopy;

fn limits(sequences: usize, step_tokens: usize, pages: usize) -> Limits {
    Limits {
        sequences,
        step_tokens,
        prompt_slowdown: 1.75,
        queued_sequences: 1000,
        queued_tokens: 1 << 20,
        pages,
    }
}

fn arrival(client: u64, prompt: Vec<u32>, max_tokens: usize) -> Arrival {
    Arrival { client, priority: 0, prompt: prompt.into(), max_tokens, reads_cache: true, chunks: None }
}

const LONG: Duration = Duration::from_secs(1000);

fn admit(scheduler: &mut Scheduler, arrival: Arrival) -> SequenceId {
    let id = scheduler.admit(vec![arrival], LONG).unwrap()[0];
    scheduler.ready(id, &[0]);
    id
}

/// The numbers of a path of three stages. Paths 0 to 3 have the first in common, and 0 and 1 also the second.
fn numbers(path: u32) -> [u32; 3] {
    [100 + path / 4, 200 + path / 2, 300 + path]
}

/// Runs a step: each sequence whose last row ran generates a token, or ends after `max_tokens`.
fn step(scheduler: &mut Scheduler) -> Plan {
    step_on(scheduler, |_| 0.1)
}

/// A step on a machine that needs `seconds` for a number of rows.
fn step_on(scheduler: &mut Scheduler, seconds: impl Fn(usize) -> f64) -> Plan {
    let plan = scheduler.plan();
    scheduler.done(&plan, seconds(rows(&plan)));
    for rows in plan.rows.iter().filter(|rows| rows.last) {
        let sequence = &scheduler.sequences[&rows.id];
        if sequence.generated() + 1 >= sequence.max_tokens {
            scheduler.remove(rows.id);
        } else {
            scheduler.generated(rows.id, 7);
        }
    }
    plan
}

fn rows(plan: &Plan) -> usize {
    plan.rows.iter().map(|rows| rows.tokens.len()).sum()
}

/// The number of rows of each sequence in a plan.
fn counts(plan: &Plan) -> Vec<(u64, usize)> {
    plan.rows.iter().map(|rows| (rows.id.0, rows.tokens.len())).collect()
}

#[test]
fn generating_comes_first_and_a_long_prompt_gets_what_is_left() {
    let mut scheduler = Scheduler::new(limits(4, 20, 100));
    admit(&mut scheduler, arrival(0, vec![1; 5], 9));
    admit(&mut scheduler, arrival(0, vec![2; 5], 9));
    assert_eq!(counts(&step(&mut scheduler)), [(0, 5), (1, 5)]);
    admit(&mut scheduler, arrival(0, (0..50).collect(), 9));
    assert_eq!(counts(&step(&mut scheduler)), [(0, 1), (1, 1), (2, 18)]);
    assert_eq!(counts(&step(&mut scheduler)), [(0, 1), (1, 1), (2, 18)]);
    assert_eq!(counts(&step(&mut scheduler)), [(0, 1), (1, 1), (2, 14)]);
    assert_eq!(counts(&step(&mut scheduler)), [(0, 1), (1, 1), (2, 1)]);
}

#[test]
fn a_long_prompt_slows_generating_sequences_by_the_set_factor_only() {
    // 10 ms to read the weights and 1 ms a row: 64 rows take 5 times as long as 4.
    let machine = |rows: usize| 0.010 + 0.001 * rows as f64;
    let mut scheduler = Scheduler::new(limits(8, 64, 500));
    let prompt = |first: u32| (first..first + 500).collect();
    admit(&mut scheduler, arrival(0, prompt(0), 1));
    let alone = step_on(&mut scheduler, machine);
    assert_eq!(rows(&alone), 64, "nobody waits for a prompt that is alone");
    while !step_on(&mut scheduler, machine).rows.is_empty() {}

    for i in 0..4 {
        admit(&mut scheduler, arrival(0, vec![9000 + i], 1000));
    }
    (0..5).for_each(|_| drop(step_on(&mut scheduler, machine)));
    let long = admit(&mut scheduler, arrival(0, prompt(1000), 1));
    let (mut steps, mut slowest) = (0, 0.0f64);
    while scheduler.contains(long) {
        let plan = step_on(&mut scheduler, machine);
        assert_eq!(plan.generating, 4, "every sequence gets its token in every step");
        (steps, slowest) = (steps + 1, slowest.max(machine(rows(&plan))));
    }
    assert!(slowest <= 1.75 * machine(4), "{slowest}");
    // 14 ms leave 10.5 ms for prompts, so 10 rows a step, and one step of 17 without.
    assert!((50..=56).contains(&steps), "{steps} steps");

    // While more sequences wait than generate, reading prompts soon serves more users.
    for i in 0..4 {
        admit(&mut scheduler, arrival(0, prompt(10_000 + 1000 * i), 1));
    }
    assert!(rows(&step_on(&mut scheduler, machine)) <= 14, "four generate and four wait");
    admit(&mut scheduler, arrival(0, prompt(20_000), 1));
    scheduler.limits.sequences = 9;
    assert_eq!(rows(&step_on(&mut scheduler, machine)), 64, "four generate and five wait");
    (0..60).for_each(|_| drop(step_on(&mut scheduler, machine)));

    // Reading the weights takes all the time: prompts cost nothing, and get every row that is left.
    let machine = |_| 0.010;
    (0..40).for_each(|_| drop(step_on(&mut scheduler, machine)));
    admit(&mut scheduler, arrival(0, prompt(3000), 1));
    (0..80).for_each(|_| drop(step_on(&mut scheduler, machine)));
    admit(&mut scheduler, arrival(0, prompt(5000), 1));
    assert_eq!(rows(&step_on(&mut scheduler, machine)), 64);
}

#[test]
fn a_client_with_many_sequences_does_not_hold_up_another_client() {
    let mut scheduler = Scheduler::new(limits(1, 16, 100));
    for i in 0..10 {
        admit(&mut scheduler, arrival(1, vec![i; 10], 1));
    }
    step(&mut scheduler);
    let late = admit(&mut scheduler, arrival(2, vec![99; 10], 1));
    // The second client begins level with the first, so one of them is next, and then the other.
    let next: Vec<u64> = (0..2).flat_map(|_| counts(&step(&mut scheduler))).map(|(id, _)| id).collect();
    assert!(next.contains(&late.0), "{next:?}");
    // Within a client the first comes first.
    assert!(next.contains(&1), "{next:?}");
}

#[test]
fn a_clients_priorities_order_its_own_waiting_sequences_only() {
    let of = |client, priority, prompt: u32| Arrival { priority, ..arrival(client, vec![prompt; 4], 1) };
    let mut scheduler = Scheduler::new(limits(1, 16, 100));
    // The first runs already: nobody takes its place away.
    admit(&mut scheduler, Arrival { max_tokens: 2, ..of(0, 9, 0) });
    assert_eq!(counts(&step(&mut scheduler)), [(0, 4)]);
    for (number, priority) in (1..).zip([0, 5, -1, 0, i32::MIN, i32::MAX]) {
        admit(&mut scheduler, of(0, priority, number));
    }
    let order: Vec<u64> = (0..7).flat_map(|_| counts(&step(&mut scheduler))).map(|(id, _)| id).collect();
    assert_eq!(order, [0, 5, 3, 1, 4, 2, 6]);

    // Two places are free, and both clients were served as much. The later sequence of client 1 takes the turn of the
    // earlier one, which then comes after that of client 2.
    let mut scheduler = Scheduler::new(limits(2, 16, 100));
    for arrival in [of(1, 0, 0), of(2, 0, 1), of(1, -9, 2)] {
        admit(&mut scheduler, arrival);
    }
    assert_eq!(counts(&step(&mut scheduler)), [(2, 4), (1, 4)]);
    assert_eq!(counts(&step(&mut scheduler)), [(0, 4)]);
}

#[test]
fn choices_of_a_prompt_read_its_pages_and_a_prompt_with_scores_does_not() {
    let mut scheduler = Scheduler::new(limits(4, 64, 100));
    let prompt: Vec<u32> = (0..40).collect();
    let choices = scheduler.admit(vec![arrival(0, prompt.clone(), 3); 3], LONG).unwrap();
    choices.iter().for_each(|&id| scheduler.ready(id, &[5]));
    let first = step(&mut scheduler);
    assert_eq!((counts(&first), first.started.len()), (vec![(0, 40)], 1), "the others wait for its pages");
    let second = step(&mut scheduler);
    assert_eq!(second.started, [(choices[1], 32), (choices[2], 32)]);
    assert_eq!(counts(&second), [(0, 1), (1, 8), (2, 8)]);
    let pages: Vec<_> = second.rows.iter().map(|rows| rows.pages[..2].to_vec()).collect();
    assert!(pages.iter().all(|own| *own == pages[0]));
    let scored = scheduler
        .admit(vec![Arrival { reads_cache: false, chunks: None, ..arrival(0, prompt.clone(), 3) }], LONG);
    scheduler.ready(scored.unwrap()[0], &[5]);
    assert_eq!(step(&mut scheduler).started, [(SequenceId(3), 0)]);
    // Other modules have other keys and values.
    while !step(&mut scheduler).rows.is_empty() {}
    let other = scheduler.admit(vec![arrival(0, prompt, 3)], LONG).unwrap()[0];
    scheduler.ready(other, &[6]);
    assert_eq!(step(&mut scheduler).started, [(other, 0)]);
}

#[test]
fn a_sequence_that_changes_its_path_keeps_the_rows_of_the_stages_that_the_paths_share() {
    let mut scheduler = Scheduler::new(limits(1, 64, 100));
    let chunks = Some(Chunks { end: 40, every: 40 });
    let text = Arrival { reads_cache: false, chunks, ..arrival(0, (0..50).collect(), 9) };
    let id = scheduler.admit(vec![text], LONG).unwrap()[0];
    scheduler.ready(id, &numbers(0));
    let summary = |plan: &Plan| (stages(plan), plan.copies.len(), plan.at_end.clone());
    // The row of the last token of a chunk is the next path's.
    assert_eq!(summary(&step(&mut scheduler)), (vec![(0, 39, 0)], 0, vec![]));
    assert_eq!(summary(&step(&mut scheduler)), (vec![], 0, vec![(id, 40)]));
    scheduler.leave(id);
    assert_eq!(scheduler.load().used_pages, 0, "it holds nothing while it waits");
    scheduler.ready(id, &numbers(1));
    // Two full pages are kept, and what follows is read by the new path alone.
    assert_eq!(summary(&step(&mut scheduler)), (vec![(0, 32, 2)], 2, vec![]));
    assert_eq!(summary(&step(&mut scheduler)), (vec![(32, 18, 0)], 0, vec![]));
    assert_eq!(summary(&step(&mut scheduler)), (vec![(50, 1, 0)], 0, vec![]));
    // A path without common stages keeps nothing. The first path still finds its own pages, and then the page of the second.
    scheduler.leave(id);
    scheduler.ready(id, &numbers(4));
    assert_eq!(summary(&step(&mut scheduler)), (vec![(0, 52, 0)], 0, vec![]));
    scheduler.leave(id);
    scheduler.ready(id, &numbers(0));
    assert_eq!(summary(&step(&mut scheduler)), (vec![(32, 16, 2)], 1, vec![]));
    assert_eq!(summary(&step(&mut scheduler)), (vec![(48, 5, 0)], 0, vec![]));
}

/// The start, the number and the first stage of the rows of a plan.
fn stages(plan: &Plan) -> Vec<(usize, usize, usize)> {
    plan.rows.iter().map(|rows| (rows.start, rows.tokens.len(), rows.stage)).collect()
}

#[test]
fn a_prompt_reads_of_each_page_what_the_stages_in_common_with_other_paths_have_left() {
    let mut scheduler = Scheduler::new(limits(1, 64, 100));
    let prompt = |tokens: u32| (0..tokens).collect::<Vec<u32>>();
    let mut steps = |path: u32, arrival: Arrival| {
        let id = scheduler.admit(vec![arrival], LONG).unwrap()[0];
        scheduler.ready(id, &numbers(path));
        let mut all = Vec::new();
        while scheduler.contains(id) {
            let plan = step(&mut scheduler);
            all.extend(stages(&plan));
        }
        all
    };
    assert_eq!(steps(0, arrival(0, prompt(20), 1)), [(0, 20, 0)]);
    assert_eq!(steps(1, arrival(0, prompt(40), 1)), [(0, 16, 2), (16, 24, 0)]);
    assert_eq!(steps(2, arrival(0, prompt(50), 1)), [(0, 32, 1), (32, 18, 0)]);
    // One page of its own path, one of path 1 and one of path 2. The last token begins in a later stage, too.
    assert_eq!(steps(0, arrival(0, prompt(48), 1)), [(16, 16, 2), (32, 16, 1)]);
    // Other tokens in the second page, other modules, and scores.
    let mut other = prompt(40);
    other[20] = 7;
    assert_eq!(steps(1, arrival(0, other, 1)), [(16, 24, 0)]);
    assert_eq!(steps(4, arrival(0, prompt(40), 1)), [(0, 40, 0)]);
    assert_eq!(steps(3, Arrival { reads_cache: false, ..arrival(0, prompt(40), 1) }), [(0, 40, 0)]);
}

#[test]
fn work_that_takes_longer_than_the_deadline_is_refused_at_once() {
    let mut scheduler = Scheduler::new(limits(1, 8, 100));
    for i in 0..20 {
        admit(&mut scheduler, arrival(0, vec![i; 8], 1));
    }
    for _ in 0..3 {
        step(&mut scheduler);
    }
    // 17 prompts of 8 tokens and one more token each, at 80 rows a second.
    let refused = scheduler.admit(vec![arrival(0, vec![1; 8], 1)], Duration::from_secs(1)).unwrap_err();
    assert!(
        matches!(refused, EngineError::Overloaded { unit: "seconds of work", waiting: 1, .. }),
        "{refused}"
    );
    assert!(scheduler.admit(vec![arrival(0, vec![1; 8], 1)], Duration::from_secs(3)).is_ok());
}

#[derive(Clone, Debug)]
enum Act {
    Admit { client: u64, kind: u32, path: u32, prompt: usize, max_tokens: usize, scores: bool, every: usize },
    Cancel(prop::sample::Index),
    Steps(u8),
}

fn act() -> impl Strategy<Value = Act> {
    let admit = (0u64..3, 0u32..3, 0u32..6, 1usize..70, 1usize..40, any::<bool>(), 0usize..40);
    let admit = admit.prop_map(|(client, kind, path, prompt, max_tokens, scores, every)| Act::Admit {
        client,
        kind,
        path,
        prompt,
        max_tokens,
        scores,
        every,
    });
    prop_oneof![
        4 => admit,
        1 => any::<prop::sample::Index>().prop_map(Act::Cancel),
        3 => (1u8..6).prop_map(Act::Steps),
    ]
}

/// What a slot of a page holds: a token, and the numbers of the path of each stage that has read it.
type Slot = (u32, Vec<u32>);

/// Checks what must hold for every plan. A page's keys and values belong to the tokens and modules that wrote it.
fn check(scheduler: &Scheduler, plan: &Plan, written: &mut BTreeMap<u32, Vec<Slot>>) {
    assert!(
        rows(plan) <= scheduler.limits.step_tokens && scheduler.running.len() <= scheduler.limits.sequences
    );
    for &PageCopy { from, to, stage } in &plan.copies {
        let copied = written[&from].iter().map(|(token, read)| (*token, read[..stage].to_vec())).collect();
        written.insert(to, copied);
    }
    for rows in &plan.rows {
        let sequence = &scheduler.sequences[&rows.id];
        let path: Vec<u32> = sequence.roots.iter().map(|root| root.0 as u32).collect();
        for (position, &token) in sequence.tokens[..rows.start + rows.tokens.len()].iter().enumerate() {
            let page = written.entry(rows.pages[position / PAGE_TOKENS]).or_default();
            let slot = position % PAGE_TOKENS;
            if position < rows.start {
                assert_eq!(page[slot], (token, path.clone()), "a page of other tokens was read");
                continue;
            }
            if rows.stage == 0 {
                page.truncate(slot);
                page.push((token, Vec::new()));
            }
            assert_eq!(page[slot], (token, path[..rows.stage].to_vec()), "other rows were kept");
            page[slot].1.clone_from(&path);
        }
    }
}

/// Gives the sequences at the end of a chunk their paths: any function of their tokens.
fn route(scheduler: &mut Scheduler, plan: &Plan) {
    for &(id, end) in &plan.at_end {
        let Some(sequence) = scheduler.sequences.get(&id) else { continue };
        let path = (sequence.tokens[..end].iter().sum::<u32>() + end as u32) % 6;
        if *sequence.roots.last().unwrap() == Content(numbers(path)[2].into()) {
            scheduler.stay(id);
        } else {
            scheduler.leave(id);
            scheduler.ready(id, &numbers(path));
        }
    }
}

fn play(acts: &[Act]) -> Vec<Plan> {
    let mut scheduler = Scheduler::new(limits(4, 24, 14));
    let (mut plans, mut written, mut admitted) = (Vec::new(), BTreeMap::new(), Vec::new());
    let run = |scheduler: &mut Scheduler, plans: &mut Vec<Plan>, written: &mut BTreeMap<_, _>| {
        let mut before = scheduler.plan();
        check(scheduler, &before, written);
        // Steps without rows do not run.
        if !before.rows.is_empty() {
            scheduler.done(&before, 0.1);
        }
        route(scheduler, &before);
        for rows in before.rows.iter().filter(|rows| rows.last) {
            let sequence = &scheduler.sequences[&rows.id];
            if sequence.generated() + 1 >= sequence.max_tokens {
                scheduler.remove(rows.id);
            } else {
                scheduler.generated(rows.id, rows.start as u32 % 5);
            }
        }
        plans.push(std::mem::take(&mut before));
    };
    for act in acts {
        match *act {
            Act::Admit { client, kind, path, prompt, max_tokens, scores, every } => {
                // Few kinds of prompts, so that many begin alike.
                let prompt = (0..prompt as u32).map(|i| i / 20 * kind).collect();
                let chunks = (every > 0).then_some(Chunks { end: every, every });
                let priority = kind as i32 - 1;
                let arrival =
                    Arrival { priority, reads_cache: !scores, chunks, ..arrival(client, prompt, max_tokens) };
                let id = scheduler.admit(vec![arrival], LONG).unwrap()[0];
                scheduler.ready(id, &numbers(path));
                admitted.push(id);
            }
            Act::Cancel(index) if !admitted.is_empty() => {
                scheduler.remove(*index.get(&admitted));
            }
            Act::Cancel(_) => {}
            Act::Steps(count) => (0..count).for_each(|_| run(&mut scheduler, &mut plans, &mut written)),
        }
    }
    let mut steps = 0;
    while !scheduler.sequences.is_empty() {
        run(&mut scheduler, &mut plans, &mut written);
        steps += 1;
        assert!(steps < 20_000, "sequences do not end: {scheduler:?}");
    }
    assert_eq!((scheduler.pool.free(), scheduler.load), (14, Load::default()));
    assert!(scheduler.clients.is_empty() && scheduler.running.is_empty());
    plans
}

proptest! {
    #[test]
    fn every_sequence_ends_budgets_hold_and_pages_come_back(acts in proptest::collection::vec(act(), 1..60)) {
        let plans = play(&acts);
        // Equal calls give equal plans.
        prop_assert_eq!(plans, play(&acts));
    }
}
