//! The modules in the memory of a simulated server, by the rules of the engine: room for a path is taken at once, and the
//! module that was used longest ago goes first.

use std::collections::BTreeMap;

/// Level and index of a module.
pub(super) type ModuleNumber = (u32, u32);

#[derive(Default)]
struct Entry {
    bytes: f64,
    holders: usize,
    used: u64,
}

pub(super) struct LoadedModules {
    limit: f64,
    entries: BTreeMap<ModuleNumber, Entry>,
    /// Those that are being loaded.
    loading: Vec<ModuleNumber>,
    bytes: f64,
    clock: u64,
    pub(super) loads: u64,
    pub(super) most_bytes: f64,
}

impl LoadedModules {
    pub(super) fn new(limit: f64) -> Self {
        Self {
            // The bytes of a path's modules, added one by one, may round to a little more than those of the path. A path that
            // never fits would wait for ever.
            limit: limit * (1.0 + 1e-9),
            entries: BTreeMap::new(),
            loading: Vec::new(),
            bytes: 0.0,
            clock: 0,
            loads: 0,
            most_bytes: 0.0,
        }
    }

    /// True if all of these are in memory.
    pub(super) fn has(&self, modules: &[ModuleNumber]) -> bool {
        modules.iter().all(|module| self.entries.contains_key(module) && !self.loading.contains(module))
    }

    /// Adds a holder to each of these modules of `bytes` bytes.
    pub(super) fn hold(&mut self, modules: &[ModuleNumber], bytes: f64) {
        self.clock += 1;
        for &module in modules {
            let entry = self.entries.entry(module).or_insert_with(|| {
                self.bytes += bytes;
                self.loads += 1;
                Entry { bytes, ..Entry::default() }
            });
            entry.holders += 1;
            entry.used = self.clock;
        }
        self.most_bytes = self.most_bytes.max(self.bytes);
    }

    /// Takes a holder from each of these modules.
    pub(super) fn release(&mut self, modules: &[ModuleNumber]) {
        for module in modules {
            if let Some(entry) = self.entries.get_mut(module) {
                entry.holders -= 1;
            }
        }
    }

    /// Takes room for modules of `bytes` bytes each, holds them, and returns how many must be loaded. `None` while modules
    /// that are held leave too little room.
    pub(super) fn take_room(&mut self, modules: &[ModuleNumber], bytes: f64) -> Option<usize> {
        let held = self.entries.values().filter(|entry| entry.holders > 0).map(|entry| entry.bytes);
        let free =
            modules.iter().filter(|module| self.entries.get(module).is_none_or(|entry| entry.holders == 0));
        if held.sum::<f64>() + free.count() as f64 * bytes > self.limit {
            return None;
        }
        let missing = modules.iter().filter(|module| !self.entries.contains_key(module)).count();
        // Held first, so that none of them goes.
        let present: Vec<ModuleNumber> =
            modules.iter().copied().filter(|module| self.entries.contains_key(module)).collect();
        self.hold(&present, bytes);
        while self.bytes + missing as f64 * bytes > self.limit {
            let unused = self.entries.iter().filter(|(_, entry)| entry.holders == 0);
            let Some(oldest) = unused.min_by_key(|(_, entry)| entry.used).map(|(module, _)| *module) else {
                break;
            };
            if let Some(entry) = self.entries.remove(&oldest) {
                self.bytes -= entry.bytes;
            }
        }
        let absent: Vec<ModuleNumber> =
            modules.iter().copied().filter(|module| !self.entries.contains_key(module)).collect();
        self.hold(&absent, bytes);
        self.loading = absent;
        Some(missing)
    }

    /// The modules that were being loaded are there.
    pub(super) fn finish_load(&mut self) {
        self.loading.clear();
    }
}
