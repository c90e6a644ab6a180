//! Which files are taken, and in which order.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;

use proptest::prelude::*;

use super::{Bench, text};
use crate::cancel::Cancel;
use crate::error::{Error, Result, StoreFault};
use crate::index::Progress;
use crate::index::listing::{Listing, find_files, has_suffix, is_hidden};

fn find(urls: &[String]) -> Result<(String, Vec<String>, Listing)> {
    let (store, objects, listing) = find_files(urls, &BTreeMap::new(), &Cancel::new(), &Progress::new())?;
    for object in &objects {
        let bytes = fs::metadata(store.uri(&object.path)).expect("the file is where the store says").len();
        assert_eq!(bytes, object.size);
    }
    Ok((store.url().to_owned(), objects.into_iter().map(|object| object.path).collect(), listing))
}

fn names(urls: &[String]) -> Vec<String> {
    find(urls).expect("files").1
}

#[test]
fn hidden_files_and_markers_are_left_out() {
    let bench = Bench::new();
    for path in ["a.parquet", "b/c.PARQUET", "_d.parquet", "b/.e.parquet", "_f/g.parquet", "b/_h/i.pq", "readme.txt"] {
        bench.write(path, b"x");
    }
    bench.write("_SUCCESS", b"");
    bench.write("marker", b"");
    bench.write("torn.parq", b"");
    let (url, files, listing) = find(&[text(&bench.data())]).expect("files");
    assert_eq!(url, text(&bench.data()));
    assert_eq!(files, ["a.parquet", "b/c.PARQUET", "torn.parq"]);
    assert_eq!((listing.hidden, listing.empty, listing.other, listing.skipped), (5, 1, 1, 7));
    assert!(listing.is_folder);
}

#[test]
fn without_any_suffix_content_decides() {
    let bench = Bench::new();
    bench.write("part-0", b"x");
    bench.write("part-1.snappy", b"x");
    bench.write("empty", b"");
    assert_eq!(names(&[text(&bench.data())]), ["part-0", "part-1.snappy"]);
}

#[test]
fn a_named_file_is_taken_whatever_its_name() {
    let bench = Bench::new();
    bench.write("_hidden/.x", b"");
    bench.write("sub/y", b"1");
    let (url, files, listing) =
        find(&[text(&bench.data().join("_hidden/.x")), text(&bench.data().join("sub/y"))]).expect("files");
    assert_eq!((url, files), (text(&bench.data()), vec!["_hidden/.x".to_owned(), "sub/y".to_owned()]));
    assert!(!listing.is_folder && listing.in_place.is_none());
    assert_eq!(names(&[text(&bench.data().join("_hidden/.x"))]), [".x"]);
}

#[test]
fn a_folder_below_a_hidden_one_can_be_given() {
    let bench = Bench::new();
    bench.write("_hidden/x.pq", b"1");
    assert_eq!(names(&[text(&bench.data().join("_hidden"))]), ["x.pq"]);
}

#[test]
fn any_legal_name_works() {
    let bench = Bench::new();
    let all = ["a b", "50%", "a%20b", "#1", "ü/ñ", "new\nline", "q?", "[x]", "{y}", "back\\slash", "+", "'\""];
    for name in all {
        bench.write(&format!("{name}.parquet"), b"x");
    }
    let mut wanted: Vec<String> = all.iter().map(|name| format!("{name}.parquet")).collect();
    wanted.sort();
    assert_eq!(names(&[text(&bench.data())]), wanted);
    for name in &wanted {
        let single = names(&[text(&bench.data().join(name))]);
        assert_eq!(single, [name.rsplit('/').next().expect("name")]);
    }
}

#[test]
fn patterns_match_files_below_the_part_that_is_spelled_out() {
    let bench = Bench::new();
    for path in ["x/a1.pq", "x/a2.txt", "x/y/a3.pq", "x/_a4.pq", "z/a5.pq", "x/a6"] {
        bench.write(path, b"x");
    }
    bench.write("x/a7", b"");
    let at = |pattern: &str| find(&[text(&bench.data().join(pattern))]).expect(pattern);
    assert_eq!(at("x/a*").1, ["a1.pq", "a2.txt", "a6"]);
    assert_eq!(at("x/a*").0, text(&bench.data().join("x")));
    assert_eq!(at("*/a?.pq").1, ["x/a1.pq", "z/a5.pq"]);
    assert_eq!(at("**/*.pq").1, ["x/a1.pq", "x/y/a3.pq", "z/a5.pq"]);
    assert_eq!(at("x/**").1, ["a1.pq", "a2.txt", "a6", "y/a3.pq"]);
    assert_eq!(at("[xz]/a[15].pq").1, ["x/a1.pq", "z/a5.pq"]);
}

