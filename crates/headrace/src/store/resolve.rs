//! What a user's path means: the one function that understands paths and URLs.
//!
//! | written | means |
//! | --- | --- |
//! | `data/web`, `/data/a b%20.parquet` | a local path, taken as it stands; `~` alone or before a `/` is the home folder |
//! | `local:/mnt/web` | the same on a mount that is slow to read: its data is worth keeping on a local disk |
//! | `file:///data/a%20b` | a local path, percent-decoded |
//! | `s3://bucket/key`, `s3a://`, `r2://` | an object or folder of a bucket; the key is taken as it stands |
//! | `gs://bucket/key`, `gcs://` | the same of Google Cloud Storage |
//! | `az://container/key`, `azure://`, `abfs://`, `abfss://` | the same of Azure, also with `container@account.dfs.core.windows.net` |
//! | `http://host/path?query`, `https://` | a file of a web server |
//! | `hf://datasets/org/name@revision/path` | a file or folder of a repository on the Hugging Face Hub |
//! | any other scheme | what another library says, if one was named ([`crate::store::remote::foreign`]) |
//!
//! A local path or key in which `*`, `?` or `[` occurs is a pattern, unless something of just that name exists.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::store::local::io_error;
use crate::store::remote::foreign::Foreign;
use crate::store::remote::{Azure, Gcs, Hf, Hidden, Http, HttpUrl, Provider, S3};

/// The schemes that are understood, and stand before `://`.
pub const SCHEMES: &[&str] =
    &["file", "s3", "s3a", "r2", "gs", "gcs", "az", "azure", "abfs", "abfss", "http", "https", "hf"];

/// What stands before the path of a slow mount.
const SLOW: &str = "local:";

/// Characters that make a pattern of a path.
const WILD: [char; 3] = ['*', '?', '['];

/// What a path stands for, as far as that can be told without asking a server.
#[derive(Debug, Clone)]
pub enum Location {
    /// Files of the local file system.
    Local {
        /// Which.
        place: Local,
        /// Whether they are marked as slow to read.
        is_slow: bool,
    },
    /// Files that are reached over a network.
    Remote {
        /// The bucket, container, repository or server.
        provider: Arc<dyn Provider>,
        /// A key, the prefix of a folder, or a pattern of keys; without a slash at its start.
        key: String,
        /// What has to follow the key in its URL, and must not be shown.
        query: Option<Hidden>,
    },
}

impl Location {
    /// The path or URL that was given, without what must not be shown.
    pub fn shown(&self, given: &str) -> String {
        match self {
            Self::Local { .. } => given.to_owned(),
            Self::Remote { provider, key, .. } => provider.uri(key),
        }
    }
}

/// What a local path stands for; all paths are absolute.
#[derive(Debug, Clone, PartialEq)]
pub enum Local {
    /// A folder.
    Folder(PathBuf),
    /// A file.
    File(PathBuf),
    /// Nothing yet.
    Nothing(PathBuf),
    /// Files below `base` whose path relative to it matches `pattern`.
    Pattern {
        /// The deepest folder that is spelled out.
        base: PathBuf,
        /// What follows it.
        pattern: String,
    },
}

/// Whether a path is marked as one of a mount that is slow to read.
pub fn is_marked_slow(url: &str) -> bool {
    scheme(url).is_none() && url.starts_with(SLOW)
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
    refuse_login(url)?;
    if url.contains('\0') {
        return Err(Error::Argument(format!("{url:?}: a path cannot hold a NUL character")));
    }
    let is_here = |place: Local| Location::Local { place, is_slow: false };
    match scheme(url) {
        None => match url.strip_prefix(SLOW) {
            Some("") => Err(Error::Argument(format!("{url:?}: expected the path of a mount after {SLOW}"))),
            Some(path) => Ok(Location::Local { place: local(&expand_home(path)?, url)?, is_slow: true }),
            None => local(&expand_home(url)?, url).map(is_here),
        },
        Some(("file", rest)) => local(Path::new(&file_path(url, rest)?), url).map(is_here),
        Some((scheme @ ("s3" | "s3a" | "r2"), rest)) => {
            let (bucket, key) = bucket(url, scheme, rest)?;
            remote(S3::new(scheme, bucket, options)?, key)
        }
        Some((scheme @ ("gs" | "gcs"), rest)) => {
            let (bucket, key) = bucket(url, scheme, rest)?;
            remote(Gcs::new(scheme, bucket, options)?, key)
        }
        Some((scheme @ ("az" | "azure" | "abfs" | "abfss"), rest)) => {
            let (authority, key) = rest.split_once('/').unwrap_or((rest, ""));
            whole_parts(url, key)?;
            remote(Azure::new(scheme, authority, options)?, key)
        }
        Some((scheme @ ("http" | "https"), rest)) => {
            let HttpUrl { server, key, query } = Http::parse(scheme, rest, options)?;
            Ok(Location::Remote { provider: Arc::new(server), key, query })
        }
        Some(("hf", rest)) => {
            let (repository, key) = Hf::parse(rest, options)?;
            remote(repository, &key)
        }
        Some((other, rest)) => {
            let hint = match Foreign::find(url, options)? {
                Ok((files, key)) => return remote(files, key.trim_matches('/')),
                Err(hint) if hint.is_empty() => hint,
                Err(hint) => format!("\nhint: {hint}"),
            };
            // What stands before an @ may be a password, what follows a ? a signature.
            let place = rest.split(['?', '#']).next().unwrap_or_default();
            let place = &place[place.split('/').next().and_then(|host| host.rfind('@')).map_or(0, |at| at + 1)..];
            let known: Vec<String> = SCHEMES.iter().map(|scheme| format!("{scheme}://")).collect();
            Err(Error::Argument(format!(
                "\"{other}://{place}\": unknown scheme {other:?}: expected a local path, {SLOW} before one, or {}{hint}",
                known.join(", ")
            )))
        }
    }
}

