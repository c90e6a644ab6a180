//! Files of a web server, each named by its URL.
//!
//! A web server cannot say which files it has: a dataset is a list of URLs. A file is looked up by `HEAD`, or by asking
//! for its first byte where that is refused, as signed URLs do. What tells its versions apart is the entity tag, else
//! the date of its last change, else its size alone.
//!
//! The query of a URL is part of the file's name but for what signs or logs in (`X-Amz-Signature`, `sig`, `token` and
//! such): that is sent, and shown and kept nowhere. `storage_options` are `bearer_token`, or `username` and `password`
//! (also as `user:password@` in the URL), and those of the connection.

use std::collections::BTreeMap;
use std::ops::Range;

use object_store::{HeaderMap, HeaderValue};
use reqwest::{Method, Url, header};

use crate::error::{Error, Result};
use crate::store::Version;
use crate::store::remote::backend::{Answer, Ask, Asked, Backend, Facts, Fault, Hidden, Page};
use crate::store::remote::provider::{Advice, Connection, Provider, Secrets, Sources};
use crate::store::remote::retry::Policy;
use crate::store::remote::settings::{self, Options};
use crate::store::remote::web::{Connecting, Web, asking_for, body_of, content_length, content_range, facts, version};

/// A setting.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Setting {
    BearerToken,
    Username,
    Password,
    AllowInvalidCertificates,
    ProxyUrl,
    UserAgent,
}

