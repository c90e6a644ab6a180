//! Objects of S3 and of servers that speak its protocol.
//!
//! Settings come from the `AWS_*` environment variables and, above them, from `storage_options`: the names of the
//! `object_store` crate with and without `aws_` (`access_key_id`, `secret_access_key`, `session_token`, `region`,
//! `endpoint_url`, `allow_http`, `skip_signature`, ...), `anon`, `key` and `secret` as other libraries call them,
//! and `timeout`, `connect_timeout`, `retry_timeout`, `max_retries`. Keys are raw: a `%` in a URL is a `%` in the
//! key.
//!
//! Every read is cut into pieces, each one request that is read to its end at once, repeated and continued here
//! (see `retry`). The entity tag of the listing is sent with each, so all bytes are of one version of the object.

mod observe;
mod options;
mod retry;
mod runtime;

use std::future::Future;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use object_store::list::{PaginatedListOptions, PaginatedListStore};
use object_store::path::Path;
use object_store::{Extensions, GetOptions, GetRange, ObjectStore, PutOptions};
use tokio::time::timeout;
use xxhash_rust::xxh3::xxh3_64_with_seed;

pub use options::S3Options;

use self::observe::{Notes, addressable};
use self::options::Client;
use self::retry::{Attempts, Failure, Kind, MIN_RATE, innermost};
use self::runtime::{Task, permits};
use crate::cancel::Cancel;
use crate::error::{Error, Result, StoreFault};
use crate::store::{Fetch, Object, Pending, Store, Traffic, Version};

/// Longest body asked for with one request. Scope: a request. Unit: bytes. Evidence: at the 16 KiB/s that still
/// count as progress a piece ends within ten minutes, at a usual 80 MB/s within 0.1 s, so that the cost of a
/// request (some 20 ms) stays small; and a broken piece holds up little.
const PIECE: u64 = 8 << 20;

/// A bucket, or the keys below a prefix of it.
#[derive(Debug)]
pub struct S3Store {
    shared: Arc<Shared>,
    /// The prefix, without slashes at its ends.
    prefix: String,
    url: String,
}

#[derive(Debug)]
struct Shared {
    bucket: String,
    options: S3Options,
    /// With the process that made it: a forked child must not use its parent's connections.
    client: Mutex<(u32, Arc<Client>)>,
    /// Whether the server has answered anything yet.
    reached: AtomicBool,
    traffic: Traffic,
}

impl S3Store {
    /// The keys of `bucket` below `prefix` (`""` for all). Sends nothing.
    pub fn new(bucket: &str, prefix: &str, options: S3Options) -> Result<Self> {
        let client = Mutex::new((std::process::id(), Arc::new(options.client(bucket)?)));
        let shared = Shared {
            bucket: bucket.to_owned(),
            options,
            client,
            reached: AtomicBool::new(false),
            traffic: Traffic::default(),
        };
        Ok(Self::at(Arc::new(shared), prefix))
    }

    /// The same bucket through the same connections, below another prefix.
    pub fn with_prefix(&self, prefix: &str) -> Self {
        Self::at(Arc::clone(&self.shared), prefix)
    }

    fn at(shared: Arc<Shared>, prefix: &str) -> Self {
        let prefix = prefix.trim_matches('/').to_owned();
        let slash = if prefix.is_empty() { "" } else { "/" };
        let url = format!("s3://{}{slash}{prefix}", shared.bucket);
        Self { shared, prefix, url }
    }

    /// Calls `found` with every object whose path below the root begins with `start`, be that the name of a folder
    /// with a slash after it, or a part of a name.
    pub fn list_starting(&self, start: &str, cancel: &Cancel, found: &mut dyn FnMut(Object)) -> Result<()> {
        let whole = self.key(start);
        let cut = if self.prefix.is_empty() { 0 } else { self.prefix.len() + 1 };
        let mut token: Option<String> = None;
        loop {
            let shared = Arc::clone(&self.shared);
            let (prefix, page_token) = (whole.clone(), token.take());
            let uri = format!("s3://{}/{whole}", self.shared.bucket);
            let page = Task::spawn(async move {
                let notes = Notes::default();
                let seen = notes.clone();
                let salt = xxh3_64_with_seed(prefix.as_bytes(), 1);
                let page = shared
                    .retry(uri.clone(), "list", 0, salt, notes, |client, extensions| {
                        let options =
                            PaginatedListOptions { page_token: page_token.clone(), extensions, ..Default::default() };
                        let prefix = prefix.clone();
                        async move {
                            let prefix = Some(prefix.as_str()).filter(|prefix| !prefix.is_empty());
                            client.s3.list_paginated(prefix, options).await
                        }
                    })
                    .await?;
                match seen.outcome().odd_key {
                    Some(key) => Err(Error::Argument(format!(
                        "{uri}: the key {key:?} has an empty or relative part or a control character, and cannot be \
                         read\nhint: rename it, or give a folder or pattern that does not contain it"
                    ))),
                    None => Ok(page),
                }
            })?
            .wait(cancel)??;
            for meta in page.result.objects {
                let path = meta.location.as_ref().get(cut..).unwrap_or_default();
                let version = meta.e_tag.map_or(Version::Unknown, Version::ETag);
                found(Object { path: path.to_owned(), size: meta.size, version });
            }
            match page.page_token {
                Some(next) => token = Some(next),
                None => return Ok(()),
            }
        }
    }