/// Refuses `user:secret@` where no store takes it, before anything else can show it.
fn refuse_login(url: &str) -> Result<()> {
    let Some((scheme, rest)) = scheme(url).filter(|(scheme, _)| SCHEMES.contains(scheme)) else { return Ok(()) };
    let authority = rest.split('/').next().unwrap_or_default();
    let most = match scheme {
        "file" | "http" | "https" => return Ok(()),
        // `container@account.dfs.core.windows.net`.
        "az" | "azure" | "abfs" | "abfss" => 1,
        _ => 0,
    };
    if !authority.contains(':') && authority.matches('@').count() <= most {
        return Ok(());
    }
    // A secret may hold a slash.
    let place = rest.rsplit_once('@').map_or("", |(_, place)| place);
    Err(Error::Argument(format!(
        "\"{scheme}://(hidden)@{place}\": expected a URL without a login\nhint: pass what logs in as storage_options, or set \
         the variables of the provider's own tools"
    )))
}

fn remote(provider: impl Provider + 'static, key: &str) -> Result<Location> {
    Ok(Location::Remote { provider: Arc::new(provider), key: key.to_owned(), query: None })
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

/// Text with its `%XX` escapes resolved; `None` if one is broken, or what they stand for is not UTF-8.
pub(crate) fn percent_decode(text: &str) -> Option<String> {
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

fn local(path: &Path, url: &str) -> Result<Local> {
    let path = std::path::absolute(path).map_err(|e| io_error(path, "open", &e))?;
    match fs::metadata(&path) {
        Ok(metadata) if metadata.is_dir() => Ok(Local::Folder(plain(path)?)),
        Ok(metadata) if metadata.is_file() => Ok(Local::File(plain_file(path)?)),
        Ok(_) => Err(Error::Argument(format!("{url:?}: expected a file or a folder, found a special file"))),
        Err(e) => {
            let text = path.to_str().unwrap_or_default();
            let Some((base, pattern)) = split_pattern(text) else {
                return match e.kind() {
                    io::ErrorKind::NotFound => Ok(Local::Nothing(plain_so_far(path)?)),
                    _ => Err(io_error(&path, "open", &e)),
                };
            };
            let base = if base.is_empty() { "/" } else { base };
            match fs::metadata(base) {
                Ok(metadata) if metadata.is_dir() => {
                    Ok(Local::Pattern { base: plain(PathBuf::from(base))?, pattern: pattern.to_owned() })
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

/// As [`plain`], for a path of which the end is not there: what stands before the last `..` has to be.
fn plain_so_far(path: PathBuf) -> Result<PathBuf> {
    let parts: Vec<_> = path.components().collect();
    match parts.iter().rposition(|part| *part == Component::ParentDir) {
        Some(last) => {
            let rest: PathBuf = parts[last + 1..].iter().collect();
            Ok(plain(parts[..=last].iter().collect())?.join(rest))
        }
        None => Ok(parts.iter().collect()),
    }
}

/// Bucket and key of what follows the scheme.
fn bucket<'a>(url: &str, scheme: &str, rest: &'a str) -> Result<(&'a str, &'a str)> {
    let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
    let valid = bucket.len() >= 2 && bucket.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b));
    if !valid {
        return Err(Error::Argument(format!(
            "{url:?}: expected {scheme}://bucket/key, found the bucket name {bucket:?}"
        )));
    }
    whole_parts(url, key)?;
    Ok((bucket, key))
}

fn whole_parts(url: &str, key: &str) -> Result<()> {
    if key.starts_with('/') || key.contains("//") {
        return Err(Error::Argument(format!("{url:?}: the key has an empty part between two slashes")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(url: &str) -> Result<Location> {
        resolve(url, &BTreeMap::new())
    }

    fn place(url: &str) -> Result<Local> {
        match at(url)? {
            Location::Local { place, .. } => Ok(place),
            remote => panic!("{url}: {remote:?}"),
        }
    }

    /// (root, key) of a URL.
    fn keyed(url: &str) -> (String, String) {
        match at(url).expect(url) {
            Location::Remote { provider, key, .. } => (provider.root().to_owned(), key),
            local => panic!("{url}: {local:?}"),
        }
    }

    #[test]
    fn a_literal_name_wins_over_its_meaning_as_a_pattern() {
        let folder = tempfile::tempdir().expect("folder");
        let root = folder.path();
        fs::write(root.join("a[1].parquet"), b"x").expect("write");
        let text = |name: &str| root.join(name).to_str().expect("UTF-8").to_owned();
        assert_eq!(place(&text("a[1].parquet")).expect("file"), Local::File(root.join("a[1].parquet")));
        assert_eq!(
            place(&text("a[2].parquet")).expect("pattern"),
            Local::Pattern { base: root.to_owned(), pattern: "a[2].parquet".to_owned() }
        );
        assert_eq!(
            place(&text("x/../*.parquet")).err().map(|e| matches!(e, Error::Store { .. })),
            Some(true),
            "x does not exist, so neither does x/.."
        );
        fs::create_dir(root.join("x")).expect("folder");
        let base = fs::canonicalize(root).expect("real path");
        assert_eq!(
            place(&text("x/../*.parquet")).expect("pattern"),
            Local::Pattern { base, pattern: "*.parquet".to_owned() }
        );
        assert_eq!(place(&text("x/")).expect("folder"), Local::Folder(root.join("x")));
        assert_eq!(place(&text("./x//")).expect("folder"), Local::Folder(root.join("x")));
    }

    #[test]
    fn names_are_taken_as_they_stand() {
        let folder = tempfile::tempdir().expect("folder");
        for name in ["a b", "50%25", "#1", "ü", "new\nline", "a+b", "{x}", "back\\slash", "~"] {
            let path = folder.path().join(name);
            fs::write(&path, b"x").expect("write");
            assert_eq!(place(path.to_str().expect("UTF-8")).expect(name), Local::File(path.clone()));
        }
        assert_eq!(
            place(&format!("file://{}/a%20b", folder.path().display())).expect("file URL"),
            Local::File(folder.path().join("a b"))
        );
    }

    #[test]
    fn a_login_in_a_url_is_refused_and_not_shown() {
        for scheme in SCHEMES.iter().filter(|scheme| !matches!(**scheme, "file" | "http" | "https")) {
            for rest in [
                "me:hunter2@bucket/key",
                "me:hunter2@bucket",
                "me:hun/ter2@bucket/key",
                "me:hunter2@datasets/org/name",
                "me:hunter2",
                "me:hunter2@data@account.dfs.core.windows.net/key",
                "hunter2@more@data@account.dfs.core.windows.net",
                "me:hunter2@bucket/a\0b",
            ] {
                let message = at(&format!("{scheme}://{rest}")).expect_err(rest).to_string();
                assert!(!message.contains("hunter2") && !message.contains("ter2"), "{message}");
                assert!(message.contains("storage_options") && message.contains(*scheme), "{message}");
            }
        }
        assert_eq!(keyed("s3://bucket/a@b:c"), ("s3://bucket".to_owned(), "a@b:c".to_owned()));
        let container = "abfss://data@account.dfs.core.windows.net";
        assert_eq!(keyed(&format!("{container}/k")).1, "k");
    }

    #[test]
    fn wrong_urls_say_what_was_expected() {
        for (url, part) in [
            ("xx://b/k", "expected a local path, local: before one, or file://, s3://"),
            ("local:", "expected the path of a mount"),
            ("gs://bucket//k", "empty part"),
            ("az://b//k", "empty part"),
            ("az://con.tainer/k", "container name"),
            ("hf://org/name", "datasets, models or spaces"),
            ("https:///a", "expected https://host/path"),
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
        let message = at("sftp://me:hunter2@host/a?token=hunter2").expect_err("unknown").to_string();
        assert!(message.contains("\"sftp://host/a\"") && !message.contains("hunter2"), "{message}");
    }

    #[test]
    fn keys_are_raw() {
        for (scheme, authority) in [
            ("s3", "bucket"),
            ("r2", "bucket"),
            ("gs", "bucket"),
            ("az", "container"),
            ("abfss", "container@account.dfs.core.windows.net"),
            ("hf", "datasets/org/name@v1"),
        ] {
            let root = format!("{scheme}://{authority}");
            assert_eq!(keyed(&format!("{root}/a%20b #?x")), (root, "a%20b #?x".to_owned()));
        }
        assert_eq!(keyed("s3://bucket"), ("s3://bucket".to_owned(), String::new()));
    }

    #[test]
    fn what_signs_a_url_is_kept_apart() {
        let location = at("https://host/a.parquet?x=1&sig=hunter2").expect("URL");
        assert!(!format!("{location:?}").contains("hunter2"), "{location:?}");
        match location {
            Location::Remote { key, query, .. } => {
                assert_eq!(key, "a.parquet?x=1");
                assert_eq!(query, Some(Hidden("x=1&sig=hunter2".to_owned())));
            }
            local => panic!("{local:?}"),
        }
    }

    #[test]
    fn a_mount_is_a_folder_with_a_mark() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().to_str().expect("UTF-8");
        match at(&format!("local:{path}/")).expect("mount") {
            Location::Local { place, is_slow: true } => assert_eq!(place, Local::Folder(folder.path().to_owned())),
            other => panic!("{other:?}"),
        }
        assert!(matches!(at(path).expect("folder"), Location::Local { is_slow: false, .. }));
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
