//! Buckets of S3 and of servers that speak its protocol, R2 among them.
//!
//! Settings are, the later above the earlier: the profile in `~/.aws` (see `profile`), the `AWS_*` variables, and
//! `storage_options`: the names of the `object_store` crate with and without `aws_` (`access_key_id`,
//! `secret_access_key`, `session_token`, `region`, `endpoint_url`, `allow_http`, `skip_signature`, ...), `anon`, `key`
//! and `secret` as other libraries call them, `profile`, and for R2 `account_id`. Endpoint and region of a profile and
//! the variables are those of S3, and left out for R2 where it is known where that is.

use std::collections::BTreeMap;

use object_store::ClientConfigKey;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey as Key};

use crate::error::{Error, Result};
use crate::store::remote::backend::Bucket;
use crate::store::remote::observe::ObservingConnector;
use crate::store::remote::profile::{self, Profile};
use crate::store::remote::provider::{Advice, Connection, Provider, Secrets, Sources};
use crate::store::remote::retry::Policy;
use crate::store::remote::settings::{
    self, CONNECTION, Options, client_options, is_client_flag, no_retries, server_url,
};

const NAMES: &[&str] = &[
    "access_key_id",
    "account_id",
    "anon",
    "container_authorization_token_file",
    "container_credentials_full_uri",
    "container_credentials_relative_uri",
    "default_region",
    "endpoint",
    "endpoint_url",
    "endpoint_url_sts",
    "imdsv1_fallback",
    "key",
    "metadata_endpoint",
    "profile",
    "region",
    "request_payer",
    "role_arn",
    "role_session_name",
    "s3_express",
    "secret",
    "secret_access_key",
    "session_token",
    "skip_signature",
    "sse_customer_key_base64",
    "token",
    "unsigned_payload",
    "virtual_hosted_style_request",
    "web_identity_token_file",
];

/// A setting: one of the library's, or of our own.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Setting {
    Library(Key),
    Profile,
    AccountId,
}

impl settings::Key for Setting {
    const STORE: &'static str = "s3";
    const PREFIX: &'static str = "aws_";
    const NAMES: &'static [&'static [&'static str]] = &[NAMES, CONNECTION];

    fn parse(name: &str, short: &str) -> Option<Self> {
        Some(Self::Library(match short {
            "profile" => return Some(Self::Profile),
            "account_id" => return Some(Self::AccountId),
            "anon" => Key::SkipSignature,
            "key" => Key::AccessKeyId,
            "secret" => Key::SecretAccessKey,
            "endpoint_url_s3" => Key::Endpoint,
            _ => name.parse().ok()?,
        }))
    }

    fn is_flag(&self) -> bool {
        match self {
            Self::Library(Key::Client(key)) => is_client_flag(*key),
            Self::Library(key) => matches!(
                key,
                Key::SkipSignature
                    | Key::VirtualHostedStyleRequest
                    | Key::S3Express
                    | Key::ImdsV1Fallback
                    | Key::UnsignedPayload
                    | Key::RequestPayer
            ),
            Self::Profile | Self::AccountId => false,
        }
    }

    fn is_secret(&self) -> bool {
        let Self::Library(key) = self else { return false };
        matches!(key, Key::SecretAccessKey | Key::Token | Key::Encryption(_) | Key::Client(ClientConfigKey::ProxyUrl))
    }

    fn in_url(&self) -> Option<&'static str> {
        (*self == Self::Library(Key::Bucket)).then_some("the bucket")
    }
}

/// A bucket.
#[derive(Debug)]
pub struct S3 {
    root: String,
    bucket: String,
    is_r2: bool,
    options: Options<Setting>,
}

impl S3 {
    /// A bucket by the scheme and name that a URL gives.
    pub fn new(scheme: &str, bucket: &str, options: &BTreeMap<String, String>) -> Result<Self> {
        Ok(Self {
            root: format!("{scheme}://{bucket}"),
            bucket: bucket.to_owned(),
            is_r2: scheme == "r2",
            options: Options::parse(options)?,
        })
    }

