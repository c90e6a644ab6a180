//! Remote bytes on a local disk, so that a second epoch, or another process of the machine, need not fetch them again.
//!
//! What is kept are the ranges that are read, each under the object's size and version: data that was replaced is
//! never served. Of several processes one fetches, and the others wait for it. An entry that does not pass its checksum
//! is fetched anew. A disk that is full or cannot be written only means that nothing more is kept.

mod entry;
mod folder;

#[cfg(test)]
mod tests;

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, RecvTimeoutError, bounded};

use self::entry::Key;
use self::folder::{Asked, Claim};
pub use self::folder::{Folder, Usage, clear, usage};
use crate::cancel::Cancel;
use crate::error::Result;
use crate::store::{Condition, Content, Entry, Fetch, Object, Pending, Store, Traffic};

/// Shorter ranges are not kept: a file for each would cost more than it saves.
const SHORTEST: u64 = 4 << 10;
/// How often it is looked whether another process is done.
const POLL: Duration = Duration::from_millis(10);
/// How long that is waited for; then the range is read without the cache. Scope: a read. Evidence: half of what a store
/// is given for one, so that a process that was stopped costs others no more than a bad moment of the network.
const PATIENCE: Duration = if cfg!(test) { Duration::from_secs(3) } else { Duration::from_secs(30) };

/// A store of which the bytes that were read are kept on a local disk. Whatever it is, it is read like a remote one.
#[derive(Debug)]
struct CachedStore {
    store: Arc<dyn Store>,
    folder: Arc<Folder>,
}

/// Keeps what is read from a store in `folder`, if there is one and reads are slow enough.
pub fn cached(store: Arc<dyn Store>, folder: Option<&Arc<Folder>>) -> Arc<dyn Store> {
    match folder {
        Some(folder) if store.is_slow() => Arc::new(CachedStore { store, folder: Arc::clone(folder) }),
        _ => store,
    }
}

impl Store for CachedStore {
    fn url(&self) -> &str {
        self.store.url()
    }

    fn uri(&self, path: &str) -> String {
        self.store.uri(path)
    }

    fn endpoint(&self) -> Option<String> {
        self.store.endpoint()
    }

    fn revision(&self) -> Option<String> {
        self.store.revision()
    }

    fn below(&self, prefix: &str) -> Result<Arc<dyn Store>> {
        Ok(cached(self.store.below(prefix)?, Some(&self.folder)))
    }

    fn can_list(&self) -> bool {
        self.store.can_list()
    }

    fn list(&self, prefix: &str, cancel: &Cancel, found: &mut dyn FnMut(Object)) -> Result<()> {
        self.store.list(prefix, cancel, found)
    }

    fn list_starting(&self, start: &str, cancel: &Cancel, found: &mut dyn FnMut(Object)) -> Result<()> {
        self.store.list_starting(start, cancel, found)
    }

    fn entries(&self, start: &str, cancel: &Cancel, found: &mut dyn FnMut(Entry)) -> Result<()> {
        self.store.entries(start, cancel, found)
    }

    fn head(&self, path: &str, cancel: &Cancel) -> Result<Object> {
        self.store.head(path, cancel)
    }

    fn entry(&self, path: &str, cancel: &Cancel) -> Result<Entry> {
        self.store.entry(path, cancel)
    }

    fn fetch(&self, object: &Object, range: Range<u64>) -> Fetch {
        let key = if range.end - range.start < SHORTEST { None } else { Key::new(self.store.as_ref(), object, &range) };
        match key {
            None => self.store.fetch(object, range),
            Some(key) => Fetch::new(CachedRead::start(self, key, object, range)),
        }
    }

    fn write(&self, path: &str, content: Content<'_>, condition: &Condition, cancel: &Cancel) -> Result<Option<Entry>> {
        self.store.write(path, content, condition, cancel)
    }

