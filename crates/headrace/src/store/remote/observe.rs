//! Seeing what the server said: an HTTP client that notes status, `Retry-After` and the error's code for the
//! request's owner, so that nothing is ever decided by the text of a message.
//!
//! It also mends listings: markers of folders and keys that cannot be addressed are taken out of the server's
//! answer before the library below reads it, since one such key would fail the whole listing.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpService, ReqwestConnector,
};
use object_store::path::Path;
use reqwest::Method;

use crate::error::StoreFault;
use crate::store::remote::hf::ERROR_CODE;

/// Bytes of an error's body that are looked at: S3's are a few hundred.
const ERROR_BODY: usize = 16 << 10;

/// Where servers of Azure and of Hugging Face put the code and the message of an error, which they do not repeat in a
/// body that has none.
const CODES: [&str; 2] = ["x-ms-error-code", ERROR_CODE];
const MESSAGES: [&str; 1] = ["x-error-message"];

/// What became of one request.
#[derive(Debug, Default, Clone)]
pub(crate) struct Outcome {
    /// Whether anything was sent: if not, the credentials could not be had.
    pub(crate) sent: bool,
    /// The host that was asked.
    pub(crate) host: String,
    /// Status of the answer, if there was one.
    pub(crate) status: Option<u16>,
    /// How long the server asks to wait.
    pub(crate) retry_after: Option<Duration>,
    /// The code of an error, from its body or headers.
    pub(crate) code: String,
    /// The message that goes with the code.
    pub(crate) message: String,
    /// What the connection failed with.
    pub(crate) transport: Option<HttpErrorKind>,
    /// What kind of fault another library says it was, which was called instead of a server.
    pub(crate) fault: Option<StoreFault>,
    /// A key in a listing that cannot be addressed.
    pub(crate) odd_key: Option<String>,
}

/// Where a request's outcome is noted; travels with the request as an extension.
#[derive(Debug, Default, Clone)]
pub(crate) struct Notes(Arc<Mutex<Outcome>>);

impl Notes {
    fn lock(&self) -> MutexGuard<'_, Outcome> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets what an earlier attempt noted.
    pub(crate) fn reset(&self) {
        *self.lock() = Outcome::default();
    }

    /// Notes that a body broke off or holds something else than it should: another one may be whole.
    pub(crate) fn broke(&self, kind: HttpErrorKind) {
        self.lock().transport = Some(kind);
    }

    /// Notes what kind of fault another library says it was.
    pub(crate) fn told(&self, fault: StoreFault) {
        self.lock().fault = Some(fault);
    }

    /// Does work whose requests cannot carry notes: what writes or deletes among them is noted here.
    pub(crate) async fn noting<T>(&self, work: impl Future<Output = T>) -> T {
        WRITING.scope(self.clone(), work).await
    }

    /// Those of a request: what it carries, or those of the work that it belongs to. A request for credentials is neither.
    fn of(request: &HttpRequest) -> Option<Self> {
        let carried = request.extensions().get::<Self>().cloned();
        carried.or_else(|| writes(request).then(|| WRITING.try_with(Self::clone).ok()).flatten())
    }

    /// What was noted.
    pub(crate) fn outcome(&self) -> Outcome {
        self.lock().clone()
    }
}

tokio::task_local! {
    /// The notes of the work that is being done.
    static WRITING: Notes;
}

/// Whether a request is one of those that write in parts, or delete.
fn writes(request: &HttpRequest) -> bool {
    let query = request.uri().query().unwrap_or_default();
    let names = query.split('&').map(|pair| pair.split('=').next().unwrap_or_default());
    request.method() == Method::DELETE
        || names.into_iter().any(|name| matches!(name, "uploads" | "uploadId"))
        || ["comp=block", "comp=batch"].iter().any(|kind| query.contains(kind))
}

/// Makes [`Observer`]s for the library below.
#[derive(Debug, Default)]
pub(crate) struct ObservingConnector;

impl HttpConnector for ObservingConnector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(Observer::new(ReqwestConnector::default().connect(options)?)))
    }
}

/// A client that notes what came of a request.
#[derive(Debug)]
pub(crate) struct Observer(HttpClient);

impl Observer {
    pub(crate) fn new(client: HttpClient) -> Self {
        Self(client)
    }
}

type Answer<'a> = Pin<Box<dyn Future<Output = Result<HttpResponse, HttpError>> + Send + 'a>>;

