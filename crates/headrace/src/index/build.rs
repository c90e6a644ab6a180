//! Opening a dataset: its files listed, its saved index compared with them, what is new read, the result saved.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::index::listing::{Found, IN_PLACE, Listing, Rule, find};
use crate::index::read::read_footers;
use crate::index::table::{FileRead, Table, TableBuilder, TableRef};
use crate::index::{FileEntry, Index, IndexMode, OpenOptions, Phase, Progress, RowGroups, TokenColumn, cache};
use crate::store::local::{disk_error, write_atomic};
use crate::store::{Object, Store, Version};

/// How often it is looked whether another process has built an index.
const TURN_POLL: Duration = Duration::from_millis(20);
/// How long that is waited for. Evidence: a hundred thousand footers take about a minute from a near store.
const TURN_PATIENCE: Duration = Duration::from_secs(120);

/// Where an index came from and goes to.
#[derive(Debug, Clone, Default)]
pub(crate) struct Home {
    /// The file it is saved to.
    pub(crate) file: Option<PathBuf>,
    /// Whether a user named that file, so that failing to write it is an error.
    pub(crate) named: bool,
    /// What was opened.
    pub(crate) request: String,
    /// Whether it can be put next to the data.
    pub(crate) is_folder: bool,
    /// Threads for further work.
    pub(crate) threads: Option<usize>,
}

/// The right to build an index: whoever wants to as well waits.
struct Turn(File);

impl Drop for Turn {
    fn drop(&mut self) {
        // Not left to the closing of the file, which a forked child may hold open as well.
        drop(self.0.unlock());
    }
}

impl Home {
    /// What is saved there, if it can be used.
    fn load(&self, notes: &mut Vec<String>) -> Result<Option<Table>> {
        self.file.as_deref().map_or(Ok(None), |path| load(path, self.named, notes))
    }

    /// Waits until no other process builds this index; `None` where that cannot be told, or takes too long.
    fn turn(&self, cancel: &Cancel) -> Result<Option<Turn>> {
        let lock = self.file.as_deref().filter(|_| !self.named).and_then(|path| {
            let locks = path.parent()?.with_file_name("locks");
            fs::create_dir_all(&locks).ok()?;
            File::create(locks.join(path.file_stem()?)).ok()
        });
        let Some(lock) = lock else { return Ok(None) };
        let begin = Instant::now();
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(Some(Turn(lock))),
                Err(TryLockError::WouldBlock) if begin.elapsed() < TURN_PATIENCE => {}
                // The other one may have been stopped; or it is a file system without locks.
                Err(_) => return Ok(None),
            }
            cancel.check()?;
            std::thread::sleep(TURN_POLL);
        }
    }
}

/// The work of [`Index::open`].
pub(crate) fn open(urls: &[String], options: &OpenOptions, cancel: &Cancel, progress: &Progress) -> Result<Index> {
    let found = find(urls, &options.storage_options, None, cancel, progress)?;
    open_found(found, options, cancel, progress)
}

