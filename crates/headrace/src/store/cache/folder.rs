//! The folder that cached ranges lie in: finding, claiming, adding and evicting them.
//!
//! Entries lie in `data-UID/XX/`, where XX are the first two digits of their names. Who has the lock on `NAME.part`
//! is the one to fetch; when it is whole it takes its name. The lock goes with its process, so that one that died is
//! in nobody's way.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use super::entry::{self, HEADER, Key};
use crate::per_process::PerProcess;

/// An entry's time of use is noted to this. Evidence: a write of metadata for each read would cost more than it tells.
const USE_NOTED: Duration = Duration::from_secs(60);
/// The folder is looked through when the entries added since are one part in this many of the limit, and what is too
/// much is evicted down to the limit less one part in `EVICT_PART`. So eight processes that know nothing of each other
/// stay below it.
const LOOK_PART: u64 = 64;
const EVICT_PART: u64 = 8;
/// What a process that died left unfinished is removed after this.
const STALE: Duration = Duration::from_secs(3600);
const PART: &str = ".part";

/// Entries, and their bytes on disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Files.
    pub entries: u64,
    /// Bytes of them.
    pub bytes: u64,
}

/// A folder for ranges of objects, of a bounded size.
#[derive(Debug)]
pub struct Folder {
    root: PathBuf,
    /// Bytes that entries may take.
    limit: u64,
    /// Bytes added by this process since it looked through the folder; at first so many that it does at once.
    added: AtomicU64,
    looking: PerProcess<Mutex<()>>,
    /// Whether nobody else can have put something there.
    is_ours: bool,
    /// Whether nothing is added any more.
    is_closed: AtomicBool,
    /// Whether something was too large to be kept.
    is_small: AtomicBool,
    problem: PerProcess<Mutex<Option<String>>>,
}

/// The right to fetch what an entry will hold. Dropped, it leaves nothing.
#[derive(Debug)]
pub(super) struct Claim {
    file: File,
    part: PathBuf,
    /// Whether the file is to stay: it is an entry, or another's.
    is_kept: bool,
}

/// What became of asking for an entry.
#[derive(Debug)]
pub(super) enum Asked {
    /// It is there.
    Here(File),
    /// It is not there, and the caller is the one to fetch it.
    Claimed(Claim),
    /// Somebody else fetches it.
    Awaited,
    /// It cannot be kept.
    Closed,
}

impl Folder {
    /// A cache below `folder`, of at most `limit` bytes. What hinders it from being written is kept as a problem.
    pub fn new(folder: &Path, limit: u64) -> Self {
        let mut cache = Self {
            root: root_of(folder),
            limit,
            is_ours: true,
            added: AtomicU64::new(limit),
            looking: PerProcess::default(),
            is_closed: AtomicBool::new(false),
            is_small: AtomicBool::new(false),
            problem: PerProcess::default(),
        };
        // An attempt, so that it is known from the first on.
        let attempt =
            create_as_above(folder).and_then(|()| create(&cache.root)).and_then(|()| check_owner(&cache.root));
        cache.is_ours = attempt.is_ok();
        if let Err(error) = attempt.and_then(|()| tempfile::tempfile_in(&cache.root)) {
            cache.close(&error);
        }
        cache
    }

    /// What hindered the cache from being written; `None` from the second call on, until something else does.
    pub fn take_problem(&self) -> Option<String> {
        self.problem().take()
    }

    /// Notes something that does not hinder reading.
    pub(super) fn note(&self, problem: String) {
        self.problem().get_or_insert(problem);
    }

    fn problem(&self) -> MutexGuard<'_, Option<String>> {
        self.problem.get().lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn close(&self, error: &io::Error) {
        if !self.is_closed.swap(true, Ordering::Relaxed) {
            let problem = format!("nothing more is cached in {}: {error}", self.root.display());
            // It matters more than what was noted before.
            self.problem().replace(problem);
        }
    }

    /// Notes why an entry could not be made; closes the cache if none can be.
    fn fail(&self, error: &io::Error) {
        use io::ErrorKind as Kind;
        match error.kind() {
            Kind::StorageFull | Kind::QuotaExceeded | Kind::FileTooLarge => self.close(error),
            Kind::ReadOnlyFilesystem | Kind::PermissionDenied | Kind::NotADirectory => self.close(error),
            _ => self.note(format!("something was not cached in {}: {error}", self.root.display())),
        }
    }

