//! Plain HTTP: one request with its redirects, for servers that are no object stores.
//!
//! Redirects are followed here and not in the client below, for two reasons: what is sent to log in must not reach
//! another host, and some servers say what a file is in the answer that sends us on.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::{BoxStream, StreamExt};
use object_store::client::{HttpClient, HttpRequest, HttpRequestBody, HttpResponse};
use object_store::{HeaderMap, HeaderValue};
use reqwest::header;
use reqwest::{Method, Url};

use crate::error::{Error, Result};
use crate::store::Version;
use crate::store::remote::backend::{Answer, Facts, Fault, strong, tagged};
use crate::store::remote::observe::{Notes, Observer};
use crate::store::remote::retry::Policy;

/// Redirects that are followed: as many as browsers do.
const MOST_REDIRECTS: usize = 10;

/// A file up to this size may come whole where a part of it was asked for: some servers do not know ranges. Unit: bytes.
/// Evidence: as much as a request asks for at most, so it costs no more than the usual one.
const WHOLE: u64 = 8 << 20;

/// What a client is made of, beside the policy.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Connecting<'a> {
    pub(crate) allow_invalid_certificates: bool,
    pub(crate) proxy_url: Option<&'a str>,
    pub(crate) user_agent: Option<&'a str>,
}

/// A client for servers of files.
#[derive(Debug)]
pub(crate) struct Web {
    client: HttpClient,
    /// Sent to the host that was asked, and no other.
    login: Option<HeaderValue>,
}

/// An answer, with what was said on the way to it.
pub(crate) struct Arrived {
    pub(crate) response: HttpResponse,
    /// Where it came from in the end.
    pub(crate) url: Url,
    /// Headers of the redirects, in order.
    pub(crate) passed: Vec<HeaderMap>,
}

impl Web {
    /// A client; `login` is the value of `Authorization`.
    pub(crate) fn new(policy: &Policy, with: Connecting<'_>, login: Option<HeaderValue>) -> Result<Self> {
        let mut builder = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(policy.connect)
            .pool_idle_timeout(Duration::from_secs(60))
            .user_agent(with.user_agent.unwrap_or(concat!("headrace/", env!("CARGO_PKG_VERSION"))))
            .tls_danger_accept_invalid_certs(with.allow_invalid_certificates);
        if let Some(url) = with.proxy_url {
            let proxy = reqwest::Proxy::all(url);
            let proxy =
                proxy.map_err(|_| Error::Argument("storage_options: \"proxy_url\" must be a URL".to_owned()))?;
            builder = builder.proxy(proxy);
        }
        let client = builder.build().map_err(|e| Error::Internal(format!("the HTTP client: {}", e.without_url())))?;
        Ok(Self { client: HttpClient::new(Observer::new(HttpClient::new(client))), login })
    }

    /// The same client without the login.
    pub(crate) fn anonymous(&self) -> Self {
        Self { client: self.client.clone(), login: None }
    }

    /// Sends a request and follows redirects, unless `stop` is true of one.
    pub(crate) async fn send(
        &self,
        method: Method,
        url: Url,
        headers: &HeaderMap,
        notes: &Notes,
        stop: impl Fn(&HeaderMap) -> bool,
    ) -> std::result::Result<Arrived, Fault> {
        let first = url.clone();
        let mut url = url;
        let mut passed = Vec::new();
        loop {
            let mut request = HttpRequest::new(HttpRequestBody::empty());
            *request.method_mut() = method.clone();
            *request.uri_mut() = url.as_str().parse().map_err(|_| "the URL cannot be sent")?;
            *request.headers_mut() = headers.clone();
            request.headers_mut().insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            if let Some(login) = self.login.as_ref().filter(|_| same_server(&first, &url)) {
                request.headers_mut().insert(header::AUTHORIZATION, login.clone());
            }
            request.extensions_mut().insert(notes.clone());
            let response = self.client.execute(request).await?;
            let status = response.status().as_u16();
            let target = response.headers().get(header::LOCATION).and_then(|value| value.to_str().ok());
            let target = target.filter(|_| matches!(status, 301 | 302 | 303 | 307 | 308));
            let Some(target) = target.filter(|_| !stop(response.headers())) else {
                // Others that mean success, such as "no content", mean that it is not a file that comes.
                if !matches!(status, 200 | 206) && !stop(response.headers()) {
                    return Err(format!("the server answered {status}").into());
                }
                check_encoding(&url, response.headers())?;
                return Ok(Arrived { response, url, passed });
            };
            let next = url.join(target).map_err(|_| "the server sends us on to something that is no URL")?;
            if passed.len() == MOST_REDIRECTS {
                return Err(format!("the server sent us on more than {MOST_REDIRECTS} times").into());
            }
            match (url.scheme(), next.scheme()) {
                ("https", "https") | ("http", "http" | "https") => {}
                (from, to) => return Err(format!("the server sends us from {from} to {to}").into()),
            }
            url = next;
            passed.push(response.headers().clone());
        }
    }
}

