//! Files of schemes that another library knows, such as fsspec: a call to it is one request, and may block.
//!
//! Attempts, deadlines, versions and the limit on requests are those of all remote stores. A call that takes too long
//! is given up, but cannot be stopped: it keeps its thread until it ends.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use serde_json::Value;

use crate::error::{Result, StoreFault};
use crate::store::remote::backend::{Answer, Ask, Asked, Backend, Facts, Fault, Listed, Page, Puts, Whole, Writer};
use crate::store::remote::observe::Notes;
use crate::store::remote::provider::{Advice, Connection, Provider, Secrets, Sources};
use crate::store::remote::retry::Policy;
use crate::store::remote::settings;
use crate::store::{Condition, Version};

/// For one call, whose bytes cannot be watched as they come; a listing is one call too.
const CALL: Duration = Duration::from_secs(60);

/// For all attempts together.
const TOTAL: Duration = Duration::from_secs(180);

/// Why a call failed, in the library's words.
#[derive(Debug)]
pub struct Trouble {
    /// What kind of fault it is.
    pub fault: StoreFault,
    /// What the library says.
    pub text: String,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Trouble {}

/// The result of a call.
pub type Called<T> = std::result::Result<T, Trouble>;

/// Files of another library, by keys. Each call blocks, and several may be made at once.
pub trait Files: Send + Sync {
    /// The bytes of a range, with size and version of the file after they were read.
    fn read(&self, key: &str, range: Range<u64>) -> Called<(Vec<u8>, u64, Version)>;

    /// What is known of a file.
    fn head(&self, key: &str) -> Called<Facts>;

    /// Keys of all files that begin with `start`, with what is known of each.
    fn list(&self, start: &str) -> Called<Vec<(String, Facts)>>;

    /// Writes a file whole.
    fn put(&self, key: &str, bytes: &[u8]) -> Called<()>;

    /// Writes a copy of a local file whole.
    fn put_file(&self, key: &str, path: &Path) -> Called<()>;

    /// Removes a file; nothing, if there is none.
    fn delete(&self, key: &str) -> Called<()>;
}

/// Where files of another library lie.
pub struct Place {
    /// What keys follow: `sftp://host`, or `memory://`.
    pub root: String,
    /// What follows the key: of `zip://key::s3://bucket/a.zip` it is `::s3://bucket/a.zip`.
    pub tail: String,
    /// The key that the URL names.
    pub key: String,
    /// Makes what reads there; called once in each process.
    pub connect: Box<dyn Fn() -> Arc<dyn Files> + Send + Sync>,
}

/// What another library says to a URL.
pub enum Opened {
    /// It knows the scheme.
    Place(Place),
    /// It does not, and this may help.
    Unknown(String),
}

/// Asks another library about a URL; it is given the options that are for the library.
pub type Opener = fn(url: &str, options: &BTreeMap<String, String>) -> Result<Opened>;

static OPENER: OnceLock<Opener> = OnceLock::new();

/// Names who is asked about schemes that are not known here. The first one stays.
pub fn ask_about_others(opener: Opener) {
    OPENER.get_or_init(|| opener);
}

/// Where files of another library lie, and how long they are waited for.
pub struct Foreign {
    place: Place,
    policy: Policy,
    /// Values of options, none of which is shown: which of them are secret only the library knows.
    secrets: Secrets,
}

impl Foreign {
    /// What a URL of a scheme that is not known here stands for, with the key; or else what may help.
    pub(crate) fn find(
        url: &str,
        options: &BTreeMap<String, String>,
    ) -> Result<std::result::Result<(Self, String), String>> {
        let Some(opener) = OPENER.get() else { return Ok(Err(String::new())) };
        let usual = Policy { request: CALL, total: TOTAL, ..Policy::default() };
        let (policy, rest) = settings::policy(usual, options)?;
        Ok(match opener(url, &rest)? {
            Opened::Unknown(hint) => Err(hint),
            Opened::Place(mut place) => {
                let key = std::mem::take(&mut place.key);
                let mut texts = Vec::new();
                for value in rest.values() {
                    texts.push(value.clone());
                    texts_in(&serde_json::from_str(value).unwrap_or_default(), &mut texts);
                }
                texts.retain(|text| !url.contains(text) && !matches!(text.as_str(), "true" | "false"));
                let secrets = Secrets::new(texts.iter().map(String::as_str));
                Ok((Self { place, policy, secrets }, key))
            }
        })
    }
}

/// All texts in a value that an option holds in JSON's notation.
fn texts_in(value: &Value, texts: &mut Vec<String>) {
    match value {
        Value::String(text) => texts.push(text.clone()),
        Value::Array(values) => values.iter().for_each(|value| texts_in(value, texts)),
        Value::Object(values) => values.values().for_each(|value| texts_in(value, texts)),
        _ => {}
    }
}

impl fmt::Debug for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Foreign").field(&self.uri("")).finish()
    }
}

