//! Where bytes come from: one trait over local disks and object stores.
//!
//! Calls block. Reads are split in two so that slow stores can work ahead: [`Store::fetch`] starts a read and
//! returns at once, [`Fetch::wait_into`] waits for its bytes. A local read happens in `wait_into`, on the waiting
//! thread; a remote one runs on the process-wide HTTP runtime under the process-wide concurrency limit.

pub mod cache;
mod content;
pub mod local;
pub(crate) mod mapping;
pub mod open_file;
mod pages;
pub mod remote;
pub mod resolve;
pub mod root;
mod stream;
pub(crate) mod walk;

#[cfg(test)]
mod tests;

pub use content::{Condition, Content};
pub use pages::Pages;
pub use stream::ByteStream;

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::cancel::Cancel;
use crate::error::{Error, Result, StoreFault};

/// What tells two contents of one path apart without reading them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Version {
    /// Modification time of a local file, or of one of a web server that gives no tag, in nanoseconds since 1970.
    Modified(i64),
    /// The entity tag of an object.
    ETag(String),
    /// The store gives nothing: only the size can be compared.
    Unknown,
}

impl Version {
    /// In a few characters, for callers that keep it: `m` and nanoseconds, `e` and the entity tag, or nothing.
    pub fn token(&self) -> String {
        match self {
            Self::Modified(time) => format!("m{time}"),
            Self::ETag(tag) => format!("e{tag}"),
            Self::Unknown => String::new(),
        }
    }

    /// What [`Self::token`] stands for.
    pub fn from_token(token: &str) -> Result<Self> {
        let wrong = || {
            let wanted = "\"m\" and nanoseconds, \"e\" and an entity tag, or nothing";
            Error::Argument(format!("expected a version of a file ({wanted}), found {token:?}"))
        };
        match token.split_at_checked(1) {
            None if token.is_empty() => Ok(Self::Unknown),
            Some(("m", time)) => time.parse().map(Self::Modified).map_err(|_| wrong()),
            Some(("e", tag)) => Ok(Self::ETag(tag.to_owned())),
            _ => Err(wrong()),
        }
    }
}

/// A file or object as a listing shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Path below the store's root, `/` between its parts, never percent-encoded.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// What tells this content from another.
    pub version: Version,
}

/// A file or object with all that is known of it without reading it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Path, size and version.
    pub object: Object,
    /// When it was written, in nanoseconds since 1970, where the store tells.
    pub modified: Option<i64>,
}

impl Entry {
    /// Of a store that tells of times as versions or not at all.
    fn plain(object: Object) -> Self {
        let modified = match object.version {
            Version::Modified(time) => Some(time),
            _ => None,
        };
        Self { object, modified }
    }
}

/// Counts of what a store was asked for, for tests and `stats()`.
#[derive(Debug, Default)]
pub struct Traffic {
    /// Read requests sent, retries included.
    pub requests: AtomicU64,
    /// Bytes asked for and delivered, once each: bytes of a broken or repeated body do not count twice.
    pub bytes: AtomicU64,
    /// Requests sent again after a fault.
    pub retries: AtomicU64,
    /// Second requests for reads of which nothing came for a while.
    pub hedged: AtomicU64,
    /// Bytes that were not asked for because they lay in a disk cache.
    pub cached: AtomicU64,
}

impl Traffic {
    /// Notes a delivered read.
    pub fn add(&self, requests: u64, bytes: u64, retries: u64) {
        self.requests.fetch_add(requests, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.retries.fetch_add(retries, Ordering::Relaxed);
    }
}

/// A place that holds files. One value stands for one root (a folder, a bucket and prefix).
pub trait Store: Send + Sync + fmt::Debug {
    /// The root as a user would write it, without secrets: `/data/web` or `s3://bucket/web`.
    fn url(&self) -> &str;

    /// The full name of a path below the root, for messages and `sources()`.
    fn uri(&self, path: &str) -> String {
        if path.is_empty() { self.url().to_owned() } else { format!("{}/{path}", self.url().trim_end_matches('/')) }
    }

