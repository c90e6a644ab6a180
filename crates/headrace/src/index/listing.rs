//! Which files a dataset consists of.
//!
//! The rule, for what lies below a folder or matches a pattern:
//!
//! 1. A file is *hidden* if its name, or that of a folder on the way to it from the folder (or from the part of the
//!    pattern that is spelled out), begins with `.` or `_`. Hidden files are left out.
//! 2. An empty file without a Parquet suffix (`.parquet`, `.parq`, `.pq`, in any case) is a marker and left out. An
//!    empty file with one is kept, and then reported as damaged: it once held rows.
//! 3. Below a folder only files with a Parquet suffix are taken, unless none of them has one: then all that are left
//!    are taken, and their content decides. A pattern takes what it matches.
//!
//! A file that is named is taken, whatever its name. The order of files is that of their paths below the root, by
//! UTF-8 bytes; the root is the folder, if one folder is given, or else the deepest folder that holds all that was
//! given (a pattern stands for the folder that it spells out). So neither depends on which files there are.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::cancel::Cancel;
use crate::error::{Error, Result, StoreFault};
use crate::index::glob::Pattern;
use crate::index::{Phase, Progress};
use crate::store::local::LocalStore;
use crate::store::resolve::{Location, resolve, split_pattern};
use crate::store::s3::{S3Options, S3Store};
use crate::store::walk::{modified, walk};
use crate::store::{Object, Store, Version};

/// Where an index may lie next to its data, below the root.
pub const IN_PLACE: &str = "_headrace/index.arrow";

/// Suffixes by which a Parquet file is known, in lower case.
const SUFFIXES: [&str; 3] = [".parquet", ".parq", ".pq"];

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

/// Lists what `urls` stand for. All must be in one store.
pub fn find_files(
    urls: &[String],
    options: &BTreeMap<String, String>,
    cancel: &Cancel,
    progress: &Progress,
) -> Result<(Arc<dyn Store>, Vec<Object>, Listing)> {
    progress.begin(Phase::Listing, 0);
    if urls.is_empty() {
        return Err(Error::Argument(
            "no path was given: expected at least one folder, file, pattern or URL".to_owned(),
        ));
    }
    let mut locations = Vec::with_capacity(urls.len());
    for url in urls {
        locations.push((url.as_str(), resolve(url, options)?));
    }
    let mut search =
        Search { cancel, progress, listing: Listing::default(), before: Listing::default(), groups: Vec::new() };
    let bucket = one_store(&locations)?;
    let (store, endpoint): (Opened, _) = match bucket {
        None => {
            for (url, location) in &locations {
                search.before = search.listing.clone();
                search.local(url, location)?;
            }
            let root = search.root();
            (Opened::Local(LocalStore::new(Path::new(&format!("/{root}")))?), None)
        }
        Some((bucket, options)) => {
            let store = S3Store::new(bucket, "", options.clone())?;
            for (url, location) in &locations {
                search.before = search.listing.clone();
                search.s3(url, location, &store)?;
            }
            (Opened::S3(store.with_prefix(&search.root())), options.endpoint())
        }
    };
    let root = search.root();
    let is_folder = matches!(&search.groups[..], [Group { kind: Kind::Folder, .. }]);
    let (objects, mut listing) = search.finish(&root)?;
    listing.is_folder = is_folder;
    let store: Arc<dyn Store> = match store {
        Opened::Local(store) => {
            if is_folder {
                listing.in_place = store.head(IN_PLACE, cancel).ok();
            }
            Arc::new(store)
        }
        Opened::S3(store) => Arc::new(store),
    };
    if !is_folder {
        listing.in_place = None;
    }
    listing.request = format!("{}\n{}\n{}", endpoint.unwrap_or_default(), store.url(), listing.request);
    Ok((store, objects, listing))
}

enum Opened {
    Local(LocalStore),
    S3(S3Store),
}