    fn key(&self, path: &str) -> String {
        if self.prefix.is_empty() { path.to_owned() } else { format!("{}/{path}", self.prefix) }
    }

    fn location(&self, path: &str) -> Result<Path> {
        let key = self.key(path);
        let wrong = || {
            Error::Argument(format!(
                "s3://{}/{key}: the key has an empty or relative part or a control character, and cannot be read",
                self.shared.bucket
            ))
        };
        if !addressable(&key) {
            return Err(wrong());
        }
        Path::parse(&key).map_err(|_| wrong())
    }

    fn start(&self, object: &Object, range: Range<u64>) -> Result<Vec<Task<Result<Vec<u8>>>>> {
        if range.end > object.size || range.start > range.end {
            return Err(Error::Internal(format!(
                "{}: asked for bytes {}..{} of {}",
                self.uri(&object.path),
                range.start,
                range.end,
                object.size
            )));
        }
        let location = self.location(&object.path)?;
        let mut tasks = Vec::new();
        let mut at = range.start;
        while at < range.end {
            let piece = at..range.end.min(at + PIECE);
            at = piece.end;
            let shared = Arc::clone(&self.shared);
            let work = Piece {
                uri: self.uri(&object.path),
                location: location.clone(),
                size: object.size,
                tag: match &object.version {
                    Version::ETag(tag) => Some(tag.clone()),
                    _ => None,
                },
                range: piece,
                bytes: Vec::new(),
            };
            tasks.push(Task::spawn(async move { shared.read(work).await })?);
        }
        Ok(tasks)
    }
}

impl Store for S3Store {
    fn url(&self) -> &str {
        &self.url
    }

    fn list(&self, prefix: &str, cancel: &Cancel, found: &mut dyn FnMut(Object)) -> Result<()> {
        let prefix = prefix.trim_matches('/');
        let start = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        self.list_starting(&start, cancel, found)
    }

    fn head(&self, path: &str, cancel: &Cancel) -> Result<Object> {
        let location = self.location(path)?;
        let shared = Arc::clone(&self.shared);
        let uri = self.uri(path);
        let salt = xxh3_64_with_seed(location.as_ref().as_bytes(), 2);
        let result = Task::spawn(async move {
            shared
                .retry(uri, "look up", 0, salt, Notes::default(), |client, extensions| {
                    let location = location.clone();
                    let options = GetOptions { head: true, extensions, ..Default::default() };
                    async move { client.s3.get_opts(&location, options).await.map(|result| result.meta) }
                })
                .await
        })?
        .wait(cancel)??;
        let version = result.e_tag.map_or(Version::Unknown, Version::ETag);
        Ok(Object { path: path.to_owned(), size: result.size, version })
    }

    fn fetch(&self, object: &Object, range: Range<u64>) -> Fetch {
        Fetch::new(Started(self.start(object, range)))
    }

