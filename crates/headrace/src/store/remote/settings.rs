//! Reading `storage_options`: names with their spellings, flags, durations, and what is said about a wrong one.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use object_store::{BackoffConfig, ClientConfigKey, ClientOptions, RetryConfig};

use crate::error::{Error, Result};
use crate::store::remote::retry::Policy;

/// Names of options that every kind of store has.
const COMMON: &[&str] = &["connect_timeout", "hedge", "max_retries", "retry_timeout", "timeout"];

/// The variable that stands for the option `hedge` where it is not given.
const HEDGE: &str = "HEADRACE_HEDGE";

/// Names of options of the connection, for stores that are reached through `object_store`.
pub(crate) const CONNECTION: &[&str] = &[
    "allow_http",
    "allow_invalid_certificates",
    "http1_only",
    "http2_only",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "user_agent",
];

/// A setting of one kind of store.
pub(crate) trait Key: Copy + PartialEq + 'static {
    /// What the store is called in messages.
    const STORE: &'static str;
    /// What may stand before every name, with its underscore.
    const PREFIX: &'static str;
    /// Names that are advertised, for the message about one that is unknown.
    const NAMES: &'static [&'static [&'static str]];

    /// What a name means, in lower case: with and without the prefix.
    fn parse(name: &str, short: &str) -> Option<Self>;

    /// Whether its value is true or false.
    fn is_flag(&self) -> bool;

    /// Whether its value must not be shown.
    fn is_secret(&self) -> bool;

    /// What of the URL says the same, if the URL does.
    fn in_url(&self) -> Option<&'static str> {
        None
    }
}

/// What `storage_options` said.
#[derive(Clone, PartialEq)]
pub(crate) struct Options<K> {
    /// Name as it was given, setting, value.
    given: Vec<(String, K, String)>,
    /// Deadlines and retries.
    pub(crate) policy: Policy,
}

impl<K> fmt::Debug for Options<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Names only: values may be secrets.
        f.debug_set().entries(self.given.iter().map(|(name, ..)| name)).finish()
    }
}

impl<K: Key> Options<K> {
    /// Reads `storage_options`; a name or a value that is not understood is an error.
    pub(crate) fn parse(options: &BTreeMap<String, String>) -> Result<Self> {
        let mut given: Vec<(String, K, String)> = Vec::new();
        let mut policy = Policy::default();
        for (name, value) in options {
            let lower = name.to_ascii_lowercase();
            let short = lower.strip_prefix(K::PREFIX).unwrap_or(&lower);
            let mut value = value.trim().to_owned();
            if set(&mut policy, short, name, &value)? {
                continue;
            }
            let key = K::parse(&lower, short).ok_or_else(|| unknown::<K>(name))?;
            if let Some(what) = key.in_url() {
                return Err(Error::Argument(format!(
                    "storage_options: {name:?} is not used: {what} is part of the URL"
                )));
            }
            if key.is_flag() {
                value = flag(name, &value)?.to_string();
            }
            // Two spellings of one setting would silently hide one of the values.
            match given.iter().find(|(_, other, _)| *other == key) {
                Some((_, _, other)) if *other != value => {
                    return Err(Error::Argument(format!(
                        "storage_options: {name:?} is given twice, under two names, with different values"
                    )));
                }
                Some(_) => {}
                None => given.push((name.clone(), key, value)),
            }
        }
        Ok(Self { given, policy })
    }

    /// The value that was given for a setting.
    pub(crate) fn get(&self, key: K) -> Option<&str> {
        self.given.iter().find(|(_, other, _)| *other == key).map(|(.., value)| value.as_str())
    }

    /// Whether a flag was given as true.
    pub(crate) fn is_set(&self, key: K) -> bool {
        self.get(key) == Some("true")
    }

    /// All that was given.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (K, &str)> {
        self.given.iter().map(|(_, key, value)| (*key, value.as_str()))
    }
}

