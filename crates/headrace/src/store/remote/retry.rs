//! When a request is made again, and what is said when it is not.

use std::hash::Hasher;
use std::time::{Duration, Instant};

use object_store::client::HttpErrorKind;
use xxhash_rust::xxh3::Xxh3;

use crate::error::{Error, StoreFault};
use crate::store::remote::observe::Outcome;
use crate::store::remote::provider::Advice;

/// Deadlines and retries of one store. Scope: one read of at most a piece, one page of a listing, one `head`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Policy {
    /// For a connection. Option `connect_timeout`.
    pub(crate) connect: Duration,
    /// Without a byte: from the request to the answer's head, and between parts of the body. Option `timeout`.
    pub(crate) request: Duration,
    /// For all attempts together, once the first has begun; grows by [`MIN_RATE`] with what arrives. Option
    /// `retry_timeout`.
    pub(crate) total: Duration,
    /// Attempts after the first that brought nothing. Option `max_retries`.
    pub(crate) retries: u32,
    /// Without a byte of a read, before it is asked for a second time beside the first. Option `hedge`.
    pub(crate) hedge: Option<Duration>,
}

/// Bytes a second that count as progress: a slow line that shares its capacity among all requests may take
/// longer than the total for a piece, a server that drips bytes must not.
const MIN_RATE: u64 = 16 << 10;

/// The same of bytes that are sent, of which nobody tells how far they have come. Scope: a request. Evidence: no more than
/// eight uploads are under way at once, so a line of 4 Mbit/s keeps up with it; a request that hangs is given up after its
/// `timeout` and two minutes for the longest body.
const SENT_RATE: u64 = 64 << 10;

/// How often a body may be sent as slowly as that within the time for all attempts.
const SLOW_ATTEMPTS: u32 = 3;

/// First pause between attempts, and the longest: the usual choice of cloud clients, which spreads some thousand
/// readers over ten seconds when a server is overloaded.
const PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Attempts after the first while no server has answered yet: three seconds or so, in which a network that comes up gets
/// ready, and after which an address is rather wrong. Once one has answered, it is `max_retries`.
const NEVER_REACHED: u32 = 5;

impl Default for Policy {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            request: Duration::from_secs(20),
            total: Duration::from_secs(60),
            retries: 12,
            hedge: None,
        }
    }
}

impl Policy {
    /// The pause before attempt `attempt` (2 is the first repetition): doubling, and spread over its upper half by
    /// a hash of what is read and by whom, so that readers that failed together do not come back together.
    pub(crate) fn pause(&self, attempt: u32, salt: u64) -> Duration {
        let whole = PAUSE.saturating_mul(1 << attempt.saturating_sub(2).min(20)).min(LONGEST_PAUSE);
        let mut hash = Xxh3::with_seed(salt);
        hash.write_u32(attempt);
        hash.write_u32(std::process::id());
        let part = (hash.finish() >> 40) as f64 / (1u64 << 24) as f64;
        whole.mul_f64(0.5 + 0.5 * part)
    }
}

/// What to do about a server that wants fewer requests.
const BUSY: &str = "the server wants fewer requests: set HEADRACE_CONCURRENT_REQUESTS below 32, run fewer processes, or \
    give it more time with the storage option retry_timeout";

/// What to do about one that fails.
const FAILING: &str = "the server or the way to it is failing: try again later, or give it more time with the storage \
    option retry_timeout";

/// What to do about one that is slow.
const SLOW: &str = "the server or the way to it is slow: check the network, or give it more time with the storage \
    options timeout and retry_timeout";

/// Why an attempt failed.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    pub(crate) kind: Kind,
    /// What to tell.
    pub(crate) detail: String,
    /// How long the server asks to wait.
    pub(crate) retry_after: Option<Duration>,
}

/// What follows from a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Try again, unless time is up.
    Again(StoreFault),
    /// As [`Kind::Again`], but the server was not reached at all: a wrong address should not take a minute.
    Unreached,
    /// Nothing was sent, for want of credentials: those that were had before may be had again.
    Unsigned,
    /// It ends the same way next time.
    Final(StoreFault),
    /// The object is another one now.
    Changed,
}

impl Failure {
    /// A failure that another attempt may mend.
    pub(crate) fn again(fault: StoreFault, detail: impl Into<String>) -> Self {
        Self { kind: Kind::Again(fault), detail: detail.into(), retry_after: None }
    }

