//! Drivers: seed pretraining, worker, coordinator and synchronizer.
