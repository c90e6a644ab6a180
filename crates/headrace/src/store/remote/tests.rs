//! Web servers and the Hub, through a server of a few lines in this process. Buckets have real servers: see the tests
//! of the index, and those of the Python package.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use crate::cancel::Cancel;
use crate::error::{Error, Result, StoreFault};
use crate::index::Progress;
use crate::index::listing::{Rule, find};
use crate::store::remote::settings::map;
use crate::store::root::root;
use crate::store::{Object, Store, Version, read};

/// A request: method, target, and headers by their names in lower case.
#[derive(Debug, Clone)]
struct Request {
    method: String,
    target: String,
    headers: BTreeMap<String, String>,
}

impl Request {
    fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// First byte and end of the range that is asked for.
    fn range(&self) -> Option<(usize, usize)> {
        let (start, last) = self.header("range").strip_prefix("bytes=")?.split_once('-')?;
        Some((start.parse().ok()?, last.parse::<usize>().ok()? + 1))
    }
}

/// An answer: status, headers, body, and how many bytes of that are sent before the connection ends.
struct Reply(u16, Vec<(&'static str, String)>, Vec<u8>, usize);

fn reply(status: u16, headers: &[(&'static str, &str)], body: &[u8]) -> Reply {
    let headers = headers.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    Reply(status, headers, body.to_vec(), usize::MAX)
}

/// Answers a request for a file, with ranges.
fn file(request: &Request, headers: &[(&'static str, &str)], body: &[u8]) -> Reply {
    let Some((start, end)) = request.range() else { return reply(200, headers, body) };
    let end = end.min(body.len());
    let Reply(_, mut headers, ..) = reply(200, headers, &[]);
    if start >= end {
        headers.push(("Content-Range", format!("bytes */{}", body.len())));
        return Reply(416, headers, Vec::new(), usize::MAX);
    }
    headers.push(("Content-Range", format!("bytes {start}-{}/{}", end - 1, body.len())));
    Reply(206, headers, body[start..end].to_vec(), usize::MAX)
}

/// A server that lives until the test's process ends.
struct Server {
    address: String,
    seen: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    fn new(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("port");
        let address = format!("http://{}", listener.local_addr().expect("address"));
        let seen = Arc::new(Mutex::new(Vec::new()));
        let (noted, answer) = (Arc::clone(&seen), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (noted, answer) = (Arc::clone(&noted), Arc::clone(&answer));
                std::thread::spawn(move || {
                    // A client that goes away ends its connection.
                    let _ = serve(stream, &noted, answer.as_ref());
                });
            }
        });
        Self { address, seen }
    }

    fn seen(&self) -> Vec<Request> {
        self.seen.lock().expect("seen").clone()
    }
}

fn serve(
    mut stream: TcpStream,
    noted: &Mutex<Vec<Request>>,
    answer: &(dyn Fn(&Request) -> Reply + Send + Sync),
) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        let mut parts = line.split_whitespace().map(str::to_owned);
        let (method, target) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.trim_end().split_once(": ") else { break };
            headers.insert(name.to_ascii_lowercase(), value.to_owned());
        }
        let request = Request { method, target, headers };
        noted.lock().expect("seen").push(request.clone());
        let Reply(status, headers, body, sent) = answer(&request);
        write!(stream, "HTTP/1.1 {status} x\r\n")?;
        for (name, value) in &headers {
            write!(stream, "{name}: {value}\r\n")?;
        }
        let has_length = headers.iter().any(|(name, _)| *name == "Content-Length");
        if !has_length {
            write!(stream, "Content-Length: {}\r\n", body.len())?;
        }
        stream.write_all(b"\r\n")?;
        if request.method != "HEAD" {
            stream.write_all(&body[..body.len().min(sent)])?;
            if sent < body.len() {
                return Ok(());
            }
        }
    }
}

/// What a dataset of some URLs consists of.
fn listed(urls: &[&str], options: &[(&str, &str)]) -> Result<(Arc<dyn Store>, Vec<Object>)> {
    let urls: Vec<String> = urls.iter().map(|url| (*url).to_owned()).collect();
    let found = find(&urls, &map(options), None, &Cancel::new(), &Progress::new())?;
    let store = Arc::clone(&found.store);
    Ok((store, found.files(Rule::All)?.0))
}

fn whole(store: &Arc<dyn Store>, object: &Object) -> Result<Vec<u8>> {
    read(store, object, 0..object.size, &Cancel::new())
}

fn noise(len: usize) -> Vec<u8> {
    (0..len as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

#[test]
fn a_signed_url_is_read_where_head_is_refused_and_shown_nowhere() {
    let body = noise(1000);
    let bytes = body.clone();
    let server = Server::new(move |request| match request.target.as_str() {
        "/data/a.bin?sig=hunter2&x=1" if request.method == "GET" => file(request, &[("ETag", "\"1\"")], &bytes),
        _ => reply(403, &[], b"no: hunter2"),
    });
    let url = format!("{}/data/a.bin?sig=hunter2&x=1", server.address);
    let (store, objects) = listed(&[&url], &[]).expect("listed");
    assert_eq!(objects[0].path, "a.bin?x=1");
    assert_eq!(objects[0].version, Version::ETag("\"1\"".to_owned()));
    assert_eq!(whole(&store, &objects[0]).expect("read"), body);
    assert_eq!(store.uri(&objects[0].path), format!("{}/data/a.bin?x=1", server.address));
    assert_eq!(server.seen().last().map(|request| request.header("if-match").to_owned()).as_deref(), Some("\"1\""));
    let wrong = format!("{}/data/b.bin?sig=hunter2", server.address);
    let error = listed(&[&wrong], &[]).map(drop).expect_err("refused");
    assert!(matches!(error, Error::Store { fault: StoreFault::Denied, .. }), "{error}");
    assert!(!format!("{error} {error:?} {store:?}").contains("hunter2"), "{error:?}");
    assert!(error.to_string().contains("hint: if the URL is signed"), "{error}");
    let error = root(&url, &BTreeMap::new()).map(drop).expect_err("no folder").to_string();
    assert!(error.contains("signed URL") && !error.contains("hunter2"), "{error}");
}

#[test]
fn several_urls_of_one_server_make_one_dataset() {
    let server = Server::new(|request| {
        let tag = format!("\"{}\"", request.target.len());
        file(request, &[("ETag", &tag)], request.target.as_bytes())
    });
    let urls = ["/x/b?token=1", "/x/a", "/x/c/d?token=22&v=3"].map(|path| format!("{}{path}", server.address));
    let (store, objects) = listed(&urls.each_ref().map(String::as_str), &[]).expect("listed");
    let paths: Vec<&str> = objects.iter().map(|object| object.path.as_str()).collect();
    assert_eq!(paths, ["a", "b", "c/d?v=3"]);
    assert_eq!(store.url(), format!("{}/x", server.address));
    for (object, sent) in objects.iter().zip(["/x/a", "/x/b?token=1", "/x/c/d?token=22&v=3"]) {
        assert_eq!(whole(&store, object).expect("read"), sent.as_bytes());
    }
    let other = Server::new(|_| reply(404, &[], b""));
    let error = listed(&[&urls[0], &format!("{}/a", other.address)], &[]).map(drop).expect_err("two").to_string();
    assert!(error.contains("different stores") && !error.contains("token=1"), "{error}");
}

#[test]
fn urls_of_one_server_have_one_login() {
    let server = Server::new(|request| file(request, &[], request.header("authorization").as_bytes()));
    let host = server.address.strip_prefix("http://").expect("address");
    let (alice, bob) = (format!("http://alice:hunter2@{host}/a"), format!("http://bob:hunter3@{host}/b"));
    let none = format!("http://{host}/c");
    for urls in [[&alice, &bob], [&alice, &none], [&none, &alice]] {
        let error = listed(&urls.map(String::as_str), &[]).map(drop).expect_err("two logins").to_string();
        assert!(error.contains("two ways") && error.contains("hint: ") && !error.contains("hunter"), "{error}");
    }
    assert!(server.seen().is_empty());
    let (store, objects) = listed(&[&alice, &format!("{alice}/b")], &[]).expect("one login");
    assert_eq!(whole(&store, &objects[0]).expect("read"), b"Basic YWxpY2U6aHVudGVyMg==");
}

#[test]
fn folders_and_patterns_of_a_web_server_are_refused_with_advice() {
    let server = Server::new(|request| match request.target.as_str() {
        "/folder" => reply(301, &[("Location", "/folder/")], b""),
        "/folder/" => reply(200, &[], b"<html>"),
        _ => reply(404, &[], b""),
    });
    for (path, part) in [("/", "a folder"), ("", "a folder"), ("/x/", "a folder"), ("/x/*.parquet", "a pattern")] {
        let error = listed(&[&format!("{}{path}", server.address)], &[]).map(drop).expect_err(path).to_string();
        assert!(error.contains(part) && error.contains("hint: give the URLs"), "{path}: {error}");
    }
    let error = listed(&[&format!("{}/folder", server.address)], &[]).map(drop).expect_err("folder").to_string();
    assert!(error.contains("that of a folder"), "{error}");
    let error = listed(&[&format!("{}/gone", server.address)], &[]).map(drop).expect_err("gone");
    assert!(matches!(error, Error::Store { fault: StoreFault::NotFound, .. }), "{error}");
}

#[test]
fn a_server_without_ranges_serves_short_files_alone() {
    let short = noise(5000);
    let bytes = short.clone();
    let server = Server::new(move |request| match request.target.as_str() {
        "/short" => reply(200, &[("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")], &bytes),
        _ => {
            let size = (9 << 20).to_string();
            Reply(200, vec![("Content-Length", size)], Vec::new(), usize::MAX)
        }
    });
    let (store, objects) = listed(&[&format!("{}/short", server.address)], &[]).expect("listed");
    assert_eq!(objects[0].version, Version::Modified(1_445_412_480_000_000_000));
    assert_eq!(whole(&store, &objects[0]).expect("read"), short);
    assert_eq!(read(&store, &objects[0], 7..77, &Cancel::new()).expect("part"), short[7..77]);
    let (store, objects) = listed(&[&format!("{}/long", server.address)], &[("timeout", "2")]).expect("listed");
    let error = read(&store, &objects[0], 7..77, &Cancel::new()).expect_err("no ranges").to_string();
    assert!(error.contains("ignores Range") && error.contains("\nhint: "), "{error}");
}

/// A body that broke goes on where it did under an entity tag, and from its beginning where nothing names its version.
#[test]
fn a_broken_body_goes_on_only_under_a_version() {
    let body = noise(1000);
    for (headers, again) in [(&[("ETag", "\"1\"")][..], "bytes=500-999"), (&[], "bytes=0-999")] {
        let (bytes, broken) = (body.clone(), Mutex::new(false));
        let server = Server::new(move |request| {
            let Reply(status, headers, body, _) = file(request, headers, &bytes);
            let is_whole = body.len() == 1000 && request.method == "GET";
            let mut broken = broken.lock().expect("lock");
            let sent = if is_whole && !*broken { 500 } else { usize::MAX };
            *broken |= is_whole;
            Reply(status, headers, body, sent)
        });
        let (store, objects) = listed(&[&format!("{}/a", server.address)], &[]).expect("listed");
        assert_eq!(whole(&store, &objects[0]).expect("read"), body);
        assert_eq!(server.seen().last().map(|request| request.header("range").to_owned()).as_deref(), Some(again));
        let traffic = store.traffic();
        assert_eq!((traffic.requests.load(Ordering::Relaxed), traffic.retries.load(Ordering::Relaxed)), (2, 1));
    }
}

#[test]
fn a_replaced_file_is_a_change() {
    let changed = Arc::new(Mutex::new(false));
    let is_changed = Arc::clone(&changed);
    let server = Server::new(move |request| {
        let date = if *is_changed.lock().expect("lock") { "21" } else { "20" };
        let date = format!("Wed, {date} Oct 2015 07:28:00 GMT");
        file(request, &[("Last-Modified", &date)], b"abc")
    });
    let (store, objects) = listed(&[&format!("{}/a", server.address)], &[]).expect("listed");
    assert_eq!(whole(&store, &objects[0]).expect("read"), b"abc");
    *changed.lock().expect("lock") = true;
    assert!(matches!(whole(&store, &objects[0]), Err(Error::Changed { .. })));
}

#[test]
fn a_login_stays_with_its_server() {
    let other = Server::new(|request| file(request, &[], b"abc"));
    let target = format!("{}/there", other.address);
    let server = Server::new(move |request| match request.target.as_str() {
        "/a" => reply(302, &[("Location", "/b")], b""),
        _ => reply(302, &[("Location", &target)], b""),
    });
    let options = [("bearer_token", "hunter2")];
    let (store, objects) = listed(&[&format!("{}/a", server.address)], &options).expect("listed");
    assert_eq!(whole(&store, &objects[0]).expect("read"), b"abc");
    assert!(server.seen().len() > 2 && server.seen().iter().all(|r| r.header("authorization") == "Bearer hunter2"));
    assert!(!other.seen().is_empty() && other.seen().iter().all(|r| r.header("authorization").is_empty()));
}

const HASH: &str = "0123456789012345678901234567890123456789012345678901234567890123";
const GIT: &str = "0123456789012345678901234567890123456789";

/// A Hub with one repository: two files in two pages, one of them elsewhere; `moved` says that `main` has moved.
fn hub(moved: Arc<Mutex<bool>>) -> (Server, Server) {
    let content = Server::new(|request| file(request, &[("ETag", "\"of the network\"")], b"large"));
    let place = format!("{}/blob?sig=1", content.address);
    let server = Server::new(move |request| {
        let commit = if *moved.lock().expect("lock") { "c1" } else { "c0" };
        let target = request.target.as_str();
        if target == "/api/datasets/o/n/revision/main" {
            return reply(200, &[], format!("{{\"sha\": \"{commit}\"}}").as_bytes());
        }
        if target == "/api/datasets/o/n/tree/c0?recursive=true&expand=false" {
            let next = "<https://huggingface.co/x?recursive=true&cursor=2>; rel=\"next\"";
            let text = format!(
                "[{{\"type\":\"directory\",\"path\":\"a\",\"size\":0}},{{\"type\":\"file\",\"path\":\
                                \"a/large\",\"size\":5,\"oid\":\"{GIT}\",\"lfs\":{{\"oid\":\"{HASH}\"}}}}]"
            );
            return reply(200, &[("Link", next)], text.as_bytes());
        }
        if target == "/api/datasets/o/n/tree/c0?recursive=true&cursor=2" {
            let text = format!("[{{\"type\":\"file\",\"path\":\"small.json\",\"size\":5,\"oid\":\"{GIT}\"}}]");
            return reply(200, &[], text.as_bytes());
        }
        match target {
            "/datasets/o/n/resolve/c0/a/large" => {
                let tag = format!("\"{HASH}\"");
                reply(302, &[("Location", &place), ("X-Linked-Size", "5"), ("X-Linked-Etag", &tag)], b"")
            }
            "/datasets/o/n/resolve/c0/small.json" => file(request, &[("ETag", &format!("\"{GIT}\""))], b"small"),
            _ if target.contains("/gated/") => reply(403, &[("X-Error-Code", "GatedRepo")], b""),
            _ => reply(404, &[("X-Error-Code", "EntryNotFound"), ("X-Error-Message", "no such entry")], b""),
        }
    });
    (server, content)
}

#[test]
fn a_repository_is_read_of_one_commit() {
    let moved = Arc::new(Mutex::new(false));
    let (server, content) = hub(Arc::clone(&moved));
    let options = [("endpoint", server.address.as_str()), ("token", "hunter2")];
    let (store, objects) = listed(&["hf://datasets/o/n"], &options).expect("listed");
    *moved.lock().expect("lock") = true;
    assert_eq!(store.url(), "hf://datasets/o/n");
    let paths: Vec<&str> = objects.iter().map(|object| object.path.as_str()).collect();
    assert_eq!(paths, ["a/large", "small.json"]);
    assert_eq!(objects[0].version, Version::ETag(format!("\"{HASH}\"")));
    for (object, wanted) in objects.iter().zip([b"large", b"small"]) {
        assert_eq!(&store.head(&object.path, &Cancel::new()).expect("head"), object, "as the listing has it");
        assert_eq!(whole(&store, object).expect("read"), wanted);
    }
    let asked = server.seen().iter().filter(|request| request.target.contains("/revision/")).count();
    assert_eq!(asked, 1, "a revision is asked for once");
    assert!(server.seen().iter().all(|request| request.header("authorization") == "Bearer hunter2"));
    assert!(content.seen().iter().all(|request| request.header("authorization").is_empty()));
    let resolved =
        |server: &Server| server.seen().iter().filter(|r| r.method == "GET" && r.target.contains("large")).count();
    assert_eq!(whole(&store, &objects[0]).expect("again"), b"large");
    assert_eq!(resolved(&server), 1, "where a large file lies is remembered");
    let other = Object { version: Version::ETag("\"other\"".to_owned()), ..objects[0].clone() };
    assert!(matches!(whole(&store, &other), Err(Error::Changed { .. })));
    assert!(store.put("x", b"", &Cancel::new()).is_err_and(|e| e.to_string().contains("cannot be written")));
}

#[test]
fn a_place_that_has_ended_is_asked_for_again() {
    let ended = Arc::new(Mutex::new(0));
    let calls = Arc::clone(&ended);
    let network = Server::new(move |request| {
        let mut calls = calls.lock().expect("lock");
        *calls += 1;
        if *calls == 2 { reply(403, &[], b"over") } else { file(request, &[], b"large") }
    });
    let place = format!("{}/blob", network.address);
    let server = Server::new(move |request| match request.target.contains("/resolve/") {
        true => reply(302, &[("Location", &place), ("X-Linked-Size", "5"), ("X-Linked-Etag", HASH)], b""),
        false => reply(200, &[], b"{\"sha\": \"c0\"}"),
    });
    let (store, objects) =
        listed(&["hf://datasets/o/n/a.parquet"], &[("endpoint", &server.address), ("max_retries", "0")])
            .expect("listed");
    for _ in 0..3 {
        assert_eq!(whole(&store, &objects[0]).expect("read"), b"large");
    }
    assert_eq!(*ended.lock().expect("lock"), 4, "one was refused, and its repetition is no attempt of its own");
}

#[test]
fn what_the_hub_refuses_says_how_to_get_it() {
    let (server, _content) = hub(Arc::default());
    let options = [("endpoint", server.address.as_str())];
    let error = listed(&["hf://datasets/gated/n/x.parquet"], &options).map(drop).expect_err("gated");
    assert!(matches!(error, Error::Store { fault: StoreFault::Denied, attempts: 1, .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("GatedRepo") && text.contains("/datasets/gated/n") && text.contains("HF_TOKEN"), "{text}");
    let error = listed(&["hf://datasets/o/n/none/x"], &options).map(drop).expect_err("none");
    assert!(matches!(error, Error::Store { fault: StoreFault::NotFound, .. }), "{error}");
}