    /// Settings of the library, of two for one key the later wins.
    fn settings(&self, sources: &Sources) -> Result<Vec<(Key, String)>> {
        let given = |key: Key| self.options.get(Setting::Library(key)).is_some();
        let own_credentials = [Key::AccessKeyId, Key::SecretAccessKey, Key::Token].into_iter().any(given);
        let unsigned = self.options.is_set(Setting::Library(Key::SkipSignature));
        let named = self.options.get(Setting::Profile);
        let variable = |name: &str| sources.variable(name).is_some();
        // A profile that is asked for by an option goes before the variables.
        let by_variables = variable("aws_access_key_id") || variable("aws_web_identity_token_file");
        let needs_profile = !own_credentials && !unsigned && (named.is_some() || !by_variables);
        let profile = Profile::load(named, needs_profile, sources)?;
        let own_endpoint = given(Key::Endpoint);
        let account = self.account(sources);
        // Otherwise the variables or the profile may be set for R2 itself.
        let is_placed = self.is_r2 && (own_endpoint || account.is_some());
        let mut settings = Vec::new();
        if let Some(profile) = &profile {
            if !is_placed {
                settings.extend(profile.place());
            }
            if needs_profile {
                settings.extend(profile.credentials()?);
            }
        }
        let from_profile =
            settings.iter().any(|(key, _)| *key == Key::AccessKeyId || *key == Key::WebIdentityTokenFile);
        let mut variables = Vec::new();
        for (name, value) in sources.all() {
            let Ok(key) = name.parse::<Key>() else { continue };
            let skip = match key {
                Key::Bucket => true,
                // A token from one place with a key from another can only be refused.
                Key::AccessKeyId | Key::SecretAccessKey | Key::Token => own_credentials || from_profile,
                Key::Endpoint | Key::S3Endpoint => own_endpoint || is_placed,
                Key::Region | Key::DefaultRegion => is_placed,
                Key::Client(ClientConfigKey::Timeout) => true,
                _ => false,
            };
            if !skip {
                variables.push((key, value.to_owned()));
            }
        }
        // `AWS_REGION` before `AWS_DEFAULT_REGION`, whatever their order above.
        variables.sort_by_key(|(key, _)| matches!(key, Key::Region));
        settings.extend(variables);
        settings.extend(self.options.pairs().filter_map(|(setting, value)| match setting {
            Setting::Library(key) => Some((key, value.to_owned())),
            _ => None,
        }));
        if self.is_r2 {
            self.add_r2(&mut settings, account)?;
        }
        Ok(settings)
    }

    /// The account that a bucket of R2 belongs to, if that is said.
    fn account<'a>(&'a self, sources: &'a Sources) -> Option<&'a str> {
        let variable = || ["r2_account_id", "cloudflare_account_id"].iter().find_map(|name| sources.variable(name));
        self.options.get(Setting::AccountId).or_else(variable)
    }

    /// What R2 needs beside what S3 does.
    fn add_r2(&self, settings: &mut Vec<(Key, String)>, account: Option<&str>) -> Result<()> {
        if endpoint(settings).is_none() {
            let account = account.ok_or_else(|| {
                Error::Argument(format!(
                    "{}: expected the account that the bucket belongs to, found none\nhint: pass \
                     storage_options={{\"account_id\": ...}} or its endpoint_url, or set R2_ACCOUNT_ID",
                    self.root
                ))
            })?;
            settings.push((Key::Endpoint, format!("https://{account}.r2.cloudflarestorage.com")));
        }
        let has_region = |key: &Key| matches!(key, Key::Region | Key::DefaultRegion);
        if !settings.iter().any(|(key, _)| has_region(key)) {
            settings.push((Key::Region, "auto".to_owned()));
        }
        Ok(())
    }
}

impl Provider for S3 {
    fn root(&self) -> &str {
        &self.root
    }

    fn policy(&self) -> Policy {
        self.options.policy
    }

