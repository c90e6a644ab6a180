//! Storing an object: with one request, part by part, or by another library; and a look at what was stored.
//!
//! The thread that stores reads the content, hands its parts to the runtime, and waits. Nothing of an object is seen
//! before all of it is there: the last request of each way makes it visible.

use std::collections::VecDeque;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::cancel::Cancel;
use crate::error::{Error, Result, StoreFault};
use crate::store::content::Source;
use crate::store::remote::RemoteStore;
use crate::store::remote::backend::{Ask, Fault, Parts, Writer};
use crate::store::remote::observe::Notes;
use crate::store::remote::runtime::{Task, uploads};
use crate::store::remote::shared::{BackendOf, differ};
use crate::store::{Condition, Content, Entry, Store, Version};

/// Bytes of a part, and the longest object that is sent with one request. Scope: a request. Evidence: S3 wants at least
/// 5 MiB; at 64 MiB/s a part takes as long as eight round trips of 15 ms, and one that breaks costs little.
const PART: u64 = 8 << 20;

/// The most parts of an object: S3 and Google Cloud Storage take so many.
const MOST_PARTS: u64 = 10_000;

/// Bytes of the parts of one object that are in memory at once. Scope: an object. Evidence: four parts of the usual size
/// keep four connections busy, as reads do.
const IN_MEMORY: u64 = 32 << 20;

/// How often an object is stored anew if what was stored is not what was sent, or its upload is gone.
const ROUNDS: u32 = 2;

/// How long parts that nobody wants are waited for to be forgotten. It goes on afterwards while the process lives.
const ABORTING: Duration = Duration::from_secs(1);

/// One object that is being stored or removed.
pub(super) struct Writing<'a> {
    store: &'a RemoteStore,
    path: &'a str,
    key: String,
    cancel: &'a Cancel,
}

impl<'a> Writing<'a> {
    /// An object by its path; an error if it cannot be written.
    pub(super) fn new(store: &'a RemoteStore, path: &'a str, cancel: &'a Cancel) -> Result<Self> {
        if !store.shared.can_write() {
            let place = store.shared.provider.root();
            return Err(Error::Argument(format!(
                "{}: files cannot be written there\nhint: {place} is read only for headrace",
                store.uri(path)
            )));
        }
        let key = store.file_key(path)?;
        Ok(Self { store, path, key, cancel })
    }

    /// Removes it; nothing, if there is none.
    pub(super) fn delete(&self) -> Result<()> {
        self.request("delete", 0, |client, ask| async move { writer(&client)?.puts().delete(ask).await })?
            .wait(self.cancel)?
    }

    /// Stores it, and looks at what was stored; `None` if the condition does not hold.
    pub(super) fn write(&self, content: Content<'_>, condition: &Condition) -> Result<Option<Entry>> {
        let source = Source::open(content)?;
        let mut round = 1;
        loop {
            let stored = match self.store_once(&source, content, condition) {
                // The upload was forgotten by the server, or its end was not heard of: which of both cannot be told.
                Err(Error::Store { fault: StoreFault::NotFound, .. })
                    if round < ROUNDS && source.len > PART && self.root_answers() =>
                {
                    round += 1;
                    continue;
                }
                stored => stored?,
            };
            let Some(version) = stored else { return Ok(None) };
            let entry = self.store.entry(self.path, self.cancel)?;
            if entry.object.size == source.len && !differ(&version, &entry.object.version) {
                return Ok(Some(entry));
            }
            if round == ROUNDS {
                return Err(self.error(
                    "write",
                    format!(
                        "expected {} bytes of version {:?} to be stored, found {} of version {:?}\nhint: is another \
                         process writing the same file?",
                        source.len,
                        version.token(),
                        entry.object.size,
                        entry.object.version.token()
                    ),
                ));
            }
            round += 1;
        }
    }

    fn store_once(&self, source: &Source<'_>, content: Content<'_>, condition: &Condition) -> Result<Option<Version>> {
        if let (Content::File(path), true) = (content, self.store.shared.takes_files()) {
            return self.file(source, path, condition);
        }
        if source.len <= PART || self.store.shared.takes_files() {
            return self.whole(Bytes::from(source.read(0..source.len)?), condition);
        }
        if *condition != Condition::Always {
            return Err(Error::Argument(format!(
                "{}: expected at most {PART} bytes to be stored under a condition, got {}",
                self.store.uri(self.path),
                source.len
            )));
        }
        self.parts(source).map(Some)
    }

    /// With one request.
    fn whole(&self, bytes: Bytes, condition: &Condition) -> Result<Option<Version>> {
        let made = Arc::new(AtomicU32::new(0));
        let (sent, count, wanted) = (bytes.clone(), Arc::clone(&made), condition.clone());
        let stored = self
            .request("write", bytes.len() as u64, move |client, ask| {
                count.fetch_add(1, Ordering::Relaxed);
                let (sent, wanted) = (sent.clone(), wanted.clone());
                async move { writer(&client)?.puts().put(ask, sent, wanted).await }
            })?
            .wait(self.cancel)??;
        // The answer to an attempt before may have been lost, whose object is then in the way of this one.
        if stored.is_none() && made.load(Ordering::Relaxed) > 1 && self.holds(&bytes)? {
            return Ok(Some(Version::Unknown));
        }
        Ok(stored)
    }

    /// Whether these bytes are what is there.
    fn holds(&self, bytes: &[u8]) -> Result<bool> {
        let object = match self.store.head(self.path, self.cancel) {
            Err(Error::Store { fault: StoreFault::NotFound, .. }) => return Ok(false),
            found => found?,
        };
        let mut found = Vec::new();
        if object.size == bytes.len() as u64 {
            self.store.fetch(&object, 0..object.size).wait_into(self.cancel, &mut found)?;
        }
        Ok(found == bytes)
    }