/// The work of [`Index::open_found`].
pub(crate) fn open_found(found: Found, options: &OpenOptions, cancel: &Cancel, progress: &Progress) -> Result<Index> {
    let store = Arc::clone(&found.store);
    let (objects, listing) = found.files(Rule::Parquet)?;
    if objects.len() > u32::MAX as usize {
        return Err(Error::Argument(format!("{} files are too many", objects.len())));
    }
    let mut notes = Vec::new();
    let home = home(options, &listing, &mut notes);
    let mut saved = Vec::new();
    let said = notes.len();
    if options.mode != IndexMode::Rebuild {
        saved.extend(home.load(&mut notes)?);
    }
    let mut plan = Plan::new(&objects, &saved);
    // Of several processes that lack the same one reads it, and the others take what that saved.
    let is_wanted = options.mode == IndexMode::Auto && plan.is_worth_saving(&objects);
    let turn = if is_wanted { home.turn(cancel)? } else { None };
    if turn.is_some() {
        notes.truncate(said);
        saved = home.load(&mut notes)?.into_iter().collect();
        plan = Plan::new(&objects, &saved);
    }
    // The index next to the data is fetched only if the cache does not have all: over a network it is the slower one,
    // and it may know fewer counts.
    if options.mode == IndexMode::Auto
        && plan.is_incomplete()
        && let Some(object) = &listing.in_place
    {
        saved.extend(load_in_place(store.as_ref(), object, cancel, &mut notes)?);
        plan = Plan::new(&objects, &saved);
    }
    let wanted = plan.unsaved();
    progress.begin(Phase::Footers, wanted.len() as u64);
    let reads = read_footers(&store, &objects, &wanted, options.threads, cancel, progress)?;
    let is_new = !wanted.is_empty() || plan.differs_from(&saved);
    let table = plan.assemble(objects, &saved, reads);
    let mut index = Index { notes, home, ..Index::new(store, table.files, table.row_groups, table.columns) };
    for column in options.columns.iter().flatten() {
        index.check_column(column, cancel)?;
    }
    if is_new {
        index.save()?;
    }
    drop(turn);
    progress.begin(Phase::Done, 0);
    Ok(index)
}

fn home(options: &OpenOptions, listing: &Listing, notes: &mut Vec<String>) -> Home {
    let (file, named) = match &options.mode {
        IndexMode::Path(path) => (Some(path.clone()), true),
        _ => match options.cache_dir.clone().or_else(cache::default_folder) {
            Some(folder) => (Some(cache::file_in(&folder, &listing.request)), false),
            None => {
                notes.push("the index is not saved: there is no home folder and HEADRACE_CACHE is not set".to_owned());
                (None, false)
            }
        },
    };
    let (request, is_folder) = (listing.request.clone(), listing.is_folder);
    Home { file, named, request, is_folder, threads: options.threads }
}

/// Reads a saved index. One that is damaged is none; a named file that is something else is an error, since it would
/// be written over.
fn load(path: &Path, named: bool, notes: &mut Vec<String>) -> Result<Option<Table>> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        // A folder that cannot hold it is reported when the index is to be written there.
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(None),
        Err(e) if named => return Err(disk_error(path, "read the index", &e)),
        Err(e) => {
            notes.push(format!("{}: the saved index could not be read: {e}", path.display()));
            return Ok(None);
        }
    };
    if named && !bytes.is_empty() && !cache::is_index(&bytes) {
        return Err(Error::Argument(format!(
            "index={:?}: expected an index that headrace wrote, or no file, found another file\nhint: it is not \
             written over; remove it or give another path",
            path.display().to_string()
        )));
    }
    match cache::decode(bytes) {
        Ok(table) => Ok(Some(table)),
        Err(why) => {
            notes.push(format!("{}: the saved index was built anew: {why}", path.display()));
            Ok(None)
        }
    }
}

fn load_in_place(
    store: &dyn Store,
    object: &Object,
    cancel: &Cancel,
    notes: &mut Vec<String>,
) -> Result<Option<Table>> {
    let mut bytes = Vec::new();
    let read = store.fetch(object, 0..object.size).wait_into(cancel, &mut bytes);
    let why = match read {
        Ok(()) => match cache::decode(bytes) {
            Ok(table) => return Ok(Some(table)),
            Err(why) => why,
        },
        Err(Error::Cancelled) => return Err(Error::Cancelled),
        // It may be written anew at this moment: the data can be read all the same.
        Err(error) => error.to_string(),
    };
    notes.push(format!("{}: the index next to the data was not used: {why}", store.uri(IN_PLACE)));
    Ok(None)
}

/// For each file, in which saved index it is found unchanged.
struct Plan {
    /// (which saved index, number of the file in it).
    sources: Vec<Option<(usize, usize)>>,
}

