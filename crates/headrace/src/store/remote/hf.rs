//! Files of repositories on the Hugging Face Hub: `hf://datasets/org/name@revision/path`, and the same for models and
//! spaces.
//!
//! The revision (`main` unless it is named) is turned into a commit once, and everything is read of that commit. What a
//! file holds is known by the hash that the Hub gives in its listing, and again in the answer that sends a reader on to
//! where large files lie. `HF_TOKEN`, or the file of `HF_TOKEN_PATH` or of `hf auth login`, logs in; `HF_ENDPOINT` names
//! another Hub. `storage_options` are `token`, `endpoint`, and those of the connection.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use object_store::client::HttpErrorKind;
use object_store::{HeaderMap, HeaderValue};
use once_cell::race::OnceBox;
use reqwest::{Method, Url, header};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::store::Version;
use crate::store::remote::backend::{Answer, Ask, Asked, Backend, Facts, Fault, Listed, Page, tagged};
use crate::store::remote::observe::Notes;
use crate::store::remote::provider::{Advice, Connection, Provider, Secrets, Sources, file_of};
use crate::store::remote::retry::Policy;
use crate::store::remote::settings::{self, Options, server_url};
use crate::store::remote::web::{self, Arrived, Connecting, Web, asking_for, body_of, content_length};

/// The Hub.
const HUB: &str = "https://huggingface.co";

/// What the file with the token is called among the sources.
const TOKEN: &str = "token";

/// Hash and size of a large file, in the answer that sends a reader on to it.
const LINKED_TAG: &str = "x-linked-etag";
const LINKED_SIZE: &str = "x-linked-size";

/// What kind of error an answer of the Hub is.
pub(crate) const ERROR_CODE: &str = "x-error-code";

/// How long it is remembered where a large file lies. Evidence: such URLs hold for an hour, and one that has ended is
/// only refused; asking the Hub before each read would take twice the requests, of which it allows some thousand in five
/// minutes.
const REMEMBERED: Duration = Duration::from_secs(600);

/// Most files of which that is remembered. Scope: a store. Evidence: a URL takes about a kilobyte.
const MOST_REMEMBERED: usize = 1000;

/// A setting.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Setting {
    Token,
    Endpoint,
    AllowInvalidCertificates,
    ProxyUrl,
    UserAgent,
}

