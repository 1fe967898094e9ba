//! The steps of a run. Commands call one of them, `quickstart` calls them in turn.

mod workers;

pub(crate) mod charts;
pub(crate) mod crate_text;
pub(crate) mod dry_run;
pub(crate) mod error;
pub(crate) mod evaluate;
pub(crate) mod files;
pub(crate) mod labels;
pub(crate) mod path_source;
pub(crate) mod phases;
pub(crate) mod prepare;
pub(crate) mod product_rate;
pub(crate) mod prompts;
pub(crate) mod route;
pub(crate) mod seed;
pub(crate) mod serve;
pub(crate) mod step_speed;
pub(crate) mod synchronizer;
pub(crate) mod threads;
pub(crate) mod train;
pub(crate) mod transformer_router;
pub(crate) mod vocabulary;
pub(crate) mod weights;
