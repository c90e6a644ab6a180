//! Buckets of Google Cloud Storage.
//!
//! Settings are the `GOOGLE_*` variables, `STORAGE_EMULATOR_HOST`, and above them `storage_options`: the names of the
//! `object_store` crate with and without `google_` (`service_account`, `service_account_key`,
//! `application_credentials`, `bearer_token`, `base_url`, `skip_signature`), and those of other libraries:
//! `endpoint_url`, `anon`, and `token` (`"anon"`, the path of a file with credentials, or its text). Without any, the
//! login of `gcloud` and then the machine's own account are tried.

use std::collections::BTreeMap;

use object_store::ClientConfigKey;
use object_store::HeaderMap;
use object_store::HeaderValue;
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey as Key};

use crate::error::{Error, Result};
use crate::store::remote::backend::Bucket;
use crate::store::remote::observe::ObservingConnector;
use crate::store::remote::provider::{Advice, Connection, Provider, Secrets, Sources};
use crate::store::remote::retry::Policy;
use crate::store::remote::settings::{
    self, CONNECTION, Options, client_options, is_client_flag, no_retries, server_url, wrong_value,
};

const NAMES: &[&str] = &[
    "anon",
    "application_credentials",
    "base_url",
    "bearer_token",
    "endpoint_url",
    "service_account",
    "service_account_key",
    "skip_signature",
    "token",
];

/// What the file of credentials is called among the sources.
const CREDENTIALS: &str = "credentials";

/// A setting: one of the library's, or `token`, which may mean several of them.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Setting {
    Library(Key),
    Token,
}

impl settings::Key for Setting {
    const STORE: &'static str = "gs";
    const PREFIX: &'static str = "google_";
    const NAMES: &'static [&'static [&'static str]] = &[NAMES, CONNECTION];

    fn parse(name: &str, short: &str) -> Option<Self> {
        Some(Self::Library(match short {
            "token" => return Some(Self::Token),
            "anon" => Key::SkipSignature,
            "endpoint" | "endpoint_url" => Key::BaseUrl,
            _ => name.parse().ok()?,
        }))
    }

    fn is_flag(&self) -> bool {
        match self {
            Self::Library(Key::Client(key)) => is_client_flag(*key),
            Self::Library(key) => *key == Key::SkipSignature,
            Self::Token => false,
        }
    }

    fn is_secret(&self) -> bool {
        let Self::Library(key) = self else { return true };
        matches!(key, Key::ServiceAccountKey | Key::BearerToken | Key::Client(ClientConfigKey::ProxyUrl))
    }

    fn in_url(&self) -> Option<&'static str> {
        (*self == Self::Library(Key::Bucket)).then_some("the bucket")
    }
}

/// A bucket.
#[derive(Debug)]
pub struct Gcs {
    root: String,
    bucket: String,
    options: Options<Setting>,
}

impl Gcs {
    /// A bucket by the scheme and name that a URL gives.
    pub fn new(scheme: &str, bucket: &str, options: &BTreeMap<String, String>) -> Result<Self> {
        let options = Options::parse(options)?;
        Ok(Self { root: format!("{scheme}://{bucket}"), bucket: bucket.to_owned(), options })
    }

    /// Settings of the library, of two for one key the later wins.
    fn settings(&self, sources: &Sources) -> Result<Vec<(Key, String)>> {
        let mut given = Vec::new();
        for (setting, value) in self.options.pairs() {
            given.push(match setting {
                Setting::Library(key) => (key, value.to_owned()),
                Setting::Token => token(value)?,
            });
        }
        let is_login = |key: &Key| {
            use Key as K;
            let keys = [K::ServiceAccount, K::ServiceAccountKey, K::ApplicationCredentials, K::BearerToken];
            keys.contains(key) || *key == K::SkipSignature
        };
        let own_login = given.iter().any(|(key, _)| is_login(key));
        let mut settings = Vec::new();
        if let Some(host) = sources.variable("storage_emulator_host") {
            let scheme = if host.contains("://") { "" } else { "http://" };
            settings.push((Key::BaseUrl, format!("{scheme}{host}")));
            settings.push((Key::SkipSignature, "true".to_owned()));
        }
        for (name, value) in sources.all() {
            let Ok(key) = name.parse::<Key>() else { continue };
            let skip = matches!(key, Key::Bucket | Key::Client(ClientConfigKey::Timeout));
            if !skip && name.starts_with("google_") && !(own_login && is_login(&key)) {
                settings.push((key, value.to_owned()));
            }
        }
        if own_login {
            settings.retain(|(key, _)| *key != Key::SkipSignature);
        }
        settings.extend(given);
        Ok(settings)
    }
}