impl settings::Key for Setting {
    const STORE: &'static str = "hf";
    const PREFIX: &'static str = "hf_";
    const NAMES: &'static [&'static [&'static str]] =
        &[&["allow_invalid_certificates", "endpoint", "proxy_url", "token", "user_agent"]];

    fn parse(_: &str, short: &str) -> Option<Self> {
        Some(match short {
            "token" => Self::Token,
            "endpoint" | "endpoint_url" => Self::Endpoint,
            "allow_invalid_certificates" => Self::AllowInvalidCertificates,
            "proxy_url" => Self::ProxyUrl,
            "user_agent" => Self::UserAgent,
            _ => return None,
        })
    }

    fn is_flag(&self) -> bool {
        *self == Self::AllowInvalidCertificates
    }

    fn is_secret(&self) -> bool {
        matches!(self, Self::Token | Self::ProxyUrl)
    }
}

/// A repository at a revision.
#[derive(Debug)]
pub struct Hf {
    root: String,
    /// `datasets`, `models` or `spaces`.
    kind: &'static str,
    /// `org/name`.
    name: String,
    revision: String,
    /// What the revision stood for when it was first asked. Every client of this store reads that commit.
    commit: Arc<OnceBox<String>>,
    options: Options<Setting>,
}

impl Hf {
    /// A repository and a path in it, given what follows `hf://`.
    pub fn parse(rest: &str, options: &BTreeMap<String, String>) -> Result<(Self, String)> {
        let wrong = |what: &str| {
            Error::Argument(format!(
                "\"hf://{rest}\": expected hf://datasets/org/name/path, or hf://datasets/org/name@revision/path, found \
                 {what}"
            ))
        };
        let (first, after) = rest.split_once('/').unwrap_or((rest, ""));
        let Some(kind) = ["datasets", "models", "spaces"].into_iter().find(|kind| *kind == first) else {
            return Err(wrong(&format!("{first:?} where datasets, models or spaces belongs")));
        };
        let mut parts = after.splitn(3, '/');
        let (org, named) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let mut path = parts.next().unwrap_or_default();
        let (name, revision) = named.split_once('@').map_or((named, None), |(name, text)| (name, Some(text)));
        let is_name = |text: &str| {
            !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b)) && text != ".."
        };
        if !is_name(org) || !is_name(name) {
            return Err(wrong(&format!("the repository {:?}", format!("{org}/{named}"))));
        }
        let mut revision = revision.map(str::to_owned);
        if revision.as_deref() == Some("refs") {
            // The references that the Hub makes itself may be written as they are.
            let mut parts = path.splitn(3, '/');
            if let (Some(space @ ("convert" | "pr")), Some(reference)) = (parts.next(), parts.next()) {
                revision = Some(format!("refs/{space}/{reference}"));
                path = parts.next().unwrap_or_default();
            }
        }
        let decoded = revision.as_deref().map(|text| crate::store::resolve::percent_decode(text).unwrap_or_default());
        if decoded
            .as_deref()
            .is_some_and(|text| text.is_empty() || text.split('/').any(|part| matches!(part, "" | "." | "..")))
        {
            return Err(wrong("a revision that is none"));
        }
        if path.starts_with('/') || path.contains("//") {
            return Err(wrong("an empty part of the path"));
        }
        let at = revision.map(|text| format!("@{text}")).unwrap_or_default();
        let hf = Self {
            root: format!("hf://{kind}/{org}/{name}{at}"),
            kind,
            name: format!("{org}/{name}"),
            revision: decoded.unwrap_or_else(|| "main".to_owned()),
            commit: Arc::default(),
            options: Options::parse(options)?,
        };
        Ok((hf, path.to_owned()))
    }

    fn endpoint(&self, sources: &Sources) -> Result<String> {
        let url = self.options.get(Setting::Endpoint).or_else(|| sources.variable("hf_endpoint")).unwrap_or(HUB);
        Ok(server_url("Hugging Face endpoint", url)?.trim_end_matches('/').to_owned())
    }

    /// The page of the repository for people.
    fn page(&self) -> String {
        let endpoint = self.endpoint(&self.sources()).unwrap_or_else(|_| HUB.to_owned());
        let kind = if self.kind == "models" { String::new() } else { format!("{}/", self.kind) };
        format!("{endpoint}/{kind}{}", self.name)
    }

    fn token(&self, sources: &Sources) -> Option<String> {
        let given = self.options.get(Setting::Token);
        let variable = || sources.variable("hf_token").or_else(|| sources.variable("hugging_face_hub_token"));
        let token = given.or_else(variable).or_else(|| sources.text(TOKEN))?.trim();
        (!token.is_empty()).then(|| token.to_owned())
    }
}

/// Where `hf auth login` leaves its token.
fn token_file() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    if set("HF_TOKEN_PATH").is_none() {
        if let Some(home) = set("HF_HOME") {
            return Some(home.join("token"));
        }
        if let Some(cache) = set("XDG_CACHE_HOME") {
            return Some(cache.join("huggingface/token"));
        }
    }
    file_of("HF_TOKEN_PATH", ".cache/huggingface/token")
}

impl Provider for Hf {
    fn root(&self) -> &str {
        &self.root
    }

    fn policy(&self) -> Policy {
        self.options.policy
    }

    fn advice(&self) -> Advice {
        let page = self.page();
        Advice {
            denied: format!(
                "check the name; if the data is gated, ask for access at {page}, and if it is private or gated, set \
                 HF_TOKEN to a token that may read it (or run hf auth login)"
            )
            .into(),
            no_credentials: "set HF_TOKEN".into(),
            expired: "set HF_TOKEN to a new token".into(),
            no_root: format!("check the name and the revision: {page}").into(),
            unreached: "check HF_ENDPOINT, and whether this machine needs a proxy (HTTPS_PROXY)".into(),
            elsewhere: "check HF_ENDPOINT".into(),
        }
    }

