//! The modules in memory: each one once, and no more than a limit allows.
//!
//! A path holds its modules while a sequence runs on it. Modules that nobody holds stay in memory until others need the
//! room, and the module that was used longest ago goes first. Room for all modules of a path is taken at once, and who waits
//! for room holds nothing. So no two paths can wait for each other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use dipaco_model::PackedModule;
use thiserror::Error;

use crate::BoxError;

/// The content of a module. Modules with the same key are equal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModuleKey {
    /// The level. All modules of a level have the same size.
    pub level: u16,
    /// A hash of the module's weights.
    pub content: [u8; 32],
}

/// The modules of a path do not fit the memory, whatever else leaves it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "one path needs {path} bytes for its modules, and serve.memory allows {limit}: raise it, or choose a serve.format of fewer \
     bits"
)]
pub struct MemoryTooSmall {
    /// Memory of the modules of one path in bytes.
    pub path: usize,
    /// The limit in bytes.
    pub limit: usize,
}

/// The memory of modules, and the work that kept it under its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModuleMemory {
    /// Memory of the modules that are loaded or being loaded, in bytes.
    pub bytes: usize,
    /// Largest number of bytes; `None` for no limit.
    pub limit: Option<usize>,
    /// Number of modules that are loaded or being loaded.
    pub modules: usize,
    /// Number of modules that were loaded since the start.
    pub loads: u64,
    /// Number of modules that left the memory to make room for others.
    pub evictions: u64,
}

/// Modules in memory, up to a limit.
#[derive(Debug)]
pub struct ModuleCache {
    limit: Option<usize>,
    state: Mutex<CacheState>,
    /// A module was loaded, nobody holds it any more, or nobody wants a load any more.
    change: Condvar,
}

#[derive(Debug, Default)]
struct CacheState {
    entries: BTreeMap<ModuleKey, Entry>,
    /// Bytes of a module of each level, known since the first was loaded.
    sizes: BTreeMap<u16, usize>,
    /// Number of generations that have a module.
    named: BTreeMap<ModuleKey, usize>,
    bytes: usize,
    clock: u64,
    loads: u64,
    evictions: u64,
}

#[derive(Debug)]
struct Entry {
    /// `None` while it is loaded.
    module: Option<Arc<PackedModule>>,
    bytes: usize,
    /// Number of paths that hold it.
    holders: usize,
    used: u64,
}

/// Modules that stay in memory until this is dropped.
#[derive(Debug)]
pub(crate) struct HeldModules {
    cache: Arc<ModuleCache>,
    keys: Vec<ModuleKey>,
}

impl ModuleCache {
    /// A cache without modules. `limit` is its largest number of bytes.
    #[must_use]
    pub fn new(limit: Option<usize>) -> Arc<Self> {
        Arc::new(Self { limit, state: Mutex::default(), change: Condvar::new() })
    }

    /// The memory of the modules.
    #[must_use]
    pub fn memory(&self) -> ModuleMemory {
        let state = self.lock();
        ModuleMemory {
            bytes: state.bytes,
            limit: self.limit,
            modules: state.entries.len(),
            loads: state.loads,
            evictions: state.evictions,
        }
    }

