//! Which files a dataset consists of.
//!
//! [`find`] lists, and [`Found::files`] says which of the files found are taken. The rules, for what lies below a
//! folder or matches a pattern:
//!
//! 1. A file is *hidden* if its name, or that of a folder on the way to it from the folder (or from the part of the
//!    pattern that is spelled out), begins with `.` or `_`. Hidden files are left out.
//! 2. An empty file without a Parquet suffix (`.parquet`, `.parq`, `.pq`, in any case) is a marker and left out. An
//!    empty file with one is kept, and then reported as damaged: it once held rows.
//! 3. Below a folder only files with a Parquet suffix are taken, unless none of them has one: then all that are left
//!    are taken, and their content decides. A pattern takes what it matches.
//!
//! Rules 2 and 3 are those of [`Rule::Parquet`]. Under [`Rule::All`] every file that is not hidden is taken.
//!
//! A file that is named is taken, whatever its name. The order of files is that of their paths below the root, by
//! UTF-8 bytes; the root is the folder, if one folder is given, or else the deepest folder that holds all that was
//! given (a pattern stands for the folder that it spells out). So neither depends on which files there are.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::cancel::Cancel;
use crate::error::{Error, Result, StoreFault};
use crate::index::glob::Pattern;
use crate::index::{Phase, Progress};
use crate::store::local::{LocalStore, nothing};
use crate::store::remote::{Hidden, Provider, RemoteStore};
use crate::store::resolve::{Local, Location, is_marked_slow, resolve, split_pattern};
use crate::store::walk::{modified, walk};
use crate::store::{Object, Store, Version};

/// Where an index may lie next to its data, below the root.
pub const IN_PLACE: &str = "_headrace/index.arrow";

/// Suffixes by which a Parquet file is known, in lower case.
const SUFFIXES: [&str; 3] = [".parquet", ".parq", ".pq"];

/// Which of the files that are not hidden a dataset takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Those that are, or may be, Parquet files.
    Parquet,
    /// All, empty ones too: another format decides.
    All,
}

/// What was seen and left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// Files that were looked at; hidden local folders count as one.
    pub seen: usize,
    /// Hidden ones.
    pub hidden: usize,
    /// Empty ones without a Parquet suffix.
    pub empty: usize,
    /// Others without a Parquet suffix, beside files with one.
    pub other: usize,
    /// Those that do not match the pattern.
    pub unmatched: usize,
    /// Files left out, for whatever reason but a pattern.
    pub skipped: usize,
    /// The index next to the data, if the root is a folder and has one.
    pub in_place: Option<Object>,
    /// Whether one folder was given, so that an index can be put next to the data.
    pub is_folder: bool,
    /// What was asked for, with all paths absolute and without secrets: one text names one listing.
    pub request: String,
}

/// Whether a name has a Parquet suffix.
pub fn has_suffix(path: &str) -> bool {
    let bytes = path.as_bytes();
    SUFFIXES.iter().any(|suffix| {
        bytes.len() > suffix.len() && bytes[bytes.len() - suffix.len()..].eq_ignore_ascii_case(suffix.as_bytes())
    })
}

/// Whether a path, relative to where the rule begins, is hidden.
pub fn is_hidden(path: &str) -> bool {
    path.split('/').any(|part| part.starts_with(['.', '_']))
}

/// What was found where the given paths point, before a [`Rule`] chooses among it.
#[derive(Debug, Clone)]
pub struct Found {
    /// The root, as a store.
    pub store: Arc<dyn Store>,
    root: String,
    groups: Vec<Group>,
    listing: Listing,
}

/// Lists what `urls` stand for and takes the Parquet files. All must be in one store.
pub fn find_files(
    urls: &[String],
    options: &BTreeMap<String, String>,
    cancel: &Cancel,
    progress: &Progress,
) -> Result<(Arc<dyn Store>, Vec<Object>, Listing)> {
    let found = find(urls, options, None, cancel, progress)?;
    let store = Arc::clone(&found.store);
    let (objects, listing) = found.files(Rule::Parquet)?;
    Ok((store, objects, listing))
}

