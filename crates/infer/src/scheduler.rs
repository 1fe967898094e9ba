//! Which rows run in the next step.
//!
//! The scheduler knows no clock, no threads, no tensors and no channels. Time is an argument, and a plan is a value. Equal
//! calls give equal plans.
//!
//! A step has one budget of tokens. Sequences that generate get their row first, then prompts get the rest, in chunks.
//! While sequences generate, chunks are so small that these hardly wait.
//! Free places go to the client that was served the fewest tokens (arXiv:2401.00588), and within a client to the sequence
//! of the lowest priority number that came first. When pages run out, the youngest sequence gives its pages back. It is computed again later, with the
//! same result.

mod cache;
mod chunks;
mod pace;
mod pages;
mod plan;
mod queue;
mod room;
mod sequence;
#[cfg(test)]
mod tests;
mod turns;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use dipaco_model::PAGE_TOKENS;

use crate::EngineError;

/// Load of the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Load {
    /// Number of sequences that wait for their turn.
    pub waiting: usize,
    /// Number of prompt tokens of the waiting sequences.
    pub waiting_tokens: usize,
    /// Number of sequences that run.
    pub running: usize,
    /// Number of pages of keys and values that sequences hold.
    pub used_pages: usize,
    /// Number of pages in all.
    pub pages: usize,
}
use pace::Pace;
use pages::{Content, PagePool};
pub(crate) use plan::{Arrival, Chunks, Limits, Plan, PlannedRows, SequenceId};
use sequence::Sequence;

/// Decides which rows run. See the documentation of the file.
#[derive(Debug)]
pub(crate) struct Scheduler {
    limits: Limits,
    pool: PagePool,
    sequences: BTreeMap<SequenceId, Sequence>,
    running: BTreeSet<SequenceId>,
    load: Load,
    next: u64,
    /// Tokens that each client with sequences was served, and its number of sequences.
    clients: BTreeMap<u64, Client>,
    /// Rows a second of full steps; `None` before one was measured.
    rate: Option<f64>,
    /// Mean fraction of `max_tokens` that sequences generate.
    used: f64,
    pace: Pace,
}

#[derive(Debug, Default)]
struct Client {
    served: u64,
    sequences: usize,
}

/// Weight of a new measurement in a moving average.
const NEW: f64 = 0.1;

impl Scheduler {
    pub(crate) fn new(limits: Limits) -> Self {
        Self {
            pool: PagePool::new(limits.pages),
            limits: Limits { step_tokens: limits.step_tokens.max(limits.sequences), ..limits },
            sequences: BTreeMap::new(),
            running: BTreeSet::new(),
            load: Load::default(),
            next: 0,
            clients: BTreeMap::new(),
            rate: None,
            used: 1.0,
            pace: Pace::default(),
        }
    }

    pub(crate) fn load(&self) -> Load {
        let pages = self.pool.len();
        Load { used_pages: pages - self.pool.free(), pages, ..self.load }
    }

    /// Admits all of these sequences or none. `left` is the time until their deadline.
    pub(crate) fn admit(
        &mut self,
        arrivals: Vec<Arrival>,
        left: Duration,
    ) -> Result<Vec<SequenceId>, EngineError> {
        let longest = arrivals.iter().map(|arrival| arrival.prompt.len() + arrival.max_tokens).max();
        let pages = longest.unwrap_or(0).div_ceil(PAGE_TOKENS);
        if pages > self.pool.len() {
            return Err(EngineError::TooLarge { given: pages, limit: self.pool.len(), unit: "cache pages" });
        }
        let tokens = arrivals.iter().map(|arrival| arrival.prompt.len()).sum();
        let clients: BTreeSet<u64> = arrivals.iter().map(|arrival| arrival.client).collect();
        for &client in &clients {
            self.check_queue(client, arrivals.len(), tokens)?;
            self.check_deadline(client, left)?;
        }
        let ids = arrivals.into_iter().map(|arrival| self.push(arrival)).collect();
        clients.into_iter().for_each(|client| self.order(client));
        Ok(ids)
    }

    fn push(&mut self, arrival: Arrival) -> SequenceId {
        let id = SequenceId(self.next);
        self.next += 1;
        // A client that was away gets no credit for it: it begins level with the least served of the others.
        let level = self.clients.values().map(|client| client.served).min().unwrap_or(0);
        let client = self.clients.entry(arrival.client).or_insert(Client { served: level, sequences: 0 });
        client.sequences += 1;
        self.load.waiting += 1;
        self.load.waiting_tokens += arrival.prompt.len();
        let sequence = Sequence {
            client: arrival.client,
            priority: arrival.priority,
            turn: id.0,
            prompt: arrival.prompt.len(),
            tokens: arrival.prompt.to_vec(),
            max_tokens: arrival.max_tokens,
            reads_cache: arrival.reads_cache,
            chunks: arrival.chunks,
            routing: false,
            roots: Vec::new(),
            running: false,
            computed: 0,
            pages: Vec::new(),
            contents: Vec::new(),
            ran: 0,
            begins: Vec::new(),
        };
        self.sequences.insert(id, sequence);
        id
    }

