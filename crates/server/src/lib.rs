//! The HTTP server of a run, in the form of OpenAI's completions.