/// Lists what `urls` stand for. All must be in one store; of one with revisions, `revision` is read if it is given.
pub fn find(
    urls: &[String],
    options: &BTreeMap<String, String>,
    revision: Option<&str>,
    cancel: &Cancel,
    progress: &Progress,
) -> Result<Found> {
    match all_in_one(urls, options)? {
        All::Local { places, is_slow } => find_here(&places, is_slow, cancel, progress),
        All::Remote { provider, keys, queries } => {
            if let Some(revision) = revision {
                provider.pin(revision);
            }
            let store: Arc<dyn Store> = Arc::new(RemoteStore::with_queries(provider, "", queries)?);
            find_in(store.as_ref(), &keys, cancel, progress)
        }
    }
}

/// Lists what keys of a store stand for, each with the text that messages name it by.
fn find_in(store: &dyn Store, keys: &[(String, String)], cancel: &Cancel, progress: &Progress) -> Result<Found> {
    let mut search = Search::new(cancel, progress);
    search.look_up_ahead(keys, store)?;
    for (url, key) in keys {
        search.before = search.listing.clone();
        search.remote(url, key, store)?;
    }
    let root = search.root();
    search.finish(store.below(&root)?, root)
}

/// Lists what local paths stand for.
fn find_here(places: &[(String, Local)], is_slow: bool, cancel: &Cancel, progress: &Progress) -> Result<Found> {
    let mut search = Search::new(cancel, progress);
    for (url, place) in places {
        search.before = search.listing.clone();
        search.local(url, place)?;
    }
    let root = search.root();
    let store = LocalStore::new(Path::new(&format!("/{root}")))?.slow(is_slow);
    if search.is_folder() {
        search.listing.in_place = store.head(IN_PLACE, cancel).ok();
    }
    search.finish(Arc::new(store), root)
}

/// The store of what was found before, with its root, in another process: made of the same `urls`, so that it sends what
/// they say to sign or log in with. Lists nothing.
pub fn found_again(
    urls: &[String],
    root: &str,
    options: &BTreeMap<String, String>,
    revision: Option<&str>,
) -> Result<Arc<dyn Store>> {
    let Location::Remote { key, .. } = resolve(root, options)? else {
        let is_slow = urls.iter().any(|url| is_marked_slow(url));
        return Ok(Arc::new(LocalStore::new(Path::new(root))?.slow(is_slow)));
    };
    let All::Remote { provider, queries, .. } = all_in_one(urls, options)? else {
        return Err(Error::Internal(format!("{root}: the root of local paths")));
    };
    if let Some(revision) = revision {
        provider.pin(revision);
    }
    Ok(Arc::new(RemoteStore::with_queries(provider, &key, queries)?))
}

/// What all paths of one dataset stand for, each with the text that messages name it by.
enum All {
    Local { places: Vec<(String, Local)>, is_slow: bool },
    Remote { provider: Arc<dyn Provider>, keys: Vec<(String, String)>, queries: BTreeMap<String, Hidden> },
}

impl All {
    fn new(name: String, location: Location) -> Self {
        match location {
            Location::Local { place, is_slow } => Self::Local { places: vec![(name, place)], is_slow },
            Location::Remote { provider, key, query } => {
                let queries = query.map(|query| (key.clone(), query)).into_iter().collect();
                Self::Remote { provider, keys: vec![(name, key)], queries }
            }
        }
    }

    /// Takes another one in, or says why it does not belong to it.
    fn add(&mut self, other: Self) -> std::result::Result<(), &'static str> {
        match (self, other) {
            (Self::Local { places, is_slow }, Self::Local { places: more, is_slow: too }) => {
                places.extend(more);
                *is_slow |= too;
                Ok(())
            }
            (
                Self::Remote { provider, keys, queries },
                Self::Remote { provider: other, keys: more, queries: of_more },
            ) => {
                if provider.uri("") != other.uri("") {
                    return Err(APART);
                }
                if provider.login_of_url() != other.login_of_url() {
                    return Err(TWO_LOGINS);
                }
                keys.extend(more);
                queries.extend(of_more);
                Ok(())
            }
            _ => Err(APART),
        }
    }
}

const APART: &str = "are in different stores: expected all files of one dataset in one\nhint: open them as two datasets and \
    mix them";

const TWO_LOGINS: &str = "log in to one server in two ways: expected the same user and password in all URLs of a dataset, \
    or none\nhint: open them as two datasets and mix them";