/// The bucket that all locations are in, `None` for local ones; an error if they are not in one store.
fn one_store<'a>(locations: &'a [(&str, Location)]) -> Result<Option<(&'a str, &'a S3Options)>> {
    let place = |location: &'a Location| match location {
        Location::S3 { bucket, options, .. } => Some((bucket.as_str(), options)),
        _ => None,
    };
    let Some(((first_url, first), rest)) = locations.split_first() else { return Ok(None) };
    let wanted = place(first);
    for (url, location) in rest {
        if place(location).map(|(bucket, _)| bucket) != wanted.map(|(bucket, _)| bucket) {
            return Err(Error::Argument(format!(
                "{first_url:?} and {url:?} are in different stores: expected all files of one dataset in one\nhint: \
                 open them as two datasets and mix them"
            )));
        }
    }
    Ok(wanted)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Folder,
    File,
    Pattern,
}

/// What one of the given paths stands for.
struct Group {
    kind: Kind,
    /// The folder that paths are relative to: without a slash at either end.
    base: String,
    objects: Vec<Object>,
}

struct Search<'a> {
    cancel: &'a Cancel,
    progress: &'a Progress,
    listing: Listing,
    /// The counts when the current path's turn came, for messages about it alone.
    before: Listing,
    groups: Vec<Group>,
}

