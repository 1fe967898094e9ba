//! Moves content to and from the object store.
//!
//! A directory takes an object as one file. A remote store takes a large object in parts: a request moves at most
//! [`PART`] bytes within its time limit, so the limit bounds the progress and not the size of an object, and a broken
//! line costs one part. At most [`SLOTS`] parts are on the line at a time.

use std::collections::VecDeque;
use std::future::ready;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use futures::stream::{self, FuturesUnordered};
use futures::{Stream, StreamExt, TryStreamExt};
use object_store::path::Path;
use object_store::{
    Error, GetOptions, MultipartUpload, ObjectStoreExt, PutMode, PutMultipartOptions, PutOptions, PutPayload,
};

use crate::error::is_of;
use crate::{ObjectRef, RunStore, StoreError, UnfinishedObject};

/// Largest body of a request to a remote store, in bytes.
pub(crate) const PART: usize = 8 << 20;
/// Parts that one store moves at a time.
pub(crate) const SLOTS: usize = 4;
/// The parts of an object that a store reads at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parts {
    /// Bytes of a part.
    pub(crate) bytes: usize,
    /// Parts that are read before they are needed.
    pub(crate) ahead: usize,
}

/// The parts of an object from a remote store, which fill the line.
pub(crate) const PARTS: Parts = Parts { bytes: PART, ahead: SLOTS };
/// The parts of an object from a directory or from memory. One is read while the one before it is used.
pub(crate) const LOCAL_PARTS: Parts = Parts { bytes: 1 << 20, ahead: 2 };
/// Attempts at a conditional write whose outcome is unknown, and at a write into a folder that disappears.
const ATTEMPTS: u32 = 3;

impl RunStore {
    /// Writes `content` under `path` in place of any old content. A reader sees all of it or nothing.
    ///
    /// # Errors
    /// [`StoreError::Full`] if the disk is full.
    pub(crate) async fn overwrite(&self, path: &Path, content: PutPayload) -> Result<(), StoreError> {
        let attempt = || async {
            let written = self.overwrite_once(path, content.clone()).await;
            written.map_err(|source| self.failed("write", path.as_ref(), source))
        };
        self.patiently(attempt).await
    }

    async fn overwrite_once(&self, path: &Path, content: PutPayload) -> Result<(), Error> {
        if self.is_remote() && content.content_length() > PART {
            let parts = in_parts(content.into_iter().collect());
            return self.overwrite_in_parts(path, parts.into_iter().map(|part| ready(Ok(part)))).await;
        }
        let _slot = self.slot().await;
        self.put_whole(path, content, PutMode::Overwrite).await
    }

    /// Writes an object in one piece.
    async fn put_whole(&self, path: &Path, content: PutPayload, mode: PutMode) -> Result<(), Error> {
        let mut attempt = 1;
        loop {
            let written = self.objects.put_opts(path, content.clone(), PutOptions::from(mode.clone())).await;
            let Err(error) = written else { return Ok(()) };
            // An empty folder goes with its last object, also while another object is written into it. The next attempt
            // makes the folder again.
            if self.is_remote() || attempt == ATTEMPTS || !is_of(&error, &[io::ErrorKind::NotFound]) {
                return Err(error);
            }
            attempt += 1;
        }
    }

    /// Writes the content of an unfinished object under `path`, in place of any old content. At most [`SLOTS`] parts of all
    /// objects are in memory.
    ///
    /// # Errors
    /// When the store fails, or the disk of the unfinished object.
    pub(crate) async fn overwrite_from(
        &self,
        path: &Path,
        object: &Arc<UnfinishedObject>,
    ) -> Result<(), StoreError> {
        let attempt = || async {
            let written = self.overwrite_in_parts(path, object.parts()).await;
            written.map_err(|source| self.failed("write", path.as_ref(), source))
        };
        self.patiently(attempt).await
    }

    async fn overwrite_in_parts<F>(
        &self,
        path: &Path,
        parts: impl Iterator<Item = F> + Send,
    ) -> Result<(), Error>
    where
        F: Future<Output = Result<PutPayload, Error>> + Send,
    {
        let mut upload = self.objects.put_multipart_opts(path, PutMultipartOptions::default()).await?;
        let done = match self.send_parts(&mut *upload, parts).await {
            Ok(()) => upload.complete().await.map(|_| ()),
            Err(error) => Err(error),
        };
        if done.is_err() {
            // Parts of an unfinished upload take space that no listing shows.
            if let Err(error) = upload.abort().await {
                tracing::debug!(%error, object = %path, "the parts of an unfinished upload remain in the store");
            }
        }
        done
    }