/// What paths have in common; an error if they are not in one store.
fn all_in_one(urls: &[String], options: &BTreeMap<String, String>) -> Result<All> {
    let mut locations = urls.iter().map(|url| resolve(url, options).map(|location| (location.shown(url), location)));
    let Some((first, location)) = locations.next().transpose()? else {
        return Err(Error::Argument(
            "no path was given: expected at least one folder, file, pattern or URL".to_owned(),
        ));
    };
    let mut all = All::new(first.clone(), location);
    for location in locations {
        let (name, location) = location?;
        all.add(All::new(name.clone(), location))
            .map_err(|why| Error::Argument(format!("{first:?} and {name:?} {why}")))?;
    }
    Ok(all)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Folder,
    File,
    Pattern,
}

/// What one of the given paths stands for.
#[derive(Debug, Clone)]
struct Group {
    /// The path as it was given.
    url: String,
    kind: Kind,
    /// The folder that paths are relative to: without a slash at either end.
    base: String,
    /// Those that are not hidden.
    objects: Vec<Object>,
    /// What this path added to the counts, for messages about it alone.
    seen: usize,
    hidden: usize,
    unmatched: usize,
}

struct Search<'a> {
    cancel: &'a Cancel,
    progress: &'a Progress,
    listing: Listing,
    /// The counts when the current path's turn came, for messages about it alone.
    before: Listing,
    groups: Vec<Group>,
    /// Answers for keys that are going to be looked up.
    ahead: BTreeMap<String, Result<Object>>,
}

/// Files that are looked up at the same time. Scope: a listing. Evidence: each waits for one answer; the process-wide
/// limit on requests holds beside it.
const LOOKED_UP: usize = 32;

impl<'a> Search<'a> {
    fn new(cancel: &'a Cancel, progress: &'a Progress) -> Self {
        progress.begin(Phase::Listing, 0);
        let (listing, before) = (Listing::default(), Listing::default());
        Self { cancel, progress, listing, before, groups: Vec::new(), ahead: BTreeMap::new() }
    }

    fn is_folder(&self) -> bool {
        matches!(&self.groups[..], [Group { kind: Kind::Folder, .. }])
    }

    /// What was found, given the store at its root.
    fn finish(self, store: Arc<dyn Store>, root: String) -> Result<Found> {
        let is_folder = self.is_folder();
        let Self { mut listing, groups, .. } = self;
        listing.is_folder = is_folder;
        if !is_folder {
            listing.in_place = None;
        }
        listing.request = format!("{}\n{}\n{}", store.endpoint().unwrap_or_default(), store.url(), listing.request);
        Ok(Found { store, root, groups, listing })
    }

    fn see(&mut self) {
        self.listing.seen += 1;
        self.progress.found.fetch_add(1, Ordering::Relaxed);
    }

    /// Rule 1: whether a file goes on to the others.
    fn admit(&mut self, hidden: bool) -> bool {
        self.listing.hidden += usize::from(hidden);
        !hidden
    }

    fn group(&mut self, url: &str, kind: Kind, base: &str, objects: Vec<Object>) {
        let (now, before) = (&self.listing, &self.before);
        self.groups.push(Group {
            url: url.to_owned(),
            kind,
            base: base.trim_matches('/').to_owned(),
            objects,
            seen: now.seen - before.seen,
            hidden: now.hidden - before.hidden,
            unmatched: now.unmatched - before.unmatched,
        });
    }

    fn request(&mut self, text: &str) {
        self.listing.request.push_str(text);
        self.listing.request.push('\n');
    }

    fn local(&mut self, url: &str, place: &Local) -> Result<()> {
        match place {
            Local::Folder(path) => {
                let base = text(path)?;
                self.request(&format!("folder {base}"));
                let objects = self.walk(path, None)?;
                self.group(url, Kind::Folder, &base, objects);
                Ok(())
            }
            Local::File(path) => {
                let (Some(folder), Some(name)) = (path.parent(), path.file_name()) else {
                    return Err(Error::Argument(format!("{url:?}: expected a file")));
                };
                let metadata = std::fs::metadata(path).map_err(|e| crate::store::local::io_error(path, "open", &e))?;
                self.see();
                let object = Object {
                    path: text(Path::new(name))?,
                    size: metadata.len(),
                    version: Version::Modified(modified(&metadata)),
                };
                self.file(url, &text(folder)?, object);
                Ok(())
            }
            Local::Nothing(path) => Err(nothing(path)),
            Local::Pattern { base, pattern } => {
                let base_text = text(base)?;
                self.request(&format!("pattern {base_text}\0{pattern}"));
                let pattern = Pattern::new(pattern, url)?;
                let objects = self.walk(base, Some(&pattern))?;
                self.group(url, Kind::Pattern, &base_text, objects);
                Ok(())
            }
        }
    }