    /// The path of a waiting sequence is known. `modules` are numbers for the modules of the path's first stage, of its first
    /// two, and so on, up to the whole path.
    pub(crate) fn ready(&mut self, id: SequenceId, modules: &[u32]) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.roots = modules.iter().map(|&number| Content(number.into())).collect();
        }
    }

    /// Takes a sequence out, which ended in any way, and frees its pages. Returns false if it is not there.
    pub(crate) fn remove(&mut self, id: SequenceId) -> bool {
        let Some(sequence) = self.sequences.remove(&id) else { return false };
        if sequence.running {
            self.running.remove(&id);
            self.load.running -= 1;
            if sequence.max_tokens > 0 {
                let used = sequence.generated() as f64 / sequence.max_tokens as f64;
                self.used += NEW * (used - self.used);
            }
        } else {
            self.load.waiting -= 1;
            self.load.waiting_tokens -= sequence.prompt;
        }
        self.release(&sequence.pages);
        if let Some(client) = self.clients.get_mut(&sequence.client) {
            client.sequences -= 1;
            if client.sequences == 0 {
                self.clients.remove(&sequence.client);
            }
        }
        true
    }

    fn release(&mut self, pages: &[u32]) {
        // The last page first: the first pages of a prefix are useful for longest.
        pages.iter().rev().for_each(|&page| self.pool.release(page));
    }

    /// Adds a generated token, whose row is to run.
    pub(crate) fn generated(&mut self, id: SequenceId, token: u32) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.tokens.push(token);
        }
    }

    /// The rows of a plan ran and took this many seconds.
    pub(crate) fn done(&mut self, plan: &Plan, seconds: f64) {
        let total = plan.tokens();
        // Only the rate of full steps says how fast a queue gets shorter.
        if plan.full && seconds > 0.0 {
            let rate = total as f64 / seconds;
            self.rate = Some(self.rate.map_or(rate, |old| old + NEW * (rate - old)));
        }
        if plan.generating > 0 {
            self.pace.done(total - plan.generating, seconds);
        }
        for rows in &plan.rows {
            let Some(sequence) = self.sequences.get_mut(&rows.id) else { continue };
            sequence.computed = rows.start + rows.tokens.len();
            sequence.ran = sequence.ran.max(sequence.computed);
            if let Some(client) = self.clients.get_mut(&sequence.client) {
                client.served += rows.tokens.len() as u64;
            }
            self.pool.publish_all(sequence);
        }
    }

    /// The next step; without rows when there is nothing to do.
    pub(crate) fn plan(&mut self) -> Plan {
        let mut plan = Plan::default();
        let mut budget = self.limits.step_tokens;
        for id in &self.running {
            if let Some(sequence) = self.sequences.get_mut(id)
                && let Some(end) = sequence.at_end()
            {
                sequence.routing = true;
                plan.at_end.push((*id, end));
            }
        }
        let (decoding, prompts): (Vec<_>, Vec<_>) =
            self.running.iter().copied().partition(|id| self.sequences[id].rows() == 1);
        for id in decoding {
            self.plan_rows(id, &mut plan, &mut budget);
        }
        budget = budget.min(self.prompt_rows(&plan, prompts.len()));
        for id in prompts {
            self.plan_rows(id, &mut plan, &mut budget);
        }
        while budget > 0 && plan.preempted.is_empty() && self.running.len() < self.limits.sequences {
            let Some((id, prefix)) = self.next_waiting() else { break };
            if !self.start(id, prefix, &mut plan) {
                plan.full = true;
                break;
            }
            self.plan_rows(id, &mut plan, &mut budget);
        }
        plan.generating = self.generating(&plan);
        plan.full |= !plan.preempted.is_empty()
            || self.running.len() >= self.limits.sequences
            || plan.tokens() >= self.limits.step_tokens;
        plan
    }

    /// Plans the next rows of a running sequence, as many as the budget and the pages allow.
    fn plan_rows(&mut self, id: SequenceId, plan: &mut Plan, budget: &mut usize) {
        let Some(sequence) = self.sequences.get(&id).filter(|sequence| sequence.running) else { return };
        let (stage, end) = sequence.begin();
        let wanted = sequence.rows().min(*budget).min(end - sequence.computed);
        let end = self.make_room(id, sequence.computed + wanted, plan, budget);
        let Some(sequence) = self.sequences.get(&id).filter(|sequence| sequence.running) else { return };
        let start = sequence.computed;
        if end <= start {
            return;
        }
        *budget -= end - start;
        plan.rows.push(PlannedRows {
            id,
            start,
            stage,
            tokens: sequence.tokens[start..end].to_vec(),
            pages: sequence.pages.clone(),
            last: end == sequence.tokens.len(),
        });
    }

    /// Starts a waiting sequence behind the pages of its prefix. Returns false if its known tokens do not fit the free
    /// pages.
    fn start(&mut self, id: SequenceId, mut pages: Vec<u32>, plan: &mut Plan) -> bool {
        let Some(sequence) = self.sequences.get(&id) else { return false };
        let needed = (sequence.tokens.len() + 1).div_ceil(PAGE_TOKENS) - pages.len();
        pages.iter().for_each(|&page| self.pool.hold(page));
        let most = (sequence.prompt + sequence.max_tokens).div_ceil(PAGE_TOKENS);
        if self.pool.free() < needed.min(most - pages.len()) {
            self.release(&pages);
            return false;
        }
        let computed = pages.len() * PAGE_TOKENS;
        let begins = self.copy_stages(id, &mut pages, plan);
        let Some(sequence) = self.sequences.get_mut(&id) else { return false };
        sequence.computed = computed;
        plan.started.push((id, computed));
        sequence.pages = pages;
        sequence.begins = begins;
        sequence.running = true;
        self.running.insert(id);
        self.load.running += 1;
        self.load.waiting -= 1;
        self.load.waiting_tokens -= sequence.prompt;
        true
    }
}

const SEQUENCES: &str = "sequences";
const TOKENS: &str = "prompt tokens";
