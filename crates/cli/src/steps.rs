//! The steps of a run. Commands call one of them, `quickstart` calls them in turn.

pub(crate) mod error;
pub(crate) mod route;
pub(crate) mod seed;
pub(crate) mod train;
pub(crate) mod weights;
mod workers;
