//! The Llama-shaped transformer cut into modules: composing a path, KV cache, import and export.