/// An error if a server sends something else than a file's bytes: them compressed, which it was asked not to do. Some call
/// it an encoding where a file is compressed, and its name says so: those are its bytes.
fn check_encoding(url: &Url, headers: &HeaderMap) -> std::result::Result<(), Fault> {
    let mut codings =
        headers.get_all(header::CONTENT_ENCODING).iter().flat_map(|value| value.as_bytes().split(|b| *b == b','));
    let path = url.path().to_ascii_lowercase();
    let is_named = |coding: &str| match coding {
        "" | "identity" => true,
        "gzip" | "x-gzip" => path.ends_with(".gz") || path.ends_with(".tgz"),
        "zstd" => path.ends_with(".zst"),
        "br" => path.ends_with(".br"),
        _ => false,
    };
    let coding = codings.find_map(|coding| {
        let coding = String::from_utf8_lossy(coding.trim_ascii()).to_ascii_lowercase();
        (!is_named(&coding)).then_some(coding)
    });
    match coding {
        None => Ok(()),
        Some(coding) => Err(format!(
            "the server sends the file compressed (Content-Encoding: {coding}), which it was asked not to\nhint: turn that \
             off for these files on the server, or download them"
        )
        .into()),
    }
}

/// Whether what logs in to one may be shown to the other.
fn same_server(one: &Url, other: &Url) -> bool {
    one.scheme() == other.scheme()
        && one.host_str() == other.host_str()
        && one.port_or_known_default() == other.port_or_known_default()
}

/// The headers that ask for a range of what was seen before.
pub(crate) fn asking_for(range: &Range<u64>, version: &Version) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let last = range.end.saturating_sub(1);
    headers.extend(HeaderValue::from_str(&format!("bytes={}-{last}", range.start)).ok().map(|v| (header::RANGE, v)));
    let tag = strong(version).and_then(|tag| HeaderValue::from_str(tag).ok());
    headers.extend(tag.map(|tag| (header::IF_MATCH, tag)));
    headers
}

/// A header's text.
pub(crate) fn text(headers: &HeaderMap, name: impl header::AsHeaderName) -> Option<&str> {
    headers.get(name)?.to_str().ok()
}

/// The version that an answer names.
pub(crate) fn version(headers: &HeaderMap) -> Version {
    match text(headers, header::ETAG).map_or(Version::Unknown, tagged) {
        Version::Unknown => modified(headers).map_or(Version::Unknown, Version::Modified),
        tag => tag,
    }
}

/// When what an answer is about was written, in nanoseconds since 1970.
pub(crate) fn modified(headers: &HeaderMap) -> Option<i64> {
    let seconds = text(headers, header::LAST_MODIFIED).and_then(http_date)?;
    Some(seconds.saturating_mul(1_000_000_000))
}

/// What an answer says of a file of this size.
pub(crate) fn facts(size: u64, headers: &HeaderMap) -> Facts {
    Facts { size, version: version(headers), modified: modified(headers) }
}

/// The length of what an answer is about: that of its body.
pub(crate) fn content_length(headers: &HeaderMap) -> Option<u64> {
    text(headers, header::CONTENT_LENGTH)?.trim().parse().ok()
}

/// First byte, end and size of `bytes 0-9/100`; of `bytes */100` the range is empty.
pub(crate) fn content_range(headers: &HeaderMap) -> Option<(Range<u64>, u64)> {
    let (range, size) = text(headers, header::CONTENT_RANGE)?.trim().strip_prefix("bytes ")?.split_once('/')?;
    let size = size.trim().parse().ok()?;
    if range.trim() == "*" {
        return Some((0..0, size));
    }
    let (start, last) = range.split_once('-')?;
    Some((start.trim().parse().ok()?..last.trim().parse::<u64>().ok()?.checked_add(1)?, size))
}

/// The bytes of a range that was asked for, also where the server sent the whole of a short file.
pub(crate) fn body_of(
    response: HttpResponse,
    range: Range<u64>,
    version: Version,
) -> std::result::Result<Answer, Fault> {
    let headers = response.headers();
    let (size, is_cut) = match response.status().as_u16() {
        206 => {
            let (found, size) = content_range(headers).ok_or("the server does not say which bytes it sends")?;
            if found != range {
                // Judged like any other broken answer: the next one may be right.
                return Err(format!("expected bytes {range:?}, the server sent {found:?}").into());
            }
            (size, true)
        }
        _ => {
            let size = content_length(headers).ok_or("the server does not say how long the file is")?;
            if size > WHOLE && range != (0..size) {
                return Err(NO_RANGES.into());
            }
            (size, false)
        }
    };
    let body = response.into_body().bytes_stream().map(|part| part.map_err(Fault::from)).boxed();
    // What the server cut itself must be exact: more than that is an error for the reader to find.
    let body = if is_cut { body } else { cut(body, range) };
    Ok(Answer { size, version, body })
}

const NO_RANGES: &str = "the server cannot send a part of a file (it ignores Range)\nhint: use a server that can, or \
    download the file";

