//! One request to a store: what every kind of store can be asked, and how the buckets of `object_store` answer it.
//!
//! Nothing here is repeated, timed or counted: that is done once for all kinds of store, in `shared`.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{BoxStream, StreamExt};
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{Extensions, GetOptions, GetRange, ObjectStore, PutOptions, PutPayload};

use crate::store::Version;
use crate::store::remote::observe::Notes;

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

/// An object of a listing.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) size: u64,
    pub(crate) version: Version,
}

/// A part of a listing.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) entries: Vec<Entry>,
    /// What to ask the next one with; `None` after the last.
    pub(crate) next: Option<String>,
}

/// A client of one store.
pub(crate) trait Backend: Send + Sync {
    /// The bytes of a range that is not empty. `version` is what was seen before: a store that can refuses another.
    fn get(&self, ask: Ask, range: Range<u64>, version: Version) -> Asked<'_, Answer>;

    /// Size and version of an object.
    fn head(&self, ask: Ask) -> Asked<'_, (u64, Version)>;

    /// A page of the objects whose keys begin with the one that is asked for.
    fn list(&self, ask: Ask, page: Option<String>) -> Asked<'_, Page>;

    /// Writes an object whole.
    fn put(&self, ask: Ask, bytes: Bytes) -> Asked<'_, ()>;
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

impl<S: ObjectStore + PaginatedListStore> Backend for Bucket<S> {
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

    fn head(&self, ask: Ask) -> Asked<'_, (u64, Version)> {
        Box::pin(async move {
            let options = GetOptions { head: true, extensions: noted(ask.notes), ..Default::default() };
            let meta = self.store.get_opts(&Path::parse(&ask.key)?, options).await?.meta;
            Ok((meta.size, meta.e_tag.as_deref().map_or(Version::Unknown, tagged)))
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
            let entries = entries.map(|meta| Entry {
                size: meta.size,
                version: meta.e_tag.as_deref().map_or(Version::Unknown, tagged),
                key: meta.location.into(),
            });
            Ok(Page { entries: entries.collect(), next: page.page_token })
        })
    }

    fn put(&self, ask: Ask, bytes: Bytes) -> Asked<'_, ()> {
        Box::pin(async move {
            let options = PutOptions { extensions: noted(ask.notes), ..Default::default() };
            self.store.put_opts(&Path::parse(&ask.key)?, PutPayload::from(bytes), options).await?;
            Ok(())
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