    fn sources(&self) -> Sources {
        let wanted = |name: &str| matches!(name, "HF_TOKEN" | "HUGGING_FACE_HUB_TOKEN" | "HF_ENDPOINT");
        Sources::variables(wanted).with_file(TOKEN, token_file())
    }

    fn connect(&self, sources: &Sources) -> Result<Connection> {
        let endpoint = self.endpoint(sources)?;
        let url = Url::parse(&endpoint)
            .map_err(|_| Error::Argument(format!("expected the URL of a Hub as HF_ENDPOINT, found {endpoint:?}")))?;
        let token = self.token(sources);
        let login = token.as_ref().map(|token| {
            let value = HeaderValue::from_str(&format!("Bearer {token}"));
            value.map_err(|_| Error::Argument("the Hugging Face token has letters that no token has".to_owned()))
        });
        let with = Connecting {
            allow_invalid_certificates: self.options.is_set(Setting::AllowInvalidCertificates),
            proxy_url: self.options.get(Setting::ProxyUrl),
            user_agent: self.options.get(Setting::UserAgent),
        };
        let web = Web::new(&self.options.policy, with, login.transpose()?)?;
        let repository = Repository {
            network: web.anonymous(),
            web,
            places: Mutex::default(),
            endpoint: url,
            kind: self.kind,
            name: self.name.clone(),
            revision: self.revision.clone(),
            commit: Arc::clone(&self.commit),
        };
        let secret = |(key, _): &(Setting, &str)| settings::Key::is_secret(key);
        let of_options = self.options.pairs().filter(secret).map(|(_, value)| value);
        let secrets = Secrets::new(of_options.chain(token.as_deref()));
        let endpoint = (endpoint != HUB).then_some(endpoint);
        Ok(Connection { backend: Box::new(repository), endpoint, secrets })
    }

    fn revision(&self) -> Option<String> {
        self.commit.get().cloned()
    }

    fn pin(&self, revision: &str) {
        self.commit.get_or_init(|| Box::new(revision.to_owned()));
    }
}

/// A client of a repository.
struct Repository {
    web: Web,
    /// For where large files lie, which takes no login.
    network: Web,
    /// Where the large files lie that were read of late.
    places: Mutex<HashMap<String, Place>>,
    endpoint: Url,
    kind: &'static str,
    name: String,
    revision: String,
    commit: Arc<OnceBox<String>>,
}

/// Where a large file lies.
#[derive(Clone)]
struct Place {
    url: Url,
    version: Version,
    since: Instant,
}

impl Repository {
    /// A URL of the Hub; each part of it is escaped.
    fn url<'a>(&self, parts: impl IntoIterator<Item = &'a str>) -> std::result::Result<Url, Fault> {
        let mut url = self.endpoint.clone();
        url.path_segments_mut().map_err(|()| "HF_ENDPOINT cannot have a path")?.pop_if_empty().extend(parts);
        Ok(url)
    }

    fn api<'a>(&'a self, more: &[&'a str]) -> std::result::Result<Url, Fault> {
        let start = ["api", self.kind].into_iter().chain(self.name.split('/'));
        self.url(start.chain(more.iter().copied()))
    }

    /// The commit that is read.
    async fn commit(&self, notes: &Notes) -> std::result::Result<&str, Fault> {
        if let Some(commit) = self.commit.get() {
            return Ok(commit);
        }
        let url = self.api(&["revision", &self.revision])?;
        let arrived = self.web.send(Method::GET, url, &HeaderMap::new(), notes, |_| false).await?;
        let body = json(arrived, notes).await?;
        let found =
            body.get("sha").and_then(Value::as_str).ok_or("the Hub does not say which commit the revision is")?;
        // Of two that ask at once, both take what the first was told.
        Ok(self.commit.get_or_init(|| Box::new(found.to_owned())))
    }

    /// The URL of a file.
    async fn file(&self, ask: &Ask) -> std::result::Result<Url, Fault> {
        let commit = self.commit(&ask.notes).await?;
        let kind = Some(self.kind).filter(|kind| *kind != "models");
        let start = kind.into_iter().chain(self.name.split('/')).chain(["resolve", commit]);
        self.url(start.chain(ask.key.split('/')))
    }
}

