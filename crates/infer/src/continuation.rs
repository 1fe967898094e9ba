//! The text of a continuation.

use crate::{BoxError, GenerateRequest, Stop, StopMatcher, TextCodec, TextStream};

/// The text of a continuation: its decoder and its stop texts.
pub(crate) struct ContinuationText {
    stream: Box<dyn TextStream>,
    /// Absent for a request without stop texts.
    stops: Option<StopMatcher>,
    /// Number of characters decoded so far.
    pub(crate) characters: usize,
    /// Text of the last token, to append after the rest of the matcher and the decoder.
    pub(crate) held: String,
}

impl ContinuationText {
    pub(crate) fn new(codec: &dyn TextCodec, request: &GenerateRequest) -> Self {
        let stream = codec.stream(&request.prompt);
        let stops = (!request.stop.is_empty()).then(|| StopMatcher::new(&request.stop));
        Self { stream, stops, characters: 0, held: String::new() }
    }

    /// Returns the text to send for a token, and the stop text that the token completed. Without `may_stop` the token
    /// completes none, but it may be the beginning of one.
    pub(crate) fn push(&mut self, token: u32, may_stop: bool) -> Result<(String, Option<String>), BoxError> {
        let piece = self.stream.push(token)?;
        self.characters += piece.chars().count();
        let Some(stops) = &mut self.stops else { return Ok((piece, None)) };
        if !may_stop {
            return Ok((stops.pass(&piece), None));
        }
        Ok(match stops.push(&piece) {
            Stop::Continue(text) => (text, None),
            Stop::Reached { before, stop } => (before, Some(stop)),
        })
    }

    /// Returns the text held back so far.
    pub(crate) fn finish(&mut self) -> String {
        let mut text = self.stops.as_mut().map(StopMatcher::finish).unwrap_or_default();
        text.push_str(&self.stream.finish());
        text.push_str(&self.held);
        text
    }
}
