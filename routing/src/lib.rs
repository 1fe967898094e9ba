//! Routers: document prefix to path.

mod config;
mod error;
mod kmeans;
mod progress;

pub use config::{RouterConfig, RouterKind};
pub use error::{RoutingError, Source};
pub use kmeans::{Clustering, kmeans};
pub use progress::{Progress, ProgressFn};
