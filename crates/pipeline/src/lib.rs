//! The steps of a run as a library: prepare, seed, route, train, evaluate and serve, and experiments made of them.
//!
//! A [`RunDirectory`] names the files of a run. Each step is a module with functions that read the files of the steps
//! before it and write their own: [`prepare`] makes the tokenizer and the token files, [`seed`] pretrains the dense
//! path that every path starts from, [`route`] divides the text among the paths, [`train`] trains the paths,
//! [`phases`] begins the next phase of routing, [`evaluate`] measures perplexity, and [`serve`] answers over HTTP.
//! [`experiment`] runs all of them for every cell of an experiment. [`Weights`] composes paths from the run's store.
//!
//! Every step can be interrupted and repeated: work that is finished is found and kept. Functions that block say so;
//! call them from a thread that may block, for example with `tokio::task::spawn_blocking`.

#![forbid(unsafe_code)]

mod advertised;
mod authority_error;
mod authority_file;
mod error;
mod fingerprint;
mod import_memory;
mod imported_files;
mod imported_tokens;
mod label_file;
mod leftovers;
mod matching_shards;
mod model_card;
mod path_source;
mod pinned;
mod prefix_router;
mod pretrained_error;
mod reload;
mod router_settings;
mod run;
mod run_directory;
mod run_lock;
mod scored_path;
mod serve_memory;
mod served_format;
mod served_modules;
mod shard_records;
mod shards_in_use;
#[cfg(test)]
mod small_run;
mod soup;
mod stale_shards;
mod stores_in_text;
mod text_codec;
mod validation;
mod version;
mod wanted_features;
mod watch;
mod weights;
mod workers;

pub mod authority;
pub mod charts;
pub mod device;
pub mod dry_run;
pub mod evaluate;
pub mod experiment;
pub mod export;
pub mod export_check;
mod export_error;
pub mod extend;
mod extend_error;
pub mod files;
pub mod import;
mod label_error;
pub mod labels;
pub mod limits;
mod logit_difference;
pub mod machine_memory;
pub mod measured_runs;
pub mod median;
pub mod memory_nodes;
pub mod phases;
pub mod plan;
pub mod prepare;
pub mod prepared;
pub mod product_rate;
pub mod published;
pub mod rollback;
pub mod route;
pub mod seed;
pub mod serve;
pub mod step_speed;
pub mod store;
pub mod synchronizer;
pub mod train;
pub mod transformer_router;
pub mod vocabulary;

pub use authority_error::AuthorityError;
pub use error::PipelineError;
pub use export_error::ExportError;
pub use extend_error::ExtendError;
pub use imported_files::{ExportedFiles, ImportedFolder, chat_template_in};
pub use label_error::LabelError;
pub use pinned::pins_ended;
pub use pretrained_error::PretrainedError;
pub use run::{Run, save_config, saved_run};
pub use run_directory::{RoutingFolder, RunDirectory};
pub use stale_shards::StaleShards;
pub use text_codec::RunTextCodec;
pub use validation::trained_tokens;
pub use version::Version;
pub use weights::{ModuleVersion, PathModule, Weights};