    /// Looks for an entry, and claims it if there is none.
    pub(super) fn ask(&self, key: Key, len: u64) -> Asked {
        if let Some(file) = self.find(key) {
            return Asked::Here(file);
        }
        if self.is_closed.load(Ordering::Relaxed) {
            return Asked::Closed;
        }
        let bytes = len.saturating_add(HEADER);
        if bytes > self.limit / EVICT_PART {
            if !self.is_small.swap(true, Ordering::Relaxed) {
                self.note(format!(
                    "a range of {len} bytes is not cached in {}: with a cache_size of {} bytes those of up to {} are\nhint: \
                     a cache_size of {} or more",
                    self.root.display(),
                    self.limit,
                    (self.limit / EVICT_PART).saturating_sub(HEADER),
                    bytes.saturating_mul(EVICT_PART)
                ));
            }
            return Asked::Closed;
        }
        self.claim(key).unwrap_or_else(|error| {
            self.fail(&error);
            Asked::Closed
        })
    }

    fn find(&self, key: Key) -> Option<File> {
        let file = if self.is_ours { File::open(self.path(key)).ok()? } else { return None };
        let now = SystemTime::now();
        let used = file.metadata().and_then(|metadata| metadata.modified()).ok()?;
        if now.duration_since(used).is_ok_and(|age| age > USE_NOTED) {
            // A folder that cannot be written serves all the same.
            drop(file.set_modified(now));
        }
        Some(file)
    }

    fn claim(&self, key: Key) -> io::Result<Asked> {
        let part = self.path(key).with_extension(&PART[1..]);
        create(part.parent().unwrap_or(&self.root))?;
        loop {
            let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&part)?;
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(Asked::Awaited),
                Err(TryLockError::Error(error)) => return Err(error),
            }
            // Whoever had it may have finished between the two: then this is the entry, or a file without a name.
            let is_named = fs::metadata(&part).is_ok_and(|named| {
                file.metadata().is_ok_and(|own| (own.dev(), own.ino()) == (named.dev(), named.ino()))
            });
            let claim = Claim { file, part: part.clone(), is_kept: !is_named };
            if let Some(file) = self.find(key) {
                return Ok(Asked::Here(file));
            }
            if is_named {
                claim.file.set_len(0)?;
                return Ok(Asked::Claimed(claim));
            }
        }
    }

    /// Makes an entry of a claim. Where that fails nothing is lost but the entry.
    pub(super) fn publish(&self, mut claim: Claim, key: Key, content: &[u8]) {
        let outcome = entry::write(&claim.file, key, content).and_then(|()| fs::rename(&claim.part, self.path(key)));
        match outcome {
            Ok(()) => claim.is_kept = true,
            Err(error) => return self.fail(&error),
        }
        drop(claim);
        let bytes = HEADER + content.len() as u64;
        self.added.fetch_add(bytes, Ordering::SeqCst);
        // Whoever looks through the folder sees afterwards whether more came meanwhile.
        while self.added.load(Ordering::SeqCst) > self.limit / LOOK_PART {
            let Ok(_looking) = self.looking.get().try_lock() else { return };
            self.evict();
        }
    }

    /// Removes an entry that is damaged, and notes that.
    pub(super) fn discard(&self, key: Key, error: &io::Error) {
        let path = self.path(key);
        self.note(format!("{}: a damaged cache entry was fetched anew: {error}", path.display()));
        drop(fs::remove_file(path));
    }

    /// Removes in a thread of its own what is too much for the limit, which may have been another one before.
    pub fn tidy(self: &Arc<Self>) {
        let cache = Arc::clone(self);
        let work = move || {
            if let Ok(_looking) = cache.looking.get().try_lock() {
                cache.evict();
            }
        };
        // Without a thread it is done when something is added.
        drop(std::thread::Builder::new().name("headrace-cache".to_owned()).spawn(work));
    }

    /// Removes what was not used for the longest time, if there is too much.
    fn evict(&self) {
        self.added.store(0, Ordering::SeqCst);
        let mut entries = Vec::new();
        visit(&self.root, &mut |path, metadata| entries.push((modified(metadata), metadata.len(), path)));
        let mut bytes: u64 = entries.iter().map(|(_, len, _)| len).sum();
        if bytes <= self.limit {
            return;
        }
        entries.sort_unstable();
        for (_, len, path) in entries {
            if bytes <= self.limit - self.limit / EVICT_PART {
                break;
            }
            if remove(&path) {
                bytes -= len;
            }
        }
    }

    fn path(&self, key: Key) -> PathBuf {
        let name = key.name();
        self.root.join(&name[..2]).join(name)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.is_kept {
            drop(fs::remove_file(&self.part));
        }
        // Not left to the closing of the file, which a forked child may hold open as well.
        drop(self.file.unlock());
    }
}

