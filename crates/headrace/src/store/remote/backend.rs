//! One request to a store: what every kind of store can be asked, and how the buckets of `object_store` answer it.
//!
//! Nothing here is repeated, timed or counted: that is done once for all kinds of store, in `shared`.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, StreamExt};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::multipart::{MultipartStore, PartId};
use object_store::path::Path;
use object_store::{
    Extensions, GetOptions, GetRange, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
    UpdateVersion,
};

use crate::store::remote::observe::Notes;
use crate::store::{Condition, Version};

/// Why a request failed, for people; what follows from it is decided by what was noted of the answer.
pub(crate) type Fault = Box<dyn std::error::Error + Send + Sync>;

/// The result of a request.
pub(crate) type Asked<'a, T> = BoxFuture<'a, Result<T, Fault>>;

/// Text that must not appear in a message, such as the signature of a URL.
#[derive(Clone, PartialEq, Eq)]
pub struct Hidden(pub(crate) String);

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

/// What is asked for.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    /// The key of an object; of a listing, what keys begin with.
    pub(crate) key: String,
    /// What has to follow the key in a URL, and is no part of its name.
    pub(crate) query: Option<Hidden>,
    /// Where the outcome is noted.
    pub(crate) notes: Notes,
}

/// The bytes of an answer as they come.
pub(crate) type Body = BoxStream<'static, Result<Bytes, Fault>>;

/// What came back of an object.
pub(crate) struct Answer {
    /// Bytes of the whole object.
    pub(crate) size: u64,
    pub(crate) version: Version,
    /// The bytes of the range.
    pub(crate) body: Body,
}

/// What is known of an object without reading it.
#[derive(Debug, Clone)]
pub struct Facts {
    /// Bytes.
    pub size: u64,
    /// What tells this content from another.
    pub version: Version,
    /// When it was written, in nanoseconds since 1970.
    pub modified: Option<i64>,
}

/// An object of a listing.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) key: String,
    pub(crate) facts: Facts,
}

/// A part of a listing.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) entries: Vec<Listed>,
    /// What to ask the next one with; `None` after the last.
    pub(crate) next: Option<String>,
}

/// A client of one store.
pub(crate) trait Backend: Send + Sync {
    /// The bytes of a range that is not empty. `version` is what was seen before: a store that can refuses another.
    fn get(&self, ask: Ask, range: Range<u64>, version: Version) -> Asked<'_, Answer>;

    /// What is known of an object.
    fn head(&self, ask: Ask) -> Asked<'_, Facts>;

    /// A page of the objects whose keys begin with the one that is asked for.
    fn list(&self, ask: Ask, page: Option<String>) -> Asked<'_, Page>;

    /// How objects are written; `None` if they are not.
    fn writer(&self) -> Option<Writer<'_>> {
        None
    }
}

/// How objects of a store are written.
pub(crate) enum Writer<'a> {
    /// Small ones with one request, large ones part by part.
    Parts(&'a dyn Parts),
    /// With one call, whatever their size.
    Whole(&'a dyn Whole),
}

impl<'a> Writer<'a> {
    /// What both can do.
    pub(crate) fn puts(self) -> &'a dyn Puts {
        match self {
            Self::Parts(parts) => parts,
            Self::Whole(whole) => whole,
        }
    }
}

/// Writes objects, each whole.
pub(crate) trait Puts: Send + Sync {
    /// Writes an object; gives its version, or `None` if the condition does not hold.
    fn put(&self, ask: Ask, bytes: Bytes, condition: Condition) -> Asked<'_, Option<Version>>;

    /// Removes an object; nothing, if there is none.
    fn delete(&self, ask: Ask) -> Asked<'_, ()>;
}

/// Writes objects in parts, of which nothing is seen before the end.
pub(crate) trait Parts: Puts {
    /// Begins; gives what the upload is called.
    fn begin(&self, ask: Ask) -> Asked<'_, String>;

