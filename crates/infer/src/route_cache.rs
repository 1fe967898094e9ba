//! The routes that the engine remembers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::Route;

/// Routes that are remembered.
const REMEMBERED: usize = 4096;

/// The routes of the prefixes that came last.
#[derive(Default)]
pub(crate) struct RouteCache {
    routes: BTreeMap<Arc<[u32]>, Route>,
    order: VecDeque<Arc<[u32]>>,
}

impl RouteCache {
    pub(crate) fn get(&self, prefix: &[u32]) -> Option<&Route> {
        self.routes.get(prefix)
    }

    /// Remembers a route, and forgets the oldest one beyond [`REMEMBERED`].
    pub(crate) fn insert(&mut self, prefix: Arc<[u32]>, route: Route) {
        if self.routes.insert(Arc::clone(&prefix), route).is_none() {
            self.order.push_back(prefix);
        }
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.routes.remove(&oldest);
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
}
