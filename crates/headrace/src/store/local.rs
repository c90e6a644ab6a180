//! Files of a local (or mounted) file system.
//!
//! A read opens its file, compares size and modification time with the index, reads, and compares again: a file
//! that is replaced or written to while a run goes on is noticed, and no table of open files grows with the
//! dataset. Reads happen on the thread that waits for them.

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::NamedTempFile;

use crate::cancel::Cancel;
use crate::error::{Error, Result, StoreFault};
use crate::store::content::Source;
use crate::store::walk::{modified, walk};
use crate::store::{Condition, Content, Entry, Fetch, Object, Pending, READ_BLOCK, Store, Traffic, Version};

/// How the names of files begin and end that are not whole yet. Hidden, so that no listing takes them for data.
const UNFINISHED: (&str, &str) = (".headrace-", ".tmp");

/// A folder.
#[derive(Debug)]
pub struct LocalStore {
    root: PathBuf,
    url: String,
    is_slow: bool,
    traffic: Arc<Traffic>,
}

impl LocalStore {
    /// The folder at `root`, which must exist and have a UTF-8 name.
    pub fn new(root: &Path) -> Result<Self> {
        let metadata = fs::metadata(root).map_err(|e| io_error(root, "open", &e))?;
        if !metadata.is_dir() {
            return Err(Error::Argument(format!("{}: expected a folder, found a file", root.display())));
        }
        let root = std::path::absolute(root).map_err(|e| io_error(root, "open", &e))?;
        let Some(url) = root.to_str() else {
            return Err(Error::Argument(format!("{}: the folder's name is not UTF-8", root.display())));
        };
        Ok(Self { url: url.to_owned(), root, is_slow: false, traffic: Arc::default() })
    }

    /// The folder at `root`, which is made when the first file is stored.
    pub fn to_make(root: &Path) -> Result<Self> {
        let Some(url) = root.to_str() else {
            return Err(Error::Argument(format!("{}: the folder's name is not UTF-8", root.display())));
        };
        Ok(Self { url: url.to_owned(), root: root.to_owned(), is_slow: false, traffic: Arc::default() })
    }

    /// The same folder, marked as one that is slow to read, such as a mount that many machines share.
    pub fn slow(self, is_slow: bool) -> Self {
        Self { is_slow, ..self }
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }

    fn full(&self, path: &str) -> PathBuf {
        if path.is_empty() { self.root.clone() } else { self.root.join(path) }
    }
}

impl Store for LocalStore {
    fn url(&self) -> &str {
        &self.url
    }

    fn below(&self, prefix: &str) -> Result<Arc<dyn Store>> {
        Ok(Arc::new(Self::new(&self.full(prefix.trim_matches('/')))?.slow(self.is_slow)))
    }

    fn list(&self, prefix: &str, cancel: &Cancel, found: &mut dyn FnMut(Object)) -> Result<()> {
        let prefix = prefix.trim_matches('/');
        walk(&self.full(prefix), cancel, &mut |_| true, &mut |_, _| true, &mut |mut object| {
            if !prefix.is_empty() {
                object.path = format!("{prefix}/{}", object.path);
            }
            found(object);
            Ok(())
        })
    }

    fn entries(&self, start: &str, cancel: &Cancel, found: &mut dyn FnMut(Entry)) -> Result<()> {
        let folder = start.rsplit_once('/').map_or("", |(folder, _)| folder);
        if !self.full(folder).is_dir() {
            // As a store, which has no folders: what is not there holds nothing.
            return cancel.check();
        }
        self.list_starting(start, cancel, &mut |object| {
            if !is_unfinished(&object.path) {
                found(Entry::plain(object));
            }
        })
    }

    fn head(&self, path: &str, cancel: &Cancel) -> Result<Object> {
        cancel.check()?;
        let full = self.full(path);
        let metadata = fs::metadata(&full).map_err(|e| io_error(&full, "open", &e))?;
        if !metadata.is_file() {
            return Err(not_a_file(&full));
        }
        Ok(Object { path: path.to_owned(), size: metadata.len(), version: Version::Modified(modified(&metadata)) })
    }

    fn fetch(&self, object: &Object, range: Range<u64>) -> Fetch {
        Fetch::new(LocalRead {
            path: self.full(&object.path),
            size: object.size,
            modified: match object.version {
                Version::Modified(time) => Some(time),
                _ => None,
            },
            range,
            traffic: Arc::clone(&self.traffic),
        })
    }

