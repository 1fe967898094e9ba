//! Links: addresses at which a store gives one object to a reader without credentials, until a time limit.

use std::time::Duration;

use object_store::Error;
use object_store::signer::Method;

use crate::store::object_path;
use crate::{RunStore, StoreError};

/// Longest time to sign a link. The credentials of a machine may have to be fetched first.
const SIGNING_LIMIT: Duration = Duration::from_secs(5);

impl RunStore {
    /// An address at which everybody can read the object `name` over HTTP, until `life` is over. `None` for a directory and
    /// for a store in memory, which have no such addresses.
    ///
    /// The address is a right: keep it out of messages. It ends earlier with temporary credentials that end earlier. The
    /// store is not asked whether the object exists.
    ///
    /// # Errors
    /// [`StoreError::Name`], and [`StoreError::Remote`] when the credentials of this process can't sign.
    pub async fn link(&self, name: &str, life: Duration) -> Result<Option<String>, StoreError> {
        let path = object_path(name)?;
        let Some(signer) = &self.signer else { return Ok(None) };
        let signed = tokio::time::timeout(SIGNING_LIMIT, signer.signed_url(Method::GET, &path, life)).await;
        let late =
            |late: tokio::time::error::Elapsed| Error::Generic { store: "link", source: Box::new(late) };
        match signed.map_err(late) {
            Ok(Ok(address)) => Ok(Some(address.into())),
            Ok(Err(source)) | Err(source) => Err(self.failed("make a link to", name, source)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::StoreOptions;

    #[tokio::test]
    async fn a_link_names_one_object_and_ends_and_holds_no_secret() {
        let setting = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let settings = vec![
            setting("aws_region", "eu-west-1"),
            setting("aws_access_key_id", "key"),
            setting("aws_secret_access_key", "hush-hush"),
        ];
        let options = StoreOptions { durable: true, settings };
        let store = RunStore::open_with("s3://bucket/runs/mine", &options).unwrap();
        let link = store.link("modules/0/3/0/17-0", Duration::from_secs(900)).await.unwrap().unwrap();
        let (address, query) = link.split_once('?').unwrap();
        assert!(
            address.starts_with("https://") && address.ends_with("/runs/mine/modules/0/3/0/17-0"),
            "{link}"
        );
        assert!(query.contains("X-Amz-Expires=900") && query.contains("X-Amz-Signature="), "{link}");
        assert!(!link.contains("hush"), "{link}");
        let wrong = store.link("../other/modules/0/3/0/17-0", Duration::from_secs(900)).await;
        assert!(matches!(wrong, Err(StoreError::Name { .. })), "{wrong:?}");
        let manifest = store.link("manifest/00000000000000000001.json", Duration::from_secs(900)).await;
        assert!(matches!(manifest, Err(StoreError::Name { .. })), "{manifest:?}");
    }

    #[tokio::test]
    async fn a_directory_and_a_store_in_memory_have_no_links() {
        let folder = tempfile::tempdir().unwrap();
        let local = RunStore::open(&folder.path().to_string_lossy()).unwrap();
        for store in [local, RunStore::in_memory()] {
            assert_eq!(store.link("modules/0/3/0/17-0", Duration::from_secs(900)).await.unwrap(), None);
        }
    }
}
