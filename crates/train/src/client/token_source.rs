//! The place from which a process got its token. A coordinator that moves writes its new address there.

use std::path::PathBuf;

use dipaco_net::{HelperToken, JoinToken};

/// Where the current token of a run stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum TokenSource {
    /// Nowhere: the token was given once, for example in the environment.
    #[default]
    Given,
    /// In a file with a worker's token.
    JoinFile(PathBuf),
    /// In a file with a synchronizer's token.
    HelperFile(PathBuf),
}

impl TokenSource {
    /// The token as it stands at the source now, if it says more than `known`: other addresses of the same run, or a
    /// certificate that lives longer. A source that can't be read says nothing, because it may be written just now.
    ///
    /// Blocks on the file.
    #[must_use]
    pub fn newer(&self, known: &JoinToken) -> Option<JoinToken> {
        let read = match self {
            Self::Given => return None,
            Self::JoinFile(file) => JoinToken::read_from(file),
            Self::HelperFile(file) => HelperToken::read_from(file).map(|token| token.join),
        };
        let found = match read {
            Ok(found) => found,
            Err(error) => {
                tracing::debug!(%error, "the token can't be read again");
                return None;
            }
        };
        if (&found.run_id, &found.authority) != (&known.run_id, &known.authority) {
            tracing::warn!("the token's file now holds the token of another run; it is left unread");
            return None;
        }
        let addresses = found.addresses.clone();
        // A renewed certificate in memory may live longer than the one in the file.
        let newest = if found.expires > known.expires { found } else { known.clone() };
        let newest = JoinToken { addresses, ..newest };
        (newest != *known).then_some(newest)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use dipaco_net::RunAuthority;

    use super::*;

    #[test]
    fn a_source_gives_new_addresses_and_longer_lives_of_the_same_run_only() {
        const HOUR: Duration = Duration::from_secs(3600);
        let now = SystemTime::now();
        let authority = RunAuthority::create("mine", now).unwrap();
        let token = |address: &str, life| {
            authority.issue("worker", "worker", vec![address.to_owned()], now, life).unwrap()
        };
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("join.token");
        let source = TokenSource::JoinFile(file.clone());
        let known = token("old:1", HOUR);
        assert_eq!(source.newer(&known), None, "no file");
        std::fs::write(&file, known.to_string()).unwrap();
        assert_eq!(source.newer(&known), None, "nothing new");
        let moved = token("new:2", HOUR / 2);
        std::fs::write(&file, moved.to_string()).unwrap();
        let expected = JoinToken { addresses: vec!["new:2".to_owned()], ..known.clone() };
        assert_eq!(source.newer(&known), Some(expected), "the certificate in memory lives longer");
        let renewed = token("new:2", HOUR * 2);
        std::fs::write(&file, renewed.to_string()).unwrap();
        assert_eq!(source.newer(&known), Some(renewed));
        let other = RunAuthority::create("mine", now).unwrap();
        let other = other.issue("worker", "worker", vec!["new:2".to_owned()], now, HOUR * 3).unwrap();
        std::fs::write(&file, other.to_string()).unwrap();
        assert_eq!(source.newer(&known), None, "another authority");
        std::fs::write(&file, "dipaco1.half").unwrap();
        assert_eq!(source.newer(&known), None, "half a file");
        assert_eq!(TokenSource::Given.newer(&known), None);
    }
}