    fn lock(&self) -> MutexGuard<'_, CacheState> {
        // No code under the lock can panic halfway through a change, so the state behind a poisoned lock is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn most(&self) -> usize {
        self.limit.unwrap_or(usize::MAX)
    }

    /// A generation begins to have these modules. Modules of no generation leave the memory with their last holder.
    pub(crate) fn name(&self, keys: impl Iterator<Item = ModuleKey>) {
        let mut state = self.lock();
        keys.for_each(|key| *state.named.entry(key).or_insert(0) += 1);
    }

    /// A generation with these modules ends.
    pub(crate) fn forget(&self, keys: impl Iterator<Item = ModuleKey>) {
        let mut state = self.lock();
        let mut freed = Vec::new();
        for key in keys {
            if let Some(count) = state.named.get_mut(&key) {
                *count -= 1;
                if *count == 0 {
                    state.named.remove(&key);
                    freed.extend(state.remove_unused(key));
                }
            }
        }
        drop(state);
        self.change.notify_all();
        // Freed outside of the lock.
        drop(freed);
    }

    /// True if there are no modules but these: neither in memory, nor of a generation that may load them.
    pub(crate) fn has_only(&self, keys: &BTreeSet<ModuleKey>) -> bool {
        let state = self.lock();
        state.entries.keys().chain(state.named.keys()).all(|key| keys.contains(key))
    }

    /// True if these modules fit beside those that are in memory.
    pub(crate) fn has_room(&self, keys: &[ModuleKey]) -> bool {
        let state = self.lock();
        let missing = keys.iter().filter(|key| !state.entries.contains_key(key));
        let missing: usize = missing.map(|key| state.size(*key)).sum();
        state.bytes.saturating_add(missing) <= self.most()
    }

    /// Holds modules if all of them are in memory.
    pub(crate) fn loaded(
        self: &Arc<Self>,
        keys: &[ModuleKey],
    ) -> Option<(Vec<Arc<PackedModule>>, HeldModules)> {
        let mut state = self.lock();
        let module = |key| state.entries.get(key)?.module.clone();
        let modules: Vec<_> = keys.iter().map(module).collect::<Option<_>>()?;
        state.hold(keys);
        drop(state);
        Some((modules, HeldModules { cache: Arc::clone(self), keys: keys.to_vec() }))
    }

    /// Holds modules, one of each level. Waits until there is room for them, and loads those that are not in memory with
    /// `load`, which gets the level. A failed load leaves no trace, so the next one tries again. `unwanted` becomes true when
    /// nobody wants the modules any more. Those that are loaded by then stay in memory.
    ///
    /// # Errors
    /// [`MemoryTooSmall`] if the modules exceed the limit, the error of `load`, and an error if `unwanted` is true before all
    /// modules are there.
    pub(crate) fn hold(
        self: &Arc<Self>,
        keys: &[ModuleKey],
        load: &dyn Fn(u16) -> Result<PackedModule, BoxError>,
        unwanted: &AtomicBool,
    ) -> Result<(Vec<Arc<PackedModule>>, HeldModules), BoxError> {
        let mut state = self.wait_for_room(keys, unwanted)?;
        let missing: Vec<ModuleKey> =
            keys.iter().copied().filter(|key| !state.entries.contains_key(key)).collect();
        state.hold(keys);
        let freed = state.evict(self.most());
        drop(state);
        // Freed outside of the lock, and before anything is loaded in its place.
        drop(freed);
        let held = HeldModules { cache: Arc::clone(self), keys: keys.to_vec() };
        for key in missing {
            // An error drops what is held, and with it the room that was taken.
            check_wanted(unwanted)?;
            self.put(key, load(key.level)?);
        }
        let mut state = self.lock();
        // Sizes were unknown before the first modules came.
        state.check(keys, self.limit)?;
        let freed = state.evict(self.most());
        let module = |key| state.entries.get(key)?.module.clone();
        let modules = keys.iter().map(module).collect::<Option<Vec<_>>>();
        drop(state);
        drop(freed);
        Ok((modules.ok_or("a module left the memory while it was held, which is a bug")?, held))
    }

    /// Lets those that wait for room look at their flags again.
    pub(crate) fn look_again(&self) {
        // They hold the lock from the look at the flag until they wait, so none of them misses this.
        drop(self.lock());
        self.change.notify_all();
    }

    fn wait_for_room(
        &self,
        keys: &[ModuleKey],
        unwanted: &AtomicBool,
    ) -> Result<MutexGuard<'_, CacheState>, BoxError> {
        let mut state = self.lock();
        loop {
            check_wanted(unwanted)?;
            state.check(keys, self.limit)?;
            let loading = |key| state.entries.get(key).is_some_and(|entry| entry.module.is_none());
            let held = state.entries.values().filter(|entry| entry.holders > 0).map(|entry| entry.bytes);
            let free = |key: &&ModuleKey| state.entries.get(key).is_none_or(|entry| entry.holders == 0);
            let added: usize = keys.iter().filter(free).map(|key| state.size(*key)).sum();
            // A module that another thread loads is waited for, so that it is loaded once.
            if !keys.iter().any(loading) && held.sum::<usize>().saturating_add(added) <= self.most() {
                return Ok(state);
            }
            state = self.change.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn put(&self, key: ModuleKey, module: PackedModule) {
        let (bytes, mut state) = (module.bytes(), self.lock());
        state.sizes.insert(key.level, bytes);
        state.loads += 1;
        if let Some(entry) = state.entries.get_mut(&key) {
            let reserved = std::mem::replace(&mut entry.bytes, bytes);
            entry.module = Some(Arc::new(module));
            state.bytes = state.bytes - reserved + bytes;
        }
        drop(state);
        self.change.notify_all();
    }
}