/// What lies in the cache of a folder, of this user.
pub fn usage(folder: &Path) -> Usage {
    let mut usage = Usage::default();
    visit(&root_of(folder), &mut |_, metadata| {
        usage.entries += 1;
        usage.bytes += metadata.len();
    });
    usage
}

/// Removes the entries in the cache of a folder, of this user, and nothing else; gives what was removed.
pub fn clear(folder: &Path) -> Usage {
    let mut usage = Usage::default();
    visit(&root_of(folder), &mut |path, metadata| {
        if remove(&path) {
            usage.entries += 1;
            usage.bytes += metadata.len();
        }
    });
    usage
}

/// A folder for each user: what one wrote, another cannot read.
fn root_of(folder: &Path) -> PathBuf {
    folder.join(format!("data-{}", user()))
}

fn user() -> u32 {
    // SAFETY: geteuid has no arguments, touches no memory and cannot fail.
    unsafe { libc::geteuid() }
}

fn create(folder: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Makes a folder for all users of the machine, and those above it: where anybody may make one, anybody may use it.
fn create_as_above(folder: &Path) -> io::Result<()> {
    const ANYBODY: u32 = 0o1777;
    let Some(above) = folder.parent().filter(|_| !folder.is_dir()) else { return Ok(()) };
    create_as_above(above)?;
    let above = if above.as_os_str().is_empty() { Path::new(".") } else { above };
    match fs::create_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
        Ok(()) if fs::metadata(above)?.mode() & ANYBODY == ANYBODY => {
            fs::set_permissions(folder, fs::Permissions::from_mode(ANYBODY))
        }
        Ok(()) => Ok(()),
    }
}

/// Refuses a folder that another user may write to.
fn check_owner(root: &Path) -> io::Result<()> {
    let metadata = fs::symlink_metadata(root)?;
    if metadata.is_dir() && metadata.uid() == user() && metadata.mode() & 0o022 == 0 {
        return Ok(());
    }
    let what = "expected a folder that only this user can write to";
    Err(io::Error::new(io::ErrorKind::PermissionDenied, what))
}

fn modified(metadata: &fs::Metadata) -> SystemTime {
    metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Calls `found` with the files that have an entry's name, and removes what others left unfinished long ago.
fn visit(root: &Path, found: &mut dyn FnMut(PathBuf, &fs::Metadata)) {
    let hex = |name: &str, digits: usize| name.len() == digits && name.bytes().all(|byte| byte.is_ascii_hexdigit());
    let Ok(folders) = fs::read_dir(root) else { return };
    for folder in folders.flatten().filter(|folder| folder.file_name().to_str().is_some_and(|name| hex(name, 2))) {
        let Ok(files) = fs::read_dir(folder.path()) else { continue };
        for file in files.flatten() {
            let (name, Ok(metadata)) = (file.file_name(), file.metadata()) else { continue };
            let Some(name) = name.to_str().filter(|_| metadata.is_file()) else { continue };
            if hex(name, 32) {
                found(file.path(), &metadata);
            } else if name.strip_suffix(PART).is_some_and(|name| hex(name, 32)) {
                sweep(&file.path(), &metadata);
            }
        }
    }
}

/// Removes an unfinished entry that is old and that nobody holds.
fn sweep(path: &Path, metadata: &fs::Metadata) {
    let is_old = SystemTime::now().duration_since(modified(metadata)).is_ok_and(|age| age > STALE);
    if is_old && File::open(path).is_ok_and(|file| file.try_lock().is_ok()) {
        drop(fs::remove_file(path));
    }
}

/// Removes a file if it is an entry; says whether it did.
fn remove(path: &Path) -> bool {
    File::open(path).is_ok_and(|file| entry::is_entry(&file)) && fs::remove_file(path).is_ok()
}
