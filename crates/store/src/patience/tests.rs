use std::fs::{remove_file, rename};
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::sync::Semaphore;

use super::*;
use crate::{ManifestSequence, ObjectRef, RunManifest};

const LONG: Duration = Duration::from_secs(3600);

/// A store in a folder, a part of which is broken until enough failures have been heard.
struct Broken {
    folder: tempfile::TempDir,
    store: RunStore,
    told: Arc<AtomicU32>,
}

impl Broken {
    /// A store whose patience mends `part` at failure number `mended`.
    fn new(limit: Duration, part: &str, mended: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (place, kept) = (folder.path().join(part), folder.path().join("kept"));
        let told = Arc::<AtomicU32>::default();
        let heard = told.clone();
        let patience = Patience::new(Duration::ZERO, limit, move |_| {
            let number = heard.fetch_add(1, Ordering::Relaxed) + 1;
            if number == mended {
                remove_file(&place).unwrap();
                if kept.exists() {
                    rename(&kept, &place).unwrap();
                }
            }
            // A bug is a failure of the test, and no endless loop.
            number < 100
        });
        let store = RunStore::create(folder.path().to_str().unwrap()).unwrap().with_patience(patience);
        Self { folder, store, told }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Puts a link to itself in the place of a part. It can't be opened, also not by root, and it is not absent.
    fn break_part(&self, part: &str) {
        if self.path(part).exists() {
            rename(self.path(part), self.path("kept")).unwrap();
        }
        symlink(part, self.path(part)).unwrap();
    }

    async fn object(&self) -> ObjectRef {
        self.store.put("object", "content".into()).await.unwrap()
    }

    fn told(&self) -> u32 {
        self.told.load(Ordering::Relaxed)
    }
}

#[tokio::test]
async fn a_read_that_fails_for_a_while_is_repeated() {
    let broken = Broken::new(LONG, "object", 3);
    let object = broken.object().await;
    broken.break_part("object");
    assert_eq!(broken.store.get(&object).await.unwrap(), "content");
    assert_eq!(broken.told(), 3);
}

#[tokio::test]
async fn writes_lists_and_deletions_that_fail_for_a_while_are_repeated() {
    type Work = fn(RunStore) -> futures::future::BoxFuture<'static, Result<(), StoreError>>;
    let works: [(&str, Work); 4] = [
        ("put", |store| Box::pin(async move { store.put("part/new", "new".into()).await.map(|_| ()) })),
        ("replace", |store| {
            Box::pin(async move { store.put_replacing("part/old", ["new".into()]).await.map(|_| ()) })
        }),
        ("list", |store| Box::pin(async move { store.list("part").await.map(|_| ()) })),
        ("delete", |store| Box::pin(async move { store.delete("part/old").await })),
    ];
    for (name, work) in works {
        let broken = Broken::new(LONG, "part", 3);
        broken.store.put("part/old", "old".into()).await.unwrap();
        broken.break_part("part");
        work(broken.store.clone()).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(broken.told(), 3, "{name}");
        let content = |file: &str| std::fs::read_to_string(broken.path(file)).ok();
        let old = ["old", "new"].map(|old| Some(old.to_owned()));
        let expected = match name {
            "put" => (old[0].clone(), old[1].clone()),
            "replace" => (old[1].clone(), None),
            "list" => (old[0].clone(), None),
            _ => (None, None),
        };
        assert_eq!((content("part/old"), content("part/new")), expected, "{name}");
    }
}

#[tokio::test]
async fn a_manifest_is_replaced_once_although_the_store_failed() {
    let broken = Broken::new(LONG, "manifest", 3);
    let manifest = RunManifest::new("run".to_owned());
    let first = broken.store.replace(&manifest, ManifestSequence::NONE).await.unwrap();
    broken.break_part("manifest");
    let second = broken.store.replace(&manifest, first).await.unwrap();
    assert_eq!((second.0, broken.told()), (first.0 + 1, 3));
    let loaded = broken.store.load::<RunManifest>().await.unwrap().unwrap();
    assert_eq!(loaded.sequence, second);
}

#[tokio::test]
async fn a_creation_that_the_store_still_works_on_is_no_other_writer() {
    let first = "manifest/00000000000000000001.json";
    let mut broken = Broken::new(LONG, first, 2);
    broken.store.slots = Some(Arc::new(Semaphore::new(1)));
    assert!(broken.store.is_remote());
    // While S3 works on a request that has timed out here, its name is taken and has no object. So it is with this link.
    std::fs::create_dir(broken.path("manifest")).unwrap();
    symlink("absent", broken.path(first)).unwrap();
    let manifest = RunManifest::new("run".to_owned());
    let replaced = broken.store.replace(&manifest, ManifestSequence::NONE).await;
    assert!(matches!(replaced, Ok(ManifestSequence(1))), "{replaced:?}");
    assert_eq!(broken.told(), 2);
    let loaded = broken.store.load::<RunManifest>().await.unwrap().unwrap();
    assert_eq!((loaded.manifest, loaded.sequence), (manifest, ManifestSequence(1)));
}

#[tokio::test]
async fn a_failure_that_outlasts_the_patience_is_an_error() {
    let broken = Broken::new(Duration::ZERO, "object", u32::MAX);
    let object = broken.object().await;
    broken.break_part("object");
    let read = broken.store.get(&object).await;
    assert!(matches!(read, Err(StoreError::Io { .. })), "{read:?}");
    assert_eq!(broken.told(), 0);
}

#[tokio::test]
async fn whoever_hears_of_failures_may_end_the_patience() {
    let broken = Broken::new(LONG, "object", u32::MAX);
    let object = broken.object().await;
    broken.break_part("object");
    let heard = Arc::new(Mutex::new(Vec::new()));
    let told = heard.clone();
    let patience = Patience::new(Duration::ZERO, LONG, move |error| {
        let mut told = told.lock().unwrap();
        told.push(error.to_string());
        told.len() < 3
    });
    let read = broken.store.clone().with_patience(patience).get(&object).await;
    assert!(matches!(read, Err(StoreError::Io { .. })), "{read:?}");
    let heard = heard.lock().unwrap();
    assert_eq!(heard.len(), 3);
    assert!(heard[0].starts_with("can't read `object`"), "{}", heard[0]);
}

#[tokio::test]
async fn damage_absence_and_other_content_are_errors_at_once() {
    let patient = Broken::new(LONG, "object", u32::MAX);
    let object = patient.object().await;
    let put = patient.store.put("object", "another".into()).await;
    assert!(matches!(put, Err(StoreError::Exists { .. })), "{put:?}");
    std::fs::write(patient.path("object"), "CONTENT").unwrap();
    let read = patient.store.get(&object).await;
    assert!(matches!(read, Err(StoreError::Damaged { .. })), "{read:?}");
    remove_file(patient.path("object")).unwrap();
    let read = patient.store.get(&object).await;
    assert!(matches!(read, Err(StoreError::Missing { .. })), "{read:?}");
    assert_eq!(patient.told(), 0);
}