impl settings::Key for Setting {
    const STORE: &'static str = "http";
    const PREFIX: &'static str = "http_";
    const NAMES: &'static [&'static [&'static str]] =
        &[&["allow_invalid_certificates", "bearer_token", "password", "proxy_url", "user_agent", "username"]];

    fn parse(_: &str, short: &str) -> Option<Self> {
        Some(match short {
            "bearer_token" | "token" => Self::BearerToken,
            "username" | "user" => Self::Username,
            "password" => Self::Password,
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
        matches!(self, Self::BearerToken | Self::Password | Self::ProxyUrl)
    }
}

/// A server.
#[derive(Debug)]
pub struct Http {
    root: String,
    /// User and password that the URL gave.
    user: Option<Hidden>,
    options: Options<Setting>,
}

/// A URL, taken apart: the server, the name of the file below it, and what has to follow that but is no part of it.
#[derive(Debug)]
pub struct HttpUrl {
    /// The server.
    pub server: Http,
    /// The path as it stands in the URL, and what of the query names the file.
    pub key: String,
    /// The whole query, if some of it is secret.
    pub query: Option<Hidden>,
}

impl Http {
    /// Takes a URL apart, given its scheme and what follows.
    pub fn parse(scheme: &str, rest: &str, options: &BTreeMap<String, String>) -> Result<HttpUrl> {
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (user, host) = match rest[..end].rsplit_once('@') {
            Some((user, host)) => (Some(Hidden(user.to_owned())), host),
            None => (None, &rest[..end]),
        };
        let shown = |path: &str| format!("\"{scheme}://{host}{path}\"");
        let text = format!("{scheme}://{host}{}", &rest[end..]);
        let url = Url::parse(&text).ok().filter(|url| url.host_str().is_some() && !host.is_empty());
        let Some(url) = url else {
            return Err(Error::Argument(format!("{}: expected {scheme}://host/path", shown(""))));
        };
        // The path as it was written, but for letters that cannot be sent.
        let path = rest[end..].split(['?', '#']).next().unwrap_or_default();
        if path.split('/').any(|part| matches!(part, "." | "..")) || path.contains("//") {
            return Err(Error::Argument(format!("{}: the path has an empty or relative part", shown(path))));
        }
        let (named, is_secret) = match url.query().filter(|query| !query.is_empty()) {
            Some(query) => naming(query),
            None => (String::new(), false),
        };
        let mut key = url.path().trim_start_matches('/').to_owned();
        if !named.is_empty() {
            key = format!("{key}?{}", named.replace('/', "%2F"));
        }
        let query = url.query().filter(|_| is_secret).map(|query| Hidden(query.to_owned()));
        let host = &text[..text.len() - (rest.len() - end)];
        let server = Self { root: host.to_owned(), user, options: Options::parse(options)? };
        Ok(HttpUrl { server, key, query })
    }

    /// The value of `Authorization`.
    fn login(&self) -> Result<Option<HeaderValue>> {
        let wrong = |name: &str| settings::wrong_value(name, "text that can be sent in a header");
        let value = if let Some(token) = self.options.get(Setting::BearerToken) {
            HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| wrong("bearer_token"))?
        } else {
            let of_url = self.user.as_ref().map(|Hidden(text)| match text.split_once(':') {
                Some((name, password)) => (decoded(name), Some(decoded(password))),
                None => (decoded(text), None),
            });
            let of_options = self
                .options
                .get(Setting::Username)
                .map(|name| (name.to_owned(), self.options.get(Setting::Password).map(str::to_owned)));
            let Some((name, password)) = of_options.or(of_url) else { return Ok(None) };
            let request = reqwest::Client::new().get("http://localhost").basic_auth(name, password).build();
            let header = request.ok().and_then(|request| request.headers().get(header::AUTHORIZATION).cloned());
            header.ok_or_else(|| wrong("username"))?
        };
        Ok(Some(value))
    }
}

fn decoded(text: &str) -> String {
    crate::store::resolve::percent_decode(text).unwrap_or_else(|| text.to_owned())
}

/// What of a query names the file, and whether there is more: parameters that sign, log in or ask for a download.
fn naming(query: &str) -> (String, bool) {
    let name_of = |part: &str| part.split('=').next().unwrap_or_default().to_ascii_lowercase();
    let is_signed = query.split('&').any(|part| is_secret(&name_of(part)));
    let is_dropped = |name: &str| name == "download" || is_secret(name) || (is_signed && OF_SIGNATURES.contains(&name));
    let kept: Vec<&str> = query.split('&').filter(|part| !part.is_empty() && !is_dropped(&name_of(part))).collect();
    let kept = kept.join("&");
    let is_more = kept != query;
    (kept, is_more)
}

/// Whether a parameter signs or logs in, by its name in lower case.
fn is_secret(name: &str) -> bool {
    const NAMES: [&str; 13] = [
        "sig",
        "auth",
        "authorization",
        "pass",
        "passwd",
        "pwd",
        "apikey",
        "api_key",
        "api-key",
        "jwt",
        "key",
        "code",
        "session",
    ];
    const ENDS: [&str; 9] = [
        "signature",
        "token",
        "secret",
        "password",
        "credential",
        "access_key",
        "access-key",
        "accesskey",
        "subscription-key",
    ];
    NAMES.contains(&name)
        || ENDS.iter().any(|end| name.ends_with(end))
        || name.starts_with("x-amz-")
        || name.starts_with("x-goog-")
}

/// What goes with a signature, under short names, and changes with it.
const OF_SIGNATURES: [&str; 23] = [
    "expires",
    "policy",
    "key-pair-id",
    "awsaccesskeyid",
    "googleaccessid",
    "se",
    "st",
    "sp",
    "sv",
    "sr",
    "spr",
    "sip",
    "si",
    "sdd",
    "ske",
    "sks",
    "skt",
    "skv",
    "skoid",
    "sktid",
    "saoid",
    "suoid",
    "scid",
];

impl Provider for Http {
    fn root(&self) -> &str {
        &self.root
    }

    fn policy(&self) -> Policy {
        self.options.policy
    }

    fn advice(&self) -> Advice {
        Advice {
            denied: "if the URL is signed, its time may be over; if the server wants a login, pass \
                     storage_options={\"bearer_token\": ...}, or \"username\" and \"password\""
                .into(),
            no_credentials: "pass storage_options={\"bearer_token\": ...}".into(),
            expired: "get a new URL".into(),
            no_root: "check the URL".into(),
            unreached: "check the URL, and whether this machine needs a proxy (HTTPS_PROXY)".into(),
            elsewhere: "check the URL".into(),
        }
    }

    fn sources(&self) -> Sources {
        Sources::default()
    }

    fn connect(&self, _: &Sources) -> Result<Connection> {
        let with = Connecting {
            allow_invalid_certificates: self.options.is_set(Setting::AllowInvalidCertificates),
            proxy_url: self.options.get(Setting::ProxyUrl),
            user_agent: self.options.get(Setting::UserAgent),
        };
        let web = Web::new(&self.options.policy, with, self.login()?)?;
        let secret = |(key, _): &(Setting, &str)| settings::Key::is_secret(key);
        let of_options = self.options.pairs().filter(secret).map(|(_, value)| value);
        let of_url = self.user.iter().flat_map(|Hidden(text)| text.split_once(':').map(|(_, password)| password));
        let secrets = Secrets::new(of_options.chain(of_url));
        Ok(Connection { backend: Box::new(Files { web, root: self.root.clone() }), endpoint: None, secrets })
    }

    fn login_of_url(&self) -> Option<&Hidden> {
        self.user.as_ref()
    }

    fn can_list(&self) -> bool {
        false
    }
}

/// A client of a server of files.
struct Files {
    web: Web,
    root: String,
}

impl Files {
    fn url(&self, ask: &Ask) -> std::result::Result<Url, Fault> {
        let path = ask.key.split('?').next().unwrap_or_default();
        let text = match &ask.query {
            Some(Hidden(query)) => format!("{}/{path}?{query}", self.root),
            None => format!("{}/{}", self.root, ask.key),
        };
        Url::parse(&text).map_err(|_| "the URL cannot be sent".into())
    }

    async fn look_up(&self, ask: Ask) -> std::result::Result<Facts, Fault> {
        let url = self.url(&ask)?;
        match self.web.send(Method::HEAD, url.clone(), &HeaderMap::new(), &ask.notes, |_| false).await {
            Ok(arrived) => {
                not_a_folder(&url, &arrived.url)?;
                let headers = arrived.response.headers();
                if let Some(size) = content_length(headers) {
                    return Ok(facts(size, headers));
                }
            }
            // What else is refused is so for every method.
            Err(error) if !matches!(ask.notes.outcome().status, Some(400 | 401 | 403 | 405 | 501)) => {
                return Err(error);
            }
            Err(_) => {}
        }
        let first = asking_for(&(0..1), &Version::Unknown);
        let arrived = self.web.send(Method::GET, url.clone(), &first, &ask.notes, is_empty).await?;
        not_a_folder(&url, &arrived.url)?;
        let headers = arrived.response.headers();
        let size = content_range(headers).map(|(_, size)| size).or_else(|| content_length(headers));
        let size = size.ok_or("the server does not say how long the file is\nhint: download the file")?;
        Ok(facts(size, headers))
    }
}

/// Whether the first byte was asked of a file that has none.
fn is_empty(headers: &HeaderMap) -> bool {
    content_range(headers) == Some((0..0, 0))
}

/// An error where a server sent us on to a folder, whose page must not pass for a file.
fn not_a_folder(asked: &Url, arrived: &Url) -> std::result::Result<(), Fault> {
    match arrived.path().ends_with('/') && !asked.path().ends_with('/') {
        true => {
            Err("the URL is that of a folder, which a web server cannot list\nhint: give the URLs of its files".into())
        }
        false => Ok(()),
    }
}

impl Backend for Files {
    fn get(&self, ask: Ask, range: Range<u64>, version_before: Version) -> Asked<'_, Answer> {
        Box::pin(async move {
            let headers = asking_for(&range, &version_before);
            let arrived = self.web.send(Method::GET, self.url(&ask)?, &headers, &ask.notes, |_| false).await?;
            let found = version(arrived.response.headers());
            body_of(arrived.response, range, found)
        })
    }

    fn head(&self, ask: Ask) -> Asked<'_, Facts> {
        Box::pin(self.look_up(ask))
    }