/// Case B098: a pattern that matches nothing was silently an empty dataset.
#[test]
fn b098_a_pattern_that_matches_nothing_is_an_error_that_names_it() {
    let bench = Bench::new();
    bench.write("train.parquet", b"x");
    bench.write("_train-1.parquet", b"x");
    bench.write("train-2.txt", b"");
    let message = find(&[text(&bench.data().join("train-*"))]).expect_err("nothing").to_string();
    assert!(
        message.contains("train-*") && message.contains("found 3 files") && message.contains("1 empty"),
        "{message}"
    );
    let message = find(&[text(&bench.data().join("sub-*/x"))]).expect_err("nothing").to_string();
    assert!(message.contains("sub-*/x"), "{message}");
    fs::create_dir(bench.data().join("none")).expect("folder");
    let message = find(&[text(&bench.data().join("none"))]).expect_err("nothing").to_string();
    assert!(message.contains("none") && message.contains("found 0 files"), "{message}");
    let error = find(&[text(&bench.data().join("nowhere"))]).expect_err("nothing");
    assert!(matches!(&error, Error::Store { fault: StoreFault::NotFound, .. }), "{error}");
}

#[test]
fn the_same_file_twice_is_named() {
    let bench = Bench::new();
    bench.write("x/a.pq", b"x");
    let (folder, file) = (text(&bench.data()), text(&bench.data().join("x/a.pq")));
    for urls in [vec![file.clone(), file.clone()], vec![folder.clone(), file.clone()], vec![folder.clone(), folder]] {
        let message = find(&urls).expect_err("twice").to_string();
        assert!(message.contains("a.pq") && message.contains("twice"), "{message}");
    }
}

#[test]
fn one_dataset_is_in_one_store() {
    let bench = Bench::new();
    bench.write("a.pq", b"x");
    for urls in [[text(&bench.data()), "s3://bucket/x".to_owned()], ["s3://b1/x".to_owned(), "s3://b2/x".to_owned()]] {
        let message = find(&urls).expect_err("two stores").to_string();
        assert!(message.contains("different stores"), "{message}");
    }
    assert!(matches!(find(&[]), Err(Error::Argument(_))));
}

#[test]
fn links_are_followed_once_and_loops_end() {
    let bench = Bench::new();
    bench.write("a/x.pq", b"x");
    let data = bench.data();
    symlink("..", data.join("a/up")).expect("link");
    symlink(&data, data.join("self")).expect("link");
    symlink("a", data.join("b")).expect("link");
    symlink("a/x.pq", data.join("y.pq")).expect("link");
    let outside = tempfile::tempdir().expect("folder");
    fs::write(outside.path().join("z.pq"), b"x").expect("write");
    symlink(outside.path(), data.join("o2")).expect("link");
    symlink(outside.path(), data.join("o1")).expect("link");
    // A file behind several links is several files; a folder is entered by the first way in the order of names,
    // and by its own path before any link's.
    assert_eq!(names(&[text(&data)]), ["a/x.pq", "o1/z.pq", "y.pq"]);
}

#[test]
fn a_link_to_nothing_is_named_when_it_would_be_read() {
    let bench = Bench::new();
    bench.write("a.parquet", &super::documents(&[1]));
    symlink("nowhere", bench.data().join(".#lock")).expect("link");
    symlink("nowhere", bench.data().join("lock")).expect("link");
    bench.open().expect("links that are no data files do not matter");
    symlink("nowhere", bench.data().join("b.parquet")).expect("link");
    let message = bench.open().expect_err("a broken link").to_string();
    assert!(message.contains("b.parquet") && message.contains("No such file"), "{message}");
}

#[test]
fn a_name_that_is_not_text_is_a_clear_error() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let bench = Bench::new();
    fs::write(bench.data().join(OsStr::from_bytes(b"\xff.pq")), b"x").expect("write");
    let message = find(&[text(&bench.data())]).expect_err("not UTF-8").to_string();
    assert!(message.contains("not UTF-8"), "{message}");
}