impl HttpService for Observer {
    fn call<'s, 'a>(&'s self, request: HttpRequest) -> Answer<'a>
    where
        's: 'a,
        Self: 'a,
    {
        Box::pin(async move {
            let notes = Notes::of(&request);
            let query = request.uri().query().unwrap_or_default();
            let listing = LISTINGS.iter().find(|listing| query.contains(listing.query));
            let is_write = writes(&request);
            let Some(notes) = notes else { return self.0.execute(request).await };
            {
                let mut outcome = notes.lock();
                outcome.sent = true;
                outcome.host = request.uri().host().unwrap_or_default().to_owned();
            }
            let answer = self.0.execute(request).await;
            let response = answer.inspect_err(|e| notes.broke(e.kind()))?;
            let status = response.status();
            {
                let mut outcome = notes.lock();
                outcome.status = Some(status.as_u16());
                let header = response.headers().get("retry-after").and_then(|value| value.to_str().ok());
                outcome.retry_after = header.and_then(retry_after);
            }
            if status.is_success() && listing.is_none() && !is_write {
                return Ok(response);
            }
            let (parts, body) = response.into_parts();
            let body = body.bytes().await.inspect_err(|e| notes.broke(e.kind()))?;
            if status.is_success() && is_write {
                return Ok(HttpResponse::from_parts(parts, body.into()));
            }
            let body = match listing.filter(|_| status.is_success()) {
                Some(listing) => {
                    if let Err(error) = listing.check_whole(&body).and_then(|()| listing.check_next(&body)) {
                        notes.broke(error.kind());
                        return Err(error);
                    }
                    let (mended, odd) = listing.mend(&body);
                    notes.lock().odd_key = odd;
                    mended
                }
                None => {
                    let text = String::from_utf8_lossy(&body[..body.len().min(ERROR_BODY)]);
                    let header = |names: &[&str]| {
                        let found = names.iter().find_map(|name| parts.headers.get(*name)?.to_str().ok());
                        found.unwrap_or_default().to_owned()
                    };
                    let mut outcome = notes.lock();
                    outcome.code = element(&text, "Code").unwrap_or_else(|| header(&CODES));
                    let message = element(&text, "Message").unwrap_or_else(|| header(&MESSAGES));
                    // Azure adds lines with the request's number and the time.
                    outcome.message = message.lines().next().unwrap_or_default().to_owned();
                    body
                }
            };
            Ok(HttpResponse::from_parts(parts, body.into()))
        })
    }
}

/// `Retry-After` in seconds. The form with a date is rare, needs a clock that agrees with the server's, and is
/// taken as if it were not there.
fn retry_after(text: &str) -> Option<Duration> {
    text.trim().parse::<u32>().ok().map(|seconds| Duration::from_secs(u64::from(seconds)))
}

/// The unescaped text of the first element of that name.
fn element(xml: &str, name: &str) -> Option<String> {
    let (open, close) = (format!("<{name}>"), format!("</{name}>"));
    let start = xml.find(&open)? + open.len();
    let len = xml[start..].find(&close)?;
    Some(unescape(&xml[start..start + len]))
}

/// Replaces XML's entities.
fn unescape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let Some(end) = rest.find(';') else { break };
        let name = &rest[1..end];
        let number = name.strip_prefix('#').and_then(|digits| match digits.strip_prefix(['x', 'X']) {
            Some(hex) => u32::from_str_radix(hex, 16).ok(),
            None => digits.parse().ok(),
        });
        match (name, number.and_then(char::from_u32)) {
            ("amp", _) => out.push('&'),
            ("lt", _) => out.push('<'),
            ("gt", _) => out.push('>'),
            ("quot", _) => out.push('"'),
            ("apos", _) => out.push('\''),
            (_, Some(c)) => out.push(c),
            _ => out.push_str(&rest[..=end]),
        }
        rest = &rest[end + 1..];
    }
    out.push_str(rest);
    out
}

/// Whether [`Path`] keeps a key as it is.
pub(crate) fn addressable(key: &str) -> bool {
    !key.starts_with('/') && !key.ends_with('/') && !key.is_empty() && Path::parse(key).is_ok()
}

/// How a kind of store lists objects.
struct Listing {
    /// What the query of such a request holds.
    query: &'static str,
    /// Element of the whole answer.
    root: &'static str,
    /// Element of an object.
    object: &'static str,
    /// Element of its key.
    key: &'static str,
    /// Elements that say whether more follows, and where. Of Azure the second alone says both.
    more: Option<(&'static str, &'static str)>,
}

/// Listings of S3 and Google Cloud Storage, and of Azure.
const LISTINGS: [Listing; 2] = [
    Listing {
        query: "list-type=2",
        root: "ListBucketResult",
        object: "Contents",
        key: "Key",
        more: Some(("IsTruncated", "NextContinuationToken")),
    },
    Listing { query: "comp=list", root: "EnumerationResults", object: "Blob", key: "Name", more: None },
];

impl Listing {
    /// An error if an answer breaks off, which its length does not always tell.
    fn check_whole(&self, body: &Bytes) -> Result<(), HttpError> {
        let end = format!("</{}>", self.root);
        if body.trim_ascii_end().ends_with(end.as_bytes()) {
            return Ok(());
        }
        let text = format!("the listing broke off after {} bytes: expected {end} at its end", body.len());
        Err(HttpError::new(HttpErrorKind::Decode, std::io::Error::other(text)))
    }

