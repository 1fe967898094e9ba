//! Id of a request.

/// Id of a request: from its header, or random.
#[derive(Clone, Debug)]
pub(crate) struct RequestId(pub(crate) String);
