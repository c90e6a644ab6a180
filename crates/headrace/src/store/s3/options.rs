//! Settings of an S3 store: `storage_options` on top of the `AWS_*` environment variables.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use object_store::ClientOptions;
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey as Key};
use object_store::{BackoffConfig, ClientConfigKey, RetryConfig};

use crate::error::{Error, Result};
use crate::store::s3::observe::ObservingConnector;
use crate::store::s3::retry::Policy;

/// Names that are understood, for the message about one that is not. Each of the library's may also be written
/// with `aws_` before it.
const NAMES: &[&str] = &[
    "access_key_id",
    "allow_http",
    "allow_invalid_certificates",
    "anon",
    "connect_timeout",
    "container_authorization_token_file",
    "container_credentials_full_uri",
    "container_credentials_relative_uri",
    "default_region",
    "endpoint",
    "endpoint_url",
    "endpoint_url_sts",
    "http1_only",
    "http2_only",
    "imdsv1_fallback",
    "key",
    "max_retries",
    "metadata_endpoint",
    "pool_idle_timeout",
    "pool_max_idle_per_host",
    "proxy_ca_certificate",
    "proxy_excludes",
    "proxy_url",
    "region",
    "request_payer",
    "retry_timeout",
    "role_arn",
    "role_session_name",
    "s3_express",
    "secret",
    "secret_access_key",
    "session_token",
    "skip_signature",
    "sse_customer_key_base64",
    "timeout",
    "token",
    "unsigned_payload",
    "user_agent",
    "virtual_hosted_style_request",
    "web_identity_token_file",
];

/// What `storage_options` said.
#[derive(Clone, PartialEq)]
pub struct S3Options {
    explicit: BTreeMap<&'static str, (Key, String)>,
    /// Deadlines and retries.
    pub(crate) policy: Policy,
}

impl fmt::Debug for S3Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Names only: values may be secrets.
        f.debug_set().entries(self.explicit.keys()).finish()
    }
}

/// A client, with what is needed to renew it and to keep its secrets out of messages.
pub(crate) struct Client {
    pub(crate) s3: AmazonS3,
    environment: Environment,
    secrets: Secrets,
}

/// The `AWS_*` variables at one time; compared, never shown.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Environment(BTreeMap<String, String>);

impl Environment {
    /// The variables now.
    pub(crate) fn now() -> Self {
        let pairs = std::env::vars_os().filter_map(|(name, value)| {
            let name = name.into_string().ok().filter(|name| name.starts_with("AWS_"))?;
            Some((name.to_ascii_lowercase(), value.into_string().ok()?))
        });
        Self(pairs.collect())
    }
}

/// Texts that must not appear in a message.
struct Secrets(Vec<String>);

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not the library's client: what it shows of its credentials is not for us to rely on.
        f.write_str("Client")
    }
}

impl S3Options {
    /// Reads `storage_options`; a name or a value that is not understood is an error.
    pub fn parse(options: &BTreeMap<String, String>) -> Result<Self> {
        let mut explicit = BTreeMap::new();
        let mut policy = Policy::default();
        for (name, value) in options {
            let lower = name.to_ascii_lowercase();
            let short = lower.strip_prefix("aws_").unwrap_or(&lower);
            let key = match short {
                "timeout" => {
                    policy.request = duration(name, value)?;
                    continue;
                }
                "retry_timeout" => {
                    policy.total = duration(name, value)?;
                    continue;
                }
                "max_retries" => {
                    policy.retries = value.trim().parse().map_err(|_| wrong_value(name, "a whole number"))?;
                    continue;
                }
                "anon" => Key::SkipSignature,
                "key" => Key::AccessKeyId,
                "secret" => Key::SecretAccessKey,
                "endpoint_url_s3" => Key::Endpoint,
                _ => lower.parse().map_err(|_| unknown(name))?,
            };
            if matches!(key, Key::Bucket) {
                return Err(Error::Argument(format!(
                    "storage_options: {name:?} is not used: the bucket is part of the URL"
                )));
            }
            let mut value = value.trim().to_owned();
            if is_flag(&key) {
                value = flag(name, &value)?.to_string();
            }
            if key == Key::Client(ClientConfigKey::ConnectTimeout) {
                value = format!("{}ms", duration(name, &value)?.as_millis());
            }
            // Two spellings of one setting would silently hide one of the values.
            let canonical = canonical(&key, short);
            if let Some((_, other)) = explicit.insert(canonical, (key, value.clone()))
                && other != value
            {
                return Err(Error::Argument(format!(
                    "storage_options: {name:?} is given twice, under two names, with different values"
                )));
            }
        }
        Ok(Self { explicit, policy })
    }