#[test]
fn a_name_that_is_not_text_does_not_matter_where_it_is_not_wanted() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let bench = Bench::new();
    bench.write("a.pq", b"x");
    bench.write("b/c.pq", b"x");
    for name in [b".\xff.pq".as_slice(), b"_\xff.pq", b"b/.\xff"] {
        fs::write(bench.data().join(OsStr::from_bytes(name)), b"x").expect("write");
    }
    fs::create_dir(bench.data().join(OsStr::from_bytes(b"_\xff"))).expect("folder");
    let (_, files, listing) = find(&[text(&bench.data())]).expect("hidden ones are passed over");
    assert_eq!((files, listing.hidden), (vec!["a.pq".to_owned(), "b/c.pq".to_owned()], 4));
    fs::write(bench.data().join(OsStr::from_bytes(b"x\xff.pq")), b"x").expect("write");
    fs::create_dir(bench.data().join(OsStr::from_bytes(b"y\xff"))).expect("folder");
    assert_eq!(names(&[format!("{}/a*", text(&bench.data()))]), ["a.pq"]);
    assert_eq!(names(&[format!("{}/[ab]*/*.pq", text(&bench.data()))]), ["b/c.pq"]);
    for (pattern, hint) in [("*.pq", "rename the file"), ("x*.pq", "rename the file"), ("y*/*.pq", "rename the folder")]
    {
        let message = find(&[format!("{}/{pattern}", text(&bench.data()))]).expect_err(pattern).to_string();
        assert!(message.contains("not UTF-8") && message.contains(hint), "{pattern}: {message}");
    }
}

#[test]
fn pipes_are_no_files() {
    let bench = Bench::new();
    bench.write("a.pq", b"x");
    let pipe = bench.data().join("p.pq");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
    assert!(made.success());
    assert_eq!(names(&[text(&bench.data())]), ["a.pq"]);
    assert!(find(&[text(&pipe)]).is_err());
}

#[test]
fn an_unreadable_folder_is_named() {
    use std::os::unix::fs::PermissionsExt;
    let bench = Bench::new();
    bench.write("shut/a.pq", b"x");
    let shut = bench.data().join("shut");
    fs::set_permissions(&shut, fs::Permissions::from_mode(0o000)).expect("chmod");
    let result = find(&[text(&bench.data())]);
    fs::set_permissions(&shut, fs::Permissions::from_mode(0o755)).expect("chmod");
    // Root may read everything.
    if let Err(error) = result {
        assert!(
            matches!(&error, Error::Store { fault: StoreFault::Denied, uri, .. } if uri.contains("shut")),
            "{error}"
        );
    }
}

#[test]
fn cancelling_stops_a_listing() {
    let bench = Bench::new();
    bench.write("a.pq", b"x");
    let cancel = Cancel::new();
    cancel.cancel();
    let result = find_files(&[text(&bench.data())], &BTreeMap::new(), &cancel, &Progress::new());
    assert!(matches!(result, Err(Error::Cancelled)));
}

proptest! {
    /// The rule, said a second time: over whole folders of random names.
    #[test]
    fn the_rule_holds_for_random_folders(
        files in proptest::collection::btree_map(
            proptest::collection::vec("[._]?[a-c]{1,2}", 1..4),
            (prop_oneof![Just(""), Just(".parquet"), Just(".PQ"), Just(".txt")], 0..2_usize),
            1..12,
        )
    ) {
        let bench = Bench::new();
        let mut written: Vec<(String, usize)> = Vec::new();
        for (parts, (suffix, size)) in files {
            let path = format!("{}{suffix}", parts.join("/"));
            // A name cannot be both a file and a folder.
            let clash = |other: &str| {
                path == other || path.starts_with(&format!("{other}/")) || other.starts_with(&format!("{path}/"))
            };
            if !written.iter().any(|(other, _)| clash(other)) {
                bench.write(&path, &b"x"[..size]);
                written.push((path, size));
            }
        }
        let shown = |path: &str| !format!("/{path}").contains("/.") && !format!("/{path}").contains("/_");
        let is_data = |path: &str| [".parquet", ".PQ"].iter().any(|suffix| path.ends_with(suffix));
        let left: Vec<&(String, usize)> =
            written.iter().filter(|(path, size)| shown(path) && (*size > 0 || is_data(path))).collect();
        let any = left.iter().any(|(path, _)| is_data(path));
        let mut wanted: Vec<String> =
            left.iter().filter(|(path, _)| !any || is_data(path)).map(|(path, _)| path.clone()).collect();
        wanted.sort();
        for (path, _) in &written {
            prop_assert_eq!(is_hidden(path), !shown(path));
            prop_assert_eq!(has_suffix(path), is_data(path));
        }
        match find(&[text(&bench.data())]) {
            Ok((_, found, _)) => prop_assert_eq!(found, wanted),
            Err(error) => prop_assert!(wanted.is_empty(), "{}", error),
        }
    }
}
