//! The object store of a simulated run: content under names, written before it counts.

use std::collections::BTreeMap;

use dipaco_sync::{FragmentId, LeaseKey, ScheduledSend};
use dipaco_topology::PathId;

use super::Bug;
use super::toy::{ToyGradient, ToyPathState};

/// A result of a lease. The number of tokens is not part of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ItemKey {
    Gradient(FragmentId, u32),
    State,
}

/// The content of a result.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Content {
    Gradient(ToyGradient),
    State(Box<ToyPathState>),
}

/// A result of a lease with its content.
#[derive(Clone, Debug)]
pub(crate) enum Item {
    Gradient(ScheduledSend, ToyGradient),
    State(Box<ToyPathState>),
}

impl Item {
    pub(crate) fn key(&self) -> ItemKey {
        match self {
            Self::Gradient(send, _) => ItemKey::Gradient(send.fragment, send.number),
            Self::State(_) => ItemKey::State,
        }
    }

    pub(crate) fn content(self) -> Content {
        match self {
            Self::Gradient(_, gradient) => Content::Gradient(gradient),
            Self::State(state) => Content::State(state),
        }
    }
}

impl Content {
    /// The text of the content stands for its hash.
    fn hash(&self) -> String {
        format!("{self:?}")
    }
}

/// Name and hash of an object, as the manifest records it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ObjectName {
    pub(crate) name: String,
    pub(crate) hash: String,
}

impl ObjectName {
    /// The name of a result, as production names it: with path, fencing number and hash.
    pub(crate) fn of(lease: LeaseKey, item: ItemKey, content: &Content, bug: Option<Bug>) -> Self {
        let LeaseKey { path, fence, .. } = lease;
        let hash = content.hash();
        let name = match bug {
            Some(Bug::OverwrittenObject) => format!("{item:?}/{path}-{fence}"),
            _ => format!("{item:?}/{path}-{fence}-{hash}"),
        };
        Self { name, hash }
    }
}

/// Objects by name. A write is durable at once, and takes the place of what has the name.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObjectStore(BTreeMap<String, Content>);

impl ObjectStore {
    pub(crate) fn put(&mut self, object: &ObjectName, content: Content) {
        self.0.insert(object.name.clone(), content);
    }

    pub(crate) fn delete(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// Deletes all objects but these, as a coordinator does at its start.
    pub(crate) fn keep(&mut self, used: impl Fn(&str) -> bool) {
        self.0.retain(|name, _| used(name));
    }

    /// The outer gradient of a path.
    ///
    /// # Errors
    /// When the object is missing or has another content than the manifest records.
    pub(crate) fn gradient(&self, path: PathId, object: &ObjectName) -> Result<ToyGradient, String> {
        match self.0.get(&object.name) {
            None => Err(format!("the object {} of path {path} counts, but is not in the store", object.name)),
            Some(content) if content.hash() != object.hash => {
                Err(format!("the object {} of path {path} counts, but is damaged", object.name))
            }
            Some(Content::Gradient(gradient)) => Ok(gradient.clone()),
            Some(Content::State(_)) => Err(format!("the object {} is no outer gradient", object.name)),
        }
    }

    /// The state of a path.
    ///
    /// # Errors
    /// As [`gradient`](Self::gradient).
    pub(crate) fn state(&self, path: PathId, object: &ObjectName) -> Result<ToyPathState, String> {
        match self.0.get(&object.name) {
            Some(content @ Content::State(state)) if content.hash() == object.hash => Ok((**state).clone()),
            Some(_) => Err(format!("the state {} of path {path} is damaged", object.name)),
            None => Err(format!("the state {} of path {path} is not in the store", object.name)),
        }
    }
}
