//! The paper's perplexity protocol and scoring.
