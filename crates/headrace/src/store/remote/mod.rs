//! Files that are reached over a network: buckets of several providers, web servers, and the Hugging Face Hub.
//!
//! Each kind of store is a module that says what its settings mean and makes a client (`s3`, `gcs`, `azure`, `http`,
//! `hf`, and `foreign` for what another library reads). All else is done once for all of them: attempts, deadlines and renewed credentials (`shared`, `retry`), what
//! servers said (`observe`), the limit on requests (`runtime`), and the reading of settings (`settings`). Keys are raw:
//! a `%` in a URL is a `%` in the key, but for web servers, whose URLs stay as they are.
//!
//! Every read is cut into pieces, each one request that is read to its end at once, repeated and continued. The version
//! of the listing goes with each, so all bytes are of one version of the object. Every kind takes `timeout`,
//! `connect_timeout`, `retry_timeout` and `max_retries`.

mod azure;
mod backend;
pub mod foreign;
mod gcs;
mod hf;
mod http;
mod observe;
mod profile;
mod provider;
mod retry;
mod runtime;
mod s3;
mod settings;
mod shared;
mod web;
mod write;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64_with_seed;

pub use azure::Azure;
pub use backend::{Facts, Hidden};
pub use gcs::Gcs;
pub use hf::Hf;
pub use http::{Http, HttpUrl};
pub use provider::Provider;
pub use s3::S3;

use self::observe::{Notes, addressable};
use self::runtime::Task;
use self::shared::{Piece, Shared};
use self::write::Writing;
use crate::cancel::Cancel;
use crate::error::{Error, Result, StoreFault};
use crate::store::{Condition, Content, Entry, Fetch, Object, Pending, Store, Traffic};

/// Longest body asked for with one request. Scope: a request. Unit: bytes. Evidence: at the 16 KiB/s that still
/// count as progress a piece ends within ten minutes, at a usual 80 MB/s within 0.1 s, so that the cost of a
/// request (some 20 ms) stays small; and a broken piece holds up little.
const PIECE: u64 = 8 << 20;

/// A bucket, container, repository or server, or the keys below a prefix of it.
#[derive(Debug)]
pub struct RemoteStore {
    shared: Arc<Shared>,
    /// The prefix, without slashes at its ends.
    prefix: String,
    url: String,
}

impl RemoteStore {
    /// The keys of a store below `prefix` (`""` for all). Sends nothing.
    pub fn new(provider: Arc<dyn Provider>, prefix: &str) -> Result<Self> {
        Self::with_queries(provider, prefix, BTreeMap::new())
    }

    /// The same, with what has to follow some keys in their URLs. A query is sent, and shown nowhere.
    pub fn with_queries(provider: Arc<dyn Provider>, prefix: &str, queries: BTreeMap<String, Hidden>) -> Result<Self> {
        Ok(Self::at(Arc::new(Shared::new(provider, queries)?), prefix))
    }

    fn at(shared: Arc<Shared>, prefix: &str) -> Self {
        let prefix = prefix.trim_matches('/').to_owned();
        let url = shared.provider.uri(&prefix);
        Self { shared, prefix, url }
    }

    fn key(&self, path: &str) -> String {
        if self.prefix.is_empty() { path.to_owned() } else { format!("{}/{path}", self.prefix) }
    }

    /// The key of a file, if it can be one.
    fn file_key(&self, path: &str) -> Result<String> {
        let key = self.key(path);
        if addressable(&key) {
            return Ok(key);
        }
        Err(Error::Argument(format!(
            "{}: the key has an empty or relative part or a control character, and cannot be read",
            self.shared.provider.uri(&key)
        )))
    }

    fn start(&self, object: &Object, range: Range<u64>) -> Result<Vec<Task<Result<Vec<u8>>>>> {
        if range.end > object.size || range.start > range.end {
            return Err(Error::Internal(format!(
                "{}: asked for bytes {}..{} of {}",
                self.uri(&object.path),
                range.start,
                range.end,
                object.size
            )));
        }
        let key = self.file_key(&object.path)?;
        let mut tasks = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let piece = at..range.end.min(at + PIECE);
            at = piece.end;
            let shared = Arc::clone(&self.shared);
            let work = Piece {
                uri: self.uri(&object.path),
                key: key.clone(),
                size: object.size,
                version: object.version.clone(),
                range: piece,
                bytes: Vec::new(),
            };
            tasks.push(Task::spawn(async move { shared.read(work).await })?);
        }
        Ok(tasks)
    }
}

impl Store for RemoteStore {
    fn url(&self) -> &str {
        &self.url
    }

    fn uri(&self, path: &str) -> String {
        if path.is_empty() { self.url.clone() } else { self.shared.provider.uri(&self.key(path)) }
    }