    fn write(&self, path: &str, content: Content<'_>, condition: &Condition, cancel: &Cancel) -> Result<Option<Entry>> {
        cancel.check()?;
        let full = self.full(path);
        if let Condition::Unchanged(version) = condition {
            // Not one step with what follows: a file system has none for that.
            match self.head(path, cancel) {
                Ok(object) if object.version == *version => {}
                Ok(_) | Err(Error::Store { fault: StoreFault::NotFound, .. }) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        if let Some(folder) = full.parent() {
            fs::create_dir_all(folder).map_err(|e| disk_error(folder, "create folder", &e))?;
        }
        let source = Source::open(content)?;
        let file = aside(&full)?;
        let mut at = 0;
        while at < source.len {
            cancel.check()?;
            let end = source.len.min(at + READ_BLOCK);
            let bytes = source.read(at..end)?;
            (&mut file.as_file()).write_all(&bytes).map_err(|e| disk_error(&full, "write", &e))?;
            at = end;
        }
        source.check()?;
        let Some(metadata) = persist(file, &full, *condition == Condition::Absent)? else { return Ok(None) };
        let version = Version::Modified(modified(&metadata));
        Ok(Some(Entry::plain(Object { path: path.to_owned(), size: metadata.len(), version })))
    }

    fn delete(&self, path: &str, cancel: &Cancel) -> Result<()> {
        cancel.check()?;
        let full = self.full(path);
        match fs::symlink_metadata(&full) {
            Ok(metadata) if metadata.is_dir() => return Err(not_a_file(&full)),
            Err(e) if is_nothing(&e) => return Ok(()),
            _ => {}
        }
        match fs::remove_file(&full) {
            Err(e) if !is_nothing(&e) => Err(disk_error(&full, "delete", &e)),
            _ => Ok(()),
        }
    }

    fn is_remote(&self) -> bool {
        false
    }

    fn is_slow(&self) -> bool {
        self.is_slow
    }

    fn folder(&self) -> Option<&Path> {
        Some(&self.root)
    }

    fn traffic(&self) -> &Traffic {
        &self.traffic
    }
}

/// Replaces a file whole: a temporary file in the same folder, synced, then renamed. The folder must exist.
pub(crate) fn write_atomic(path: &Path, bytes: &[u8]) -> Result<()> {
    let file = aside(path)?;
    (&mut file.as_file()).write_all(bytes).map_err(|e| disk_error(path, "write", &e))?;
    persist(file, path, false).map(drop)
}

/// An empty file beside the one that it will be. It goes when it is dropped.
fn aside(path: &Path) -> Result<NamedTempFile> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut builder = tempfile::Builder::new();
    builder.prefix(UNFINISHED.0).suffix(UNFINISHED.1);
    // Readable as new files usually are, because other users may share the folder.
    builder.permissions(fs::Permissions::from_mode(0o666));
    builder.tempfile_in(folder).map_err(|e| disk_error(path, "write", &e))
}

/// Gives a file its name; `None` if only a new one may have it, and it is taken.
fn persist(file: NamedTempFile, path: &Path, only_new: bool) -> Result<Option<Metadata>> {
    let failed = |e: io::Error| disk_error(path, "write", &e);
    file.as_file().sync_all().map_err(failed)?;
    let metadata = file.as_file().metadata().map_err(failed)?;
    if only_new {
        match file.persist_noclobber(path) {
            Err(e) if e.error.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
            other => other.map_err(|e| failed(e.error))?,
        };
    } else {
        file.persist(path).map_err(|e| failed(e.error))?;
    }
    // The rename itself is made durable where the system can do that; a folder that cannot be synced is no fault.
    if let Some(folder) = path.parent().and_then(|folder| File::open(folder).ok()) {
        let _ = folder.sync_all();
    }
    Ok(Some(metadata))
}

/// Whether a name is that of a file that is not whole yet.
fn is_unfinished(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.starts_with(UNFINISHED.0) && name.ends_with(UNFINISHED.1)
}

/// Whether an error says that there is nothing of a name.
fn is_nothing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// The error for a path at which there is nothing.
pub(crate) fn nothing(path: &Path) -> Error {
    io_error(path, "open", &io::Error::from_raw_os_error(libc::ENOENT))
}

/// An error of a read or a listing.
pub(crate) fn io_error(path: &Path, operation: &str, error: &io::Error) -> Error {
    let (fault, hint) = match error.kind() {
        io::ErrorKind::NotFound => (StoreFault::NotFound, ""),
        io::ErrorKind::PermissionDenied => (StoreFault::Denied, "\nhint: check the owner and mode of the file"),
        io::ErrorKind::TimedOut => (StoreFault::Timeout, ""),
        _ => (StoreFault::Other, ""),
    };
    Error::Store {
        uri: path.display().to_string(),
        operation: operation.to_owned(),
        fault,
        attempts: 1,
        detail: format!("{error}{hint}"),
    }
}

/// An error of a write.
pub(crate) fn disk_error(path: &Path, operation: &str, error: &io::Error) -> Error {
    Error::Disk { path: path.display().to_string(), operation: operation.to_owned(), detail: error.to_string() }
}

pub(crate) fn not_a_file(path: &Path) -> Error {
    Error::Argument(format!("{}: expected a regular file, found a folder or a special file", path.display()))
}

/// A read that happens when it is waited for.
struct LocalRead {
    path: PathBuf,
    size: u64,
    modified: Option<i64>,
    range: Range<u64>,
    traffic: Arc<Traffic>,
}

impl LocalRead {
    fn check(&self, file: &File) -> Result<()> {
        check_unchanged(file, &self.path, self.size, self.modified)
    }