impl Provider for Foreign {
    fn root(&self) -> &str {
        &self.place.root
    }

    fn uri(&self, key: &str) -> String {
        let Place { root, tail, .. } = &self.place;
        let slash = if key.is_empty() || root.ends_with('/') { "" } else { "/" };
        format!("{root}{slash}{key}{tail}")
    }

    fn policy(&self) -> Policy {
        self.policy
    }

    fn advice(&self) -> Advice {
        const LOGIN: &str = "check the login that storage_options or the settings of this scheme's fsspec package give";
        Advice {
            denied: LOGIN.into(),
            no_credentials: LOGIN.into(),
            expired: LOGIN.into(),
            no_root: "check the URL".into(),
            unreached: "check the URL".into(),
            elsewhere: "check the URL".into(),
        }
    }

    fn sources(&self) -> Sources {
        Sources::default()
    }

    fn connect(&self, _: &Sources) -> Result<Connection> {
        let library = Library((self.place.connect)());
        Ok(Connection { backend: Box::new(library), endpoint: None, secrets: self.secrets.clone() })
    }
}

/// A client: the library, called on threads that may block.
struct Library(Arc<dyn Files>);

impl Library {
    async fn call<T: Send + 'static>(
        &self,
        notes: Notes,
        work: impl FnOnce(&dyn Files) -> Called<T> + Send + 'static,
    ) -> std::result::Result<T, Fault> {
        let files = Arc::clone(&self.0);
        let done = tokio::task::spawn_blocking(move || work(files.as_ref())).await;
        Ok(done?.inspect_err(|trouble| notes.told(trouble.fault))?)
    }
}

impl Backend for Library {
    fn get(&self, ask: Ask, range: Range<u64>, _: Version) -> Asked<'_, Answer> {
        Box::pin(async move {
            let (bytes, size, version) = self.call(ask.notes, move |files| files.read(&ask.key, range)).await?;
            let body = stream::iter([Ok(Bytes::from(bytes))]).boxed();
            Ok(Answer { size, version, body })
        })
    }

    fn head(&self, ask: Ask) -> Asked<'_, Facts> {
        Box::pin(self.call(ask.notes, move |files| files.head(&ask.key)))
    }

    fn list(&self, ask: Ask, _: Option<String>) -> Asked<'_, Page> {
        Box::pin(async move {
            let found = self.call(ask.notes, move |files| files.list(&ask.key)).await?;
            let entries = found.into_iter().map(|(key, facts)| Listed { key, facts });
            Ok(Page { entries: entries.collect(), next: None })
        })
    }

    fn writer(&self) -> Option<Writer<'_>> {
        Some(Writer::Whole(self))
    }
}

impl Puts for Library {
    fn put(&self, ask: Ask, bytes: Bytes, condition: Condition) -> Asked<'_, Option<Version>> {
        Box::pin(self.call(ask.notes, move |files| {
            // Not one step with what follows: no library has one that holds for all that it reads.
            let holds = match condition {
                Condition::Always => true,
                Condition::Absent => is_missing(files.head(&ask.key))?,
                Condition::Unchanged(version) => match files.head(&ask.key) {
                    Err(Trouble { fault: StoreFault::NotFound, .. }) => false,
                    found => found?.version == version,
                },
            };
            if !holds {
                return Ok(None);
            }
            files.put(&ask.key, &bytes)?;
            Ok(Some(Version::Unknown))
        }))
    }

    fn delete(&self, ask: Ask) -> Asked<'_, ()> {
        Box::pin(self.call(ask.notes, move |files| files.delete(&ask.key)))
    }
}

impl Whole for Library {
    fn put_file(&self, ask: Ask, path: PathBuf) -> Asked<'_, ()> {
        Box::pin(self.call(ask.notes, move |files| files.put_file(&ask.key, &path)))
    }
}

/// Whether a look for a file says that there is none.
fn is_missing(found: Called<Facts>) -> Called<bool> {
    match found {
        Err(Trouble { fault: StoreFault::NotFound, .. }) => Ok(true),
        found => found.map(|_| false),
    }
}
