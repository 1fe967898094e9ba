//! Typed fields of a JSON object, with errors that name the field.

use axum::extract::Request;
use serde_json::{Map, Value};
use tokio::sync::OwnedSemaphorePermit;

use crate::body::{BodyBytes, JsonBody};
use crate::error::ApiError;
use crate::{ServerState, body, settings};

/// The fields of a request that are not taken yet. A field with the value `null` counts as absent.
pub(crate) struct Fields {
    fields: Map<String, Value>,
    /// The body's share of the memory for bodies.
    body: BodyShare,
    /// The share of the decoded body, free again with its last field.
    _decoded: Option<OwnedSemaphorePermit>,
    /// Names of the fields that were looked for.
    #[cfg(test)]
    asked: std::collections::BTreeSet<String>,
}

/// A body's share of the memory for bodies, free again when this is dropped.
#[derive(Default)]
pub(crate) struct BodyShare {
    _memory: Option<BodyBytes>,
}

impl Fields {
    /// Reads the JSON body of a request.
    pub(crate) async fn read(state: &ServerState, request: Request) -> Result<Self, ApiError> {
        let timeout = settings::seconds(state.config.read_timeout);
        let client = state.keys.keys().client(request.headers());
        let JsonBody { value, memory, decoded } = body::json(request, client, &state.bodies, timeout).await?;
        Ok(Self { body: BodyShare { _memory: Some(memory) }, _decoded: decoded, ..Self::new("body", value)? })
    }

    /// Frees the fields that were not taken. A request does this before it waits for anything: until then others may have to
    /// wait with the decoding of their bodies. Returns what is to be kept until the texts of the fields have become tokens.
    pub(crate) fn end(self) -> BodyShare {
        self.body
    }

    /// The fields of an object. `name` is its name in an error.
    pub(crate) fn new(name: &str, object: Value) -> Result<Self, ApiError> {
        match object {
            Value::Object(mut fields) => {
                fields.retain(|_, value| !value.is_null());
                Ok(Self {
                    fields,
                    body: BodyShare::default(),
                    _decoded: None,
                    #[cfg(test)]
                    asked: std::collections::BTreeSet::new(),
                })
            }
            other => Err(wrong(name, &other, "a JSON object")),
        }
    }

    pub(crate) fn take(&mut self, name: &str) -> Option<Value> {
        #[cfg(test)]
        self.asked.insert(name.to_owned());
        self.fields.remove(name)
    }

    /// Sets a field that another one stands for.
    pub(crate) fn put(&mut self, name: &str, value: Value) {
        self.fields.insert(name.to_owned(), value);
    }

    /// Sets a field unless the request has it.
    pub(crate) fn put_default(&mut self, name: &str, value: &Value) {
        self.fields.entry(name).or_insert_with(|| value.clone());
    }

    pub(crate) fn string(&mut self, name: &str) -> Result<Option<String>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(wrong(name, &other, "a string")),
        }
    }

    pub(crate) fn flag(&mut self, name: &str) -> Result<bool, ApiError> {
        self.flag_or(name, false)
    }

    /// A flag that is `absent` if the request does not have it.
    pub(crate) fn flag_or(&mut self, name: &str, absent: bool) -> Result<bool, ApiError> {
        match self.take(name) {
            None => Ok(absent),
            Some(Value::Bool(flag)) => Ok(flag),
            Some(other) => Err(wrong(name, &other, "true or false")),
        }
    }

    pub(crate) fn float(&mut self, name: &str, low: f32, high: f32, default: f32) -> Result<f32, ApiError> {
        let Some(value) = self.take(name) else { return Ok(default) };
        let expected = || format!("a number from {low} to {high}");
        let number = value.as_f64().ok_or_else(|| wrong(name, &value, &expected()))? as f32;
        if (low..=high).contains(&number) { Ok(number) } else { Err(wrong(name, &value, &expected())) }
    }

    pub(crate) fn integer(&mut self, name: &str, low: i64, high: i64) -> Result<Option<i64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = whole(&value).filter(|number| (low..=high).contains(number));
        number.map(Some).ok_or_else(|| wrong(name, &value, &format!("a whole number from {low} to {high}")))
    }

    /// A count, as `usize`.
    pub(crate) fn count(&mut self, name: &str, low: u32, high: u32) -> Result<Option<usize>, ApiError> {
        Ok(self.integer(name, low.into(), high.into())?.and_then(|number| usize::try_from(number).ok()))
    }

    /// Names of the fields that were looked for.
    #[cfg(test)]
    pub(crate) fn asked(&self) -> std::collections::BTreeSet<String> {
        self.asked.clone()
    }

    /// Names of the fields that were not taken.
    pub(crate) fn rest(&self) -> Vec<&str> {
        self.fields.keys().map(String::as_str).collect()
    }
}

/// A whole number. Some clients write it as `5.0`.
pub(crate) fn whole(value: &Value) -> Option<i64> {
    let exact = |number: f64| (number.fract() == 0.0 && number.abs() < 9e15).then_some(number as i64);
    value.as_i64().or_else(|| value.as_f64().filter(|_| !value.is_u64()).and_then(exact))
}

/// A token id.
pub(crate) fn token(name: &str, value: &Value) -> Result<u32, ApiError> {
    let id = whole(value).and_then(|number| u32::try_from(number).ok());
    id.ok_or_else(|| wrong(name, value, "a token id"))
}

/// A list of token ids.
pub(crate) fn tokens(name: &str, values: &[Value]) -> Result<Vec<u32>, ApiError> {
    values.iter().map(|value| token(name, value)).collect()
}

/// The error for a field with an unusable value.
pub(crate) fn wrong(name: &str, value: &Value, expected: &str) -> ApiError {
    let mut shown: String = value.to_string();
    if shown.len() > 60 {
        shown = shown.chars().take(60).chain("…".chars()).collect();
    }
    ApiError::field(name, format!("{name} is {shown}: it must be {expected}"))
}
