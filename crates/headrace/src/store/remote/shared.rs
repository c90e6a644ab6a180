//! Requests made until they succeed or cannot: attempts, deadlines, the limit on requests, credentials that are
//! renewed, and bodies that go on where they broke.

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::{Either, select};
use tokio::time::timeout;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::error::{Error, Result, StoreFault};
use crate::per_process::PerProcess;
use crate::store::remote::backend::{Answer, Ask, Asked, Backend, Body, Fault, Hidden, Writer};
use crate::store::remote::observe::Notes;
use crate::store::remote::provider::{Advice, Connection, Provider, Secrets, Sources};
use crate::store::remote::retry::{Attempts, Failure, Kind, Policy, innermost};
use crate::store::remote::runtime::permits;
use crate::store::remote::settings;
use crate::store::{Traffic, Version};

/// What all stores below one root have in common.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) provider: Arc<dyn Provider>,
    /// What has to follow a key in its URL, for the keys that need it.
    queries: BTreeMap<String, Hidden>,
    clients: PerProcess<Clients>,
    advice: Advice,
    policy: Policy,
    /// Whether the server has answered anything yet.
    reached: AtomicBool,
    pub(super) traffic: Traffic,
}

/// How a process reaches the store: a forked child must not use its parent's connections.
#[derive(Debug)]
struct Clients {
    /// What the settings made at first: if they do not any more, it says why.
    first: Arc<Client>,
    /// `None` as long as the process has none of its own.
    latest: Mutex<Option<Arc<Client>>>,
}

/// A connection, with what it was made of.
struct Client {
    backend: Box<dyn Backend>,
    endpoint: Option<String>,
    secrets: Secrets,
    sources: Sources,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the library's client: what it shows of its credentials is not for us to rely on.
        f.write_str("Client")
    }
}

/// One piece of a read.
pub(super) struct Piece {
    pub(super) uri: String,
    pub(super) key: String,
    pub(super) size: u64,
    /// What all bytes must be of; if the listing does not know it, what the first answer says.
    pub(super) version: Version,
    pub(super) range: Range<u64>,
    /// What has arrived so far.
    pub(super) bytes: Vec<u8>,
}

impl Piece {
    /// The body of an answer, if that is of the same file.
    fn accept(&mut self, answer: Answer) -> std::result::Result<Body, Failure> {
        if answer.size != self.size || differ(&self.version, &answer.version) {
            let found = describe(answer.size, &answer.version);
            return Err(Failure { kind: Kind::Changed, detail: found, retry_after: None });
        }
        if self.version == Version::Unknown {
            self.version = answer.version;
        }
        Ok(answer.body)
    }
}

impl Shared {
    pub(super) fn new(provider: Arc<dyn Provider>, queries: BTreeMap<String, Hidden>) -> Result<Self> {
        let first = Arc::new(connect(provider.as_ref(), &queries)?);
        let clients = PerProcess::new(Clients { latest: Mutex::new(Some(Arc::clone(&first))), first });
        let (advice, mut policy) = (provider.advice(), provider.policy());
        if policy.hedge.is_none() {
            policy.hedge = settings::usual_hedge()?;
        }
        let (reached, traffic) = (AtomicBool::new(false), Traffic::default());
        Ok(Self { provider, queries, clients, advice, policy, reached, traffic })
    }

    /// Where requests go, if that is not the provider's own address.
    pub(super) fn endpoint(&self) -> Option<String> {
        self.client().endpoint.clone()
    }

    /// Whether objects can be written at all.
    pub(super) fn can_write(&self) -> bool {
        self.client().backend.writer().is_some()
    }

    /// Whether a file is given to it as such, and never in parts.
    pub(super) fn takes_files(&self) -> bool {
        matches!(self.client().backend.writer(), Some(Writer::Whole(_)))
    }

    fn client(&self) -> Arc<Client> {
        let (first, mut latest) = self.clients();
        if latest.is_none() {
            *latest = connect(self.provider.as_ref(), &self.queries).ok().map(Arc::new);
        }
        Arc::clone(latest.as_ref().unwrap_or(first))
    }