    /// What the error and the noted outcome say together. Decided by status and code alone.
    pub(crate) fn judge(error: &(dyn std::error::Error + 'static), outcome: &Outcome, advice: &Advice) -> Self {
        let said = |hint: &str| {
            let status = outcome.status.unwrap_or(0);
            let mut text = format!("the server answered {status}");
            if !outcome.code.is_empty() {
                text = format!("{text} {}", outcome.code);
            }
            if !outcome.message.is_empty() {
                text = format!("{text}: {}", outcome.message.trim_end_matches('.'));
            }
            if hint.is_empty() { text } else { format!("{text}\nhint: {hint}") }
        };
        if let Some(fault) = outcome.fault {
            let is_passing = matches!(fault, StoreFault::Unavailable | StoreFault::Timeout);
            let kind = if is_passing { Kind::Again(fault) } else { Kind::Final(fault) };
            let hint = if fault == StoreFault::Denied { format!("\nhint: {}", advice.denied) } else { String::new() };
            return Self { kind, detail: format!("{}{hint}", innermost(error)), retry_after: None };
        }
        let (kind, detail) = match (outcome.status, outcome.code.as_str(), outcome.transport) {
            (_, _, Some(HttpErrorKind::Timeout)) => (Kind::Again(StoreFault::Timeout), innermost(error)),
            (None, _, Some(HttpErrorKind::Connect)) => {
                let text = format!("{} cannot be reached: {}", outcome.host, innermost(error));
                (Kind::Unreached, format!("{text}\nhint: {}", advice.unreached))
            }
            (_, _, Some(_)) => (Kind::Again(StoreFault::Unavailable), innermost(error)),
            (None, ..) if !outcome.sent => (
                Kind::Unsigned,
                format!("no credentials could be had: {}\nhint: {}", innermost(error), advice.no_credentials),
            ),
            (None, ..) => (Kind::Again(StoreFault::Unavailable), innermost(error)),
            (Some(404), "NoSuchBucket" | "ContainerNotFound" | "RepoNotFound" | "RevisionNotFound", _) => {
                (Kind::Final(StoreFault::NotFound), said(&advice.no_root))
            }
            (Some(404 | 410), ..) => (Kind::Final(StoreFault::NotFound), said("")),
            (Some(412 | 416), ..) => (Kind::Changed, said("")),
            (Some(_), "RequestTimeTooSkewed", _) => {
                (Kind::Final(StoreFault::Denied), said("the clock of this machine is wrong"))
            }
            (Some(400), "ExpiredToken" | "InvalidToken" | "TokenRefreshRequired", _) => {
                (Kind::Final(StoreFault::Denied), said(&advice.expired))
            }
            (Some(400), "RequestTimeout", _) => (Kind::Again(StoreFault::Timeout), said("")),
            (Some(401 | 403), ..) => (Kind::Final(StoreFault::Denied), said(&advice.denied)),
            (Some(301 | 302 | 307 | 308), ..) | (Some(400), "AuthorizationHeaderMalformed", _) => {
                (Kind::Final(StoreFault::Other), said(&advice.elsewhere))
            }
            (Some(408), ..) => (Kind::Again(StoreFault::Timeout), said("")),
            (Some(429 | 503), ..) => (Kind::Again(StoreFault::Unavailable), said(BUSY)),
            (Some(501), ..) => (Kind::Final(StoreFault::Other), said("")),
            (Some(500..=599), ..) => (Kind::Again(StoreFault::Unavailable), said("")),
            (Some(206), ..) => (Kind::Again(StoreFault::Unavailable), innermost(error)),
            (Some(200..=299), ..) => (Kind::Final(StoreFault::Other), innermost(error)),
            (Some(_), ..) => (Kind::Final(StoreFault::Other), said("")),
        };
        Self { kind, detail, retry_after: outcome.retry_after }
    }
}

/// The last message of a chain of errors: those before it repeat it, with addresses.
pub(crate) fn innermost(error: &dyn std::error::Error) -> String {
    let mut at = error;
    while let Some(source) = at.source() {
        at = source;
    }
    at.to_string()
}

/// The attempts of one piece of work.
#[derive(Debug)]
pub(crate) struct Attempts {
    policy: Policy,
    salt: u64,
    started: Option<Instant>,
    /// Requests sent.
    pub(crate) made: u32,
    /// Attempts in a row that brought nothing.
    barren: u32,
    received: u64,
    /// What an attempt may take for sending its body.
    sending: Duration,
}

impl Attempts {
    pub(crate) fn new(policy: Policy, salt: u64) -> Self {
        Self::sending(policy, salt, 0)
    }