impl Repository {
    fn place(&self, key: &str) -> Option<Place> {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.get(key).filter(|place| place.since.elapsed() < REMEMBERED).cloned()
    }

    fn remember(&self, key: String, place: Option<Place>) {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(place) = place else {
            places.remove(&key);
            return;
        };
        if places.len() >= MOST_REMEMBERED {
            places.clear();
        }
        places.insert(key, place);
    }

    /// The answer to a read, and what it is a version of.
    async fn arrive(&self, ask: &Ask, range: &Range<u64>) -> std::result::Result<(Arrived, Version), Fault> {
        // No condition: what the hash is compared with is not the tag of the server that has the bytes.
        let headers = asking_for(range, &Version::Unknown);
        if let Some(Place { url, version, .. }) = self.place(&ask.key) {
            match self.network.send(Method::GET, url, &headers, &ask.notes, |_| false).await {
                Ok(arrived) => return Ok((arrived, version)),
                Err(error) if !matches!(ask.notes.outcome().status, Some(401 | 403 | 404 | 410)) => return Err(error),
                // The URL has ended.
                Err(_) => self.remember(ask.key.clone(), None),
            }
        }
        let url = self.file(ask).await?;
        let arrived = self.web.send(Method::GET, url, &headers, &ask.notes, |_| false).await?;
        let version = hash(&arrived);
        let is_large = arrived.passed.iter().any(|headers| headers.contains_key(LINKED_SIZE));
        if is_large && arrived.url.origin() != self.endpoint.origin() {
            let place = Place { url: arrived.url.clone(), version: version.clone(), since: Instant::now() };
            self.remember(ask.key.clone(), Some(place));
        }
        Ok((arrived, version))
    }
}

/// The value that an answer holds.
async fn json(arrived: Arrived, notes: &Notes) -> std::result::Result<Value, Fault> {
    let body = arrived.response.into_body().bytes().await.inspect_err(|e| notes.broke(e.kind()))?;
    let value = serde_json::from_slice(&body).inspect_err(|_| notes.broke(HttpErrorKind::Decode));
    Ok(value.map_err(|e| format!("the Hub's answer cannot be read: {e}"))?)
}

/// Hash of a file by the answers on the way to it, or else by the answer itself.
fn hash(arrived: &Arrived) -> Version {
    let mut all = arrived.passed.iter().chain([arrived.response.headers()]);
    let linked = all.find_map(|headers| web::text(headers, LINKED_TAG));
    let tag = linked.or_else(|| web::text(arrived.response.headers(), header::ETAG)).unwrap_or_default();
    let tag = tag.trim().trim_start_matches("W/").trim_matches('"');
    // Of git or SHA-256. Where large files lie has tags of its own, which say nothing about the listing.
    let is_hash = matches!(tag.len(), 40 | 64) && tag.bytes().all(|b| b.is_ascii_hexdigit());
    if is_hash { tagged(tag) } else { Version::Unknown }
}