    fn put(&self, path: &str, bytes: &[u8], cancel: &Cancel) -> Result<()> {
        let location = self.location(path)?;
        let shared = Arc::clone(&self.shared);
        let uri = self.uri(path);
        let salt = xxh3_64_with_seed(location.as_ref().as_bytes(), 3);
        let payload = object_store::PutPayload::from(bytes.to_vec());
        Task::spawn(async move {
            shared
                .retry(uri, "write", payload.content_length(), salt, Notes::default(), |client, extensions| {
                    let location = location.clone();
                    let payload = payload.clone();
                    let options = PutOptions { extensions, ..Default::default() };
                    async move { client.s3.put_opts(&location, payload, options).await }
                })
                .await
        })?
        .wait(cancel)?
        .map(drop)
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn traffic(&self) -> &Traffic {
        &self.shared.traffic
    }
}

/// The pieces of one read, all under way.
struct Started(Result<Vec<Task<Result<Vec<u8>>>>>);

impl Pending for Started {
    fn finish(self: Box<Self>, cancel: &Cancel, buffer: &mut Vec<u8>) -> Result<()> {
        let before = buffer.len();
        for task in self.0? {
            match task.wait(cancel).and_then(|bytes| bytes) {
                // The first piece of an empty buffer is handed on rather than copied.
                Ok(bytes) if buffer.capacity() == 0 => *buffer = bytes,
                Ok(bytes) => buffer.extend_from_slice(&bytes),
                Err(error) => {
                    buffer.truncate(before);
                    return Err(error);
                }
            }
        }
        Ok(())
    }
}

/// One piece of a read.
struct Piece {
    uri: String,
    location: Path,
    size: u64,
    /// The entity tag that all bytes must come under; without one in the listing, that of the first answer.
    tag: Option<String>,
    range: Range<u64>,
    /// What has arrived so far.
    bytes: Vec<u8>,
}

impl Shared {
    fn client(&self) -> Arc<Client> {
        let mut client = self.client.lock().unwrap_or_else(PoisonError::into_inner);
        let process = std::process::id();
        if client.0 != process {
            // The settings made a client before; if they do not any more, the old one says why.
            if let Ok(own) = self.options.client(&self.bucket) {
                *client = (process, Arc::new(own));
            }
        }
        Arc::clone(&client.1)
    }

    /// Takes up credentials that were renewed in the environment; whether there were any.
    fn renew(&self, used: &Arc<Client>) -> bool {
        let current = self.client();
        if !Arc::ptr_eq(&current, used) {
            return true;
        }
        if !used.is_stale() {
            return false;
        }
        match self.options.client(&self.bucket) {
            Ok(client) => {
                *self.client.lock().unwrap_or_else(PoisonError::into_inner) = (std::process::id(), Arc::new(client));
                true
            }
            Err(_) => false,
        }
    }

    /// What to do after a failed attempt: returns to try again, or ends with the error.
    async fn after(
        &self,
        attempts: &Attempts,
        mut failure: Failure,
        client: &Arc<Client>,
        renewed: &mut bool,
        end: impl FnOnce(&Attempts, Failure) -> Error,
    ) -> Result<()> {
        if failure.kind == Kind::Final(StoreFault::Denied) && !*renewed && self.renew(client) {
            *renewed = true;
            return Ok(());
        }
        failure.detail = client.hide(failure.detail);
        match attempts.pause(&failure, self.reached.load(Ordering::Relaxed)) {
            Some(pause) => {
                tokio::time::sleep(pause).await;
                Ok(())
            }
            None => Err(end(attempts, failure)),
        }
    }

    fn note(&self, notes: &Notes) {
        if notes.outcome().status.is_some() {
            self.reached.store(true, Ordering::Relaxed);
        }
    }

    /// Makes a request of which the answer is small, until it succeeds or cannot. `sent` is the length of its body.
    async fn retry<T, F>(
        &self,
        uri: String,
        operation: &str,
        sent: usize,
        salt: u64,
        notes: Notes,
        mut request: impl FnMut(Arc<Client>, Extensions) -> F,
    ) -> Result<T>
    where
        F: Future<Output = object_store::Result<T>>,
    {
        let mut attempts = Attempts::new(self.options.policy, salt);
        let mut renewed = false;
        loop {
            let client = self.client();
            let permit = permits()?.acquire().await.map_err(|e| Error::Internal(e.to_string()))?;
            attempts.begin();
            notes.reset();
            let mut extensions = Extensions::new();
            extensions.insert(notes.clone());
            let longest = attempts.step() + Duration::from_secs(sent as u64 / MIN_RATE);
            let answer = timeout(longest, request(Arc::clone(&client), extensions)).await;
            drop(permit);
            self.note(&notes);
            let failure = match answer {
                Ok(Ok(value)) => return Ok(value),
                Ok(Err(error)) => Failure::judge(&error, &notes.outcome()),
                Err(_) => timed_out(&self.options),
            };
            self.after(&attempts, failure, &client, &mut renewed, |attempts, failure| {
                attempts.error(uri.clone(), operation.to_owned(), failure)
            })
            .await?;
        }
    }