    fn walk(&mut self, folder: &Path, pattern: Option<&Pattern>) -> Result<Vec<Object>> {
        let mut objects = Vec::new();
        let mut hidden_folders = 0;
        let mut descend = |path: &str| {
            // Only the last part can be new: those before it were asked about on the way down.
            if is_hidden(path.rsplit('/').next().unwrap_or(path)) {
                hidden_folders += 1;
                return false;
            }
            pattern.is_none_or(|pattern| pattern.may_hold(path))
        };
        let (mut misnamed_hidden, mut misnamed_unmatched) = (0, 0);
        let mut wants = |path: &str, is_folder: bool| {
            let may_match = |pattern: &Pattern| if is_folder { pattern.may_hold(path) } else { pattern.matches(path) };
            if is_hidden(path.rsplit('/').next().unwrap_or(path)) {
                misnamed_hidden += 1;
                return false;
            }
            let is_wanted = pattern.is_none_or(may_match);
            misnamed_unmatched += usize::from(!is_wanted && !is_folder);
            is_wanted
        };
        walk(folder, self.cancel, &mut descend, &mut wants, &mut |object| {
            self.see();
            if pattern.is_some_and(|pattern| !pattern.matches(&object.path)) {
                self.listing.unmatched += 1;
            } else if self.admit(is_hidden(object.path.rsplit('/').next().unwrap_or(&object.path))) {
                objects.push(object);
            }
            Ok(())
        })?;
        self.listing.hidden += hidden_folders + misnamed_hidden;
        self.listing.unmatched += misnamed_unmatched;
        self.listing.seen += hidden_folders + misnamed_hidden + misnamed_unmatched;
        Ok(objects)
    }

