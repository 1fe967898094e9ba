//! The object store of a simulated run: content under names.

use std::collections::BTreeMap;

use dipaco_ledger::ObjectRef;

use super::toy::{ToyGradient, ToyPathState, ToyWeights, Values};

/// The content of an object.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Content {
    Gradient(ToyGradient),
    State(Box<ToyPathState>),
    Weights(ToyWeights),
    Momentum(Values),
    Checkpoint(Vec<u8>),
}

impl Content {
    /// The reference of this content under a name. The text of the content stands for its bytes.
    pub(crate) fn under(&self, name: String) -> ObjectRef {
        match self {
            Self::Checkpoint(bytes) => ObjectRef::of(name, bytes),
            content => ObjectRef::of(name, format!("{content:?}").as_bytes()),
        }
    }
}

#[derive(Clone, Debug)]
struct StoredContent {
    hash: String,
    content: Content,
}

/// Objects by name. A write is durable at once, and takes the place of what has the name.
#[derive(Clone, Debug, Default)]
pub(crate) struct ObjectStore(BTreeMap<String, StoredContent>);

impl ObjectStore {
    pub(crate) fn put(&mut self, object: &ObjectRef, content: Content) {
        self.0.insert(object.name.clone(), StoredContent { hash: object.hash.clone(), content });
    }

    pub(crate) fn delete(&mut self, name: &str) {
        self.0.remove(name);
    }

    /// The names of all objects.
    pub(crate) fn names(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    /// The content of an object.
    ///
    /// # Errors
    /// When the object is missing, or has another content than its reference.
    pub(crate) fn get(&self, object: &ObjectRef) -> Result<&Content, String> {
        match self.0.get(&object.name) {
            None => Err(format!("the object {} counts, but is not in the store", object.name)),
            Some(stored) if stored.hash != object.hash => {
                Err(format!("the object {} counts, but is damaged", object.name))
            }
            Some(stored) => Ok(&stored.content),
        }
    }

    /// An outer gradient.
    ///
    /// # Errors
    /// As [`get`](Self::get), and when the object is something else.
    pub(crate) fn gradient(&self, object: &ObjectRef) -> Result<ToyGradient, String> {
        match self.get(object)? {
            Content::Gradient(gradient) => Ok(gradient.clone()),
            _ => Err(format!("the object {} is no outer gradient", object.name)),
        }
    }

    /// The state of a path.
    ///
    /// # Errors
    /// As [`gradient`](Self::gradient).
    pub(crate) fn state(&self, object: &ObjectRef) -> Result<ToyPathState, String> {
        match self.get(object)? {
            Content::State(state) => Ok((**state).clone()),
            _ => Err(format!("the object {} is no state", object.name)),
        }
    }

    /// Global weights.
    ///
    /// # Errors
    /// As [`gradient`](Self::gradient).
    pub(crate) fn weights(&self, object: &ObjectRef) -> Result<ToyWeights, String> {
        match self.get(object)? {
            Content::Weights(weights) => Ok(*weights),
            _ => Err(format!("the object {} holds no weights", object.name)),
        }
    }

    /// The momentum of a fragment.
    ///
    /// # Errors
    /// As [`gradient`](Self::gradient).
    pub(crate) fn momentum(&self, object: &ObjectRef) -> Result<Values, String> {
        match self.get(object)? {
            Content::Momentum(values) => Ok(*values),
            _ => Err(format!("the object {} is no momentum", object.name)),
        }
    }
}