    /// Reads a piece, continuing where a body broke.
    async fn read(&self, mut piece: Piece) -> Result<Vec<u8>> {
        let wanted = usize::try_from(piece.range.end - piece.range.start).unwrap_or(usize::MAX);
        let salt = xxh3_64_with_seed(piece.location.as_ref().as_bytes(), piece.range.start);
        let mut attempts = Attempts::new(self.options.policy, salt);
        let mut renewed = false;
        loop {
            let client = self.client();
            let notes = Notes::default();
            let permit = permits()?.acquire().await.map_err(|e| Error::Internal(e.to_string()))?;
            attempts.begin();
            // Only now: a read that waits for its turn holds no memory.
            piece.bytes.reserve_exact(wanted - piece.bytes.len());
            let outcome = self.attempt(&client, &mut piece, &mut attempts, &notes).await;
            drop(permit);
            self.note(&notes);
            self.traffic.add(1, 0, u64::from(attempts.made > 1));
            let Err(failure) = outcome else {
                self.traffic.add(0, wanted as u64, 0);
                return Ok(piece.bytes);
            };
            self.after(&attempts, failure, &client, &mut renewed, |attempts, failure| {
                if failure.kind == Kind::Changed {
                    return Error::Changed {
                        uri: piece.uri.clone(),
                        wanted: describe(piece.size, piece.tag.as_deref()),
                        found: failure.detail,
                    };
                }
                let operation = format!("read bytes {}..{}", piece.range.start, piece.range.end);
                attempts.error(piece.uri.clone(), operation, failure)
            })
            .await?;
        }
    }

    /// One request for what is missing of a piece.
    async fn attempt(
        &self,
        client: &Client,
        piece: &mut Piece,
        attempts: &mut Attempts,
        notes: &Notes,
    ) -> std::result::Result<(), Failure> {
        let wanted = piece.range.end - piece.range.start;
        let mut extensions = Extensions::new();
        extensions.insert(notes.clone());
        let options = GetOptions {
            range: Some(GetRange::Bounded(piece.range.start + piece.bytes.len() as u64..piece.range.end)),
            // A weak tag never matches; it is only compared below.
            if_match: piece.tag.clone().filter(|tag| !tag.starts_with("W/")),
            extensions,
            ..Default::default()
        };
        let answer = timeout(attempts.step(), client.s3.get_opts(&piece.location, options)).await;
        let result = match answer {
            Ok(Ok(result)) => result,
            Ok(Err(error)) => return Err(Failure::judge(&error, &notes.outcome())),
            Err(_) => return Err(timed_out(&self.options)),
        };
        let tags_differ = matches!((&piece.tag, &result.meta.e_tag), (Some(wanted), Some(found)) if wanted != found);
        if result.meta.size != piece.size || tags_differ {
            let found = describe(result.meta.size, result.meta.e_tag.as_deref());
            return Err(Failure { kind: Kind::Changed, detail: found, retry_after: None });
        }
        if piece.tag.is_none() {
            piece.tag.clone_from(&result.meta.e_tag);
        }
        let mut body = result.into_stream();
        loop {
            let part = match timeout(attempts.step(), body.next()).await {
                Err(_) => return Err(timed_out(&self.options)),
                Ok(None) => break,
                Ok(Some(Err(error))) => {
                    let text = innermost(&error);
                    return Err(Failure::again(StoreFault::Unavailable, broken(piece, &text)));
                }
                Ok(Some(Ok(part))) => part,
            };
            if piece.bytes.len() as u64 + part.len() as u64 > wanted {
                piece.bytes.clear();
                return Err(Failure::again(StoreFault::Unavailable, "the server sent more bytes than were asked for"));
            }
            piece.bytes.extend_from_slice(&part);
            attempts.progress(piece.bytes.len() as u64);
        }
        if piece.bytes.len() as u64 == wanted {
            return Ok(());
        }
        Err(Failure::again(StoreFault::Unavailable, broken(piece, "the body ended early")))
    }
}

fn broken(piece: &Piece, text: &str) -> String {
    format!("the body broke after {} of {} bytes: {text}", piece.bytes.len(), piece.range.end - piece.range.start)
}

fn timed_out(options: &S3Options) -> Failure {
    let seconds = options.policy.request.as_secs_f64();
    Failure::again(StoreFault::Timeout, format!("nothing arrived for {seconds} s"))
}

fn describe(size: u64, tag: Option<&str>) -> String {
    match tag {
        Some(tag) => format!("{size} bytes, entity tag {tag}"),
        None => format!("{size} bytes"),
    }
}
