//! The bytes of bodies that each client holds.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::StatusCode;

use crate::error::ApiError;

/// The bytes that the bodies of all clients hold. Clones share them.
#[derive(Clone, Debug)]
pub(super) struct HeldBytes {
    held: Arc<Mutex<Held>>,
    /// Bytes that all clients together may hold.
    room: usize,
}

#[derive(Debug, Default)]
struct Held {
    /// Bytes of all clients.
    all: usize,
    /// The bytes of each client that holds any.
    clients: BTreeMap<u64, usize>,
}

/// The bytes that one body holds, free again when this is dropped.
#[derive(Debug)]
pub(crate) struct BodyBytes {
    memory: HeldBytes,
    client: u64,
    bytes: usize,
}

impl HeldBytes {
    /// Room for this many bytes.
    pub(super) fn new(room: usize) -> Self {
        Self { held: Arc::default(), room }
    }

    /// The bytes of a new body of a client: none yet.
    pub(super) fn body(&self, client: u64) -> BodyBytes {
        BodyBytes { memory: self.clone(), client, bytes: 0 }
    }

    fn lock(&self) -> MutexGuard<'_, Held> {
        // No code under the lock panics halfway through a change.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BodyBytes {
    /// Takes more bytes, or refuses the request with 429. An API key may hold at most as many bytes as it leaves free.
    /// So no number of keys fills the room, and the next key finds some. Without keys nobody else comes, and client 0
    /// may fill the room. Nobody waits here: requests that wait for each other's memory with half a body would wait for
    /// ever.
    pub(super) fn take(&mut self, bytes: usize) -> Result<(), ApiError> {
        let mut held = self.memory.lock();
        let own = held.clients.get(&self.client).copied().unwrap_or(0).saturating_add(bytes);
        let all = held.all.saturating_add(bytes);
        let left_free = if self.client == 0 { 0 } else { own };
        if all.saturating_add(left_free) > self.memory.room {
            return Err(ApiError {
                code: Some("bodies_full"),
                retry_after: Some(1),
                ..ApiError::new(
                    StatusCode::TOO_MANY_REQUESTS,
                    "too many large bodies arrive at a time: try again",
                )
            });
        }
        held.all = all;
        held.clients.insert(self.client, own);
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for BodyBytes {
    fn drop(&mut self) {
        let mut held = self.memory.lock();
        held.all = held.all.saturating_sub(self.bytes);
        let own = held.clients.get(&self.client).copied().unwrap_or(0).saturating_sub(self.bytes);
        if own == 0 {
            held.clients.remove(&self.client);
        } else {
            held.clients.insert(self.client, own);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_holds_no_more_bytes_than_it_leaves_free() {
        let memory = HeldBytes::new(120);
        let mut busy = [memory.body(1), memory.body(1)];
        busy[0].take(40).unwrap();
        busy[1].take(20).unwrap();
        assert_eq!(busy[1].take(1).unwrap_err().status, StatusCode::TOO_MANY_REQUESTS);
        let (mut second, mut third) = (memory.body(2), memory.body(3));
        second.take(30).unwrap();
        assert!(second.take(1).is_err(), "half of what the first key left");
        third.take(15).unwrap();
        assert!(third.take(1).is_err(), "half of what both keys left");
        drop((busy, second));
        third.take(45).unwrap();
        assert!(third.take(1).is_err(), "half of the room for a key that is alone");
        drop(third);
        let held = memory.lock();
        assert_eq!((held.all, held.clients.len()), (0, 0));
    }

    #[test]
    fn the_bodies_of_any_number_of_keys_stay_within_the_room() {
        let memory = HeldBytes::new(100);
        let mut bodies: Vec<_> = (1..50).map(|client| memory.body(client)).collect();
        for body in &mut bodies {
            while body.take(1).is_ok() {}
        }
        let all = memory.lock().all;
        assert!((90..=100).contains(&all), "{all}");
    }
}