    fn delete(&self, path: &str, cancel: &Cancel) -> Result<()> {
        self.store.delete(path, cancel)
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn traffic(&self) -> &Traffic {
        self.store.traffic()
    }
}

/// A read that was started.
struct CachedRead {
    store: Arc<dyn Store>,
    folder: Arc<Folder>,
    key: Key,
    object: Object,
    range: Range<u64>,
    source: Source,
}

/// Where the bytes of a read come from.
enum Source {
    Entry(File),
    /// A thread of ours, which fetches them whether or not this read is given up: others may wait for them.
    Thread(Receiver<Result<Vec<u8>>>),
    /// Another process, or another read of this one.
    Other,
    /// The store alone.
    Store(Fetch),
}

impl CachedRead {
    fn start(cached: &CachedStore, key: Key, object: &Object, range: Range<u64>) -> Self {
        let (store, folder) = (Arc::clone(&cached.store), Arc::clone(&cached.folder));
        let mut read = Self { store, folder, key, object: object.clone(), range, source: Source::Other };
        read.source = read.find();
        read
    }

    fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    fn find(&self) -> Source {
        match self.folder.ask(self.key, self.len()) {
            Asked::Here(file) => Source::Entry(file),
            Asked::Claimed(claim) => self.fill(claim),
            Asked::Awaited => Source::Other,
            Asked::Closed => self.direct(),
        }
    }

    fn direct(&self) -> Source {
        Source::Store(self.store.fetch(&self.object, self.range.clone()))
    }

    /// Fetches an entry in a thread of its own.
    fn fill(&self, claim: Claim) -> Source {
        let fetch = self.store.fetch(&self.object, self.range.clone());
        let (folder, key) = (Arc::clone(&self.folder), self.key);
        let (sender, receiver) = bounded(1);
        let work = move || {
            let mut bytes = Vec::new();
            let fetched = fetch.wait_into(&Cancel::new(), &mut bytes);
            if fetched.is_ok() {
                folder.publish(claim, key, &bytes);
            } else {
                drop(claim);
            }
            // Nobody may want it any more.
            drop(sender.send(fetched.map(|()| bytes)));
        };
        match std::thread::Builder::new().name("headrace-cache".to_owned()).spawn(work) {
            Ok(_) => Source::Thread(receiver),
            Err(_) => self.direct(),
        }
    }
}

impl Pending for CachedRead {
    fn finish(mut self: Box<Self>, cancel: &Cancel, buffer: &mut Vec<u8>) -> Result<()> {
        let mut is_second = false;
        let begin = Instant::now();
        loop {
            cancel.check()?;
            let source = std::mem::replace(&mut self.source, Source::Other);
            self.source = match source {
                Source::Entry(file) => match entry::read(&file, self.key, self.len(), buffer) {
                    Ok(()) => {
                        self.store.traffic().cached.fetch_add(self.len(), Ordering::Relaxed);
                        return Ok(());
                    }
                    Err(error) => {
                        self.folder.discard(self.key, &error);
                        let source = if is_second { self.direct() } else { self.find() };
                        is_second = true;
                        source
                    }
                },
                Source::Thread(receiver) => match receiver.recv_timeout(POLL) {
                    Ok(fetched) => {
                        let mut bytes = fetched?;
                        // An empty buffer takes over the memory.
                        if buffer.capacity() == 0 {
                            std::mem::swap(buffer, &mut bytes);
                        }
                        buffer.append(&mut bytes);
                        return Ok(());
                    }
                    Err(RecvTimeoutError::Timeout) => Source::Thread(receiver),
                    // Its thread panicked.
                    Err(RecvTimeoutError::Disconnected) => self.direct(),
                },
                Source::Other if begin.elapsed() > PATIENCE => self.direct(),
                Source::Other => match self.find() {
                    Source::Other => {
                        std::thread::sleep(POLL);
                        Source::Other
                    }
                    source => source,
                },
                Source::Store(fetch) => return fetch.wait_into(cancel, buffer),
            };
        }
    }
}