    fn advice(&self) -> Advice {
        Advice {
            denied: "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or storage_options, or the profile), and \
                     whether they may read this bucket"
                .into(),
            no_credentials:
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, name a profile of ~/.aws by AWS_PROFILE, \
                             or pass storage_options={\"anon\": \"true\"} for a public bucket"
                    .into(),
            expired: "the session token has expired: renew AWS_SESSION_TOKEN or the profile that holds it".into(),
            no_root: "check the bucket's name, its region and the endpoint_url".into(),
            unreached: "check the endpoint_url, the region, and whether this machine needs a proxy (HTTPS_PROXY)"
                .into(),
            elsewhere: "the bucket lies in another region: set AWS_REGION or storage_options={\"region\": ...}".into(),
        }
    }

    fn sources(&self) -> Sources {
        let wanted = |name: &str| {
            name.starts_with("AWS_") || (self.is_r2 && matches!(name, "R2_ACCOUNT_ID" | "CLOUDFLARE_ACCOUNT_ID"))
        };
        profile::with_files(Sources::variables(wanted))
    }

    fn connect(&self, sources: &Sources) -> Result<Connection> {
        let settings = self.settings(sources)?;
        let endpoint = endpoint(&settings).map(|url| server_url("S3 endpoint_url", &url)).transpose()?;
        let allow_http = endpoint.as_deref().is_some_and(|url| url.starts_with("http://"));
        // Not all servers that speak the protocol delete several objects at once.
        let mut builder = AmazonS3Builder::new().with_bucket_name(&self.bucket).with_disable_bulk_delete(true);
        let mut connection = Vec::new();
        for (key, value) in &settings {
            if value.chars().any(char::is_control) {
                // Whatever of it went into a header would be refused there.
                return Err(Error::Argument(format!("{}: {:?} has a control character", self.root, key.as_ref())));
            }
            match key {
                Key::Client(key) => connection.push((*key, value.as_str())),
                key => builder = builder.with_config(*key, value),
            }
        }
        let policy = self.options.policy;
        let secret = |(key, _): &&(Key, String)| settings::Key::is_secret(&Setting::Library(*key));
        let secrets = Secrets::new(settings.iter().filter(secret).map(|(_, value)| value.as_str()));
        let s3 = builder
            .with_client_options(client_options(&policy, allow_http, connection))
            .with_retry(no_retries(&policy))
            .with_http_connector(ObservingConnector)
            .build()
            .map_err(|e| Error::Argument(secrets.hide(format!("{}: the settings cannot be used: {e}", self.root))))?;
        Ok(Connection { backend: Box::new(Bucket::new(s3)), endpoint, secrets })
    }
}

fn endpoint(settings: &[(Key, String)]) -> Option<String> {
    let last = |wanted: Key| settings.iter().rev().find(|(key, _)| *key == wanted).map(|(_, value)| value.clone());
    last(Key::S3Endpoint).or_else(|| last(Key::Endpoint))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::remote::settings::map;

    fn parse(pairs: &[(&str, &str)]) -> Result<S3> {
        S3::new("s3", "bucket", &map(pairs))
    }

    fn value(store: &S3, sources: &Sources, key: Key) -> Option<String> {
        let settings = store.settings(sources).expect("settings");
        settings.iter().rev().find(|(other, _)| *other == key).map(|(_, value)| value.clone())
    }

    fn connected(store: &S3, sources: &Sources) -> Result<Connection> {
        store.connect(sources)
    }

    #[test]
    fn spellings_of_one_setting_are_one() {
        for name in ["endpoint_url", "aws_endpoint_url", "AWS_ENDPOINT", "endpoint", "aws_endpoint_url_s3"] {
            let store = parse(&[(name, "http://127.0.0.1:1")]).expect(name);
            let connection = connected(&store, &Sources::default()).expect(name);
            assert_eq!(connection.endpoint.as_deref(), Some("http://127.0.0.1:1"), "{name}");
        }
        assert!(parse(&[("key", "a"), ("access_key_id", "a")]).is_ok());
        assert!(parse(&[("key", "a"), ("access_key_id", "b")]).is_err());
    }

    #[test]
    fn an_unknown_option_names_the_near_ones() {
        let message = parse(&[("acces_key", "x")]).expect_err("unknown").to_string();
        assert!(message.contains("\"acces_key\"") && message.contains("\"access_key_id\""), "{message}");
        let message = parse(&[("banana", "hunter2")]).expect_err("unknown").to_string();
        assert!(message.contains("known are") && !message.contains("hunter2"), "{message}");
        let message = parse(&[("bucket", "b")]).expect_err("in the URL").to_string();
        assert!(message.contains("the bucket is part of the URL"), "{message}");
    }

    #[test]
    fn an_endpoint_is_a_url() {
        let store = parse(&[("endpoint_url", "localhost:9000")]).expect("options");
        assert!(connected(&store, &Sources::default()).is_err_and(|e| e.to_string().contains("http://")));
    }

    #[test]
    fn a_control_character_is_refused() {
        let store = parse(&[("key", "AKIA"), ("secret", "x"), ("token", "x\r\nX: y")]).expect("options");
        let error = store.connect(&Sources::default()).err().expect("refused").to_string();
        assert!(error.contains("control character") && !error.contains("X: y"), "{error}");
    }

    #[test]
    fn secrets_stay_hidden() {
        let store = parse(&[("key", "AKIA"), ("secret", "hunter2-hunter2"), ("anon", "no")]).expect("options");
        assert!(!format!("{store:?}").contains("hunter2"));
        let connection = connected(&store, &Sources::default()).expect("client");
        assert_eq!(connection.secrets.hide("a hunter2-hunter2 b".to_owned()), "a (hidden) b");
        assert!(parse(&[("anon", "hunter2")]).expect_err("flag").to_string().contains("true or false"));
    }

    const CREDENTIALS: (&str, &str) = (
        "credentials",
        "[default]\naws_access_key_id = file-key\naws_secret_access_key = file-secret\naws_session_token = file-token\n\
         [other]\naws_access_key_id = other-key\naws_secret_access_key = other-secret\n",
    );
    const CONFIG: (&str, &str) = ("config", "[default]\nregion = eu-central-1\n[profile other]\nregion = mars-1\n");

    fn files(variables: &[(&str, &str)]) -> Sources {
        Sources::of(variables, &[CREDENTIALS, CONFIG])
    }

    #[test]
    fn settings_come_from_options_variables_and_the_profile_in_this_order() {
        let store = parse(&[]).expect("options");
        let key = |store: &S3, sources: &Sources| value(store, sources, Key::AccessKeyId);
        assert_eq!(key(&store, &files(&[])).as_deref(), Some("file-key"));
        assert_eq!(value(&store, &files(&[]), Key::Token).as_deref(), Some("file-token"));
        assert_eq!(value(&store, &files(&[]), Key::Region).as_deref(), Some("eu-central-1"));
        let variables = files(&[("aws_access_key_id", "env-key"), ("aws_region", "env-1")]);
        assert_eq!(key(&store, &variables).as_deref(), Some("env-key"));
        assert_eq!(value(&store, &variables, Key::Token), None, "a token belongs to its key");
        assert_eq!(value(&store, &variables, Key::Region).as_deref(), Some("env-1"));
        assert_eq!(key(&store, &files(&[("aws_profile", "other")])).as_deref(), Some("other-key"));
        let named = parse(&[("profile", "other")]).expect("options");
        assert_eq!(key(&named, &variables).as_deref(), Some("other-key"), "an option goes before variables");
        let own = parse(&[("key", "own"), ("secret", "own-secret"), ("region", "own-1")]).expect("options");
        assert_eq!(key(&own, &variables).as_deref(), Some("own"));
        assert_eq!(value(&own, &files(&[]), Key::Token), None);
        assert_eq!(value(&own, &variables, Key::Region).as_deref(), Some("own-1"));
        let unsigned = parse(&[("anon", "true")]).expect("options");
        assert_eq!(key(&unsigned, &files(&[])), None);
    }

    #[test]
    fn a_profile_that_is_not_there_is_named() {
        let message =
            parse(&[("profile", "gone")]).expect("options").settings(&files(&[])).expect_err("none").to_string();
        assert!(message.contains("\"gone\"") && message.contains("default, other"), "{message}");
        let gone = ("aws_profile", "gone");
        assert!(parse(&[]).expect("options").settings(&files(&[gone])).is_err());
        let elsewhere = files(&[gone, ("aws_access_key_id", "k"), ("aws_secret_access_key", "s")]);
        assert!(parse(&[]).expect("options").settings(&elsewhere).is_ok(), "its credentials are not needed");
    }

    #[test]
    fn a_profile_changes_with_its_file() {
        let store = parse(&[]).expect("options");
        let text = "[default]\naws_access_key_id=new-key\naws_secret_access_key=new-secret\n";
        let renewed = Sources::of(&[], &[("credentials", text)]);
        assert!(renewed != files(&[]));
        assert_eq!(value(&store, &renewed, Key::AccessKeyId).as_deref(), Some("new-key"));
        let connection = connected(&store, &renewed).expect("client");
        assert_eq!(connection.secrets.hide("new-secret".to_owned()), "(hidden)");
    }

    #[test]
    fn r2_is_found_by_its_account() {
        let store = S3::new("r2", "bucket", &map(&[("account_id", "abc")])).expect("options");
        let connection = connected(&store, &Sources::default()).expect("client");
        assert_eq!(connection.endpoint.as_deref(), Some("https://abc.r2.cloudflarestorage.com"));
        assert_eq!(value(&store, &Sources::default(), Key::Region).as_deref(), Some("auto"));
        let store = S3::new("r2", "bucket", &map(&[])).expect("options");
        assert!(connected(&store, &Sources::of(&[("r2_account_id", "xyz")], &[])).is_ok());
        let none = connected(&store, &Sources::default()).map(|_| ()).expect_err("no account").to_string();
        assert!(none.contains("r2://bucket") && none.contains("account_id"), "{none}");
    }

    #[test]
    fn r2_does_not_lie_where_s3_does() {
        const PROFILE: (&str, &str) = ("config", "[default]\nregion = eu-1\nendpoint_url = https://profile\n");
        let found = |options: &[(&str, &str)], variables: &[(&str, &str)]| {
            let store = S3::new("r2", "bucket", &map(options)).expect("options");
            let sources = Sources::of(variables, &[PROFILE]);
            let region = value(&store, &sources, Key::Region).expect("region");
            (connected(&store, &sources).expect("client").endpoint.expect("endpoint"), region)
        };
        let expected = |endpoint: &str, region: &str| (endpoint.to_owned(), region.to_owned());
        let of_account = expected("https://abc.r2.cloudflarestorage.com", "auto");
        let of_s3 = [("aws_endpoint_url", "https://s3"), ("aws_endpoint_url_s3", "https://s3"), ("aws_region", "us-9")];
        assert_eq!(found(&[("account_id", "abc")], &of_s3), of_account);
        assert_eq!(found(&[("account_id", "abc")], &[("aws_default_region", "us-9")]), of_account);
        let with_account = [&of_s3[..], &[("r2_account_id", "abc")]].concat();
        assert_eq!(found(&[], &with_account), of_account);
        let own = [("account_id", "abc"), ("endpoint_url", "https://own"), ("region", "weur")];
        assert_eq!(found(&own, &of_s3), expected("https://own", "weur"), "options go before all");
        assert_eq!(found(&own[1..2], &of_s3), expected("https://own", "auto"));
        assert_eq!(found(&[], &of_s3), expected("https://s3", "us-9"), "nothing else says where it is");
        assert_eq!(found(&[], &[]), expected("https://profile", "eu-1"));
    }
}