impl Backend for Repository {
    fn get(&self, ask: Ask, range: Range<u64>, _: Version) -> Asked<'_, Answer> {
        Box::pin(async move {
            let (arrived, version) = self.arrive(&ask, &range).await?;
            body_of(arrived.response, range, version)
        })
    }

    fn head(&self, ask: Ask) -> Asked<'_, Facts> {
        Box::pin(async move {
            let url = self.file(&ask).await?;
            let knows = |headers: &HeaderMap| headers.contains_key(LINKED_SIZE);
            let arrived = self.web.send(Method::HEAD, url, &HeaderMap::new(), &ask.notes, knows).await?;
            let headers = arrived.response.headers();
            let size = web::text(headers, LINKED_SIZE).and_then(|text| text.trim().parse().ok());
            let size = size.or_else(|| content_length(headers)).ok_or("the Hub does not say how long the file is")?;
            // The time of an answer is not that of the file.
            Ok(Facts { size, version: hash(&arrived), modified: None })
        })
    }

    fn list(&self, ask: Ask, page: Option<String>) -> Asked<'_, Page> {
        Box::pin(async move {
            let commit = self.commit(&ask.notes).await?;
            let folder = ask.key.rsplit_once('/').map_or("", |(folder, _)| folder);
            let parts = ["tree", commit].into_iter().chain(folder.split('/').filter(|part| !part.is_empty()));
            let mut url = self.api(&parts.collect::<Vec<_>>())?;
            url.set_query(Some(page.as_deref().unwrap_or("recursive=true&expand=false")));
            // A folder that is not there holds nothing.
            let missing = |headers: &HeaderMap| web::text(headers, ERROR_CODE) == Some("EntryNotFound");
            let arrived = self.web.send(Method::GET, url, &HeaderMap::new(), &ask.notes, missing).await?;
            let headers = arrived.response.headers();
            if missing(headers) {
                return Ok(Page { entries: Vec::new(), next: None });
            }
            let next = web::text(headers, header::LINK).and_then(next_query);
            let body = json(arrived, &ask.notes).await?;
            let body = body.as_array().ok_or("the Hub's listing is no list")?;
            let mut entries = Vec::with_capacity(body.len());
            for entry in body {
                let of = |name: &str| entry.get(name).and_then(Value::as_str);
                if of("type") != Some("file") {
                    continue;
                }
                let large = entry.get("lfs").and_then(|lfs| lfs.get("oid")).and_then(Value::as_str);
                let size = entry.get("size").and_then(Value::as_u64);
                let (Some(key), Some(size)) = (of("path"), size) else {
                    return Err("the Hub's listing lacks a path or a size".into());
                };
                if key.starts_with(&ask.key) {
                    let version = large.or_else(|| of("oid")).map_or(Version::Unknown, tagged);
                    entries.push(Listed { key: key.to_owned(), facts: Facts { size, version, modified: None } });
                }
            }
            Ok(Page { entries, next })
        })
    }
}

