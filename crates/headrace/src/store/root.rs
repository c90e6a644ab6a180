//! A place of files by its path or URL alone: nothing is listed.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::store::Store;
use crate::store::local::{LocalStore, nothing};
use crate::store::remote::RemoteStore;
use crate::store::resolve::{Local, Location, resolve};

/// A store at the folder that `url` stands for. A local one must exist.
pub fn root(url: &str, options: &BTreeMap<String, String>) -> Result<Arc<dyn Store>> {
    match resolve(url, options)? {
        Location::Local { place: Local::Folder(path), is_slow } => Ok(Arc::new(LocalStore::new(&path)?.slow(is_slow))),
        Location::Local { place: Local::File(path), .. } => Ok(Arc::new(LocalStore::new(&path)?)),
        Location::Local { place: Local::Nothing(path), .. } => Err(nothing(&path)),
        Location::Local { place: Local::Pattern { .. }, .. } => Err(Error::Argument(format!(
            "{url:?}: expected a folder, found a pattern\nhint: only a folder's files can be named by an index"
        ))),
        location @ Location::Remote { query: Some(_), .. } => Err(Error::Argument(format!(
            "{:?}: expected a folder, found the signed URL of a file",
            location.shown(url)
        ))),
        Location::Remote { provider, key, query: None } => Ok(Arc::new(RemoteStore::new(provider, &key)?)),
    }
}

/// The same for files that are going to be stored: a local folder may still have to be made.
pub fn place(url: &str, options: &BTreeMap<String, String>) -> Result<Arc<dyn Store>> {
    match resolve(url, options)? {
        Location::Local { place: Local::Nothing(path), is_slow } => {
            Ok(Arc::new(LocalStore::to_make(&path)?.slow(is_slow)))
        }
        Location::Local { place: Local::Pattern { .. }, .. } => Err(Error::Argument(format!(
            "{url:?}: expected a folder, found a pattern\nhint: a new folder whose name has *, ? or [ in it has to be made \
             before"
        ))),
        _ => root(url, options),
    }
}