    /// The first one, and the latest.
    fn clients(&self) -> (&Arc<Client>, MutexGuard<'_, Option<Arc<Client>>>) {
        let of_child = |parent: &Clients| Clients { first: Arc::clone(&parent.first), latest: Mutex::default() };
        let own = self.clients.get_or(of_child);
        (&own.first, own.latest.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Takes up credentials that were renewed in the environment or in files; whether there were any.
    fn renew(&self, used: &Arc<Client>) -> bool {
        let current = self.client();
        if !Arc::ptr_eq(&current, used) {
            return true;
        }
        if used.sources == self.provider.sources() {
            return false;
        }
        match connect(self.provider.as_ref(), &self.queries) {
            Ok(client) => {
                *self.clients().1 = Some(Arc::new(client));
                true
            }
            Err(_) => false,
        }
    }

    /// What to ask for a key.
    pub(super) fn ask(&self, key: &str, notes: Notes) -> Ask {
        Ask { key: key.to_owned(), query: self.queries.get(key).cloned(), notes }
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
        let is_denied = matches!(failure.kind, Kind::Final(StoreFault::Denied) | Kind::Unsigned);
        if is_denied && !*renewed && self.renew(client) {
            *renewed = true;
            return Ok(());
        }
        failure.detail = client.secrets.hide(failure.detail);
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

    fn judge(&self, error: &Fault, notes: &Notes) -> Failure {
        Failure::judge(error.as_ref(), &notes.outcome(), &self.advice)
    }

    fn timed_out(&self) -> Failure {
        let seconds = self.policy.request.as_secs_f64();
        Failure::again(StoreFault::Timeout, format!("nothing arrived for {seconds} s"))
    }

    /// Makes a request of which the answer is small, until it succeeds or cannot. `sent` is the length of its body in bytes.
    pub(super) async fn retry<T, F>(
        &self,
        uri: String,
        operation: &str,
        sent: u64,
        salt: u64,
        notes: Notes,
        mut request: impl FnMut(BackendOf) -> F,
    ) -> Result<T>
    where
        F: Future<Output = std::result::Result<T, Fault>>,
    {
        let mut attempts = Attempts::sending(self.policy, salt, sent);
        let mut renewed = false;
        loop {
            let client = self.client();
            let permit = permits()?.acquire().await.map_err(|e| Error::Internal(e.to_string()))?;
            attempts.begin();
            notes.reset();
            let answer = timeout(attempts.step(), request(BackendOf(Arc::clone(&client)))).await;
            drop(permit);
            self.note(&notes);
            let failure = match answer {
                Ok(Ok(value)) => return Ok(value),
                Ok(Err(error)) => self.judge(&error, &notes),
                Err(_) => self.timed_out(),
            };
            self.after(&attempts, failure, &client, &mut renewed, |attempts, failure| {
                attempts.error(uri.clone(), operation.to_owned(), failure)
            })
            .await?;
        }
    }

    /// Reads a piece, continuing where a body broke.
    pub(super) async fn read(&self, mut piece: Piece) -> Result<Vec<u8>> {
        let wanted = usize::try_from(piece.range.end - piece.range.start).unwrap_or(usize::MAX);
        let salt = xxh3_64_with_seed(piece.key.as_bytes(), piece.range.start);
        let mut attempts = Attempts::new(self.policy, salt);
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
            if piece.version == Version::Unknown {
                // What comes next may be of another file: nothing tells them apart.
                piece.bytes.clear();
            }
            self.after(&attempts, failure, &client, &mut renewed, |attempts, failure| {
                if failure.kind == Kind::Changed {
                    return Error::Changed {
                        uri: piece.uri.clone(),
                        wanted: describe(piece.size, &piece.version),
                        found: failure.detail,
                    };
                }
                let operation = format!("read bytes {}..{}", piece.range.start, piece.range.end);
                attempts.error(piece.uri.clone(), operation, failure)
            })
            .await?;
        }
    }

    /// One request for what is missing of a piece, and a second one beside it if nothing comes.
    async fn attempt(
        &self,
        client: &Client,
        piece: &mut Piece,
        attempts: &mut Attempts,
        notes: &Notes,
    ) -> std::result::Result<(), Failure> {
        let wanted = piece.range.end - piece.range.start;
        let missing = piece.range.start + piece.bytes.len() as u64..piece.range.end;
        let mut hedge = self.policy.hedge;
        let first = client.backend.get(self.ask(&piece.key, notes.clone()), missing.clone(), piece.version.clone());
        let second = || self.second(client, piece, missing);
        let answer = match self.race(attempts.step(), &mut hedge, first, second).await {
            Some(Either::Left(Ok(answer)) | Either::Right(answer)) => answer,
            Some(Either::Left(Err(error))) => {
                let failure = self.judge(&error, notes);
                return Err(match failure.kind {
                    Kind::Changed => self.changed(client, piece, attempts, failure).await,
                    _ => failure,
                });
            }
            None => return Err(self.timed_out()),
        };
        let mut body = piece.accept(answer)?;
        loop {
            if piece.version == Version::Unknown && !piece.bytes.is_empty() {
                // Another answer might go on with another file.
                hedge = None;
            }
            let missing = piece.range.start + piece.bytes.len() as u64..piece.range.end;
            let second = || self.second(client, piece, missing);
            let part = match self.race(attempts.step(), &mut hedge, body.next(), second).await {
                None => return Err(self.timed_out()),
                Some(Either::Right(answer)) => {
                    body = piece.accept(answer)?;
                    continue;
                }
                Some(Either::Left(None)) => break,
                Some(Either::Left(Some(Err(error)))) => {
                    let text = innermost(error.as_ref());
                    return Err(Failure::again(StoreFault::Unavailable, broken(piece, &text)));
                }
                Some(Either::Left(Some(Ok(part)))) => part,
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

    /// The same request once more; what becomes of it is noted nowhere.
    fn second<'a>(&self, client: &'a Client, piece: &Piece, missing: Range<u64>) -> Asked<'a, Answer> {
        client.backend.get(self.ask(&piece.key, Notes::default()), missing, piece.version.clone())
    }

    /// What comes first: `first`, or the answer to a second request, made if the first takes longer than `hedge`. That is
    /// done once, if a permit is free; a second request that fails is as if it had not been made. `None` after `longest`.
    async fn race<'a, T>(
        &self,
        longest: Duration,
        hedge: &mut Option<Duration>,
        first: impl Future<Output = T> + Unpin,
        second: impl FnOnce() -> Asked<'a, Answer>,
    ) -> Option<Either<T, Answer>> {
        let mut first = first;
        let Some(after) = hedge.filter(|after| *after < longest) else {
            return timeout(longest, first).await.ok().map(Either::Left);
        };
        if let Ok(came) = timeout(after, &mut first).await {
            return Some(Either::Left(came));
        }
        let Some(_permit) = permits().ok().and_then(|permits| permits.try_acquire().ok()) else {
            return timeout(longest.saturating_sub(after), first).await.ok().map(Either::Left);
        };
        *hedge = None;
        self.traffic.add(1, 0, 0);
        self.traffic.hedged.fetch_add(1, Ordering::Relaxed);
        let both = async {
            match select(first, second()).await {
                Either::Left((came, _)) => Either::Left(came),
                Either::Right((Ok(answer), _)) => Either::Right(answer),
                Either::Right((Err(_), first)) => Either::Left(first.await),
            }
        };
        timeout(longest.saturating_sub(after), both).await.ok()
    }

    /// What a server means that says that an object is not the one of before: that it is another one, or gone.
    async fn changed(&self, client: &Client, piece: &Piece, attempts: &Attempts, failure: Failure) -> Failure {
        let notes = Notes::default();
        match timeout(attempts.step(), client.backend.head(self.ask(&piece.key, notes.clone()))).await {
            Ok(Ok(facts)) => Failure { detail: describe(facts.size, &facts.version), ..failure },
            Ok(Err(error)) => match self.judge(&error, &notes) {
                gone @ Failure { kind: Kind::Final(StoreFault::NotFound), .. } => gone,
                _ => failure,
            },
            Err(_) => failure,
        }
    }
}

/// The backend of a client, which lives as long as a request to it.
pub(super) struct BackendOf(Arc<Client>);

impl std::ops::Deref for BackendOf {
    type Target = dyn Backend;

    fn deref(&self) -> &Self::Target {
        self.0.backend.as_ref()
    }
}

fn connect(provider: &dyn Provider, queries: &BTreeMap<String, Hidden>) -> Result<Client> {
    let sources = provider.sources();
    let Connection { backend, endpoint, secrets } = provider.connect(&sources)?;
    let secrets = secrets.with(queries.values().map(|Hidden(query)| query.as_str()));
    Ok(Client { backend, endpoint, secrets, sources })
}

/// Whether two versions are of one kind and not the same.
pub(super) fn differ(wanted: &Version, found: &Version) -> bool {
    match (wanted, found) {
        // A server may call a tag weak in one answer and strong in another, as it compresses some of them.
        (Version::ETag(wanted), Version::ETag(found)) => {
            wanted.trim_start_matches("W/") != found.trim_start_matches("W/")
        }
        (Version::Modified(wanted), Version::Modified(found)) => wanted != found,
        _ => false,
    }
}

fn broken(piece: &Piece, text: &str) -> String {
    format!("the body broke after {} of {} bytes: {text}", piece.bytes.len(), piece.range.end - piece.range.start)
}

fn describe(size: u64, version: &Version) -> String {
    match version {
        Version::ETag(tag) => format!("{size} bytes, entity tag {tag}"),
        Version::Modified(time) => format!("{size} bytes, modified {} s after 1970", time / 1_000_000_000),
        Version::Unknown => format!("{size} bytes"),
    }
}