impl Plan {
    fn new(objects: &[Object], saved: &[Table]) -> Self {
        let mut sources = vec![None; objects.len()];
        for (which, table) in saved.iter().enumerate() {
            // Both are sorted by path.
            let mut files = table.files.iter().enumerate().peekable();
            for (source, object) in sources.iter_mut().zip(objects) {
                while files.next_if(|(_, file)| file.object.path < object.path).is_some() {}
                let Some((number, file)) = files.peek() else { break };
                let same = file.object == *object && object.version != Version::Unknown;
                if source.is_none() && same {
                    *source = Some((which, *number));
                }
            }
        }
        Self { sources }
    }

    /// Whether a file is missing that a saved index can tell from another one.
    fn is_worth_saving(&self, objects: &[Object]) -> bool {
        let missing = self.sources.iter().zip(objects).filter(|(source, _)| source.is_none());
        missing.into_iter().any(|(_, object)| object.version != Version::Unknown)
    }

    fn is_incomplete(&self) -> bool {
        self.sources.iter().any(Option::is_none)
    }

    /// Whether the first of the saved indexes is not just what will be put together.
    fn differs_from(&self, saved: &[Table]) -> bool {
        let all_first = self.sources.iter().all(|source| matches!(source, Some((0, _))));
        !all_first || saved.first().is_none_or(|table| table.files.len() != self.sources.len())
    }

    fn unsaved(&self) -> Vec<usize> {
        (0..self.sources.len()).filter(|number| self.sources[*number].is_none()).collect()
    }

    /// Puts the table together; `reads` are those of [`Self::unsaved`], in order.
    fn assemble(self, objects: Vec<Object>, saved: &[Table], reads: Vec<FileRead>) -> Table {
        let starts: Vec<Vec<usize>> = saved.iter().map(|table| table.borrow().starts()).collect();
        let mut builder = TableBuilder::default();
        let mut reads = reads.into_iter();
        for (object, source) in objects.into_iter().zip(self.sources) {
            match source {
                Some((which, number)) => builder.add_saved(object, &saved[which], &starts[which], number),
                None => {
                    if let Some(read) = reads.next() {
                        builder.add_read(object, &read);
                    }
                }
            }
        }
        builder.finish()
    }
}

impl Index {
    /// Saves the index where it belongs. Only a file that a user named must be written.
    pub(crate) fn save(&mut self) -> Result<()> {
        let Some(path) = self.home.file.clone() else { return Ok(()) };
        let written = self.encode().and_then(|bytes| {
            if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
                fs::create_dir_all(folder).map_err(|e| disk_error(folder, "create folder", &e))?;
            }
            write_atomic(&path, &bytes)
        });
        match written {
            Err(error) if !self.home.named => {
                self.notes.push(format!("the index is not saved: {error}"));
                Ok(())
            }
            other => other,
        }
    }

    /// Writes the index next to the data, as `_headrace/index.arrow` below the root.
    ///
    /// Fails if the dataset is not one folder.
    pub fn save_in_place(&self, cancel: &Cancel) -> Result<()> {
        if !self.home.is_folder {
            return Err(Error::Argument(format!(
                "{}: an index next to the data needs a dataset that is one folder, found files or a pattern",
                self.store.url()
            )));
        }
        self.store.put(IN_PLACE, &self.encode()?, cancel)
    }

    fn encode(&self) -> Result<Vec<u8>> {
        let table = TableRef { files: &self.files, row_groups: &self.row_groups, columns: &self.columns };
        cache::encode(table, &self.home.request).map_err(|e| Error::Internal(format!("the index: {e}")))
    }

    /// An index of what is already known, that is not saved anywhere.
    pub fn new(
        store: Arc<dyn Store>,
        files: Arc<[FileEntry]>,
        row_groups: RowGroups,
        columns: Vec<Arc<TokenColumn>>,
    ) -> Self {
        Self { store, files, row_groups, columns, notes: Vec::new(), home: Home::default(), footers: Arc::default() }
    }
}
