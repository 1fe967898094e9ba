//! Id of a request.

/// Id of a request: from its header, or random.
#[derive(Clone, Debug)]
pub(crate) struct RequestId(pub(crate) String);

/// Returns whether an id from a client can stand in headers, in bodies and in the log.
pub(crate) fn usable_id(id: &str) -> bool {
    !id.is_empty() && id.len() <= 128 && id.bytes().all(|byte| byte.is_ascii_graphic())
}
