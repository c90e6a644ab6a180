//! S3 through a real server, and through a proxy that breaks answers. Run them with
//! `python tests/tools/s3_server.py --run cargo test -p headrace s3`; without it each says that it is skipped.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{Bench, documents, open};
use crate::cancel::Cancel;
use crate::error::{Error, Result, StoreFault};
use crate::index::listing::find_files;
use crate::index::{Index, OpenOptions, Progress};
use crate::store::remote::{RemoteStore, S3};
use crate::store::{Object, Store, Version};

const SECRET: &str = "headrace-secret-0123456789";

fn variable(name: &str) -> Option<String> {
    let value = std::env::var(name).ok();
    if value.is_none() {
        let _ = writeln!(
            std::io::stderr(),
            "SKIPPED: {name} is not set; run: python tests/tools/s3_server.py --run cargo test -p headrace s3"
        );
    }
    value
}

fn options(endpoint: &str, more: &[(&str, &str)]) -> BTreeMap<String, String> {
    let all = [("endpoint_url", endpoint), ("access_key_id", "headrace-key"), ("secret_access_key", SECRET)];
    all.iter().chain(more).map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn bucket(bucket: &str, prefix: &str, options: &BTreeMap<String, String>) -> RemoteStore {
    RemoteStore::new(Arc::new(S3::new("s3", bucket, options).expect("options")), prefix).expect("store")
}

fn store(endpoint: &str, prefix: &str, more: &[(&str, &str)]) -> RemoteStore {
    bucket("data", prefix, &options(endpoint, more))
}

/// The server, with a prefix of the test's own.
fn server(prefix: &str) -> Option<(String, RemoteStore)> {
    let endpoint = variable("HEADRACE_TEST_S3")?;
    let store = store(&endpoint, prefix, &[]);
    Some((endpoint, store))
}

/// The proxy, for one test at a time.
struct Proxy {
    address: String,
    _turn: MutexGuard<'static, ()>,
}

impl Proxy {
    fn new() -> Option<Self> {
        static TURN: Mutex<()> = Mutex::new(());
        let address = variable("HEADRACE_TEST_S3_PROXY")?;
        let proxy = Self { address, _turn: TURN.lock().unwrap_or_else(PoisonError::into_inner) };
        proxy.call("POST", "/__reset__", "");
        Some(proxy)
    }

    fn call(&self, method: &str, path: &str, body: &str) -> String {
        let host = self.address.trim_start_matches("http://");
        let mut stream = TcpStream::connect(host).expect("connect");
        let head = format!("{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n");
        write!(stream, "{head}Content-Length: {}\r\n\r\n{body}", body.len()).expect("send");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("answer");
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        answer
    }

    fn fault(&self, json: &str) {
        self.call("POST", "/__faults__", json);
    }

    fn requests(&self) -> String {
        self.call("GET", "/__requests__", "")
    }
}

fn put(store: &RemoteStore, path: &str, bytes: &[u8]) -> Object {
    store.put(path, bytes, &Cancel::new()).expect("put");
    store.head(path, &Cancel::new()).expect("head")
}

fn read(store: &RemoteStore, object: &Object) -> Result<Vec<u8>> {
    let mut buffer = Vec::new();
    store.fetch(object, 0..object.size).wait_into(&Cancel::new(), &mut buffer)?;
    Ok(buffer)
}

fn noise(len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

fn fault_of<T: std::fmt::Debug>(result: Result<T>) -> (StoreFault, u32, String) {
    match result.expect_err("a fault") {
        error @ Error::Store { fault, attempts, .. } => (fault, attempts, error.to_string()),
        other => panic!("{other}"),
    }
}

#[test]
fn s3_keys_are_raw() {
    let Some((endpoint, store)) = server("keys") else { return };
    let names = [
        "a b",
        "50%",
        "a%20b",
        "a+b",
        "#1",
        "q?x=1&y=2",
        "ü/ñ 𝄞",
        "[x]*",
        "{y}",
        "~t",
        "it's",
        "\"q\"",
        "a=b;c",
        "p|q",
        "back\\slash",
        "<>",
        "^`",
        "e\u{301}",
    ];
    for name in names {
        store.put(name, name.as_bytes(), &Cancel::new()).expect(name);
    }
    let mut found = Vec::new();
    store.list("", &Cancel::new(), &mut |object| found.push(object)).expect("list");
    let mut paths: Vec<&str> = found.iter().map(|object| object.path.as_str()).collect();
    paths.sort_unstable();
    let mut wanted = names.to_vec();
    wanted.sort_unstable();
    assert_eq!(paths, wanted);
    for object in &found {
        assert_eq!(read(&store, object).expect("read"), object.path.as_bytes());
        let head = store.head(&object.path, &Cancel::new()).expect("head");
        assert_eq!(&head, object, "listing and head agree, entity tag included");
        let url = store.uri(&object.path);
        let (store, objects, _) =
            find_files(&[url], &options(&endpoint, &[]), &Cancel::new(), &Progress::new()).expect("find");
        assert_eq!(objects.len(), 1);
        assert_eq!(store.uri(&objects[0].path), format!("s3://data/keys/{}", object.path));
    }
}

#[test]
fn s3_folder_markers_are_no_files() {
    let Some((_, store)) = server("markers") else { return };
    // Made by the runner: markers "dir/", "x.parquet/", files "dir/a.parquet", "x.parquet/part-0.parquet".
    let mut found = Vec::new();
    store.list("", &Cancel::new(), &mut |object| found.push(object.path)).expect("list");
    found.sort();
    assert_eq!(found, ["dir/a.parquet", "x.parquet/part-0.parquet"]);
}

#[test]
fn s3_index_is_the_local_one() {
    let Some((endpoint, store)) = server("index") else { return };
    let bench = Bench::new();
    for (number, name) in
        ["b.parquet", "a/z.parquet", "a b/x.parquet", "a-c.parquet", "_h.parquet", "t.txt"].iter().enumerate()
    {
        let bytes = documents(&vec![number + 1; 40 + number]);
        bench.write(name, &bytes);
        store.put(name, &bytes, &Cancel::new()).expect("put");
    }
    let local = bench.open().expect("open");
    let remote_options = OpenOptions { storage_options: options(&endpoint, &[]), ..bench.options() };
    let remote = |url: &str| open(&[url.to_owned()], &remote_options).expect(url);
    let index = remote("s3://data/index");
    assert_eq!(index.store.traffic().requests.load(Ordering::Relaxed), 4, "one request a footer");
    let paths =
        |index: &Index| index.files.iter().map(|f| (f.object.path.clone(), f.footer_digest)).collect::<Vec<_>>();
    assert_eq!(paths(&index), paths(&local));
    assert_eq!(index.identity("tokens").expect("identity"), local.identity("tokens").expect("identity"));
    assert_eq!(remote("s3://data/index/").store.traffic().requests.load(Ordering::Relaxed), 0, "cached");
    assert_eq!(remote("s3://data/index/a*.parquet").files.len(), 1);
    assert_eq!(remote("s3://data/index/a*/*").files.len(), 2);
    assert_eq!(remote("s3://data/index/**/*.parquet").files.len(), 4);
    assert_eq!(remote("s3://data/index/b.parquet").store.url(), "s3://data/index");
    index.save_in_place(&Cancel::new()).expect("save");
    std::fs::remove_dir_all(bench.cache()).expect("remove");
    let again = remote("s3://data/index");
    assert_eq!(again.store.traffic().requests.load(Ordering::Relaxed), 1, "the index next to the data");
    let message = open(&["s3://data/index/q*".to_owned()], &remote_options).expect_err("nothing").to_string();
    assert!(message.contains("q*") && message.contains("0 files"), "{message}");
}

#[test]
fn s3_listing_goes_on_over_pages() {
    let Some((_, store)) = server("pages") else { return };
    // Made by the runner: 2,100 objects, more than two pages hold.
    let mut found = 0;
    store.list("", &Cancel::new(), &mut |_| found += 1).expect("list");
    assert_eq!(found, 2100);
}

#[test]
fn s3_wrong_secret_is_denied_at_once_without_showing_it() {
    let Some(endpoint) = variable("HEADRACE_TEST_S3") else { return };
    let wrong = [("endpoint_url", endpoint.as_str()), ("key", "headrace-key"), ("secret", "hunter2-hunter2")];
    let wrong = wrong.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let store = bucket("data", "", &wrong);
    let object = Object { path: "x".to_owned(), size: 10, version: Version::Unknown };
    for result in [
        store.list("", &Cancel::new(), &mut |_| ()),
        store.head("x", &Cancel::new()).map(drop),
        read(&store, &object).map(drop),
        store.put("x", b"y", &Cancel::new()),
    ] {
        let (fault, attempts, message) = fault_of(result);
        assert_eq!((fault, attempts), (StoreFault::Denied, 1), "{message}");
        assert!(message.contains("\nhint: ") && !message.contains("hunter2"), "{message}");
    }
}

#[test]
fn s3_what_is_missing_is_not_found() {
    let Some((endpoint, store)) = server("nothing") else { return };
    let no_bucket = bucket("no-such-bucket", "", &options(&endpoint, &[]));
    let (fault, attempts, message) = fault_of(no_bucket.list("", &Cancel::new(), &mut |_| ()));
    assert_eq!((fault, attempts), (StoreFault::NotFound, 1), "{message}");
    assert!(message.contains("NoSuchBucket") && message.contains("hint: "), "{message}");
    for url in
        ["s3://data/nothing/x", "s3://data/nothing/x.parquet", "s3://data/nothing/x/", "s3://no-such-bucket/x.parquet"]
    {
        let result = find_files(&[url.to_owned()], &options(&endpoint, &[]), &Cancel::new(), &Progress::new());
        let (fault, _, message) = fault_of(result.map(|_| ()));
        assert_eq!(fault, StoreFault::NotFound, "{message}");
    }
    let gone = Object { path: "x".to_owned(), size: 10, version: Version::Unknown };
    assert_eq!(fault_of(read(&store, &gone)).0, StoreFault::NotFound);
}

#[test]
fn s3_changed_object_is_refused() {
    let Some((_, store)) = server("changed") else { return };
    let object = put(&store, "x", &noise(1000));
    // Case B110: rewritten shorter; and the same length with other bytes; and longer.
    for bytes in [noise(10), vec![1; 1000], noise(2000)] {
        put(&store, "x", &bytes);
        let error = read(&store, &object).expect_err("changed");
        assert!(matches!(&error, Error::Changed { uri, .. } if uri == "s3://data/changed/x"), "{error}");
        let unknown = Object { version: Version::Unknown, ..object.clone() };
        if bytes.len() != 1000 {
            assert!(matches!(read(&store, &unknown), Err(Error::Changed { .. })));
        }
    }
}

#[test]
fn s3_large_reads_are_cut_into_pieces() {
    let Some((_, store)) = server("large") else { return };
    let bytes = noise(20 << 20);
    let object = put(&store, "x", &bytes);
    assert!(read(&store, &object).expect("read") == bytes);
    let traffic = store.traffic();
    assert_eq!(traffic.requests.load(Ordering::Relaxed), 3);
    assert_eq!(traffic.bytes.load(Ordering::Relaxed), 20 << 20);
    let mut part = b"kept".to_vec();
    store.fetch(&object, 5..9).wait_into(&Cancel::new(), &mut part).expect("read");
    assert_eq!(part, [b"kept", &bytes[5..9]].concat());
    let mut none = Vec::new();
    store.fetch(&object, 7..7).wait_into(&Cancel::new(), &mut none).expect("read");
    assert!(none.is_empty());
}

/// Cases B100, B101: a body cut in half, connections reset; and what else a server does on a bad day.
#[test]
fn s3_b100_b101_broken_answers_are_mended() {
    let Some(proxy) = Proxy::new() else { return };
    let bytes = noise(100_000);
    for (number, (fault, count)) in [
        (r#"{"kind": "status", "status": 503, "count": 2}"#, 2),
        (r#"{"kind": "status", "status": 500}"#, 1),
        (r#"{"kind": "status", "status": 429}"#, 1),
        (r#"{"kind": "cut"}"#, 1),
        (r#"{"kind": "cut", "count": 3}"#, 3),
        (r#"{"kind": "reset"}"#, 1),
        (r#"{"kind": "reset", "before": true, "count": 2}"#, 2),
        (r#"{"kind": "stall"}"#, 1),
        (r#"{"kind": "stall", "before": true}"#, 1),
        (r#"{"kind": "range"}"#, 1),
    ]
    .into_iter()
    .enumerate()
    {
        let store = store(&proxy.address, "mend", &[("timeout", "1")]);
        let object = put(&store, &number.to_string(), &bytes);
        proxy.call("POST", "/__reset__", "");
        proxy.fault(fault);
        assert!(read(&store, &object).expect(fault) == bytes, "{fault}");
        let traffic = store.traffic();
        let counts = [&traffic.requests, &traffic.retries, &traffic.bytes].map(|n| n.load(Ordering::Relaxed));
        assert_eq!(counts, [count + 1, count, bytes.len() as u64], "{fault}");
        let requests = proxy.requests();
        assert!(!requests.contains(r#""if_match": null"#), "every read is under the entity tag: {requests}");
        if fault.contains("cut") {
            assert!(requests.contains(r#""range": "bytes=50000-99999""#), "from where it broke: {requests}");
        }
    }
}

#[test]
fn s3_retry_after_is_honoured() {
    let Some(proxy) = Proxy::new() else { return };
    let store = store(&proxy.address, "patience", &[]);
    let object = put(&store, "x", b"abc");
    proxy.fault(r#"{"kind": "status", "retry_after": 2}"#);
    let start = Instant::now();
    assert_eq!(read(&store, &object).expect("read"), b"abc");
    assert!(start.elapsed() >= Duration::from_secs(2));
}

#[test]
fn s3_listing_is_retried_too() {
    let Some(proxy) = Proxy::new() else { return };
    let store = store(&proxy.address, "patience", &[("timeout", "1")]);
    put(&store, "x", b"abc");
    for kind in ["status", "cut", "stall"] {
        proxy.fault(&format!(r#"{{"kind": "{kind}", "match": "list-type=2"}}"#));
        let mut found = 0;
        store.list("", &Cancel::new(), &mut |_| found += 1).expect(kind);
        assert_eq!(found, 1);
    }
}

#[test]
fn s3_another_entity_tag_is_a_change() {
    let Some(proxy) = Proxy::new() else { return };
    let store = store(&proxy.address, "tag", &[]);
    let object = put(&store, "x", b"abc");
    proxy.fault(r#"{"kind": "etag"}"#);
    assert!(matches!(read(&store, &object), Err(Error::Changed { .. })));
}

#[test]
fn s3_deadlines_hold() {
    let Some(proxy) = Proxy::new() else { return };
    let store = store(&proxy.address, "late", &[("timeout", "500ms"), ("retry_timeout", "2s")]);
    let object = put(&store, "x", &noise(1000));
    for fault in [
        r#"{"kind": "stall", "count": 100, "before": true}"#,
        r#"{"kind": "drip", "count": 100, "seconds": 0.2}"#,
        r#"{"kind": "status", "count": 100}"#,
        r#"{"kind": "status", "count": 100, "retry_after": 100}"#,
    ] {
        proxy.call("POST", "/__reset__", "");
        proxy.fault(fault);
        let start = Instant::now();
        let (kind, _, message) = fault_of(read(&store, &object));
        assert!(matches!(kind, StoreFault::Timeout | StoreFault::Unavailable), "{message}");
        assert!(start.elapsed() < Duration::from_secs(4), "{fault}: {:?}", start.elapsed());
        assert!(message.starts_with("s3://data/late/x: read bytes 0..1000 failed after "), "{message}");
    }
}

#[test]
fn s3_waiting_ends_when_cancelled() {
    let Some(proxy) = Proxy::new() else { return };
    let store = store(&proxy.address, "stop", &[]);
    let object = put(&store, "x", b"abc");
    proxy.fault(r#"{"kind": "stall", "before": true}"#);
    let fetch = store.fetch(&object, 0..3);
    let cancel = Cancel::new();
    let other = cancel.clone();
    let raised = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        other.cancel();
        Instant::now()
    });
    assert!(matches!(fetch.wait_into(&cancel, &mut Vec::new()), Err(Error::Cancelled)));
    assert!(raised.join().expect("thread").elapsed() < Duration::from_millis(100));
}

#[test]
fn s3_no_server_fails_soon() {
    // Nothing listens on port 9 of the loopback interface; no server is needed for this one.
    let store = store("http://127.0.0.1:9", "", &[]);
    let start = Instant::now();
    let (fault, attempts, message) = fault_of(store.head("x", &Cancel::new()));
    assert_eq!((fault, attempts), (StoreFault::Unavailable, 6), "{message}");
    assert!(start.elapsed() < Duration::from_secs(10) && message.contains("refused"), "{message}");
}

#[test]
fn s3_without_credentials_says_what_to_set() {
    // The service that gives a machine its credentials is looked for where nothing listens.
    let pairs = [("endpoint_url", "http://127.0.0.1:9"), ("metadata_endpoint", "http://127.0.0.1:9")];
    let pairs = pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let store = bucket("data", "", &pairs);
    let start = Instant::now();
    let (fault, _, message) = fault_of(store.head("x", &Cancel::new()));
    // Where the variables are set, the server is not reached instead.
    if std::env::var_os("AWS_ACCESS_KEY_ID").is_none() {
        assert!(fault == StoreFault::Denied && message.contains("hint: set AWS_ACCESS_KEY_ID"), "{message}");
    }
    assert!(start.elapsed() < Duration::from_secs(10));
}
