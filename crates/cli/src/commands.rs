//! The commands, one file each. They read arguments and print results; `dipaco-pipeline` does the work.

pub(crate) mod bench;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod doctor;
pub(crate) mod dry_run;
pub(crate) mod evaluate;
pub(crate) mod experiment;
pub(crate) mod export;
pub(crate) mod fetch_c4;
pub(crate) mod launch;
pub(crate) mod licences;
pub(crate) mod plan;
pub(crate) mod plot;
pub(crate) mod prepare;
pub(crate) mod quickstart;
pub(crate) mod rollback;
pub(crate) mod route;
pub(crate) mod seed;
pub(crate) mod serve;
pub(crate) mod simulate;
pub(crate) mod status;
pub(crate) mod synchronizer;
pub(crate) mod tensorboard;
pub(crate) mod token;
pub(crate) mod train;
pub(crate) mod worker;