    fn read(&self, cancel: &Cancel, buffer: &mut Vec<u8>) -> Result<()> {
        cancel.check()?;
        let file = open_file(&self.path)?;
        self.check(&file)?;
        let Range { start, end } = self.range;
        let len = end.saturating_sub(start);
        if end > self.size {
            return Err(Error::Internal(format!(
                "{}: asked for bytes {start}..{end} of {}",
                self.path.display(),
                self.size
            )));
        }
        let failed = |e: io::Error| io_error(&self.path, &format!("read bytes {start}..{end}"), &e);
        let before = buffer.len();
        let wanted = usize::try_from(len).map_err(|_| failed(io::ErrorKind::OutOfMemory.into()))?;
        buffer.try_reserve_exact(wanted).map_err(|_| failed(io::ErrorKind::OutOfMemory.into()))?;
        // Appended, and not read into zeros that would be written first.
        let result = (&file).seek(SeekFrom::Start(start)).and_then(|_| (&file).take(len).read_to_end(buffer));
        let result = result.and_then(|_| match buffer.len() - before == wanted {
            true => Ok(()),
            false => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "failed to fill whole buffer")),
        });
        // Whatever the read said, a file that changed is the better explanation.
        self.check(&file)?;
        result.map_err(failed)?;
        self.traffic.add(1, len, 0);
        Ok(())
    }
}

impl Pending for LocalRead {
    fn finish(self: Box<Self>, cancel: &Cancel, buffer: &mut Vec<u8>) -> Result<()> {
        let before = buffer.len();
        let result = self.read(cancel, buffer);
        if result.is_err() {
            buffer.truncate(before);
        }
        result
    }
}

/// Refuses a file that is not the one that was listed.
pub(super) fn check_unchanged(file: &File, path: &Path, size: u64, listed: Option<i64>) -> Result<()> {
    let metadata = file.metadata().map_err(|e| io_error(path, "open", &e))?;
    if !metadata.is_file() {
        return Err(not_a_file(path));
    }
    let time = modified(&metadata);
    if metadata.len() == size && listed.is_none_or(|wanted| wanted == time) {
        return Ok(());
    }
    Err(Error::Changed {
        uri: path.display().to_string(),
        wanted: describe(size, listed),
        found: describe(metadata.len(), Some(time)),
    })
}

/// Opens a file for reading without ever waiting for a pipe's other end.
pub(crate) fn open_file(path: &Path) -> Result<File> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = fs::OpenOptions::new();
    options.read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC);
    options.open(path).map_err(|e| io_error(path, "open", &e))
}

pub(crate) fn describe(size: u64, modified: Option<i64>) -> String {
    match modified {
        Some(time) => {
            format!(
                "{size} bytes, modified {}.{:09} s after 1970",
                time.div_euclid(1_000_000_000),
                time.rem_euclid(1_000_000_000)
            )
        }
        None => format!("{size} bytes"),
    }
}