    /// Writes a part, by its number from 0; gives what it is called.
    fn part(&self, ask: Ask, upload: String, number: usize, bytes: Bytes) -> Asked<'_, String>;

    /// Makes an object of the parts; gives its version.
    fn complete(&self, ask: Ask, upload: String, parts: Vec<String>) -> Asked<'_, Version>;

    /// Forgets the parts.
    fn abort(&self, ask: Ask, upload: String) -> Asked<'_, ()>;
}

/// Writes local files.
pub(crate) trait Whole: Puts {
    /// Writes a file whole.
    fn put_file(&self, ask: Ask, path: PathBuf) -> Asked<'_, ()>;
}

/// A version of an entity tag. Listings of some stores leave out the quotes that belong to it.
pub(crate) fn tagged(tag: &str) -> Version {
    let tag = tag.trim();
    match tag {
        "" => Version::Unknown,
        _ if tag.starts_with('"') || tag.starts_with("W/") => Version::ETag(tag.to_owned()),
        _ => Version::ETag(format!("\"{tag}\"")),
    }
}

/// The tag that a request may ask for: a weak one never matches, it is only compared.
pub(crate) fn strong(version: &Version) -> Option<&str> {
    match version {
        Version::ETag(tag) if !tag.starts_with("W/") => Some(tag),
        _ => None,
    }
}

/// A bucket or container, through `object_store`.
pub(crate) struct Bucket<S> {
    store: S,
    /// Whether a listing leaves out the object whose key is just what was asked for.
    skips_exact: bool,
}

impl<S> Bucket<S> {
    pub(crate) fn new(store: S) -> Self {
        Self { store, skips_exact: false }
    }

    /// The same for a store whose listings leave out an object of just the name that is asked for.
    pub(crate) fn skipping_exact(store: S) -> Self {
        Self { store, skips_exact: true }
    }
}

fn noted(notes: Notes) -> Extensions {
    let mut extensions = Extensions::new();
    extensions.insert(notes);
    extensions
}

fn facts(meta: ObjectMeta) -> Facts {
    let version = meta.e_tag.as_deref().map_or(Version::Unknown, tagged);
    // Where a server does not say, it is the beginning of time.
    let modified = meta.last_modified.timestamp_nanos_opt().filter(|time| *time != 0);
    Facts { size: meta.size, version, modified }
}

fn version_of(e_tag: Option<String>) -> Version {
    e_tag.as_deref().map_or(Version::Unknown, tagged)
}

impl<S: ObjectStore + PaginatedListStore + MultipartStore> Backend for Bucket<S> {
    fn get(&self, ask: Ask, range: Range<u64>, version: Version) -> Asked<'_, Answer> {
        Box::pin(async move {
            let options = GetOptions {
                range: Some(GetRange::Bounded(range)),
                if_match: strong(&version).map(str::to_owned),
                extensions: noted(ask.notes),
                ..Default::default()
            };
            let result = self.store.get_opts(&Path::parse(&ask.key)?, options).await?;
            let version = result.meta.e_tag.as_deref().map_or(Version::Unknown, tagged);
            let size = result.meta.size;
            let body = result.into_stream().map(|part| part.map_err(Fault::from)).boxed();
            Ok(Answer { size, version, body })
        })
    }

    fn head(&self, ask: Ask) -> Asked<'_, Facts> {
        Box::pin(async move {
            let options = GetOptions { head: true, extensions: noted(ask.notes), ..Default::default() };
            Ok(facts(self.store.get_opts(&Path::parse(&ask.key)?, options).await?.meta))
        })
    }

    fn list(&self, ask: Ask, page: Option<String>) -> Asked<'_, Page> {
        Box::pin(async move {
            let start = ask.key.as_str();
            let asked = match start.char_indices().next_back() {
                // One letter less brings that object, and others that are taken out below.
                Some((last, letter)) if self.skips_exact && letter != '/' => &start[..last],
                _ => start,
            };
            let options = PaginatedListOptions { page_token: page, extensions: noted(ask.notes), ..Default::default() };
            let page = self.store.list_paginated(Some(asked).filter(|text| !text.is_empty()), options).await?;
            let entries = page.result.objects.into_iter().filter(|meta| meta.location.as_ref().starts_with(start));
            let entries = entries.map(|meta| Listed { key: meta.location.to_string(), facts: facts(meta) });
            Ok(Page { entries: entries.collect(), next: page.page_token })
        })
    }

    fn writer(&self) -> Option<Writer<'_>> {
        Some(Writer::Parts(self))
    }
}