    /// A client for a bucket, with the environment as it is now.
    pub(crate) fn client(&self, bucket: &str) -> Result<Client> {
        let environment = Environment::now();
        let settings = self.settings(&environment);
        if let Some(url) = endpoint(&settings)
            && !url.starts_with("http://")
            && !url.starts_with("https://")
        {
            return Err(Error::Argument("the S3 endpoint_url must begin with http:// or https://".to_owned()));
        }
        let mut client = ClientOptions::new()
            .with_timeout_disabled()
            .with_connect_timeout(self.policy.connect)
            .with_allow_http(endpoint(&settings).is_some_and(|url| url.starts_with("http://")));
        let mut builder = AmazonS3Builder::new().with_bucket_name(bucket);
        for (key, value) in &settings {
            match key {
                Key::Client(key) => client = client.with_config(*key, value),
                key => builder = builder.with_config(*key, value),
            }
        }
        let s3 = builder
            .with_client_options(client)
            // Attempts are counted, timed and noted in `retry`, not twice over in the library.
            .with_retry(RetryConfig {
                max_retries: 0,
                backoff: BackoffConfig::default(),
                retry_timeout: self.policy.total,
            })
            .with_http_connector(ObservingConnector)
            .build();
        let secrets = Secrets(
            settings.iter().filter(|(key, value)| is_secret(key) && value.len() >= 4).map(|(_, v)| v.clone()).collect(),
        );
        match s3 {
            Ok(s3) => Ok(Client { s3, environment, secrets }),
            Err(e) => Err(Error::Argument(secrets.hide(format!("s3://{bucket}: the settings cannot be used: {e}")))),
        }
    }

    /// Where requests go, if that is not the provider's own address; holds no secret.
    pub fn endpoint(&self) -> Option<String> {
        let url = endpoint(&self.settings(&Environment::now()))?;
        Some(match (url.find("://"), url.find('@')) {
            (Some(scheme), Some(at)) if scheme < at => format!("{}{}", &url[..scheme + 3], &url[at + 1..]),
            _ => url,
        })
    }

    /// Environment first, then what was given; of two settings of one key the later wins.
    fn settings(&self, environment: &Environment) -> Vec<(Key, String)> {
        let credentials = [Key::AccessKeyId, Key::SecretAccessKey, Key::Token];
        let given = |key: &Key| self.explicit.values().any(|(other, _)| other == key);
        let own_credentials = credentials.iter().any(given);
        let own_endpoint = given(&Key::Endpoint);
        let mut settings = Vec::new();
        for (name, value) in &environment.0 {
            let Ok(key) = name.parse::<Key>() else { continue };
            let skip = match key {
                Key::Bucket => true,
                // A token from one place with a key from another can only be refused.
                Key::AccessKeyId | Key::SecretAccessKey | Key::Token => own_credentials,
                Key::Endpoint | Key::S3Endpoint => own_endpoint,
                Key::Client(ClientConfigKey::Timeout) => true,
                _ => false,
            };
            if !skip && !value.is_empty() {
                settings.push((key, value.clone()));
            }
        }
        // `AWS_REGION` before `AWS_DEFAULT_REGION`, whatever their order above.
        settings.sort_by_key(|(key, _)| matches!(key, Key::Region));
        settings.extend(self.explicit.values().cloned());
        settings
    }
}

impl Client {
    /// Whether a client built now would see another environment.
    pub(crate) fn is_stale(&self) -> bool {
        self.environment != Environment::now()
    }

    /// A text without this client's secrets.
    pub(crate) fn hide(&self, text: String) -> String {
        self.secrets.hide(text)
    }
}

impl Secrets {
    fn hide(&self, text: String) -> String {
        self.0.iter().fold(text, |text, secret| text.replace(secret.as_str(), "(hidden)"))
    }
}

fn endpoint(settings: &[(Key, String)]) -> Option<String> {
    let last = |wanted: Key| settings.iter().rev().find(|(key, _)| *key == wanted).map(|(_, value)| value.clone());
    last(Key::S3Endpoint).or_else(|| last(Key::Endpoint))
}