    /// Sends parts, which are numbered in this order. Their transfers overlap. A part is read when the line has room for it.
    async fn send_parts<F>(
        &self,
        upload: &mut dyn MultipartUpload,
        parts: impl Iterator<Item = F> + Send,
    ) -> Result<(), Error>
    where
        F: Future<Output = Result<PutPayload, Error>> + Send,
    {
        let read = |part: F| async {
            let slot = self.slot().await;
            Ok::<_, Error>((slot, part.await?))
        };
        let mut parts = std::pin::pin!(stream::iter(parts).then(read).fuse());
        let mut sending = FuturesUnordered::new();
        loop {
            // Sent parts go on while the next one waits for its room.
            tokio::select! {
                Some(part) = parts.next() => {
                    let (slot, part) = part?;
                    let sent = upload.put_part(part);
                    sending.push(async move {
                        let _slot = slot;
                        sent.await
                    });
                }
                Some(sent) = sending.next() => sent?,
                else => return Ok(()),
            }
        }
    }

    /// Writes `content` under `path` if the name is free. A name with exactly this content is a success, because a lost
    /// reply to an earlier attempt looks the same.
    ///
    /// Returns `false` if the name has other content. The caller makes content unlike any other writer's where only one
    /// writer may succeed.
    ///
    /// # Errors
    /// [`StoreError::Full`] if the disk is full.
    pub(crate) async fn create_exclusive(
        &self,
        path: &Path,
        content: PutPayload,
    ) -> Result<bool, StoreError> {
        let attempt = || async {
            match self.create_exclusive_once(path, content.clone()).await {
                Ok(()) => Ok(true),
                Err(Error::AlreadyExists { .. }) => Ok(false),
                Err(source) => Err(self.failed("write", path.as_ref(), source)),
            }
        };
        self.patiently(attempt).await
    }

    async fn create_exclusive_once(&self, path: &Path, content: PutPayload) -> Result<(), Error> {
        let mut attempt = 1;
        loop {
            let written = {
                let _slot = self.slot().await;
                self.put_whole(path, content.clone(), PutMode::Create).await
            };
            let Err(error) = written else { return Ok(()) };
            let exists = matches!(error, Error::AlreadyExists { .. });
            if !exists && (!self.is_remote() || is_certain(&error)) {
                return Err(error);
            }
            match self.holds(path, &content).await {
                Ok(Some(true)) => return Ok(()),
                Ok(Some(false)) => {
                    return Err(Error::AlreadyExists { path: path.to_string(), source: Box::new(error) });
                }
                // S3 refuses a creation during another one of the same name, also when the other one fails.
                Ok(None) if attempt < ATTEMPTS => attempt += 1,
                // S3 still works on the other one, which may be an earlier attempt of this writer. Until it ends nobody has
                // the name, so the patience of the store asks again.
                Ok(None) if exists && self.is_remote() => {
                    return Err(Error::Generic { store: "a creation under way", source: Box::new(error) });
                }
                // It is not known whose content it is.
                Err(unread) if exists => return Err(unread),
                _ => return Err(error),
            }
        }
    }