/// Sets what the option of every store means; whether it is one.
fn set(policy: &mut Policy, option: &str, name: &str, value: &str) -> Result<bool> {
    match option {
        "timeout" => policy.request = duration(name, value)?,
        "retry_timeout" => policy.total = duration(name, value)?,
        "connect_timeout" => policy.connect = duration(name, value)?,
        "hedge" => policy.hedge = Some(duration(name, value)?),
        "max_retries" => policy.retries = value.parse().map_err(|_| wrong_value(name, "a whole number"))?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// When a read is asked for a second time, if the environment says so.
pub(crate) fn usual_hedge() -> Result<Option<Duration>> {
    let Ok(text) = std::env::var(HEDGE) else { return Ok(None) };
    if text.trim().is_empty() {
        return Ok(None);
    }
    let wrong = |_| Error::Argument(format!("{HEDGE} must be seconds above 0, at most a day, got {text:?}"));
    duration(HEDGE, &text).map(Some).map_err(wrong)
}

/// Deadlines and retries by the options of every store, and the other options.
pub(crate) fn policy(usual: Policy, options: &BTreeMap<String, String>) -> Result<(Policy, BTreeMap<String, String>)> {
    let (mut policy, mut rest) = (usual, BTreeMap::new());
    for (name, value) in options {
        if !set(&mut policy, name, name, value.trim())? {
            rest.insert(name.clone(), value.clone());
        }
    }
    Ok((policy, rest))
}

/// Settings of the connection, of those that were given and those of all stores.
pub(crate) fn client_options<'a>(
    policy: &Policy,
    allow_http: bool,
    pairs: impl IntoIterator<Item = (ClientConfigKey, &'a str)>,
) -> ClientOptions {
    let client = ClientOptions::new().with_timeout_disabled().with_connect_timeout(policy.connect);
    let client = client.with_allow_http(allow_http);
    pairs.into_iter().fold(client, |client, (key, value)| client.with_config(key, value))
}

/// Attempts are counted, timed and noted in `retry`, not twice over in the library.
pub(crate) fn no_retries(policy: &Policy) -> RetryConfig {
    RetryConfig { max_retries: 0, backoff: BackoffConfig::default(), retry_timeout: policy.total }
}

/// Whether a setting of the connection is true or false.
pub(crate) fn is_client_flag(key: ClientConfigKey) -> bool {
    use ClientConfigKey as C;
    matches!(key, C::AllowHttp | C::AllowInvalidCertificates | C::Http1Only | C::Http2Only)
}

/// A URL of a server without user and password; an error if it is none.
pub(crate) fn server_url(name: &str, url: &str) -> Result<String> {
    let Some((scheme, rest)) = url.split_once("://").filter(|(scheme, _)| matches!(*scheme, "http" | "https")) else {
        return Err(Error::Argument(format!("the {name} must begin with http:// or https://")));
    };
    let end = rest.find('/').unwrap_or(rest.len());
    let start = rest[..end].rfind('@').map_or(0, |at| at + 1);
    Ok(format!("{scheme}://{}", &rest[start..]))
}

fn flag(name: &str, value: &str) -> Result<bool> {
    match value.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" | "y" => Ok(true),
        "false" | "0" | "no" | "off" | "n" => Ok(false),
        _ => Err(wrong_value(name, "true or false")),
    }
}

/// Seconds, or a number with `ms`, `s` or `m` after it.
fn duration(name: &str, value: &str) -> Result<Duration> {
    let text = value.trim();
    let (number, scale) = if let Some(number) = text.strip_suffix("ms") {
        (number, 1e-3)
    } else if let Some(number) = text.strip_suffix('s') {
        (number, 1.0)
    } else if let Some(number) = text.strip_suffix('m') {
        (number, 60.0)
    } else {
        (text, 1.0)
    };
    let seconds = number.trim().parse::<f64>().ok().map(|n| n * scale);
    seconds
        .filter(|s| s.is_finite() && *s > 0.0 && *s <= 86_400.0)
        .map(Duration::from_secs_f64)
        .ok_or_else(|| wrong_value(name, "seconds above 0, at most a day"))
}

/// An error about a value, which is not repeated: it may be a secret under a wrong name.
pub(crate) fn wrong_value(name: &str, wanted: &str) -> Error {
    Error::Argument(format!("storage_options: {name:?} must be {wanted}"))
}

fn unknown<K: Key>(name: &str) -> Error {
    let lower = name.to_ascii_lowercase();
    let short = lower.strip_prefix(K::PREFIX).unwrap_or(&lower);
    let mut names: Vec<&str> = K::NAMES.iter().chain([&COMMON]).flat_map(|names| names.iter().copied()).collect();
    names.sort_unstable();
    let mut near: Vec<(usize, &str)> = names.iter().map(|known| (distance(short, known), *known)).collect();
    near.sort_unstable();
    // At most two letters of five may differ.
    let is_near = |(d, known): &&(usize, &str)| d * 5 <= known.len().max(short.len()) * 2;
    let hint: Vec<String> = near.iter().take(3).filter(is_near).map(|(_, known)| format!("{known:?}")).collect();
    let store = K::STORE;
    Error::Argument(if hint.is_empty() {
        format!("storage_options: unknown option {name:?} for {store}\nhint: known are {}", names.join(", "))
    } else {
        format!("storage_options: unknown option {name:?} for {store}\nhint: did you mean {}?", hint.join(" or "))
    })
}

/// Levenshtein distance.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let change = corner + usize::from(x != *y);
            corner = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(corner + 1);
        }
    }
    row[b.len()]
}

/// Options for tests.
#[cfg(test)]
pub(crate) fn map(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        assert_eq!(duration("t", "20").ok(), Some(Duration::from_secs(20)));
        assert_eq!(duration("t", "1.5s").ok(), Some(Duration::from_millis(1500)));
        assert_eq!(duration("t", "250 ms").ok(), Some(Duration::from_millis(250)));
        assert_eq!(duration("t", "2m").ok(), Some(Duration::from_secs(120)));
        for wrong in ["", "0", "-1", "nan", "inf", "x", "1e9"] {
            assert!(duration("t", wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_servers_url_is_shown_without_password() {
        assert_eq!(server_url("x", "http://u:p@h:1/a").ok().as_deref(), Some("http://h:1/a"));
        assert_eq!(server_url("x", "https://h/a@b").ok().as_deref(), Some("https://h/a@b"));
        for wrong in ["localhost:9000", "ftp://h", ""] {
            assert!(server_url("endpoint_url", wrong).is_err_and(|e| e.to_string().contains("http://")), "{wrong}");
        }
    }
}
