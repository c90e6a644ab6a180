//! What a user's path means: the one function that understands paths and URLs.
//!
//! | written | means |
//! | --- | --- |
//! | `data/web`, `/data/a b%20.parquet` | a local path, taken as it stands; `~` alone or before a `/` is the home folder |
//! | `file:///data/a%20b` | a local path, percent-decoded |
//! | `s3://bucket/key` | an object or folder of a bucket; the key is taken as it stands |
//!
//! A local path or key in which `*`, `?` or `[` occurs is a pattern, unless something of just that name exists.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::error::{Error, Result};
use crate::store::local::io_error;
use crate::store::s3::S3Options;

/// The schemes that are understood.
pub const SCHEMES: &[&str] = &["file", "s3"];

/// Characters that make a pattern of a path.
const WILD: [char; 3] = ['*', '?', '['];

/// What a path stands for, as far as that can be told without asking a server.
#[derive(Debug, Clone, PartialEq)]
pub enum Location {
    /// A folder of the local file system, absolute.
    Folder(PathBuf),
    /// A file of the local file system, absolute.
    File(PathBuf),
    /// Files of the local file system below `base` whose path relative to it matches `pattern`.
    Pattern {
        /// The deepest folder that is spelled out.
        base: PathBuf,
        /// What follows it.
        pattern: String,
    },
    /// Objects of a bucket.
    S3 {
        /// Its name.
        bucket: String,
        /// A key, the prefix of a folder, or a pattern of keys; without a slash at its start.
        key: String,
        /// Settings for reaching it.
        options: S3Options,
    },
}

/// Splits a pattern before the part in which its first wildcard occurs: (folder, rest). `None` if it has none.
pub fn split_pattern(text: &str) -> Option<(&str, &str)> {
    let wild = text.find(WILD)?;
    Some(match text[..wild].rfind('/') {
        Some(slash) => (&text[..slash], &text[slash + 1..]),
        None => ("", text),
    })
}

/// What `url` stands for.
pub fn resolve(url: &str, options: &BTreeMap<String, String>) -> Result<Location> {
    if url.is_empty() {
        return Err(Error::Argument("the path is empty: expected a folder, a file, a pattern or a URL".to_owned()));
    }
    if url.contains('\0') {
        return Err(Error::Argument(format!("{url:?}: a path cannot hold a NUL character")));
    }
    match scheme(url) {
        None => local(&expand_home(url)?, url),
        Some(("file", rest)) => local(Path::new(&file_path(url, rest)?), url),
        Some(("s3", rest)) => s3(url, rest, options),
        Some((other, _)) => Err(Error::Argument(format!(
            "{url:?}: unknown scheme {other:?}: expected a local path, {}",
            SCHEMES.iter().map(|scheme| format!("{scheme}://")).collect::<Vec<_>>().join(" or ")
        ))),
    }
}

/// `("s3", "bucket/key")` of `s3://bucket/key`, with the scheme in lower case only.
fn scheme(url: &str) -> Option<(&str, &str)> {
    let (scheme, rest) = url.split_once("://")?;
    let mut bytes = scheme.bytes();
    let first = bytes.next()?;
    let valid = first.is_ascii_alphabetic() && bytes.all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
    valid.then_some((scheme, rest))
}

fn expand_home(text: &str) -> Result<PathBuf> {
    let rest = match text.strip_prefix('~') {
        Some("") => "",
        Some(rest) if rest.starts_with('/') => rest.trim_start_matches('/'),
        _ => return Ok(PathBuf::from(text)),
    };
    match std::env::home_dir().filter(|home| !home.as_os_str().is_empty()) {
        // A slash at the end says "folder", and joining nothing would add one.
        Some(home) if rest.is_empty() => Ok(home),
        Some(home) => Ok(home.join(rest)),
        None => {
            Err(Error::Argument(format!("{text:?}: there is no home folder\nhint: set HOME, or give the whole path")))
        }
    }
}

/// The path of a `file://` URL.
fn file_path(url: &str, rest: &str) -> Result<String> {
    let Some(slash) = rest.find('/') else {
        return Err(Error::Argument(format!("{url:?}: expected file:///absolute/path")));
    };
    let host = &rest[..slash];
    if !host.is_empty() && !host.eq_ignore_ascii_case("localhost") {
        return Err(Error::Argument(format!(
            "{url:?}: files of another host ({host:?}) cannot be read\nhint: three slashes begin a local path: file:///..."
        )));
    }
    percent_decode(&rest[slash..])
        .ok_or_else(|| Error::Argument(format!("{url:?}: expected UTF-8 with %XX escapes, found a broken escape")))
}

fn percent_decode(text: &str) -> Option<String> {
    let digit = |b: Option<u8>| char::from(b?).to_digit(16);
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
            out.push(u8::try_from(high * 16 + low).ok()?);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).ok()
}

fn local(path: &Path, url: &str) -> Result<Location> {
    let path = std::path::absolute(path).map_err(|e| io_error(path, "open", &e))?;
    match fs::metadata(&path) {
        Ok(metadata) if metadata.is_dir() => Ok(Location::Folder(plain(path)?)),
        Ok(metadata) if metadata.is_file() => Ok(Location::File(plain_file(path)?)),
        Ok(_) => Err(Error::Argument(format!("{url:?}: expected a file or a folder, found a special file"))),
        Err(e) => {
            let text = path.to_str().unwrap_or_default();
            let Some((base, pattern)) = split_pattern(text) else { return Err(io_error(&path, "open", &e)) };
            let base = if base.is_empty() { "/" } else { base };
            match fs::metadata(base) {
                Ok(metadata) if metadata.is_dir() => {
                    Ok(Location::Pattern { base: plain(PathBuf::from(base))?, pattern: pattern.to_owned() })
                }
                Ok(_) => Err(Error::Argument(format!("{url:?}: {base} is not a folder"))),
                Err(e) => Err(io_error(Path::new(base), "list", &e)),
            }
        }
    }
}

