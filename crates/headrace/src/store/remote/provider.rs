//! What a kind of store has to say about itself, and what all kinds keep the same way: where settings come from, and
//! which texts are secret.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::store::remote::backend::{Backend, Hidden};
use crate::store::remote::retry::Policy;

/// How one bucket, container, repository or server is reached.
pub trait Provider: fmt::Debug + Send + Sync {
    /// The URL that keys follow, as a user would write it and without secrets: `s3://bucket`.
    fn root(&self) -> &str;

    /// The URL of a key, or of the start of keys.
    fn uri(&self, key: &str) -> String {
        if key.is_empty() { self.root().to_owned() } else { format!("{}/{key}", self.root()) }
    }

    /// Deadlines and retries.
    fn policy(&self) -> Policy;

    /// What to say when something fails.
    fn advice(&self) -> Advice;

    /// Where settings come from, read now.
    fn sources(&self) -> Sources;

    /// A client by what the sources say.
    fn connect(&self, sources: &Sources) -> Result<Connection>;

    /// What the URL says to log in with.
    fn login_of_url(&self) -> Option<&Hidden> {
        None
    }

    /// The revision that all is read of, once it is known, where a store has revisions that stay as they are.
    fn revision(&self) -> Option<String> {
        None
    }

    /// Reads a revision that was found before, unless one is known already.
    fn pin(&self, _revision: &str) {}

    /// Whether the store can say which files it has.
    fn can_list(&self) -> bool {
        true
    }
}

/// A client, and what is known about it.
pub struct Connection {
    pub(crate) backend: Box<dyn Backend>,
    /// Where requests go, if that is not the provider's own address; holds no secret.
    pub(crate) endpoint: Option<String>,
    /// What its messages must not show.
    pub(crate) secrets: Secrets,
}

/// Hints for what may go wrong; each says what to do.
#[derive(Debug, Clone)]
pub struct Advice {
    /// The store does not let us in.
    pub(crate) denied: Cow<'static, str>,
    /// There are no credentials to show.
    pub(crate) no_credentials: Cow<'static, str>,
    /// What was shown has expired.
    pub(crate) expired: Cow<'static, str>,
    /// There is no such bucket, container or repository.
    pub(crate) no_root: Cow<'static, str>,
    /// Nobody answers.
    pub(crate) unreached: Cow<'static, str>,
    /// The answer sends us somewhere else.
    pub(crate) elsewhere: Cow<'static, str>,
}

/// What settings were made of at one time, beside those that were given: compared to see whether they changed, and
/// never shown, since both hold secrets.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Sources {
    /// Variables by their names in lower case.
    variables: BTreeMap<String, String>,
    /// Files by what they are for, with their text: `None` for those that cannot be read.
    files: BTreeMap<&'static str, (PathBuf, Option<String>)>,
}

impl Sources {
    /// The variables now of which `wanted` is true by their names in upper case. Empty ones are as if not set.
    pub(crate) fn variables(wanted: impl Fn(&str) -> bool) -> Self {
        let pairs = std::env::vars_os().filter_map(|(name, value)| {
            let name = name.into_string().ok().filter(|name| wanted(name))?;
            Some((name.to_ascii_lowercase(), value.into_string().ok()?))
        });
        Self { variables: pairs.filter(|(_, value)| !value.is_empty()).collect(), files: BTreeMap::new() }
    }

    /// The same with a file as it is now.
    pub(crate) fn with_file(mut self, purpose: &'static str, path: Option<PathBuf>) -> Self {
        if let Some(path) = path {
            let text = std::fs::read_to_string(&path).ok();
            self.files.insert(purpose, (path, text));
        }
        self
    }

    /// A variable, by its name in lower case.
    pub(crate) fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// All variables, their names in lower case.
    pub(crate) fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        self.variables.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// The text of a file.
    pub(crate) fn text(&self, purpose: &str) -> Option<&str> {
        self.files.get(purpose)?.1.as_deref()
    }

    /// Where a file is, or would be.
    pub(crate) fn path(&self, purpose: &str) -> Option<&Path> {
        self.files.get(purpose).map(|(path, _)| path.as_path())
    }

    /// Sources for tests.
    #[cfg(test)]
    pub(crate) fn of(variables: &[(&str, &str)], files: &[(&'static str, &str)]) -> Self {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let files = files.iter().map(|(name, text)| (*name, (PathBuf::from(name), Some((*text).to_owned()))));
        Self { variables: variables.collect(), files: files.collect() }
    }
}

impl fmt::Debug for Sources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.variables.keys()).entries(self.files.keys()).finish()
    }
}

/// A file below the home folder, or the one that a variable names.
pub(crate) fn file_of(variable: &str, below_home: &str) -> Option<PathBuf> {
    match std::env::var_os(variable).filter(|path| !path.is_empty()) {
        Some(path) => Some(home_expanded(&PathBuf::from(path))),
        None => std::env::home_dir().filter(|home| !home.as_os_str().is_empty()).map(|home| home.join(below_home)),
    }
}

/// `~/a` as a file below the home folder.
fn home_expanded(path: &Path) -> PathBuf {
    match (path.strip_prefix("~"), std::env::home_dir()) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path.to_owned(),
    }
}

/// Texts that must not appear in a message.
#[derive(Clone, Default)]
pub struct Secrets(Vec<String>);

impl Secrets {
    /// Those that are long enough to be told from other text.
    pub(crate) fn new<'a>(texts: impl IntoIterator<Item = &'a str>) -> Self {
        Self::default().with(texts)
    }

    /// The same with more.
    pub(crate) fn with<'a>(mut self, texts: impl IntoIterator<Item = &'a str>) -> Self {
        self.0.extend(texts.into_iter().filter(|text| text.len() >= 4).map(str::to_owned));
        // A text that holds another one is hidden first, or its rest would be left.
        self.0.sort_by_key(|text| std::cmp::Reverse(text.len()));
        self
    }

    /// A text without them.
    pub(crate) fn hide(&self, text: String) -> String {
        self.0.iter().fold(text, |text, secret| text.replace(secret.as_str(), "(hidden)"))
    }
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(hidden)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_secret_is_not_shown() {
        let sources = Sources::of(&[("aws_secret_access_key", "hunter2")], &[("credentials", "hunter2")]);
        let shown = format!("{sources:?}");
        assert!(shown.contains("aws_secret_access_key") && !shown.contains("hunter2"), "{shown}");
        let secrets = Secrets::new(["key", "hunter2", "hunter2-long"]);
        assert_eq!(secrets.hide("a key, hunter2-long and hunter2".to_owned()), "a key, (hidden) and (hidden)");
        assert!(!format!("{secrets:?}").contains("hunter2"));
    }

    #[test]
    fn sources_differ_when_a_file_does() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("credentials");
        let now = || Sources::variables(|_| false).with_file("token", Some(path.clone()));
        let before = now();
        assert_eq!((before.text("token"), before.path("token")), (None, Some(path.as_path())));
        std::fs::write(&path, "a").expect("write");
        let after = now();
        assert!(before != after && after.text("token") == Some("a") && after == now());
    }
}