    /// Those of work whose requests have a body of so many bytes.
    pub(crate) fn sending(policy: Policy, salt: u64, bytes: u64) -> Self {
        let sending = Duration::from_secs(bytes / SENT_RATE);
        Self { policy, salt, started: None, made: 0, barren: 0, received: 0, sending }
    }

    /// Notes that a request is about to be sent. Time in the queue for a permit does not count.
    pub(crate) fn begin(&mut self) {
        self.made += 1;
        self.barren += 1;
        self.started.get_or_insert_with(Instant::now);
    }

    /// Notes what has arrived in all attempts together.
    pub(crate) fn progress(&mut self, received: u64) {
        if received > self.received {
            self.received = received;
            self.barren = 0;
        }
    }

    /// Time until the deadline.
    pub(crate) fn left(&self) -> Duration {
        let spent = self.started.map_or(Duration::ZERO, |at| at.elapsed());
        let granted = Duration::from_secs(self.received / MIN_RATE) + self.sending * SLOW_ATTEMPTS;
        (self.policy.total + granted).saturating_sub(spent)
    }

    /// How long the next step may wait for a byte.
    pub(crate) fn step(&self) -> Duration {
        (self.policy.request + self.sending).min(self.left())
    }

    /// How long to pause before the next attempt; `None` when there is none.
    pub(crate) fn pause(&self, failure: &Failure, reached: bool) -> Option<Duration> {
        let limit = match failure.kind {
            Kind::Again(_) => self.policy.retries,
            Kind::Unreached if reached => self.policy.retries,
            Kind::Unreached => self.policy.retries.min(NEVER_REACHED),
            Kind::Unsigned if reached => self.policy.retries,
            Kind::Unsigned | Kind::Final(_) | Kind::Changed => return None,
        };
        let tried = self.barren.max(1);
        let pause = self.policy.pause(tried + 1, self.salt).max(failure.retry_after.unwrap_or_default());
        (tried <= limit && pause < self.left()).then_some(pause)
    }