/// What `token` means in other libraries.
fn token(value: &str) -> Result<(Key, String)> {
    match value {
        "anon" => Ok((Key::SkipSignature, "true".to_owned())),
        _ if value.trim_start().starts_with('{') => Ok((Key::ServiceAccountKey, value.to_owned())),
        _ if std::path::Path::new(value).is_file() => Ok((Key::ApplicationCredentials, value.to_owned())),
        _ => Err(wrong_value(
            "token",
            "\"anon\", the path of a file with credentials, or the text of one (an access token is a \"bearer_token\")",
        )),
    }
}

impl Provider for Gcs {
    fn root(&self) -> &str {
        &self.root
    }

    fn policy(&self) -> Policy {
        self.options.policy
    }

    fn advice(&self) -> Advice {
        Advice {
            denied:
                "check the account of GOOGLE_APPLICATION_CREDENTIALS (or storage_options), and whether it may read \
                     this bucket"
                    .into(),
            no_credentials: "run gcloud auth application-default login, set GOOGLE_APPLICATION_CREDENTIALS to a file, \
                             or pass storage_options={\"anon\": \"true\"} for a public bucket"
                .into(),
            expired: "the access token has expired: pass another bearer_token, or credentials that renew it".into(),
            no_root: "check the bucket's name and the endpoint_url".into(),
            unreached: "check the endpoint_url, and whether this machine needs a proxy (HTTPS_PROXY)".into(),
            elsewhere: "check the endpoint_url".into(),
        }
    }

    fn sources(&self) -> Sources {
        let sources = Sources::variables(|name| name.starts_with("GOOGLE_") || name == "STORAGE_EMULATOR_HOST");
        let settings = self.settings(&sources).unwrap_or_default();
        let is_file = |key: &Key| matches!(key, Key::ServiceAccount | Key::ApplicationCredentials);
        let file = settings.into_iter().rev().find(|(key, _)| is_file(key)).map(|(_, path)| path.into());
        sources.with_file(CREDENTIALS, file)
    }