    fn endpoint(&self) -> Option<String> {
        self.shared.endpoint()
    }

    fn revision(&self) -> Option<String> {
        self.shared.provider.revision()
    }

    fn below(&self, prefix: &str) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(Self::at(Arc::clone(&self.shared), &self.key(prefix))))
    }

    fn can_list(&self) -> bool {
        self.shared.provider.can_list()
    }

    fn list(&self, prefix: &str, cancel: &Cancel, found: &mut dyn FnMut(Object)) -> Result<()> {
        let prefix = prefix.trim_matches('/');
        let start = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        self.list_starting(&start, cancel, found)
    }

    fn list_starting(&self, start: &str, cancel: &Cancel, found: &mut dyn FnMut(Object)) -> Result<()> {
        self.entries(start, cancel, &mut |entry| found(entry.object))
    }

    fn entries(&self, start: &str, cancel: &Cancel, found: &mut dyn FnMut(Entry)) -> Result<()> {
        let whole = self.key(start);
        let cut = if self.prefix.is_empty() { 0 } else { self.prefix.len() + 1 };
        let salt = xxh3_64_with_seed(whole.as_bytes(), 1);
        let uri = self.shared.provider.uri(&whole);
        let mut next: Option<String> = None;
        loop {
            let shared = Arc::clone(&self.shared);
            let notes = Notes::default();
            let seen = notes.clone();
            let ask = self.shared.ask(&whole, notes.clone());
            let (token, place) = (next.take(), uri.clone());
            let before = token.clone();
            let page = Task::spawn(async move {
                shared
                    .retry(place, "list", 0, salt, notes, |client| {
                        let (ask, token) = (ask.clone(), token.clone());
                        async move { client.list(ask, token).await }
                    })
                    .await
            })?
            .wait(cancel)??;
            if let Some(key) = seen.outcome().odd_key {
                return Err(Error::Argument(format!(
                    "{uri}: the key {key:?} has an empty or relative part or a control character, and cannot be \
                     read\nhint: rename it, or give a folder or pattern that does not contain it"
                )));
            }
            for listed in page.entries {
                found(entry(listed.key.get(cut..).unwrap_or_default(), listed.facts));
            }
            match page.next {
                Some(token) if before.as_ref() == Some(&token) => {
                    let detail = "the server says that its listing goes on where this part of it began".to_owned();
                    let operation = "list".to_owned();
                    return Err(Error::Store { uri, operation, fault: StoreFault::Other, attempts: 1, detail });
                }
                Some(token) => next = Some(token),
                None => return Ok(()),
            }
        }
    }

    fn head(&self, path: &str, cancel: &Cancel) -> Result<Object> {
        self.entry(path, cancel).map(|entry| entry.object)
    }

    fn entry(&self, path: &str, cancel: &Cancel) -> Result<Entry> {
        let key = self.file_key(path)?;
        let salt = xxh3_64_with_seed(key.as_bytes(), 2);
        let (shared, uri, notes) = (Arc::clone(&self.shared), self.uri(path), Notes::default());
        let ask = self.shared.ask(&key, notes.clone());
        let facts = Task::spawn(async move {
            shared
                .retry(uri, "look up", 0, salt, notes, |client| {
                    let ask = ask.clone();
                    async move { client.head(ask).await }
                })
                .await
        })?
        .wait(cancel)??;
        Ok(entry(path, facts))
    }

    fn fetch(&self, object: &Object, range: Range<u64>) -> Fetch {
        Fetch::new(Started(self.start(object, range)))
    }

    fn write(&self, path: &str, content: Content<'_>, condition: &Condition, cancel: &Cancel) -> Result<Option<Entry>> {
        Writing::new(self, path, cancel)?.write(content, condition)
    }

    fn delete(&self, path: &str, cancel: &Cancel) -> Result<()> {
        Writing::new(self, path, cancel)?.delete()
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn traffic(&self) -> &Traffic {
        &self.shared.traffic
    }
}

fn entry(path: &str, facts: Facts) -> Entry {
    let Facts { size, version, modified } = facts;
    Entry { object: Object { path: path.to_owned(), size, version }, modified }
}

/// The pieces of one read, all under way.
struct Started(Result<Vec<Task<Result<Vec<u8>>>>>);

impl Pending for Started {
    fn finish(self: Box<Self>, cancel: &Cancel, buffer: &mut Vec<u8>) -> Result<()> {
        let before = buffer.len();
        for task in self.0? {
            match task.wait(cancel).and_then(|bytes| bytes) {
                // The first piece of an empty buffer is handed on rather than copied.
                Ok(bytes) if buffer.capacity() == 0 => *buffer = bytes,
                Ok(bytes) => buffer.extend_from_slice(&bytes),
                Err(error) => {
                    buffer.truncate(before);
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}