    fn list(&self, _: Ask, _: Option<String>) -> Asked<'_, Page> {
        Box::pin(async { Err("a web server cannot say which files it has".into()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::remote::settings::map;

    fn parse(rest: &str) -> Result<HttpUrl> {
        Http::parse("https", rest, &BTreeMap::new())
    }

    #[test]
    fn a_url_is_a_server_and_a_name() {
        for (rest, root, key) in [
            ("host/a/b.parquet", "https://host", "a/b.parquet"),
            ("host:8080/a%20b", "https://host:8080", "a%20b"),
            ("host/a b", "https://host", "a%20b"),
            ("host/get?file=x/y.parquet", "https://host", "get?file=x%2Fy.parquet"),
            ("host/a.parquet?download=true", "https://host", "a.parquet"),
            ("host/a#part", "https://host", "a"),
            ("[::1]:80/a", "https://[::1]:80", "a"),
            ("host", "https://host", ""),
            ("host/design?design=1&author=2", "https://host", "design?design=1&author=2"),
        ] {
            let url = parse(rest).expect(rest);
            assert_eq!((url.server.root(), url.key.as_str()), (root, key), "{rest}");
        }
        for rest in ["", "/a", "host/a/../b", "host//a", "host/./a"] {
            assert!(matches!(parse(rest), Err(Error::Argument(_))), "{rest}");
        }
    }

    #[test]
    fn what_signs_a_url_is_no_part_of_a_name() {
        for (query, kept) in [
            ("X-Amz-Algorithm=A&X-Amz-Signature=hunter2&x=1", "x=1"),
            ("sv=2020&se=2030&sp=r&sig=hunter2", ""),
            ("Expires=1&Signature=hunter2&Key-Pair-Id=K", ""),
            ("access_token=hunter2&file=a", "file=a"),
            ("se=5&x=1", "se=5&x=1"),
            ("pwd=hunter2", ""),
            ("pass=hunter2&file=a", "file=a"),
            ("access_key=hunter2", ""),
            ("AccessKey=hunter2", ""),
            ("subscription-key=hunter2", ""),
            ("session=hunter2", ""),
            ("code=hunter2", ""),
            ("key=hunter2", ""),
            ("keys=1&keyboard=2&barcode=3", "keys=1&keyboard=2&barcode=3"),
        ] {
            let url = parse(&format!("host/a?{query}")).expect(query);
            let wanted = if kept.is_empty() { "a".to_owned() } else { format!("a?{kept}") };
            assert_eq!(url.key, wanted, "{query}");
            assert_eq!(url.query.clone().map(|Hidden(text)| text), (kept != query).then(|| query.to_owned()));
            assert!(!format!("{url:?}").contains("hunter2"));
        }
    }

    #[test]
    fn a_login_is_an_option_or_in_the_url() {
        let login = |rest: &str, pairs: &[(&str, &str)]| {
            let server = Http::parse("https", rest, &map(pairs)).expect("URL").server;
            assert!(!format!("{server:?}").contains("hunter2") && server.root() == "https://host");
            let connection = server.connect(&Sources::default()).expect("client");
            assert_eq!(connection.secrets.hide("hunter2".to_owned()), "(hidden)");
            server.login().expect("login").map(|value| value.to_str().expect("text").to_owned())
        };
        assert_eq!(login("host/a", &[("token", "hunter2")]).as_deref(), Some("Bearer hunter2"));
        let basic = Some("Basic dTpodW50ZXIy".to_owned());
        assert_eq!(login("host/a", &[("username", "u"), ("password", "hunter2")]), basic);
        assert_eq!(login("u:hunter2@host/a", &[]), basic);
        assert_eq!(parse("host/a").expect("URL").server.login().expect("login"), None);
    }
}