/// The bytes of a range, of the body of a whole file.
fn cut(
    body: BoxStream<'static, std::result::Result<Bytes, Fault>>,
    range: Range<u64>,
) -> BoxStream<'static, std::result::Result<Bytes, Fault>> {
    let (mut skipped, mut left) = (range.start, range.end - range.start);
    let parts = body.map(move |part| {
        part.map(|bytes| {
            let start = skipped.min(bytes.len() as u64);
            skipped -= start;
            let len = left.min(bytes.len() as u64 - start);
            left -= len;
            bytes.slice(start as usize..(start + len) as usize)
        })
    });
    parts.boxed()
}

/// Seconds since 1970 of a date as HTTP has it: `Wed, 21 Oct 2015 07:28:00 GMT`.
fn http_date(text: &str) -> Option<i64> {
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (_, rest) = text.trim().split_once(", ")?;
    let mut parts = rest.split(' ');
    let day: i64 = parts.next()?.parse().ok()?;
    let name = parts.next()?;
    let month = MONTHS.iter().position(|month| *month == name)? as i64 + 1;
    let year: i64 = parts.next().filter(|year| year.len() == 4)?.parse().ok()?;
    let mut clock = parts.next()?.split(':').map(|part| part.parse::<i64>().ok());
    let (hour, minute, second) = (clock.next()??, clock.next()??, clock.next()??);
    if parts.next() != Some("GMT") || !(1..=31).contains(&day) {
        return None;
    }
    // Days of the civil calendar, with years that begin in March.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, of_era) = (y.div_euclid(400), y.rem_euclid(400));
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + (153 * m + 2) / 5 + day - 1 - 719_468;
    Some(days * 86_400 + hour * 3_600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(header::HeaderName, &str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_str(value).expect("value"))).collect()
    }

    #[test]
    fn dates_are_read() {
        assert_eq!(http_date("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0));
        assert_eq!(http_date("Wed, 21 Oct 2015 07:28:00 GMT"), Some(1_445_412_480));
        assert_eq!(http_date("Thu, 29 Feb 2024 23:59:59 GMT"), Some(1_709_251_199));
        for wrong in ["", "yesterday", "Wed, 21 Okt 2015 07:28:00 GMT", "Wed, 21 Oct 2015 07:28 GMT"] {
            assert_eq!(http_date(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_version_is_the_tag_or_else_the_date() {
        let date = (header::LAST_MODIFIED, "Thu, 01 Jan 1970 00:00:01 GMT");
        assert_eq!(version(&headers(&[(header::ETAG, "\"a\""), date.clone()])), Version::ETag("\"a\"".to_owned()));
        assert_eq!(version(&headers(&[date])), Version::Modified(1_000_000_000));
        assert_eq!(version(&headers(&[])), Version::Unknown);
    }

    #[test]
    fn content_ranges_are_read() {
        let of = |text: &str| content_range(&headers(&[(header::CONTENT_RANGE, text)]));
        assert_eq!(of("bytes 5-9/100"), Some((5..10, 100)));
        assert_eq!(of("bytes */100"), Some((0..0, 100)));
        for wrong in ["bytes 5-9/*", "5-9/100", "bytes 5/100", "bytes 0-18446744073709551615/1"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_file_comes_as_it_is() {
        let of = |path: &str, coding: &str| {
            let url = Url::parse(&format!("https://a.org/{path}")).expect(path);
            check_encoding(&url, &headers(&[(header::CONTENT_ENCODING, coding)]))
        };
        for (path, coding) in [
            ("a.json", "identity"),
            ("a.json", ""),
            ("a.json.gz", "gzip"),
            ("A.TGZ", "X-GZIP"),
            ("a.zst", "zstd"),
            ("a.br", "br"),
        ] {
            assert!(of(path, coding).is_ok(), "{path} {coding}");
        }
        for (path, coding) in [
            ("a.json", "gzip"),
            ("a.json", "identity, gzip"),
            ("a.json.gz", "br"),
            ("a.gz", "gzip, zstd"),
            ("a", "deflate"),
        ] {
            let error = of(path, coding).expect_err(path).to_string();
            assert!(error.contains("Content-Encoding: ") && error.contains("hint: "), "{error}");
        }
    }

    #[test]
    fn a_login_is_for_one_server() {
        let url = |text: &str| Url::parse(text).expect(text);
        assert!(same_server(&url("https://a.org/x"), &url("https://a.org:443/y")));
        for other in ["https://b.org/x", "http://a.org/x", "https://a.org:444/x", "https://a.org.evil/x"] {
            assert!(!same_server(&url("https://a.org/x"), &url(other)), "{other}");
        }
    }

    #[test]
    fn a_body_is_cut_to_what_was_asked_for() {
        let whole: Vec<u8> = (0..100).collect();
        for (start, end) in [(0, 10), (0, 100), (5, 100), (37, 38), (99, 100), (0, 0)] {
            let parts: Vec<_> = whole.chunks(7).map(|part| Ok(Bytes::copy_from_slice(part))).collect();
            let body = cut(futures_util::stream::iter(parts).boxed(), start..end);
            let found = futures_util::FutureExt::now_or_never(body.collect::<Vec<_>>()).expect("ready");
            let found: Vec<u8> = found.into_iter().flat_map(|part| part.expect("part").to_vec()).collect();
            assert_eq!(found, whole[start as usize..end as usize], "{start}..{end}");
        }
    }
}