    /// Where requests go, if the URL does not say that: what tells two stores of one URL apart. Holds no secret.
    fn endpoint(&self) -> Option<String> {
        None
    }

    /// The revision that all is read of, once it is known, where a store has revisions that stay as they are: the commit
    /// of a repository.
    fn revision(&self) -> Option<String> {
        None
    }

    /// The same store with its root at a folder below this one.
    fn below(&self, prefix: &str) -> Result<Arc<dyn Store>>;

    /// Whether [`Self::list`] can work: a web server cannot say which files it has.
    fn can_list(&self) -> bool {
        true
    }

    /// Calls `found` with every file below `prefix` (`""` for all), in no particular order.
    ///
    /// Which names count as hidden is the index's business, not the store's.
    fn list(&self, prefix: &str, cancel: &Cancel, found: &mut dyn FnMut(Object)) -> Result<()>;

    /// Calls `found` with every file whose path begins with `start`, be that the name of a folder with a slash after
    /// it, or a part of a name.
    fn list_starting(&self, start: &str, cancel: &Cancel, found: &mut dyn FnMut(Object)) -> Result<()> {
        let folder = start.rsplit_once('/').map_or("", |(folder, _)| folder);
        self.list(folder, cancel, &mut |object| {
            if object.path.starts_with(start) {
                found(object);
            }
        })
    }

    /// As [`Self::list_starting`], with all that is known of each file.
    fn entries(&self, start: &str, cancel: &Cancel, found: &mut dyn FnMut(Entry)) -> Result<()> {
        self.list_starting(start, cancel, &mut |object| found(Entry::plain(object)))
    }

    /// Size and version of one file now.
    fn head(&self, path: &str, cancel: &Cancel) -> Result<Object>;

    /// As [`Self::head`], with all that is known of the file.
    fn entry(&self, path: &str, cancel: &Cancel) -> Result<Entry> {
        self.head(path, cancel).map(Entry::plain)
    }

    /// Starts to read `range` of `object`; faults are reported by [`Fetch::wait_into`].
    ///
    /// The range must lie within `object.size`. A file that is no longer `object` (other size or version) is
    /// [`crate::Error::Changed`].
    fn fetch(&self, object: &Object, range: Range<u64>) -> Fetch;

    /// Stores a file whole, atomically: readers see what was there before or the new content. What is stored is looked at
    /// before this returns; `None` if the condition does not hold.
    fn write(&self, path: &str, content: Content<'_>, condition: &Condition, cancel: &Cancel) -> Result<Option<Entry>>;

    /// Stores bytes, whatever is there.
    fn put(&self, path: &str, bytes: &[u8], cancel: &Cancel) -> Result<()> {
        self.write(path, Content::Bytes(bytes), &Condition::Always, cancel).map(drop)
    }

    /// Removes a file; nothing, if there is none.
    fn delete(&self, path: &str, cancel: &Cancel) -> Result<()>;

    /// Whether reads travel over a network, so that working ahead pays.
    fn is_remote(&self) -> bool;

    /// Whether what is read is worth keeping on a local disk: where a read is slow, or costs something.
    fn is_slow(&self) -> bool {
        self.is_remote()
    }

    /// The root, if it is a folder of this machine.
    fn folder(&self) -> Option<&Path> {
        None
    }

    /// What was asked for so far.
    fn traffic(&self) -> &Traffic;
}

/// How a started read is finished; each store has its own.
pub trait Pending: Send {
    /// Appends the bytes of the range to `buffer`, all of them or an error (then `buffer` is as before).
    fn finish(self: Box<Self>, cancel: &Cancel, buffer: &mut Vec<u8>) -> Result<()>;
}

/// A read that was started. Dropping it abandons the read.
pub struct Fetch(Box<dyn Pending>);

impl Fetch {
    /// Wraps a store's own kind of pending read.
    pub fn new(pending: impl Pending + 'static) -> Self {
        Self(Box::new(pending))
    }

