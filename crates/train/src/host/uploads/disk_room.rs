//! The room that incomplete results take on the disk, by token.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of the files of incomplete results, by token.
#[derive(Debug, Default)]
pub(super) struct DiskRoom {
    taken: Mutex<BTreeMap<String, u64>>,
}

/// Room for a file. It is free again when this is dropped.
#[derive(Debug)]
pub(super) struct DiskShare {
    room: Arc<DiskRoom>,
    token: String,
    bytes: u64,
}

impl DiskRoom {
    fn taken(&self) -> MutexGuard<'_, BTreeMap<String, u64>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Room for a file of `bytes` bytes; `None` if the files of the token would have more than `most` bytes with it.
    pub(super) fn take(self: &Arc<Self>, token: &str, bytes: u64, most: u64) -> Option<DiskShare> {
        let mut taken = self.taken();
        let with_it = taken.get(token).copied().unwrap_or(0).saturating_add(bytes);
        if with_it > most {
            return None;
        }
        taken.insert(token.to_owned(), with_it);
        Some(DiskShare { room: self.clone(), token: token.to_owned(), bytes })
    }
}

impl Drop for DiskShare {
    fn drop(&mut self) {
        let mut taken = self.room.taken();
        if let Some(bytes) = taken.get_mut(&self.token) {
            *bytes = bytes.saturating_sub(self.bytes);
            if *bytes == 0 {
                taken.remove(&self.token);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_token_has_room_of_its_own_and_gets_it_back() {
        let room = Arc::<DiskRoom>::default();
        let first = room.take("a", 6, 10).unwrap();
        assert!(room.take("a", 5, 10).is_none());
        let second = room.take("a", 4, 10).unwrap();
        let other = room.take("b", 10, 10).unwrap();
        drop(first);
        assert!(room.take("a", 7, 10).is_none());
        drop(room.take("a", 6, 10).unwrap());
        drop((second, other));
        assert!(room.taken().is_empty());
    }
}