    fn connect(&self, sources: &Sources) -> Result<Connection> {
        let settings = self.settings(sources)?;
        let last = |wanted: Key| settings.iter().rev().find(|(key, _)| *key == wanted).map(|(_, value)| value.as_str());
        let endpoint = last(Key::BaseUrl).map(|url| server_url("GCS endpoint_url", url)).transpose()?;
        let endpoint = endpoint.map(|url| url.trim_end_matches('/').to_owned());
        let allow_http = endpoint.as_deref().is_some_and(|url| url.starts_with("http://"));
        let mut builder = GoogleCloudStorageBuilder::new().with_bucket_name(&self.bucket);
        let mut connection = Vec::new();
        for (key, value) in &settings {
            match key {
                Key::ServiceAccount | Key::ApplicationCredentials if value.trim_start().starts_with('{') => {
                    // As a path it would be shown, secrets and all.
                    return Err(Error::Argument(format!(
                        "{}: {:?} must be the path of a file, got what such a file holds\nhint: service_account_key \
                         takes the text",
                        self.root,
                        key.as_ref()
                    )));
                }
                Key::Client(key) => connection.push((*key, value.as_str())),
                Key::BaseUrl => builder = builder.with_base_url(value.trim_end_matches('/')),
                key => builder = builder.with_config(*key, value),
            }
        }
        if last(Key::SkipSignature) == Some("true") {
            // Or else files of credentials are read, which need not be there or be in order.
            builder = builder.with_bearer_token("");
        }
        let policy = self.options.policy;
        let secret = |(key, _): &&(Key, String)| settings::Key::is_secret(&Setting::Library(*key));
        let secrets = Secrets::new(settings.iter().filter(secret).map(|(_, value)| value.as_str()));
        // Objects that are stored compressed come as they are: unpacked on the way, they could not be read in parts.
        let stored = HeaderMap::from_iter([(reqwest::header::ACCEPT_ENCODING, HeaderValue::from_static("gzip"))]);
        let store = builder
            .with_client_options(client_options(&policy, allow_http, connection).with_default_headers(stored))
            .with_retry(no_retries(&policy))
            .with_http_connector(ObservingConnector)
            .build()
            .map_err(|e| Error::Argument(secrets.hide(format!("{}: the settings cannot be used: {e}", self.root))))?;
        Ok(Connection { backend: Box::new(Bucket::new(store)), endpoint, secrets })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::remote::settings::map;

    fn parse(pairs: &[(&str, &str)]) -> Result<Gcs> {
        Gcs::new("gs", "bucket", &map(pairs))
    }

    fn value(store: &Gcs, sources: &Sources, key: Key) -> Option<String> {
        let settings = store.settings(sources).expect("settings");
        settings.iter().rev().find(|(other, _)| *other == key).map(|(_, value)| value.clone())
    }

    #[test]
    fn spellings_of_one_setting_are_one() {
        for name in ["endpoint_url", "google_base_url", "BASE_URL", "endpoint"] {
            let store = parse(&[(name, "http://127.0.0.1:1/"), ("anon", "true")]).expect(name);
            let connection = store.connect(&Sources::default()).expect(name);
            assert_eq!(connection.endpoint.as_deref(), Some("http://127.0.0.1:1"), "{name}");
        }
        for (name, setting) in [("anon", "true"), ("token", "anon"), ("google_skip_signature", "1")] {
            let store = parse(&[(name, setting)]).expect(name);
            assert_eq!(value(&store, &Sources::default(), Key::SkipSignature).as_deref(), Some("true"), "{name}");
        }
        assert!(parse(&[("bucket_name", "b")]).is_err_and(|e| e.to_string().contains("part of the URL")));
        assert!(parse(&[("tokn", "b")]).is_err_and(|e| e.to_string().contains("\"token\"")));
    }

    #[test]
    fn a_token_is_a_file_or_its_text() {
        let file = tempfile::NamedTempFile::new().expect("file");
        let path = file.path().to_str().expect("UTF-8");
        assert_eq!(token(path).expect("file"), (Key::ApplicationCredentials, path.to_owned()));
        assert_eq!(token("{\"a\": 1}").expect("text").0, Key::ServiceAccountKey);
        let message = token("ya29.hunter2").expect_err("an access token").to_string();
        assert!(message.contains("bearer_token") && !message.contains("hunter2"), "{message}");
    }

    #[test]
    fn an_emulator_is_reached_by_its_variable() {
        let store = parse(&[]).expect("options");
        let sources = Sources::of(&[("storage_emulator_host", "localhost:4443")], &[]);
        assert_eq!(value(&store, &sources, Key::SkipSignature).as_deref(), Some("true"));
        assert_eq!(store.connect(&sources).expect("client").endpoint.as_deref(), Some("http://localhost:4443"));
        let own = parse(&[("bearer_token", "hunter2-token")]).expect("options");
        assert_eq!(value(&own, &sources, Key::SkipSignature), None);
    }

    #[test]
    fn secrets_stay_hidden() {
        let store = parse(&[("bearer_token", "hunter2-token")]).expect("options");
        assert!(!format!("{store:?}").contains("hunter2"));
        let connection = store.connect(&Sources::default()).expect("client");
        assert_eq!(connection.secrets.hide("a hunter2-token b".to_owned()), "a (hidden) b");
        let variables = Sources::of(&[("google_bearer_token", "other-token")], &[]);
        assert_eq!(value(&store, &variables, Key::BearerToken).as_deref(), Some("hunter2-token"));
    }

    #[test]
    fn a_broken_file_of_credentials_is_an_argument() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("key.json");
        std::fs::write(&path, "{\"private_key\": \"hunter2\"").expect("write");
        let store = parse(&[("service_account", path.to_str().expect("UTF-8"))]).expect("options");
        let message = store.connect(&Sources::default()).map(drop).expect_err("broken").to_string();
        assert!(message.contains("gs://bucket") && !message.contains("hunter2"), "{message}");
        let before = store.sources();
        std::fs::write(&path, "{}").expect("write");
        assert!(before != store.sources(), "another file is another source");
    }
}
