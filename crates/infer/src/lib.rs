//! The inference engine without HTTP: queueing, KV cache, sampling.