/// The query of the next page: `<https://...?cursor=...>; rel="next"`. The rest of that URL may name another Hub than
/// the one that is asked.
fn next_query(link: &str) -> Option<String> {
    let next = link.split(',').find(|part| part.contains("rel=\"next\""))?;
    let url = next.trim().strip_prefix('<')?.split('>').next()?;
    url.split_once('?').map(|(_, query)| query.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::remote::settings::map;

    fn parse(rest: &str) -> Result<(Hf, String)> {
        Hf::parse(rest, &BTreeMap::new())
    }

    #[test]
    fn a_url_is_a_repository_a_revision_and_a_path() {
        for (rest, root, revision, path) in [
            ("datasets/org/name/a/b.parquet", "hf://datasets/org/name", "main", "a/b.parquet"),
            ("datasets/org/name", "hf://datasets/org/name", "main", ""),
            ("datasets/org/name@v1.0/a", "hf://datasets/org/name@v1.0", "v1.0", "a"),
            ("datasets/o/n@refs%2Fpr%2F1/a", "hf://datasets/o/n@refs%2Fpr%2F1", "refs/pr/1", "a"),
            (
                "datasets/o/n@refs/convert/parquet/x/0",
                "hf://datasets/o/n@refs/convert/parquet",
                "refs/convert/parquet",
                "x/0",
            ),
            ("models/org/name/a", "hf://models/org/name", "main", "a"),
            ("spaces/org/name/time=1 00:00%20", "hf://spaces/org/name", "main", "time=1 00:00%20"),
        ] {
            let (hf, found) = parse(rest).expect(rest);
            assert_eq!((hf.root(), hf.revision.as_str(), found.as_str()), (root, revision, path), "{rest}");
        }
        for rest in [
            "org/name/a",
            "",
            "datasets",
            "datasets/name",
            "datasets/org/",
            "datasets/org/na me/a",
            "datasets/o/n@/a",
            "datasets/o/n@../a",
            "datasets/o/n//a",
            "datasets/../n/a",
        ] {
            let message = parse(rest).expect_err(rest).to_string();
            assert!(message.contains("expected hf://datasets/org/name"), "{rest}: {message}");
        }
    }

    fn repository(hf: &Hf, endpoint: &str) -> Repository {
        let web = Web::new(&Policy::default(), Connecting::default(), None).expect("client");
        Repository {
            network: web.anonymous(),
            web,
            places: Mutex::default(),
            endpoint: Url::parse(endpoint).expect("URL"),
            kind: hf.kind,
            name: hf.name.clone(),
            revision: hf.revision.clone(),
            commit: Arc::clone(&hf.commit),
        }
    }

    /// Case B097.
    #[test]
    fn b097_paths_are_escaped_once() {
        let (hf, path) = parse("datasets/o/n/time=2024-01-01 00:00:00/50%25#?.parquet").expect("URL");
        hf.commit.set(Box::new("c0".to_owned())).expect("first");
        let repository = repository(&hf, "http://hub/base/");
        let ask = Ask { key: path, query: None, notes: Notes::default() };
        let url = futures_util::FutureExt::now_or_never(repository.file(&ask)).expect("no request").expect("URL");
        let wanted = "http://hub/base/datasets/o/n/resolve/c0/time=2024-01-01%2000:00:00/50%2525%23%3F.parquet";
        assert_eq!(url.as_str(), wanted);
        let (models, _) = parse("models/o/n/a").expect("URL");
        models.commit.set(Box::new("c1".to_owned())).expect("first");
        let repository = self::repository(&models, "http://hub");
        let ask = Ask { key: "a".to_owned(), query: None, notes: Notes::default() };
        let url = futures_util::FutureExt::now_or_never(repository.file(&ask)).expect("no request").expect("URL");
        assert_eq!(url.as_str(), "http://hub/o/n/resolve/c1/a");
    }

    #[test]
    fn the_next_page_is_asked_of_the_same_hub() {
        let link = "<https://elsewhere/api/x/tree/main?recursive=true&cursor=abc%3D>; rel=\"next\"";
        assert_eq!(next_query(link).as_deref(), Some("recursive=true&cursor=abc%3D"));
        assert_eq!(next_query("<https://x?a>; rel=\"prev\""), None);
    }

    #[test]
    fn a_token_is_found_and_hidden() {
        let (hf, _) = parse("datasets/o/n").expect("URL");
        let of = |variables: &[(&str, &str)], files: &[(&'static str, &str)]| hf.token(&Sources::of(variables, files));
        assert_eq!(of(&[("hf_token", "a")], &[(TOKEN, "b\n")]).as_deref(), Some("a"));
        assert_eq!(of(&[], &[(TOKEN, "b\n")]).as_deref(), Some("b"));
        assert_eq!(of(&[], &[(TOKEN, "\n")]), None);
        let (own, _) =
            Hf::parse("datasets/o/n", &map(&[("token", "hunter2"), ("endpoint", "http://hub/")])).expect("URL");
        assert!(!format!("{own:?}").contains("hunter2"));
        let connection = own.connect(&Sources::of(&[("hf_token", "other")], &[])).expect("client");
        assert_eq!(connection.endpoint.as_deref(), Some("http://hub"));
        assert_eq!(connection.secrets.hide("hunter2 other".to_owned()), "(hidden) other");
        assert!(own.advice().denied.contains("http://hub/datasets/o/n"));
        assert!(Hf::parse("datasets/o/n", &map(&[("tokne", "x")])).is_err_and(|e| e.to_string().contains("\"token\"")));
    }
}