    /// By a library that reads the file itself.
    fn file(&self, source: &Source<'_>, path: &Path, condition: &Condition) -> Result<Option<Version>> {
        if *condition != Condition::Always {
            return self.whole(Bytes::from(source.read(0..source.len)?), condition);
        }
        let path = path.to_owned();
        self.request("write", source.len, move |client, ask| {
            let path = path.clone();
            async move {
                match writer(&client)? {
                    Writer::Whole(whole) => whole.put_file(ask, path).await,
                    Writer::Parts(_) => Err("a store that takes no files".into()),
                }
            }
        })?
        .wait(self.cancel)??;
        source.check()?;
        Ok(Some(Version::Unknown))
    }

    /// Part by part, of which only some are in memory.
    fn parts(&self, source: &Source<'_>) -> Result<Version> {
        let begin = self.request("begin to write", 0, |client, ask| async move { parts(&client)?.begin(ask).await })?;
        let upload = begin.wait(self.cancel)??;
        let done = self.send_parts(source, &upload).and_then(|names| {
            let upload = upload.clone();
            self.request("end writing", 0, move |client, ask| {
                let (upload, names) = (upload.clone(), names.clone());
                async move { parts(&client)?.complete(ask, upload, names).await }
            })?
            .wait(self.cancel)?
        });
        if done.is_err() {
            self.abort(upload);
        }
        done
    }

    /// Gives the parts' names.
    fn send_parts(&self, source: &Source<'_>, upload: &str) -> Result<Vec<String>> {
        let size = part_size(source.len);
        let most = (IN_MEMORY / size).max(1) as usize;
        let (mut names, mut flying) = (Vec::new(), VecDeque::new());
        let mut at = 0;
        while at < source.len || !flying.is_empty() {
            if at < source.len && flying.len() < most {
                let end = source.len.min(at + size);
                let number = names.len() + flying.len();
                flying.push_back(self.part(upload, number, at, Bytes::from(source.read(at..end)?))?);
                at = end;
            } else if let Some(task) = flying.pop_front() {
                names.push(task.wait(self.cancel)??);
            }
        }
        source.check()?;
        Ok(names)
    }

    fn part(&self, upload: &str, number: usize, at: u64, bytes: Bytes) -> Result<Task<Result<String>>> {
        let upload = upload.to_owned();
        let sent = bytes.len() as u64;
        self.request(&format!("write bytes {at}..{}", at + sent), sent, move |client, ask| {
            let (upload, bytes) = (upload.clone(), bytes.clone());
            async move { parts(&client)?.part(ask, upload, number, bytes).await }
        })
    }

    /// Forgets parts; what becomes of that is not this object's fault any more.
    fn abort(&self, upload: String) {
        let task = self.request("forget parts", 0, move |client, ask| {
            let upload = upload.clone();
            async move { parts(&client)?.abort(ask, upload).await }
        });
        if let Ok(task) = task {
            task.leave(if self.cancel.is_cancelled() { Duration::ZERO } else { ABORTING });
        }
    }

    /// Starts a request on the runtime, which is made until it succeeds or cannot; `sent` is the length of its body.
    fn request<T, F>(
        &self,
        operation: &str,
        sent: u64,
        request: impl Fn(BackendOf, Ask) -> F + Send + 'static,
    ) -> Result<Task<Result<T>>>
    where
        T: Send + 'static,
        F: Future<Output = std::result::Result<T, Fault>> + Send,
    {
        let (shared, uri, operation) =
            (Arc::clone(&self.store.shared), self.store.uri(self.path), operation.to_owned());
        let notes = Notes::default();
        let ask = shared.ask(&self.key, notes.clone());
        let salt = xxh3_64_with_seed(operation.as_bytes(), xxh3_64_with_seed(self.key.as_bytes(), 3));
        Task::spawn(async move {
            let _turn = match sent {
                0 => None,
                _ => Some(uploads()?.acquire().await.map_err(|e| Error::Internal(e.to_string()))?),
            };
            shared.retry(uri, &operation, sent, salt, notes, move |client| request(client, ask.clone())).await
        })
    }

    /// Whether the bucket is there, so that what was not found can only be the upload.
    fn root_answers(&self) -> bool {
        match self.store.head(self.path, self.cancel) {
            Err(Error::Store { fault: StoreFault::NotFound, detail, .. }) => !detail.contains("\nhint: "),
            found => found.is_ok(),
        }
    }

    fn error(&self, operation: &str, detail: String) -> Error {
        let (uri, operation) = (self.store.uri(self.path), operation.to_owned());
        Error::Store { uri, operation, fault: StoreFault::Other, attempts: ROUNDS, detail }
    }
}

fn writer(client: &BackendOf) -> std::result::Result<Writer<'_>, Fault> {
    client.writer().ok_or_else(|| "a store that is not written to".into())
}

fn parts(client: &BackendOf) -> std::result::Result<&dyn Parts, Fault> {
    match writer(client)? {
        Writer::Parts(parts) => Ok(parts),
        Writer::Whole(_) => Err("a store that takes no parts".into()),
    }
}

/// Bytes of each part of an object but the last.
fn part_size(len: u64) -> u64 {
    len.div_ceil(MOST_PARTS).next_multiple_of(PART)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_as_many_as_a_store_takes() {
        for len in [PART + 1, 3 * PART, MOST_PARTS * PART, MOST_PARTS * PART + 1, 5 << 40] {
            let size = part_size(len);
            assert!(size >= PART && len.div_ceil(size) <= MOST_PARTS, "{len}");
        }
        assert_eq!(part_size(MOST_PARTS * PART), PART);
    }
}