    /// Returns whether the object has exactly this content; `None` if there is no object.
    async fn holds(&self, path: &Path, content: &PutPayload) -> Result<Option<bool>, Error> {
        let found = match self.objects.get(path).await {
            Ok(found) => found,
            Err(Error::NotFound { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        if found.meta.size != content.content_length() as u64 {
            return Ok(Some(false));
        }
        let mut expected = content.into_iter().flatten();
        let mut found = found.into_stream();
        while let Some(part) = found.try_next().await? {
            if !part.iter().eq(expected.by_ref().take(part.len())) {
                return Ok(Some(false));
            }
        }
        Ok(Some(expected.next().is_none()))
    }

    /// Reads `range` of an object, if the object has the length in its reference.
    pub(crate) async fn read_object(
        &self,
        reference: &ObjectRef,
        range: Range<u64>,
    ) -> Result<Bytes, StoreError> {
        let bytes = range.end - range.start;
        if !self.is_remote() || bytes <= PART as u64 {
            return self.read_part(reference, range).await;
        }
        let mut parts = std::pin::pin!(self.read_parts(reference, range, PARTS));
        let mut content = BytesMut::new();
        while let Some(part) = parts.try_next().await? {
            // The first part has shown that the object is as long as its reference says.
            content.reserve(usize::try_from(bytes).unwrap_or(usize::MAX).saturating_sub(content.len()));
            content.extend_from_slice(&part);
        }
        Ok(content.freeze())
    }

    /// Reads `range` of an object part by part, in order. Several parts are on the way at a time.
    pub(crate) fn read_parts(
        &self,
        reference: &ObjectRef,
        range: Range<u64>,
        Parts { bytes, ahead }: Parts,
    ) -> impl Stream<Item = Result<Bytes, StoreError>> {
        // An empty range has one part, too, so that an absent object is found.
        let others = (range.start.saturating_add(bytes as u64)..range.end).step_by(bytes);
        let starts = std::iter::once(range.start).chain(others);
        let parts = starts.map(move |start| start..range.end.min(start + bytes as u64));
        stream::iter(parts).map(|part| self.read_part(reference, part)).buffered(ahead)
    }

    async fn read_part(&self, reference: &ObjectRef, range: Range<u64>) -> Result<Bytes, StoreError> {
        let whole = range == (0..reference.bytes);
        // A range in an empty object is an error in some stores.
        let options = GetOptions { range: (!whole).then(|| range.into()), ..GetOptions::default() };
        let failed = |source| self.failed("read", &reference.name, source);
        let attempt = || async {
            let _slot = self.slot().await;
            self.open_object(reference, options.clone()).await?.bytes().await.map_err(failed)
        };
        self.patiently(attempt).await
    }

    /// Waits until the line has room for a part. A directory has room for everything.
    async fn slot(&self) -> Option<tokio::sync::SemaphorePermit<'_>> {
        match &self.slots {
            // The semaphore is never closed.
            Some(slots) => slots.acquire().await.ok(),
            None => None,
        }
    }
}

/// True if a refused write can't have happened.
fn is_certain(error: &Error) -> bool {
    matches!(
        error,
        Error::NotFound { .. }
            | Error::PermissionDenied { .. }
            | Error::Unauthenticated { .. }
            | Error::InvalidPath { .. }
            | Error::NotImplemented { .. }
            | Error::NotSupported { .. }
    )
}

/// Cuts content into parts of [`PART`] bytes and a rest. Some stores demand equal parts. Copies nothing.
fn in_parts(content: Vec<Bytes>) -> Vec<PutPayload> {
    let mut pieces: VecDeque<Bytes> = content.into();
    let mut parts = Vec::new();
    while !pieces.is_empty() {
        let (mut part, mut room) = (Vec::new(), PART);
        while let Some(mut piece) = pieces.pop_front() {
            if piece.len() > room {
                let rest = piece.split_off(room);
                pieces.push_front(rest);
            }
            room -= piece.len();
            part.push(piece);
            if room == 0 {
                break;
            }
        }
        parts.push(part.into_iter().collect());
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_equal_and_hold_the_content_in_order() {
        let content: Vec<u8> = (0..2 * PART + 5).map(|at| (at % 251) as u8).collect();
        let content = Bytes::from(content);
        for cuts in [vec![], vec![7], vec![PART - 1, PART + 1], vec![PART, 2 * PART]] {
            let (mut pieces, mut rest) = (Vec::new(), content.clone());
            for cut in cuts.iter().rev() {
                pieces.insert(0, rest.split_off(*cut));
            }
            pieces.insert(0, rest);
            let parts = in_parts(pieces);
            let lengths: Vec<_> = parts.iter().map(PutPayload::content_length).collect();
            assert_eq!(lengths, [PART, PART, 5], "{cuts:?}");
            let joined: Vec<u8> = parts.into_iter().flat_map(|part| Bytes::from(part).to_vec()).collect();
            assert!(joined == content, "{cuts:?}");
        }
    }

    #[tokio::test]
    async fn one_content_under_several_names_has_references_in_their_order() {
        let (store, load) = RunStore::in_memory().counted();
        let names: Vec<String> = (0..2 * SLOTS + 1).map(|number| format!("modules/{number}")).collect();
        let content = Bytes::from_static(b"the seed's");
        let stored = store.put_replacing_each(names.clone(), &content).await.unwrap();
        assert!(stored.iter().map(|object| &object.name).eq(&names), "{stored:?}");
        for object in &stored {
            assert_eq!(store.get(object).await.unwrap(), content);
        }
        assert!(load.writes().values().all(|&writes| writes == 1), "{:?}", load.writes());
        let error = store.put_replacing_each([names[0].clone(), "../else".to_owned()], &content).await;
        assert!(matches!(error, Err(StoreError::Name { .. })), "{error:?}");
    }

    #[tokio::test]
    async fn writers_of_one_large_content_that_look_up_its_name_together_leave_it_whole() {
        let (store, load) = RunStore::in_parts_in_memory().counted();
        let content = Bytes::from((0..PART + 5).map(|at| (at % 251) as u8).collect::<Vec<_>>());
        let object = ObjectRef::of("paths/3/10-7-hash", &content);
        let writers = [(); 2].map(|()| store.put_referenced(&object, [content.clone()]));
        let [first, second] = writers;
        let (first, second) = tokio::join!(first, second);
        first.unwrap();
        second.unwrap();
        assert_eq!(load.writes()[&object.name], 2, "neither found the object: this is the race");
        assert_eq!(store.get(&object).await.unwrap(), content);
        // A later writer of another content is refused, and one of the same writes nothing.
        let other = ObjectRef::of(&object.name, &content[1..]);
        let error = store.put_referenced(&other, [content.slice(1..)]).await.unwrap_err();
        assert!(matches!(error, StoreError::Exists { .. }), "{error}");
        store.put_referenced(&object, [content.clone()]).await.unwrap();
        assert_eq!(load.writes()[&object.name], 2);
    }
}