    /// An error if a listing says that it goes on, but not where: it must not pass for the end.
    fn check_next(&self, body: &Bytes) -> Result<(), HttpError> {
        let Some((more, next)) = self.more else { return Ok(()) };
        let xml = String::from_utf8_lossy(body);
        let says = |name: &str| element(&xml, name).map(|text| text.trim().to_owned()).unwrap_or_default();
        if says(more) != "true" || !says(next).is_empty() {
            return Ok(());
        }
        let text = format!("the listing says that it goes on ({more}), but not where: expected a {next}");
        Err(HttpError::new(HttpErrorKind::Decode, std::io::Error::other(text)))
    }

    /// Takes folder markers and keys that are not [`addressable`] out of a listing; tells the first of the latter.
    fn mend(&self, body: &Bytes) -> (Bytes, Option<String>) {
        let Ok(xml) = std::str::from_utf8(body) else { return (body.clone(), None) };
        let (open, close) = (format!("<{}>", self.object), format!("</{}>", self.object));
        let mut odd = None;
        let mut out = String::new();
        let (mut kept, mut at) = (0, 0);
        while let Some(start) = xml[at..].find(&open).map(|offset| at + offset) {
            let Some(len) = xml[start..].find(&close) else { break };
            let end = start + len + close.len();
            let key = element(&xml[start..end], self.key).unwrap_or_default();
            if !addressable(&key) {
                out.push_str(&xml[kept..start]);
                kept = end;
                if !key.ends_with('/') && odd.is_none() {
                    odd = Some(key);
                }
            }
            at = end;
        }
        if kept == 0 {
            return (body.clone(), None);
        }
        out.push_str(&xml[kept..]);
        (out.into(), odd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_and_odd_keys_leave_the_listing() {
        for listing in LISTINGS {
            let (object, name) = (listing.object, listing.key);
            let one = |key: &str| format!("<{object}><{name}>{key}</{name}><Size>0</Size></{object}>");
            let xml = format!("<R>{}{}{}{}</R>", one("a/"), one("a/b&amp;c"), one("a//d"), one("e%20"));
            let (mended, odd) = listing.mend(&Bytes::from(xml));
            assert_eq!(mended, format!("<R>{}{}</R>", one("a/b&amp;c"), one("e%20")));
            assert_eq!(odd.as_deref(), Some("a//d"));
        }
    }

    #[test]
    fn a_listing_that_breaks_off_is_told_from_a_whole_one() {
        let whole = Bytes::from("<?xml?><ListBucketResult><Contents>x</Contents></ListBucketResult>\n");
        for length in 0..whole.len() - 1 {
            let error = LISTINGS[0].check_whole(&whole.slice(..length)).expect_err("broken");
            assert_eq!(error.kind(), HttpErrorKind::Decode);
        }
        assert!(LISTINGS[0].check_whole(&whole).is_ok() && LISTINGS[1].check_whole(&whole).is_err());
    }

    #[test]
    fn a_listing_that_does_not_say_where_it_goes_on_is_not_whole() {
        let listed = |more: &str| Bytes::from(format!("<ListBucketResult>{more}</ListBucketResult>"));
        let token = "<NextContinuationToken>a&amp;b</NextContinuationToken>";
        for whole in [
            String::new(),
            "<IsTruncated>false</IsTruncated>".to_owned(),
            format!("<IsTruncated>true</IsTruncated>{token}"),
            format!("{token}<IsTruncated> true </IsTruncated>"),
        ] {
            assert!(LISTINGS[0].check_next(&listed(&whole)).is_ok(), "{whole}");
        }
        for lost in ["", "<NextContinuationToken/>", "<NextContinuationToken> </NextContinuationToken>"] {
            let error = LISTINGS[0].check_next(&listed(&format!("<IsTruncated>true</IsTruncated>{lost}")));
            assert_eq!(error.expect_err(lost).kind(), HttpErrorKind::Decode);
        }
        assert!(LISTINGS[1].check_next(&Bytes::from("<IsTruncated>true</IsTruncated>")).is_ok());
    }

    #[test]
    fn errors_are_read_from_their_elements() {
        let xml = "<Error><Code>NoSuchBucket</Code><Message>it&#39;s &quot;gone&quot; &unknown; &</Message></Error>";
        assert_eq!(element(xml, "Code").as_deref(), Some("NoSuchBucket"));
        assert_eq!(element(xml, "Message").as_deref(), Some("it's \"gone\" &unknown; &"));
        assert_eq!(element("<Code>", "Code"), None);
    }

    #[test]
    fn retry_after_is_seconds() {
        assert_eq!(retry_after(" 3 "), Some(Duration::from_secs(3)));
        assert_eq!(retry_after("Wed, 21 Oct 2015 07:28:00 GMT"), None);
        assert_eq!(retry_after("-1"), None);
    }
}