impl Search<'_> {
    fn see(&mut self) {
        self.listing.seen += 1;
        self.progress.found.fetch_add(1, Ordering::Relaxed);
    }

    /// Rules 1 and 2: whether a file goes on to rule 3.
    fn admit(&mut self, object: &Object, hidden: bool) -> bool {
        if hidden {
            self.listing.hidden += 1;
        } else if object.size == 0 && !has_suffix(&object.path) {
            self.listing.empty += 1;
        } else {
            return true;
        }
        false
    }

    fn request(&mut self, text: &str) {
        self.listing.request.push_str(text);
        self.listing.request.push('\n');
    }

    fn local(&mut self, url: &str, location: &Location) -> Result<()> {
        match location {
            Location::Folder(path) => {
                let base = text(path)?;
                self.request(&format!("folder {base}"));
                let objects = self.walk(path, None)?;
                self.folder(url, base, objects)
            }
            Location::File(path) => {
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
                self.file(text(folder)?, object);
                Ok(())
            }
            Location::Pattern { base, pattern } => {
                let base_text = text(base)?;
                self.request(&format!("pattern {base_text}\0{pattern}"));
                let pattern = Pattern::new(pattern, url)?;
                let objects = self.walk(base, Some(&pattern))?;
                self.pattern(url, base_text, objects)
            }
            Location::S3 { .. } => Err(Error::Internal("an object of a bucket among local files".to_owned())),
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
        walk(folder, self.cancel, &mut descend, &mut |object| {
            self.see();
            if pattern.is_some_and(|pattern| !pattern.matches(&object.path)) {
                self.listing.unmatched += 1;
            } else if self.admit(&object, is_hidden(object.path.rsplit('/').next().unwrap_or(&object.path))) {
                objects.push(object);
            }
            Ok(())
        })?;
        self.listing.hidden += hidden_folders;
        self.listing.seen += hidden_folders;
        Ok(objects)
    }

    fn s3(&mut self, url: &str, location: &Location, store: &S3Store) -> Result<()> {
        let Location::S3 { key, .. } = location else {
            return Err(Error::Internal("a local file among objects of a bucket".to_owned()));
        };
        if let Some((base, pattern)) = split_pattern(key) {
            return self.s3_pattern(url, key, base, pattern, store);
        }
        let folder = key.trim_end_matches('/');
        // A name that looks like a file's is asked for first: one request instead of two.
        let file_first = has_suffix(key);
        if file_first && self.s3_file(folder, store)? {
            return Ok(());
        }
        let objects = self.s3_folder(folder, store)?;
        if objects.is_empty() && self.listing.seen == self.before.seen && !folder.is_empty() {
            if !file_first && !key.ends_with('/') && self.s3_file(folder, store)? {
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
        self.folder(url, folder.to_owned(), objects)
    }

    /// Takes one object, if there is one of that key.
    fn s3_file(&mut self, key: &str, store: &S3Store) -> Result<bool> {
        match store.head(key, self.cancel) {
            Ok(object) => {
                self.see();
                let (base, name) = key.rsplit_once('/').unwrap_or(("", key));
                self.file(base.to_owned(), Object { path: name.to_owned(), ..object });
                Ok(true)
            }
            Err(Error::Store { fault: StoreFault::NotFound, .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn s3_folder(&mut self, folder: &str, store: &S3Store) -> Result<Vec<Object>> {
        let mut objects = Vec::new();
        let cut = if folder.is_empty() { 0 } else { folder.len() + 1 };
        store.list(folder, self.cancel, &mut |mut object| {
            self.see();
            object.path.drain(..cut);
            if object.path == IN_PLACE {
                self.listing.in_place = Some(object.clone());
            }
            if self.admit(&object, is_hidden(&object.path)) {
                objects.push(object);
            }
        })?;
        Ok(objects)
    }

    /// Lists what begins with the literal part of a pattern; that also shows whether something of just that name
    /// exists.
    fn s3_pattern(&mut self, url: &str, key: &str, base: &str, pattern: &str, store: &S3Store) -> Result<()> {
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
            self.file(base.to_owned(), Object { path: name.to_owned(), ..object });
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
            } else if self.admit(&object, is_hidden(&object.path)) {
                objects.push(object);
            }
        }
        if is_folder { self.folder(url, base.to_owned(), objects) } else { self.pattern(url, base.to_owned(), objects) }
    }

    fn file(&mut self, base: String, object: Object) {
        let base = base.trim_matches('/').to_owned();
        self.request(&format!("file {base}/{}", object.path));
        self.groups.push(Group { kind: Kind::File, base, objects: vec![object] });
    }

    /// Rule 3, for a folder.
    fn folder(&mut self, url: &str, base: String, mut objects: Vec<Object>) -> Result<()> {
        let all = objects.len();
        if objects.iter().any(|object| has_suffix(&object.path)) {
            objects.retain(|object| has_suffix(&object.path));
            self.listing.other += all - objects.len();
        }
        if objects.is_empty() {
            return Err(self.nothing(url, "holds no data file"));
        }
        self.groups.push(Group { kind: Kind::Folder, base: base.trim_matches('/').to_owned(), objects });
        Ok(())
    }

    /// Rule 3, for a pattern.
    fn pattern(&mut self, url: &str, base: String, objects: Vec<Object>) -> Result<()> {
        if objects.is_empty() {
            return Err(self.nothing(url, "matches no data file"));
        }
        self.groups.push(Group { kind: Kind::Pattern, base: base.trim_matches('/').to_owned(), objects });
        Ok(())
    }

    fn nothing(&self, url: &str, what: &str) -> Error {
        let (now, before) = (&self.listing, &self.before);
        let seen = now.seen - before.seen;
        let mut found = format!("{seen} file{}", if seen == 1 { "" } else { "s" });
        let parts = [
            (now.unmatched - before.unmatched, "of another name"),
            (now.hidden - before.hidden, "hidden (a name on the way begins with '.' or '_')"),
            (now.empty - before.empty, "empty"),
        ];
        let parts: Vec<String> = parts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")).collect();
        if !parts.is_empty() {
            found = format!("{found}: {}", parts.join(", "));
        }
        let hint = if what.starts_with("matches") {
            "\nhint: * does not cross a '/', ** does; a hidden file can be named in full"
        } else if now.hidden > before.hidden {
            "\nhint: a hidden file can be named in full"
        } else {
            "\nhint: Parquet files end in .parquet, .parq or .pq; others are taken if none does"
        };
        Error::Argument(format!("{url:?} {what}: found {found}{hint}"))
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

    /// All objects with their paths below `root`, in order.
    fn finish(mut self, root: &str) -> Result<(Vec<Object>, Listing)> {
        let mut objects = Vec::with_capacity(self.groups.iter().map(|group| group.objects.len()).sum());
        for group in self.groups {
            let below = group.base.strip_prefix(root).unwrap_or(&group.base).trim_start_matches('/');
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
        let listing = &mut self.listing;
        listing.skipped = listing.hidden + listing.empty + listing.other;
        Ok((objects, self.listing))
    }
}

fn text(path: &Path) -> Result<String> {
    match path.to_str() {
        Some(text) => Ok(text.to_owned()),
        None => Err(Error::Argument(format!("{}: the path is not UTF-8", PathBuf::from(path).display()))),
    }
}