fn is_flag(key: &Key) -> bool {
    use ClientConfigKey as C;
    matches!(
        key,
        Key::SkipSignature
            | Key::VirtualHostedStyleRequest
            | Key::S3Express
            | Key::ImdsV1Fallback
            | Key::UnsignedPayload
            | Key::RequestPayer
            | Key::Client(C::AllowHttp | C::AllowInvalidCertificates | C::Http1Only | C::Http2Only)
    )
}

fn is_secret(key: &Key) -> bool {
    matches!(key, Key::SecretAccessKey | Key::Token | Key::Encryption(_) | Key::Client(ClientConfigKey::ProxyUrl))
}

/// One name for all spellings of a key.
fn canonical(key: &Key, short: &str) -> &'static str {
    match key {
        Key::AccessKeyId => "access_key_id",
        Key::SecretAccessKey => "secret_access_key",
        Key::Token => "session_token",
        Key::Endpoint => "endpoint_url",
        Key::SkipSignature => "skip_signature",
        Key::Client(ClientConfigKey::AllowHttp) => "allow_http",
        _ => NAMES.iter().find(|name| **name == short).copied().unwrap_or_else(|| key_name(key)),
    }
}

/// The library's own name of a key that is accepted but not advertised.
fn key_name(key: &Key) -> &'static str {
    match key {
        Key::Checksum => "checksum_algorithm",
        Key::CopyIfNotExists => "copy_if_not_exists",
        Key::ConditionalPut => "conditional_put",
        Key::DisableTagging => "disable_tagging",
        Key::DisableBulkDelete => "disable_bulk_delete",
        Key::S3Endpoint => "endpoint_url_s3",
        Key::Encryption(_) => "server_side_encryption",
        Key::Client(_) => "client",
        _ => "other",
    }
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

fn wrong_value(name: &str, wanted: &str) -> Error {
    // The value is not repeated: it may be a secret under a wrong name.
    Error::Argument(format!("storage_options: {name:?} must be {wanted}"))
}

fn unknown(name: &str) -> Error {
    let lower = name.to_ascii_lowercase();
    let short = lower.strip_prefix("aws_").unwrap_or(&lower);
    let mut near: Vec<(usize, &str)> = NAMES.iter().map(|known| (distance(short, known), *known)).collect();
    near.sort();
    // At most two letters of five may differ.
    let is_near = |(d, known): &&(usize, &str)| d * 5 <= known.len().max(short.len()) * 2;
    let hint: Vec<String> = near.iter().take(3).filter(is_near).map(|(_, known)| format!("{known:?}")).collect();
    Error::Argument(if hint.is_empty() {
        format!("storage_options: unknown option {name:?} for s3\nhint: known are {}", NAMES.join(", "))
    } else {
        format!("storage_options: unknown option {name:?} for s3\nhint: did you mean {}?", hint.join(" or "))
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(pairs: &[(&str, &str)]) -> Result<S3Options> {
        S3Options::parse(&pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
    }

    #[test]
    fn spellings_of_one_setting_are_one() {
        for name in ["endpoint_url", "aws_endpoint_url", "AWS_ENDPOINT", "endpoint", "aws_endpoint_url_s3"] {
            let options = parse(&[(name, "http://127.0.0.1:1")]).expect(name);
            assert_eq!(options.endpoint().as_deref(), Some("http://127.0.0.1:1"), "{name}");
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
        assert!(parse(&[("bucket", "b")]).is_err());
    }

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
    fn an_endpoint_is_a_url() {
        let options = parse(&[("endpoint_url", "localhost:9000")]).expect("options");
        assert!(options.client("bucket").expect_err("no scheme").to_string().contains("http://"));
    }

    #[test]
    fn secrets_stay_hidden() {
        let options = parse(&[("key", "AKIA"), ("secret", "hunter2-hunter2"), ("anon", "no")]).expect("options");
        assert!(!format!("{options:?}").contains("hunter2"));
        let client = options.client("bucket").expect("client");
        assert_eq!(client.hide("a hunter2-hunter2 b".to_owned()), "a (hidden) b");
        assert!(parse(&[("anon", "hunter2")]).expect_err("flag").to_string().contains("true or false"));
    }
}