    /// Waits for the read and appends its bytes to `buffer`; on error `buffer` is as it was.
    pub fn wait_into(self, cancel: &Cancel, buffer: &mut Vec<u8>) -> Result<()> {
        self.0.finish(cancel, buffer)
    }
}

/// Bytes that [`read`] asks for at a time. Scope: a read. Unit: bytes. Evidence: what a store sends with one request
/// at most; a local read of this length ends well within the 100 ms in which Ctrl-C is to act.
pub const READ_BLOCK: u64 = 8 << 20;

/// Reads of [`READ_BLOCK`] that [`read`] has under way beyond the one that it waits for, from a remote store. Scope: a
/// read. Evidence: five connections fill most networks; the process-wide limit on requests holds beside it.
const READ_AHEAD: usize = 4;

/// Reads a range of a file into new memory: long ones in blocks, with reads ahead where the store is remote.
///
/// # Errors
/// [`Error::Argument`] for a range that does not lie within the object or a path that leads out of the root, and those
/// of [`Store::fetch`].
pub fn read(store: &Arc<dyn Store>, object: &Object, range: Range<u64>, cancel: &Cancel) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    check_below(store.as_ref(), &object.path)?;
    let Range { start, end } = range;
    if start > end || end > object.size {
        return Err(Error::Argument(format!(
            "{}: expected a range within its {} bytes, got {start}..{end}",
            store.uri(&object.path),
            object.size
        )));
    }
    if end - start <= READ_BLOCK {
        // The store's own memory is handed on.
        store.fetch(object, range).wait_into(cancel, &mut bytes)?;
        return Ok(bytes);
    }
    let wanted = usize::try_from(end - start).ok().filter(|wanted| bytes.try_reserve_exact(*wanted).is_ok());
    let Some(wanted) = wanted else {
        return Err(Error::Store {
            uri: store.uri(&object.path),
            operation: format!("read bytes {start}..{end}"),
            fault: StoreFault::Other,
            attempts: 1,
            detail: format!("there is no memory for {} bytes", end - start),
        });
    };
    let ahead = if store.is_remote() { READ_AHEAD } else { 0 };
    let mut stream = ByteStream::new(Arc::clone(store), object.clone(), range, READ_BLOCK, ahead, cancel.clone());
    while bytes.len() < wanted {
        let next = wanted.min(bytes.len() + READ_BLOCK as usize);
        stream.fill(&mut bytes, next)?;
    }
    Ok(bytes)
}

/// Size and version now of a file that something else names, such as an index next to it.
///
/// # Errors
/// [`Error::Argument`] for a path that leads out of the root, and those of [`Store::head`].
pub fn head_below(store: &dyn Store, path: &str, cancel: &Cancel) -> Result<Object> {
    check_below(store, path)?;
    store.head(path, cancel)
}

/// All that is known of a file now.
///
/// # Errors
/// [`Error::Argument`] for a path that leads out of the root, and those of [`Store::entry`].
pub fn entry_below(store: &dyn Store, path: &str, cancel: &Cancel) -> Result<Entry> {
    check_below(store, path)?;
    store.entry(path, cancel)
}

/// Stores a file whole; `None` if the condition does not hold.
///
/// # Errors
/// [`Error::Argument`] for a path that leads out of the root, and those of [`Store::write`].
pub fn write(
    store: &dyn Store,
    path: &str,
    content: Content<'_>,
    condition: &Condition,
    cancel: &Cancel,
) -> Result<Option<Entry>> {
    check_below(store, path)?;
    store.write(path, content, condition, cancel)
}

/// Removes a file; nothing, if there is none.
///
/// # Errors
/// [`Error::Argument`] for a path that leads out of the root, and those of [`Store::delete`].
pub fn delete(store: &dyn Store, path: &str, cancel: &Cancel) -> Result<()> {
    check_below(store, path)?;
    store.delete(path, cancel)
}

/// Paths may come from files: none leads out of the root.
fn check_below(store: &dyn Store, path: &str) -> Result<()> {
    if path.contains('\0') || path.split('/').any(|part| matches!(part, "" | "." | "..")) {
        return Err(Error::Argument(format!("{path:?}: expected a path below {}, of names alone", store.url())));
    }
    Ok(())
}

impl fmt::Debug for Fetch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fetch")
    }
}