    /// The error that ends the work.
    pub(crate) fn error(&self, uri: String, operation: String, failure: Failure) -> Error {
        let fault = match failure.kind {
            Kind::Again(fault) | Kind::Final(fault) => fault,
            Kind::Unreached => StoreFault::Unavailable,
            Kind::Unsigned => StoreFault::Denied,
            Kind::Changed => StoreFault::Other,
        };
        let hint = match failure.kind {
            _ if failure.detail.contains("\nhint: ") => None,
            Kind::Again(StoreFault::Timeout) => Some(SLOW),
            Kind::Again(_) => Some(FAILING),
            _ => None,
        };
        let detail = match hint {
            Some(hint) => format!("{}\nhint: {hint}", failure.detail),
            None => failure.detail,
        };
        Error::Store { uri, operation, fault, attempts: self.made.max(1), detail }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advice() -> Advice {
        let hint = |text: &'static str| std::borrow::Cow::Borrowed(text);
        Advice {
            denied: hint("denied"),
            no_credentials: hint("no credentials"),
            expired: hint("expired"),
            no_root: hint("no root"),
            unreached: hint("unreached"),
            elsewhere: hint("elsewhere"),
        }
    }

    fn judged(status: u16, code: &str) -> Kind {
        let outcome = Outcome { sent: true, status: Some(status), code: code.to_owned(), ..Outcome::default() };
        Failure::judge(&std::io::Error::other("x"), &outcome, &advice()).kind
    }

    #[test]
    fn answers_are_judged_by_status_and_code() {
        assert_eq!(judged(503, "SlowDown"), Kind::Again(StoreFault::Unavailable));
        assert_eq!(judged(429, ""), Kind::Again(StoreFault::Unavailable));
        assert_eq!(judged(403, "SignatureDoesNotMatch"), Kind::Final(StoreFault::Denied));
        assert_eq!(judged(404, "NoSuchKey"), Kind::Final(StoreFault::NotFound));
        assert_eq!(judged(404, "ContainerNotFound"), Kind::Final(StoreFault::NotFound));
        assert_eq!(judged(401, "RepoNotFound"), Kind::Final(StoreFault::Denied));
        assert_eq!(judged(412, "PreconditionFailed"), Kind::Changed);
        assert_eq!(judged(400, "ExpiredToken"), Kind::Final(StoreFault::Denied));
        assert_eq!(judged(400, "RequestTimeout"), Kind::Again(StoreFault::Timeout));
    }

    #[test]
    fn a_host_that_cannot_be_reached_is_named() {
        let transport = Some(HttpErrorKind::Connect);
        let outcome = Outcome { sent: true, host: "b.s3.invalid".to_owned(), transport, ..Outcome::default() };
        let failure = Failure::judge(&std::io::Error::other("x"), &outcome, &advice());
        assert_eq!(failure.detail, "b.s3.invalid cannot be reached: x\nhint: unreached");
        assert_eq!(failure.kind, Kind::Unreached);
    }

    #[test]
    fn credentials_that_were_had_before_are_asked_for_again() {
        let failure = Failure::judge(&std::io::Error::other("x"), &Outcome::default(), &advice());
        assert_eq!(failure.kind, Kind::Unsigned);
        assert!(failure.detail.ends_with("x\nhint: no credentials"), "{}", failure.detail);
        let mut attempts = Attempts::new(Policy::default(), 1);
        attempts.begin();
        assert!(attempts.pause(&failure, false).is_none());
        assert!(attempts.pause(&failure, true).is_some());
    }

    #[test]
    fn what_stays_broken_comes_with_advice() {
        let outcome = |status| Outcome { sent: true, status: Some(status), ..Outcome::default() };
        let judged = |status| Failure::judge(&std::io::Error::other("x"), &outcome(status), &advice());
        let mut attempts = Attempts::new(Policy::default(), 1);
        attempts.begin();
        for (failure, hint) in [
            (judged(503), BUSY),
            (judged(429), BUSY),
            (judged(500), FAILING),
            (judged(408), SLOW),
            (Failure::again(StoreFault::Timeout, "nothing arrived"), SLOW),
            (judged(403), "denied"),
        ] {
            let text = attempts.error("s3://b/k".to_owned(), "list".to_owned(), failure).to_string();
            assert!(text.ends_with(&format!("\nhint: {hint}")) && text.matches("hint:").count() == 1, "{text}");
        }
    }

    #[test]
    fn pauses_grow_stay_bounded_and_differ_between_readers() {
        let policy = Policy::default();
        for attempt in 2..40 {
            let pause = policy.pause(attempt, 7);
            let whole = PAUSE.saturating_mul(1 << (attempt - 2).min(20)).min(LONGEST_PAUSE);
            assert!(pause >= whole / 2 && pause <= whole, "{attempt}: {pause:?}");
        }
        let all: std::collections::HashSet<_> = (0..100).map(|salt| policy.pause(5, salt)).collect();
        assert!(all.len() > 90);
    }

    #[test]
    fn a_server_that_asks_for_patience_gets_it_within_the_deadline() {
        let mut attempts = Attempts::new(Policy::default(), 1);
        attempts.begin();
        let mut failure = Failure::again(StoreFault::Unavailable, "busy");
        failure.retry_after = Some(Duration::from_secs(7));
        assert_eq!(attempts.pause(&failure, true), Some(Duration::from_secs(7)));
        failure.retry_after = Some(Duration::from_secs(70));
        assert_eq!(attempts.pause(&failure, true), None);
    }

    #[test]
    fn a_wrong_address_fails_soon_and_progress_starts_the_count_anew() {
        let failure = Failure { kind: Kind::Unreached, detail: String::new(), retry_after: None };
        let mut attempts = Attempts::new(Policy::default(), 1);
        for _ in 0..NEVER_REACHED {
            attempts.begin();
            assert!(attempts.pause(&failure, false).is_some());
        }
        attempts.begin();
        assert!(attempts.pause(&failure, false).is_none());
        assert!(attempts.pause(&failure, true).is_some());
        attempts.progress(1);
        assert!(attempts.pause(&failure, false).is_some());
    }
}
