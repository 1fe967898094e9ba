//! Routers: document prefix to path.
