//! A store that counts what is done through it, and fails where a test wants it.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{StreamExt, stream};
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMultipartOptions, PutOptions, PutPayload, PutResult, Result,
};

use crate::RunStore;

/// What has been done through a counted store.
#[derive(Debug, Default)]
pub struct StoreLoad {
    reads: OpenCalls,
    deletions: OpenCalls,
    written: Mutex<BTreeMap<String, usize>>,
    lists: AtomicUsize,
    failing_lists: Mutex<Range<usize>>,
    failing_deletions: AtomicBool,
}

impl StoreLoad {
    /// The greatest number of reads that were open at the same time.
    #[must_use]
    pub fn most_reads(&self) -> usize {
        self.reads.most.load(Ordering::Relaxed)
    }

    /// The greatest number of deletions that were open at the same time.
    #[must_use]
    pub fn most_deletions(&self) -> usize {
        self.deletions.most.load(Ordering::Relaxed)
    }

    /// How often each object was written, by name.
    #[must_use]
    pub fn writes(&self) -> BTreeMap<String, usize> {
        self.written().clone()
    }

    /// Lets lists fail: those with these numbers, counted from 0 for the next one.
    pub fn fail_lists(&self, numbers: Range<usize>) {
        self.lists.store(0, Ordering::Relaxed);
        *self.failing_lists.lock().unwrap_or_else(PoisonError::into_inner) = numbers;
    }

    /// Lets each further deletion fail.
    pub fn fail_deletions(&self) {
        self.failing_deletions.store(true, Ordering::Relaxed);
    }

    fn list_fails(&self) -> bool {
        let number = self.lists.fetch_add(1, Ordering::Relaxed);
        self.failing_lists.lock().unwrap_or_else(PoisonError::into_inner).contains(&number)
    }

    fn written(&self) -> MutexGuard<'_, BTreeMap<String, usize>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn writes_to(&self, location: &Path) {
        *self.written().entry(location.to_string()).or_default() += 1;
    }
}

impl RunStore {
    /// This store, and counts of what is done through it. In a test on one thread, reads or deletions that several tasks begin
    /// before they wait for anything else are always counted as simultaneous.
    #[must_use]
    pub fn counted(mut self) -> (Self, Arc<StoreLoad>) {
        let load = Arc::<StoreLoad>::default();
        self.objects = Arc::new(CountedObjects { objects: self.objects, load: load.clone() });
        (self, load)
    }
}

#[derive(Debug)]
struct CountedObjects {
    objects: Arc<dyn ObjectStore>,
    load: Arc<StoreLoad>,
}

impl fmt::Display for CountedObjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.objects.fmt(f)
    }
}

/// Calls of one kind that are open at the same time.
#[derive(Debug, Default)]
struct OpenCalls {
    now: Arc<AtomicUsize>,
    most: AtomicUsize,
}

impl OpenCalls {
    fn begin(&self) -> OpenCall {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        self.most.fetch_max(now, Ordering::Relaxed);
        OpenCall(self.now.clone())
    }
}

/// An open call. It ends when this is dropped.
struct OpenCall(Arc<AtomicUsize>);

impl Drop for OpenCall {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The answer of a store that fails.
fn failure<T: Send + 'static>() -> BoxStream<'static, Result<T>> {
    let error = Error::Generic { store: "a counted store", source: "it fails in this test".into() };
    stream::iter([Err(error)]).boxed()
}

// Written out as the trait's macro writes its functions, so that this package does not depend on the macro.
impl ObjectStore for CountedObjects {
    fn put_opts<'a, 'b, 'c>(
        &'a self,
        location: &'b Path,
        payload: PutPayload,
        options: PutOptions,
    ) -> BoxFuture<'c, Result<PutResult>>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        self.load.writes_to(location);
        self.objects.put_opts(location, payload, options)
    }

    fn put_multipart_opts<'a, 'b, 'c>(
        &'a self,
        location: &'b Path,
        options: PutMultipartOptions,
    ) -> BoxFuture<'c, Result<Box<dyn MultipartUpload>>>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        self.load.writes_to(location);
        self.objects.put_multipart_opts(location, options)
    }

    fn get_opts<'a, 'b, 'c>(
        &'a self,
        location: &'b Path,
        options: GetOptions,
    ) -> BoxFuture<'c, Result<GetResult>>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        Box::pin(async move {
            let _reading = self.load.reads.begin();
            let found = self.objects.get_opts(location, options).await;
            // A store in memory answers at once. Others get their turn before the answer is used, as if it took time.
            tokio::task::yield_now().await;
            found
        })
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        if self.load.failing_deletions.load(Ordering::Relaxed) {
            return failure();
        }
        let deleting = self.load.deletions.begin();
        let deleted = self.objects.delete_stream(locations).then(move |deleted| {
            // The call is open as long as this stream.
            let _open = &deleting;
            // Others get their turn, as before the answer to a read.
            async move {
                tokio::task::yield_now().await;
                deleted
            }
        });
        deleted.boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        if self.load.list_fails() {
            return failure();
        }
        self.objects.list(prefix)
    }

    fn list_with_delimiter<'a, 'b, 'c>(
        &'a self,
        prefix: Option<&'b Path>,
    ) -> BoxFuture<'c, Result<ListResult>>
    where
        'a: 'c,
        'b: 'c,
        Self: 'c,
    {
        self.objects.list_with_delimiter(prefix)
    }

    fn copy_opts<'a, 'b, 'd, 'c>(
        &'a self,
        from: &'b Path,
        to: &'d Path,
        options: CopyOptions,
    ) -> BoxFuture<'c, Result<()>>
    where
        'a: 'c,
        'b: 'c,
        'd: 'c,
        Self: 'c,
    {
        self.objects.copy_opts(from, to, options)
    }
}
