//! The API keys of a running server: fixed ones, and those that follow their file.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::sync::Notify;

use crate::error::with_causes;
use crate::{ApiKeys, ServerError};

/// Time between two looks at the file.
const PERIOD: Duration = Duration::from_secs(1);

/// The keys of a file, and fixed ones besides.
#[derive(Debug)]
pub(crate) struct KeyFile {
    /// `None` for a server without a file.
    path: Option<PathBuf>,
    keys: RwLock<Keys>,
    /// Ends the pause between two looks at the file.
    again: Notify,
}

#[derive(Debug)]
struct Keys {
    fixed: ApiKeys,
    /// Those of the file and the fixed ones.
    valid: Arc<ApiKeys>,
}

impl KeyFile {
    /// Reads the keys of a file. Has no keys without one.
    ///
    /// # Errors
    /// As [`ApiKeys::load`].
    pub(crate) fn open(path: Option<&Path>) -> Result<Self, ServerError> {
        let keys = path.map(ApiKeys::load).transpose()?.unwrap_or_default();
        let keys = Keys { fixed: ApiKeys::default(), valid: Arc::new(keys) };
        Ok(Self { path: path.map(Path::to_owned), keys: RwLock::new(keys), again: Notify::new() })
    }

    /// Accepts these keys too, whatever the file has later.
    pub(crate) fn add(&self, more: &ApiKeys) {
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        keys.fixed = keys.fixed.and(more);
        keys.valid = Arc::new(keys.valid.and(more));
    }

    /// The keys that are valid now.
    pub(crate) fn keys(&self) -> Arc<ApiKeys> {
        Arc::clone(&self.keys.read().unwrap_or_else(PoisonError::into_inner).valid)
    }

    /// Reads the file again. Returns true if it has other keys than before.
    ///
    /// # Errors
    /// As [`ApiKeys::load`]. The keys stay as they were: a file that an editor is just writing must neither lock everybody
    /// out nor let everybody in.
    pub(crate) fn refresh(&self) -> Result<bool, ServerError> {
        let Some(path) = &self.path else { return Ok(false) };
        let new = ApiKeys::load(path)?;
        let mut keys = self.keys.write().unwrap_or_else(PoisonError::into_inner);
        let new = new.and(&keys.fixed);
        let changed = *keys.valid != new;
        if changed {
            keys.valid = Arc::new(new);
        }
        Ok(changed)
    }

    /// Lets [`Self::follow`] read the file again at once. Returns false if there is no file.
    pub(crate) fn read_again(&self) -> bool {
        if self.path.is_none() {
            return false;
        }
        self.again.notify_one();
        true
    }

    /// Reads the file again every second, and when it is asked to. Ends only if there is no file.
    pub(crate) async fn follow(self: Arc<Self>) {
        if self.path.is_none() {
            return;
        }
        let mut failed = None;
        loop {
            tokio::select! {
                () = tokio::time::sleep(PERIOD) => {}
                () = self.again.notified() => {}
            }
            let problem = self.look().await;
            if problem != failed
                && let Some(problem) = &problem
            {
                tracing::warn!(problem, "the API keys stay as they were: their file can't be used");
            }
            failed = problem;
        }
    }

    /// Reads the file again. Returns why it can't be used.
    async fn look(self: &Arc<Self>) -> Option<String> {
        let own = Arc::clone(self);
        match tokio::task::spawn_blocking(move || own.refresh()).await {
            Ok(Ok(changed)) => {
                if changed {
                    tracing::info!(keys = self.keys().count(), "the API keys are those of the changed file");
                }
                None
            }
            Ok(Err(error)) => Some(with_causes(&error)),
            Err(error) => Some(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;

    use axum::http::{HeaderMap, header};

    use super::*;

    fn accepted(keys: &KeyFile, key: &str) -> bool {
        let headers =
            HeaderMap::from_iter([(header::AUTHORIZATION, format!("Bearer {key}").parse().unwrap())]);
        keys.keys().check(&headers).is_ok()
    }

    #[test]
    fn keys_follow_their_file_and_removed_ones_stop_working() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        fs::write(&path, "alpha\nbeta\n").unwrap();
        let keys = KeyFile::open(Some(&path)).unwrap();
        assert!(accepted(&keys, "alpha") && accepted(&keys, "beta") && !accepted(&keys, "gamma"));
        assert!(!keys.refresh().unwrap());
        fs::write(&path, "beta\ngamma\n").unwrap();
        assert!(keys.refresh().unwrap());
        assert!(!accepted(&keys, "alpha") && accepted(&keys, "beta") && accepted(&keys, "gamma"));
        // An empty or missing file neither opens the server to all nor locks its users out.
        fs::write(&path, "# none\n").unwrap();
        assert!(matches!(keys.refresh(), Err(ServerError::NoKeys { .. })));
        fs::remove_file(&path).unwrap();
        assert!(matches!(keys.refresh(), Err(ServerError::KeyFile { .. })));
        assert!(!accepted(&keys, "alpha") && accepted(&keys, "gamma"));
    }

    #[tokio::test]
    async fn a_file_that_can_not_be_read_is_named_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        fs::write(&path, "alpha\n").unwrap();
        let keys = Arc::new(KeyFile::open(Some(&path)).unwrap());
        assert_eq!(keys.look().await, None);
        fs::remove_file(&path).unwrap();
        let reason = fs::read_to_string(&path).unwrap_err().to_string();
        let problem = keys.look().await.unwrap();
        assert!(problem.contains("serve.api_keys") && problem.ends_with(&reason), "{problem}");
    }

    #[test]
    fn fixed_keys_outlive_every_change_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("keys");
        fs::write(&path, "alpha\n").unwrap();
        let keys = KeyFile::open(Some(&path)).unwrap();
        keys.add(&ApiKeys::from_text("fixed"));
        assert!(accepted(&keys, "alpha") && accepted(&keys, "fixed") && !accepted(&keys, "beta"));
        assert!(!keys.refresh().unwrap(), "the file has not changed");
        fs::write(&path, "beta\n").unwrap();
        assert!(keys.refresh().unwrap());
        assert!(!accepted(&keys, "alpha") && accepted(&keys, "fixed") && accepted(&keys, "beta"));

        let keys = KeyFile::open(None).unwrap();
        keys.add(&ApiKeys::from_text("fixed"));
        assert!(!keys.refresh().unwrap() && accepted(&keys, "fixed") && !accepted(&keys, "any"));
    }

    #[test]
    fn a_server_without_a_file_stays_open() {
        let keys = KeyFile::open(None).unwrap();
        assert!(!keys.refresh().unwrap() && accepted(&keys, "any"));
        assert!(!keys.read_again(), "there is nothing to read");
    }
}
