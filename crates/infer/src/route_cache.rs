//! The routes that the engine remembers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::Route;

/// Most routes that are remembered.
const REMEMBERED: usize = 4096;
/// Most bytes of their prefixes and distances. A grid of many paths has few routes in them.
const MOST_BYTES: usize = 64 << 20;

/// Most bytes of the prefixes and distances of the routes that an engine remembers, for prefixes of at most so many tokens.
#[must_use]
pub fn most_route_bytes(prefix_tokens: usize, paths: usize) -> usize {
    bytes_of(prefix_tokens, paths).saturating_mul(REMEMBERED).min(MOST_BYTES)
}

/// Bytes of a prefix and of the distances of its route.
fn bytes_of(tokens: usize, distances: usize) -> usize {
    tokens.saturating_mul(size_of::<u32>()).saturating_add(distances.saturating_mul(size_of::<f32>()))
}

/// The routes of the prefixes that came last.
#[derive(Default)]
pub(crate) struct RouteCache {
    routes: BTreeMap<Arc<[u32]>, Route>,
    order: VecDeque<Arc<[u32]>>,
    /// [`bytes_of`] all routes.
    bytes: usize,
}

impl RouteCache {
    pub(crate) fn get(&self, prefix: &[u32]) -> Option<&Route> {
        self.routes.get(prefix)
    }

    /// Remembers a route, and forgets the oldest ones beyond [`REMEMBERED`] and [`MOST_BYTES`].
    pub(crate) fn insert(&mut self, prefix: Arc<[u32]>, route: Route) {
        let tokens = prefix.len();
        self.bytes += bytes_of(tokens, route.distances.len());
        match self.routes.insert(Arc::clone(&prefix), route) {
            Some(before) => self.bytes -= bytes_of(tokens, before.distances.len()),
            None => self.order.push_back(prefix),
        }
        while (self.order.len() > REMEMBERED || self.bytes > MOST_BYTES)
            && let Some(oldest) = self.order.pop_front()
        {
            if let Some(route) = self.routes.remove(&oldest) {
                self.bytes -= bytes_of(oldest.len(), route.distances.len());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use dipaco_topology::PathId;

    use super::*;

    #[test]
    fn the_oldest_routes_are_forgotten() {
        let mut cache = RouteCache::default();
        let prefix = |number: usize| -> Arc<[u32]> { [number as u32].into() };
        for number in 0..=REMEMBERED {
            cache.insert(prefix(number), Route::new(PathId(number as u32), Vec::new()));
        }
        let path = |cache: &RouteCache, number| cache.get(&prefix(number)).map(|route| route.path.0);
        assert_eq!((path(&cache, 0), path(&cache, 1)), (None, Some(1)));
        // Another answer for the same prefix takes no further place.
        cache.insert(prefix(1), Route::new(PathId(7), Vec::new()));
        assert_eq!((cache.routes.len(), cache.order.len()), (REMEMBERED, REMEMBERED));
        assert_eq!(path(&cache, 1), Some(7));
    }

    #[test]
    fn routes_of_many_paths_take_no_more_than_their_bytes() {
        const PATHS: usize = 65_536;
        let mut cache = RouteCache::default();
        let prefix = |number: usize| -> Arc<[u32]> { [number as u32].into() };
        for number in 0..REMEMBERED {
            cache.insert(prefix(number), Route::new(PathId(0), vec![0.0; PATHS]));
        }
        // The answer to a known prefix takes the place of the one before.
        cache.insert(prefix(REMEMBERED - 1), Route::new(PathId(0), vec![0.0; PATHS]));
        let kept = |(prefix, route): (&Arc<[u32]>, &Route)| {
            size_of_val(&**prefix) + size_of_val(route.distances.as_slice())
        };
        let kept: usize = cache.routes.iter().map(kept).sum();
        assert_eq!((kept, cache.order.len()), (cache.bytes, cache.routes.len()));
        assert!(kept <= most_route_bytes(1, PATHS) && most_route_bytes(1, PATHS) == MOST_BYTES);
        assert!(cache.get(&prefix(REMEMBERED - 1)).is_some() && cache.get(&prefix(0)).is_none());
        assert_eq!(most_route_bytes(32, 4), REMEMBERED * 4 * (32 + 4), "a small grid takes what it needs");
    }
}
