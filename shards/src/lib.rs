//! Readers of text, tokenizer, HDF5 token files and the sampler.