impl<S: ObjectStore + MultipartStore> Puts for Bucket<S> {
    fn put(&self, ask: Ask, bytes: Bytes, condition: Condition) -> Asked<'_, Option<Version>> {
        Box::pin(async move {
            let path = Path::parse(&ask.key)?;
            let mode = match condition {
                Condition::Always => PutMode::Overwrite,
                Condition::Absent => PutMode::Create,
                Condition::Unchanged(wanted) => {
                    // Some stores have conditions on generations alone, which no listing tells.
                    let options = GetOptions { head: true, extensions: noted(ask.notes.clone()), ..Default::default() };
                    let meta = match self.store.get_opts(&path, options).await {
                        Err(object_store::Error::NotFound { .. }) => return Ok(None),
                        found => found?.meta,
                    };
                    if version_of(meta.e_tag.clone()) != wanted {
                        return Ok(None);
                    }
                    PutMode::Update(UpdateVersion { e_tag: meta.e_tag, version: meta.version })
                }
            };
            let options = PutOptions { mode, extensions: noted(ask.notes), ..Default::default() };
            match self.store.put_opts(&path, PutPayload::from(bytes), options).await {
                Ok(put) => Ok(Some(version_of(put.e_tag))),
                Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => Ok(None),
                Err(error) => Err(error.into()),
            }
        })
    }

    fn delete(&self, ask: Ask) -> Asked<'_, ()> {
        Box::pin(async move {
            let path = Path::parse(&ask.key)?;
            match ask.notes.noting(self.store.delete(&path)).await {
                Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
                Err(error) => Err(error.into()),
            }
        })
    }
}

impl<S: ObjectStore + MultipartStore> Parts for Bucket<S> {
    fn begin(&self, ask: Ask) -> Asked<'_, String> {
        Box::pin(async move {
            let path = Path::parse(&ask.key)?;
            Ok(ask.notes.noting(self.store.create_multipart(&path)).await?)
        })
    }

    fn part(&self, ask: Ask, upload: String, number: usize, bytes: Bytes) -> Asked<'_, String> {
        Box::pin(async move {
            let path = Path::parse(&ask.key)?;
            let put = self.store.put_part(&path, &upload, number, PutPayload::from(bytes));
            Ok(ask.notes.noting(put).await?.content_id)
        })
    }

    fn complete(&self, ask: Ask, upload: String, parts: Vec<String>) -> Asked<'_, Version> {
        Box::pin(async move {
            let path = Path::parse(&ask.key)?;
            let parts = parts.into_iter().map(|content_id| PartId { content_id }).collect();
            let put = ask.notes.noting(self.store.complete_multipart(&path, &upload, parts)).await?;
            Ok(version_of(put.e_tag))
        })
    }

    fn abort(&self, ask: Ask, upload: String) -> Asked<'_, ()> {
        Box::pin(async move {
            let path = Path::parse(&ask.key)?;
            Ok(ask.notes.noting(self.store.abort_multipart(&path, &upload)).await?)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_has_its_quotes() {
        for (text, wanted) in [("\"a\"", "\"a\""), ("a", "\"a\""), ("W/\"a\"", "W/\"a\""), (" a ", "\"a\"")] {
            assert_eq!(tagged(text), Version::ETag(wanted.to_owned()), "{text}");
        }
        assert_eq!(tagged(""), Version::Unknown);
        assert_eq!(strong(&tagged("a")), Some("\"a\""));
        assert_eq!(strong(&tagged("W/\"a\"")), None);
    }
}