fn check_wanted(unwanted: &AtomicBool) -> Result<(), BoxError> {
    if unwanted.load(Ordering::Relaxed) {
        return Err("nobody waits for the path any more".into());
    }
    Ok(())
}

impl CacheState {
    /// Bytes of a module; 0 before a module of its level was loaded.
    fn size(&self, key: ModuleKey) -> usize {
        self.sizes.get(&key.level).copied().unwrap_or(0)
    }

    fn check(&self, keys: &[ModuleKey], limit: Option<usize>) -> Result<(), MemoryTooSmall> {
        let path = keys.iter().map(|key| self.size(*key)).sum();
        match limit {
            Some(limit) if path > limit => Err(MemoryTooSmall { path, limit }),
            _ => Ok(()),
        }
    }

    /// Adds a holder to each of these modules, and takes room for those that are not there.
    fn hold(&mut self, keys: &[ModuleKey]) {
        self.clock += 1;
        for &key in keys {
            let bytes = self.size(key);
            let entry = self.entries.entry(key).or_insert_with(|| {
                self.bytes += bytes;
                Entry { module: None, bytes, holders: 0, used: 0 }
            });
            entry.holders += 1;
            entry.used = self.clock;
        }
    }

    /// Takes modules out that nobody holds, least recently used first, until at most `most` bytes are in use.
    fn evict(&mut self, most: usize) -> Vec<Entry> {
        let mut freed = Vec::new();
        while self.bytes > most {
            let unused = self.entries.iter().filter(|(_, entry)| entry.holders == 0);
            let Some(key) = unused.min_by_key(|(_, entry)| entry.used).map(|(key, _)| *key) else { break };
            freed.extend(self.remove(key));
            self.evictions += 1;
        }
        freed
    }

    /// Takes a module out if nobody holds it, and it is damaged or of no generation.
    fn remove_unused(&mut self, key: ModuleKey) -> Option<Entry> {
        let entry = self.entries.get(&key)?;
        let useless = entry.module.is_none() || !self.named.contains_key(&key);
        if entry.holders == 0 && useless { self.remove(key) } else { None }
    }

    fn remove(&mut self, key: ModuleKey) -> Option<Entry> {
        let entry = self.entries.remove(&key)?;
        self.bytes -= entry.bytes;
        Some(entry)
    }
}

impl Drop for HeldModules {
    fn drop(&mut self) {
        let mut state = self.cache.lock();
        let mut freed = Vec::new();
        for &key in &self.keys {
            if let Some(entry) = state.entries.get_mut(&key) {
                entry.holders -= 1;
                freed.extend(state.remove_unused(key));
            }
        }
        // Modules of the first path may have turned out too large for the limit.
        freed.extend(state.evict(self.cache.most()));
        drop(state);
        self.cache.change.notify_all();
        // Freed outside of the lock.
        drop(freed);
    }
}