    /// Looks up several files at once, of those that are going to be looked up first.
    fn look_up_ahead(&mut self, keys: &[(String, String)], store: &dyn Store) -> Result<()> {
        let is_file = |key: &&str| match store.can_list() {
            true => split_pattern(key).is_none() && has_suffix(key),
            false => url_of_what(key).is_none(),
        };
        let keys: Vec<&str> = keys.iter().map(|(_, key)| key.as_str()).filter(is_file).collect();
        if keys.len() < 2 {
            return Ok(());
        }
        let next = AtomicUsize::new(0);
        let found = Mutex::new(BTreeMap::new());
        let cancel = self.cancel;
        std::thread::scope(|scope| {
            for _ in 0..keys.len().min(LOOKED_UP) {
                scope.spawn(|| {
                    while let Some(key) = keys.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let answer = store.head(key, cancel);
                        if !matches!(answer, Ok(_) | Err(Error::Store { fault: StoreFault::NotFound, .. })) {
                            // It ends the listing, once those before it have had their turn.
                            next.store(keys.len(), Ordering::Relaxed);
                        }
                        found.lock().unwrap_or_else(PoisonError::into_inner).insert((*key).to_owned(), answer);
                    }
                });
            }
        });
        self.ahead = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        cancel.check()
    }

    fn remote(&mut self, url: &str, key: &str, store: &dyn Store) -> Result<()> {
        if !store.can_list() {
            return self.remote_url(url, key, store);
        }
        if let Some((base, pattern)) = split_pattern(key) {
            return self.remote_pattern(url, key, base, pattern, store);
        }
        let folder = key.trim_end_matches('/');
        // A name that looks like a file's is asked for first: one request instead of two.
        let file_first = has_suffix(key);
        if file_first && self.remote_file(url, folder, store)? {
            return Ok(());
        }
        let objects = self.remote_folder(folder, store)?;
        if objects.is_empty() && self.listing.seen == self.before.seen && !folder.is_empty() {
            if !file_first && !key.ends_with('/') && self.remote_file(url, folder, store)? {
                return Ok(());
            }
            return Err(Error::Store {
                uri: store.uri(key),
                operation: "open".to_owned(),
                fault: StoreFault::NotFound,
                attempts: 1,
                detail: "there is no object of this key, and none below it".to_owned(),
            });
        }
        self.request(&format!("folder {folder}"));
        self.group(url, Kind::Folder, folder, objects);
        Ok(())
    }

    /// Takes the file of a store that cannot list.
    fn remote_url(&mut self, url: &str, key: &str, store: &dyn Store) -> Result<()> {
        if let Some(what) = url_of_what(key) {
            return Err(Error::Argument(format!(
                "{url:?}: expected the URL of one file, found {what}: a web server cannot say which files it has\nhint: \
                 give the URLs of all files as a list, or open the data where it lies (s3://, gs://, az://, hf://, a \
                 folder)"
            )));
        }
        if self.remote_file(url, key, store)? {
            return Ok(());
        }
        Err(Error::Store {
            uri: store.uri(key),
            operation: "open".to_owned(),
            fault: StoreFault::NotFound,
            attempts: 1,
            detail: "there is no such file".to_owned(),
        })
    }

    /// Takes one object, if there is one of that key.
    fn remote_file(&mut self, url: &str, key: &str, store: &dyn Store) -> Result<bool> {
        match self.ahead.remove(key).unwrap_or_else(|| store.head(key, self.cancel)) {
            Ok(object) => {
                self.see();
                let (base, name) = key.rsplit_once('/').unwrap_or(("", key));
                self.file(url, base, Object { path: name.to_owned(), ..object });
                Ok(true)
            }
            Err(Error::Store { fault: StoreFault::NotFound, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn remote_folder(&mut self, folder: &str, store: &dyn Store) -> Result<Vec<Object>> {
        let mut objects = Vec::new();
        let cut = if folder.is_empty() { 0 } else { folder.len() + 1 };
        store.list(folder, self.cancel, &mut |mut object| {
            self.see();
            object.path.drain(..cut);
            if object.path == IN_PLACE {
                self.listing.in_place = Some(object.clone());
            }
            if self.admit(is_hidden(&object.path)) {
                objects.push(object);
            }
        })?;
        Ok(objects)
    }

    /// Lists what begins with the literal part of a pattern; that also shows whether something of just that name
    /// exists.
    fn remote_pattern(&mut self, url: &str, key: &str, base: &str, pattern: &str, store: &dyn Store) -> Result<()> {
        let start = &key[..key.find(['*', '?', '[']).unwrap_or(key.len())];
        let mut all = Vec::new();
        let progress = self.progress;
        store.list_starting(start, self.cancel, &mut |object| {
            progress.found.fetch_add(1, Ordering::Relaxed);
            all.push(object);
        })?;
        self.listing.seen += all.len();
        if let Some(at) = all.iter().position(|object| object.path == key) {
            let object = all.swap_remove(at);
            let (base, name) = key.rsplit_once('/').unwrap_or(("", key));
            self.file(url, base, Object { path: name.to_owned(), ..object });
            return Ok(());
        }
        let folder = key.trim_end_matches('/');
        let below = |path: &str| path.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'));
        let is_folder = all.iter().any(|object| below(&object.path));
        let (base, compiled) = if is_folder {
            self.request(&format!("folder {folder}"));
            (folder, None)
        } else {
            self.request(&format!("pattern {base}\0{pattern}"));
            (base, Some(Pattern::new(pattern, url)?))
        };
        let cut = if base.is_empty() { 0 } else { base.len() + 1 };
        let mut objects = Vec::new();
        for mut object in all {
            if is_folder && !below(&object.path) {
                continue;
            }
            object.path.drain(..cut);
            if is_folder && object.path == IN_PLACE {
                self.listing.in_place = Some(object.clone());
            }
            if compiled.as_ref().is_some_and(|pattern| !pattern.matches(&object.path)) {
                self.listing.unmatched += 1;
            } else if self.admit(is_hidden(&object.path)) {
                objects.push(object);
            }
        }
        self.group(url, if is_folder { Kind::Folder } else { Kind::Pattern }, base, objects);
        Ok(())
    }

    fn file(&mut self, url: &str, base: &str, object: Object) {
        let base = base.trim_matches('/');
        self.request(&format!("file {base}/{}", object.path));
        self.group(url, Kind::File, base, vec![object]);
    }

    /// The deepest folder that holds all bases.
    fn root(&self) -> String {
        let mut root: Option<Vec<&str>> = None;
        for group in &self.groups {
            let parts: Vec<&str> = group.base.split('/').filter(|part| !part.is_empty()).collect();
            root = Some(match root {
                None => parts,
                Some(root) => {
                    let same = root.iter().zip(&parts).take_while(|(a, b)| a == b).count();
                    parts[..same].to_vec()
                }
            });
        }
        root.unwrap_or_default().join("/")
    }
}

/// What the URL of a web server is that of, if not of a file.
fn url_of_what(key: &str) -> Option<&'static str> {
    match key {
        _ if key.is_empty() || key.ends_with('/') => Some("a folder"),
        _ if key.contains('*') => Some("a pattern"),
        _ => None,
    }
}

impl Group {
    /// Rules 2 and 3: what is taken, with what is left out added to the counts.
    fn choose(&mut self, rule: Rule, listing: &mut Listing) -> Result<()> {
        let all = self.objects.len();
        if rule == Rule::Parquet && self.kind != Kind::File {
            self.objects.retain(|object| object.size > 0 || has_suffix(&object.path));
        }
        let empty = all - self.objects.len();
        listing.empty += empty;
        if self.objects.is_empty() {
            return Err(self.nothing(rule, empty));
        }
        if rule == Rule::Parquet && self.kind == Kind::Folder {
            let all = self.objects.len();
            if self.objects.iter().any(|object| has_suffix(&object.path)) {
                self.objects.retain(|object| has_suffix(&object.path));
                listing.other += all - self.objects.len();
            }
        }
        Ok(())
    }

    fn nothing(&self, rule: Rule, empty: usize) -> Error {
        let mut found = format!("{} file{}", self.seen, if self.seen == 1 { "" } else { "s" });
        let parts = [
            (self.unmatched, "of another name"),
            (self.hidden, "hidden (a name on the way begins with '.' or '_')"),
            (empty, "empty"),
        ];
        let parts: Vec<String> = parts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
        if !parts.is_empty() {
            found = format!("{found}: {}", parts.join(", "));
        }
        let (what, hint) = match (self.kind, rule) {
            (Kind::Pattern, _) => {
                ("matches no data file", "\nhint: * does not cross a '/', ** does; a hidden file can be named in full")
            }
            (_, _) if self.hidden > 0 => ("holds no data file", "\nhint: a hidden file can be named in full"),
            (_, Rule::Parquet) => (
                "holds no data file",
                "\nhint: Parquet files end in .parquet, .parq or .pq; others are taken if none does",
            ),
            (_, Rule::All) => ("holds no data file", ""),
        };
        Error::Argument(format!("{:?} {what}: found {found}{hint}", self.url))
    }
}

impl Found {
    /// Whether one folder was given.
    pub fn is_folder(&self) -> bool {
        self.listing.is_folder
    }

    /// What was asked for: see [`Listing::request`].
    pub fn request(&self) -> &str {
        &self.listing.request
    }

    /// The files that a rule takes, with their paths below the root, in order.
    ///
    /// # Errors
    /// [`Error::Argument`] if one of the given paths has none, or if a file is given twice.
    pub fn files(self, rule: Rule) -> Result<(Vec<Object>, Listing)> {
        let Self { root, groups, mut listing, .. } = self;
        let mut objects = Vec::with_capacity(groups.iter().map(|group| group.objects.len()).sum());
        for mut group in groups {
            group.choose(rule, &mut listing)?;
            let below = group.base.strip_prefix(&root).unwrap_or(&group.base).trim_start_matches('/');
            objects.extend(group.objects.into_iter().map(|object| match below {
                "" => object,
                below => Object { path: format!("{below}/{}", object.path), ..object },
            }));
        }
        objects.sort_unstable_by(|a, b| a.path.cmp(&b.path));
        if let Some(pair) = objects.windows(2).find(|pair| pair[0].path == pair[1].path) {
            return Err(Error::Argument(format!(
                "{:?} is given twice: expected each file once\nhint: more passes over the data are epochs= of the DataLoader",
                pair[0].path
            )));
        }
        listing.skipped = listing.hidden + listing.empty + listing.other;
        Ok((objects, listing))
    }
}

fn text(path: &Path) -> Result<String> {
    match path.to_str() {
        Some(text) => Ok(text.to_owned()),
        None => Err(Error::Argument(format!("{}: the path is not UTF-8", PathBuf::from(path).display()))),
    }
}