/// A path without `..`: what stands before one may be a link, so only the system can tell what is meant. A slash at
/// the end goes too.
fn plain(path: PathBuf) -> Result<PathBuf> {
    if path.components().any(|part| part == Component::ParentDir) {
        return fs::canonicalize(&path).map_err(|e| io_error(&path, "open", &e));
    }
    Ok(path.components().collect())
}

/// As [`plain`], but keeps the name of the file itself, which may be a link.
fn plain_file(path: PathBuf) -> Result<PathBuf> {
    match (path.parent(), path.file_name()) {
        (Some(folder), Some(name)) => Ok(plain(folder.to_owned())?.join(name)),
        _ => plain(path),
    }
}

fn s3(url: &str, rest: &str, options: &BTreeMap<String, String>) -> Result<Location> {
    let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
    let valid = bucket.len() >= 2 && bucket.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
    if !valid {
        return Err(Error::Argument(format!("{url:?}: expected s3://bucket/key, found the bucket name {bucket:?}")));
    }
    if key.starts_with('/') || key.contains("//") {
        return Err(Error::Argument(format!("{url:?}: the key has an empty part between two slashes")));
    }
    Ok(Location::S3 { bucket: bucket.to_owned(), key: key.to_owned(), options: S3Options::parse(options)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(url: &str) -> Result<Location> {
        resolve(url, &BTreeMap::new())
    }

    #[test]
    fn a_literal_name_wins_over_its_meaning_as_a_pattern() {
        let folder = tempfile::tempdir().expect("folder");
        let root = folder.path();
        fs::write(root.join("a[1].parquet"), b"x").expect("write");
        let text = |name: &str| root.join(name).to_str().expect("UTF-8").to_owned();
        assert_eq!(at(&text("a[1].parquet")).expect("file"), Location::File(root.join("a[1].parquet")));
        assert_eq!(
            at(&text("a[2].parquet")).expect("pattern"),
            Location::Pattern { base: root.to_owned(), pattern: "a[2].parquet".to_owned() }
        );
        assert_eq!(
            at(&text("x/../*.parquet")).err().map(|e| matches!(e, Error::Store { .. })),
            Some(true),
            "x does not exist, so neither does x/.."
        );
        fs::create_dir(root.join("x")).expect("folder");
        let base = fs::canonicalize(root).expect("real path");
        assert_eq!(
            at(&text("x/../*.parquet")).expect("pattern"),
            Location::Pattern { base, pattern: "*.parquet".to_owned() }
        );
        assert_eq!(at(&text("x/")).expect("folder"), Location::Folder(root.join("x")));
        assert_eq!(at(&text("./x//")).expect("folder"), Location::Folder(root.join("x")));
    }

    #[test]
    fn names_are_taken_as_they_stand() {
        let folder = tempfile::tempdir().expect("folder");
        for name in ["a b", "50%25", "#1", "ü", "new\nline", "a+b", "{x}", "back\\slash", "~"] {
            let path = folder.path().join(name);
            fs::write(&path, b"x").expect("write");
            assert_eq!(at(path.to_str().expect("UTF-8")).expect(name), Location::File(path.clone()));
        }
        assert_eq!(
            at(&format!("file://{}/a%20b", folder.path().display())).expect("file URL"),
            Location::File(folder.path().join("a b"))
        );
    }

    #[test]
    fn wrong_urls_say_what_was_expected() {
        for (url, part) in [
            ("gs://b/k", "expected a local path, file:// or s3://"),
            ("", "is empty"),
            ("file://host/x", "another host"),
            ("file:///%zz", "broken escape"),
            ("file://x", "absolute"),
            ("s3:///key", "bucket name"),
            ("s3://b_ucket?/key", "bucket name"),
            ("s3://bucket//key", "empty part"),
            ("a\0b", "NUL"),
        ] {
            let message = at(url).expect_err(url).to_string();
            assert!(message.contains(part), "{url}: {message}");
        }
    }

    #[test]
    fn keys_are_raw() {
        match at("s3://bucket/a%20b #?x").expect("S3") {
            Location::S3 { bucket, key, .. } => assert_eq!((bucket.as_str(), key.as_str()), ("bucket", "a%20b #?x")),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn patterns_are_split_before_the_first_wildcard() {
        assert_eq!(split_pattern("a/b/c*/d"), Some(("a/b", "c*/d")));
        assert_eq!(split_pattern("*.x"), Some(("", "*.x")));
        assert_eq!(split_pattern("a/b"), None);
    }

    proptest! {
        #[test]
        fn resolving_never_panics(url in "\\PC{0,40}") {
            let _ = at(&url);
        }

        #[test]
        fn percent_decoding_undoes_encoding(text in "\\PC{0,30}") {
            let encoded: String = text.bytes().map(|b| format!("%{b:02X}")).collect();
            prop_assert_eq!(percent_decode(&encoded), Some(text));
        }
    }
}
