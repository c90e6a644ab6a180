//! Footers, counts, the saved index and what happens when files change.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, SystemTime};

use super::{Bench, documents, open, text, tokens};
use crate::cancel::Cancel;
use crate::error::Error;
use crate::index::{Index, IndexMode, OpenOptions, Phase, Progress, UNKNOWN};

fn counted(mut index: Index) -> Index {
    index.count("tokens", &Cancel::new(), &Progress::new()).expect("count");
    index
}

fn saved_files(bench: &Bench) -> Vec<std::path::PathBuf> {
    match fs::read_dir(bench.cache().join("index")) {
        Ok(entries) => entries.map(|entry| entry.expect("entry").path()).collect(),
        Err(_) => Vec::new(),
    }
}

/// Requests of reading, which for local files is one a read.
fn requests(index: &Index) -> u64 {
    index.store.traffic().requests.load(std::sync::atomic::Ordering::Relaxed)
}

#[test]
fn an_index_tells_files_row_groups_and_tokens() {
    let bench = Bench::new();
    let group = |lengths: &[usize]| lengths.iter().map(|len| Some(vec![7; *len])).collect::<Vec<_>>();
    bench.write("b.parquet", &tokens("tokens", &[group(&[3, 0, 2]), group(&[]), group(&[1])], true));
    bench.write("a.parquet", &tokens("tokens", &[], true));
    let progress = Progress::new();
    let index = Index::open(&[text(&bench.data())], &bench.options(), &Cancel::new(), &progress).expect("open");
    assert_eq!((progress.phase(), progress.found.into_inner()), (Phase::Done, 2));
    assert_eq!(
        index.files.iter().map(|f| (f.object.path.as_str(), f.rows)).collect::<Vec<_>>(),
        [("a.parquet", 0), ("b.parquet", 4)]
    );
    let index = counted(index);
    let column = index.token_column("tokens").expect("column");
    assert_eq!(column.tokens.iter().sum::<u64>(), 6);
    assert_eq!(column.documents.iter().sum::<u64>(), 3);
    assert_eq!(column.chunks.len(), index.row_groups.len());
    assert_eq!(index.rows(), 4);
    assert_eq!(index.footer(1, &Cancel::new()).expect("footer").schema.expect("schema").fields().len(), 1);
    assert!(index.notes.is_empty(), "{:?}", index.notes);
}

#[test]
fn counts_that_footers_do_not_tell_are_read_from_levels_and_kept() {
    let bench = Bench::new();
    let groups = vec![vec![Some(vec![1, 2]), None, Some(vec![]), Some(vec![3])], vec![Some(vec![4; 5000])]];
    bench.write("a.parquet", &tokens("tokens", &groups, false));
    let mut index = bench.open().expect("open");
    assert!(index.columns[0].tokens.contains(&UNKNOWN));
    assert!(matches!(index.token_column("tokens"), Err(Error::Internal(_))));
    index.count_tokens("tokens", &Cancel::new(), &Progress::new()).expect("count");
    let column = index.token_column("tokens").expect("column");
    assert_eq!((&column.tokens[..], &column.documents[..]), (&[3, 5000][..], &[2, 1][..]));
    // And the next time they are known.
    let again = bench.open().expect("open");
    assert_eq!(requests(&again), 0);
    assert_eq!(*again.token_column("tokens").expect("column").documents, [2, 1]);
}

#[test]
fn of_many_that_open_a_dataset_at_once_one_reads_its_footers() {
    let bench = Bench::new();
    for number in 0..40 {
        bench.write(&format!("{number:02}.parquet"), &documents(&[number, 1]));
    }
    let elsewhere = OpenOptions { cache_dir: Some(bench.cache().with_file_name("other")), ..bench.options() };
    let alone = requests(&bench.open_with(&elsewhere).expect("open"));
    let read: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|_| scope.spawn(|| requests(&bench.open().expect("open")))).collect();
        threads.into_iter().map(|thread| thread.join().expect("thread")).sum()
    });
    assert_eq!(read, alone);
}

#[test]
fn a_second_opening_reads_no_footer() {
    let bench = Bench::new();
    for number in 0..5 {
        bench.write(&format!("{number}.parquet"), &documents(&[number, 1]));
    }
    let first = counted(bench.open().expect("open"));
    assert!(requests(&first) >= 5);
    let second = counted(bench.open().expect("open"));
    assert_eq!(requests(&second), 0);
    assert_eq!(first.files, second.files);
    assert_eq!(first.row_groups, second.row_groups);
    assert_eq!(first.columns, second.columns);
    assert_eq!(first.identity("tokens").expect("identity"), second.identity("tokens").expect("identity"));
}

#[test]
fn the_first_files_are_what_they_were_before_others_came_behind_them() {
    let bench = Bench::new();
    let mut before = Vec::new();
    for number in 0..4 {
        bench.write(&format!("{number}.parquet"), &documents(&[number, 1, 3]));
        before.push(counted(bench.open().expect("open")).identity("tokens").expect("identity"));
    }
    let index = counted(bench.open().expect("open"));
    for (files, wanted) in (1..).zip(before) {
        assert_eq!(index.identity_of_first(files, "tokens").expect("identity"), wanted);
    }
    let message = index.identity_of_first(5, "tokens").expect_err("too many").to_string();
    assert!(message.contains("there are no 5 files: the dataset has 4"), "{message}");
}

/// Case B124: data was replaced under the same URL, and the old cache was served.
#[test]
fn b124_changed_new_and_vanished_files_are_seen() {
    let bench = Bench::new();
    for name in ["a", "b", "c"] {
        bench.write(&format!("{name}.parquet"), &documents(&[1, 2]));
    }
    let before = counted(bench.open().expect("open")).identity("tokens").expect("identity");
    // The same size, other content, a later time.
    let old = fs::read(bench.data().join("b.parquet")).expect("read");
    let new = documents(&[2, 1]);
    assert_eq!(old.len(), new.len());
    bench.write("b.parquet", &new);
    let later = SystemTime::now() + Duration::from_secs(10);
    fs::File::options()
        .append(true)
        .open(bench.data().join("b.parquet"))
        .expect("open")
        .set_modified(later)
        .expect("time");
    bench.write("d.parquet", &documents(&[5]));
    fs::remove_file(bench.data().join("a.parquet")).expect("remove");
    let index = counted(bench.open().expect("open"));
    assert_eq!(requests(&index), 2, "one changed, one new");
    let fresh = bench.rebuild();
    assert_eq!(index.files, fresh.files);
    assert_eq!(index.row_groups, fresh.row_groups);
    assert_eq!(index.columns, fresh.columns);
    assert_ne!(index.identity("tokens").expect("identity"), before);
    assert_eq!(requests(&bench.open().expect("open")), 0, "the result was saved");
}

#[test]
fn a_damaged_saved_index_is_built_anew() {
    let bench = Bench::new();
    bench.write("a.parquet", &documents(&[1, 2]));
    bench.open().expect("open");
    let [path] = &saved_files(&bench)[..] else { panic!("one index") };
    let whole = fs::read(path).expect("read");
    for damaged in [whole[..whole.len() / 2].to_vec(), Vec::new(), [&whole[..40], &whole[41..]].concat(), vec![0; 100]]
    {
        fs::write(path, damaged).expect("write");
        let index = bench.open().expect("open");
        assert_eq!(index.notes.len(), 1, "{:?}", index.notes);
        assert_eq!(requests(&index), 1);
        assert_eq!(fs::read(path).expect("read"), whole);
    }
}

#[test]
fn a_cache_that_cannot_be_written_is_only_noted() {
    let bench = Bench::new();
    bench.write("a.parquet", &documents(&[1, 2]));
    fs::write(bench.cache(), b"a file where the folder should be").expect("write");
    let index = bench.open().expect("open");
    assert_eq!(index.notes.len(), 1);
    assert!(index.notes[0].contains("not saved"), "{:?}", index.notes);
}

#[test]
fn an_index_next_to_the_data_is_used_and_validated() {
    let bench = Bench::new();
    bench.write("a.parquet", &documents(&[1, 2]));
    bench.write("b.parquet", &documents(&[3]));
    let index = counted(bench.rebuild());
    index.save_in_place(&Cancel::new()).expect("save");
    fs::remove_dir_all(bench.cache()).expect("remove");
    let again = bench.open().expect("open");
    assert_eq!(requests(&again), 1, "the index itself");
    assert_eq!(again.files, index.files);
    assert!(saved_files(&bench).is_empty());
    bench.write("c.parquet", &documents(&[4]));
    let more = bench.open().expect("open");
    assert_eq!((requests(&more), more.files.len()), (2, 3));
    assert_eq!(saved_files(&bench).len(), 1);
    let message = open(&[text(&bench.data().join("a.parquet"))], &bench.options())
        .expect("open")
        .save_in_place(&Cancel::new())
        .expect_err("one file")
        .to_string();
    assert!(message.contains("one folder"), "{message}");
}

#[test]
fn an_index_at_a_named_path_is_written_there_and_never_over_another_file() {
    let bench = Bench::new();
    bench.write("a.parquet", &documents(&[1, 2]));
    let path = bench.data().parent().expect("parent").join("my/index.arrow");
    let options = OpenOptions { mode: IndexMode::Path(path.clone()), ..bench.options() };
    assert_eq!(requests(&bench.open_with(&options).expect("open")), 1);
    assert_eq!(requests(&bench.open_with(&options).expect("open")), 0);
    assert!(saved_files(&bench).is_empty());
    let other = OpenOptions { mode: IndexMode::Path(bench.data().join("a.parquet")), ..bench.options() };
    let message = bench.open_with(&other).expect_err("a data file").to_string();
    assert!(message.contains("another file"), "{message}");
    assert_eq!(fs::read(bench.data().join("a.parquet")).expect("read"), documents(&[1, 2]));
}

#[test]
fn two_processes_may_build_at_once() {
    let bench = Bench::new();
    for number in 0..20 {
        bench.write(&format!("{number}.parquet"), &documents(&[number]));
    }
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| bench.rebuild());
        }
    });
    assert_eq!(saved_files(&bench).len(), 1);
    assert_eq!(requests(&bench.open().expect("open")), 0);
}

#[test]
fn a_column_that_a_file_lacks_is_named_with_what_is_there() {
    let bench = Bench::new();
    bench.write("a.parquet", &documents(&[1, 2]));
    bench.write("b.parquet", &tokens("other", &[vec![Some(vec![1])]], true));
    let index = bench.open().expect("other columns do not matter until they are used");
    for (name, file) in [("tokens", "b.parquet"), ("other", "a.parquet"), ("third", "a.parquet")] {
        let error = index.token_column(name).expect_err(name);
        let Error::Data { place, what } = &error else { panic!("{error}") };
        assert!(place.uri.ends_with(file) && what.contains(name), "{error}");
    }
    let options = OpenOptions { columns: Some(vec!["tokens".to_owned()]), ..bench.options() };
    assert!(matches!(bench.open_with(&options), Err(Error::Data { .. })));
    // A file without rows has no column to offer, and none is missed.
    bench.write("b.parquet", &tokens("other", &[], true));
    let index = counted(bench.open().expect("open"));
    assert_eq!(*index.token_column("tokens").expect("column").tokens, [3]);
    // From the saved index, too.
    assert_eq!(*bench.open().expect("open").token_column("tokens").expect("column").tokens, [3]);
}

#[test]
fn torn_files_are_named() {
    let bench = Bench::new();
    let whole = documents(&[1, 2]);
    bench.write("a.parquet", &whole);
    for torn in
        [&whole[..0], &whole[..3], &whole[..whole.len() - 1], &whole[..whole.len() / 2], &b"not parquet at all"[..]]
    {
        bench.write("b.parquet", torn);
        let error = bench.open().expect_err("torn");
        assert!(matches!(&error, Error::Data { place, .. } if place.uri.ends_with("b.parquet")), "{error}");
    }
    let mut flipped = whole.clone();
    let len = flipped.len();
    flipped[len - 5] = 0x7f;
    bench.write("b.parquet", &flipped);
    assert!(matches!(bench.open(), Err(Error::Data { .. })), "a footer longer than the file");
}

#[test]
fn the_first_fault_in_the_order_of_files_is_reported() {
    let bench = Bench::new();
    for number in 0..40 {
        bench.write(&format!("{number:02}.parquet"), &documents(&[1]));
    }
    bench.write("07.parquet", b"PAR1");
    for _ in 0..5 {
        let error = bench.open().expect_err("torn").to_string();
        assert!(error.contains("07.parquet"), "{error}");
    }
}

#[test]
fn an_unreadable_file_is_named() {
    let bench = Bench::new();
    bench.write("a.parquet", &documents(&[1]));
    let path = bench.data().join("a.parquet");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).expect("chmod");
    // Root may read everything.
    if let Err(error) = bench.open() {
        assert!(matches!(&error, Error::Store { uri, .. } if uri.ends_with("a.parquet")), "{error}");
    }
}

/// Case B127: a merged index dropped sub-folders.
#[test]
fn b127_equal_names_in_different_folders_stay_apart() {
    let bench = Bench::new();
    bench.write("a/0.parquet", &documents(&[1]));
    bench.write("b/0.parquet", &documents(&[2]));
    let index = counted(bench.open().expect("open"));
    assert_eq!(index.files.iter().map(|f| f.object.path.as_str()).collect::<Vec<_>>(), ["a/0.parquet", "b/0.parquet"]);
    assert_eq!(*index.token_column("tokens").expect("column").tokens, [1, 2]);
}

#[test]
fn identity_follows_content_and_not_the_place() {
    let (here, there, renamed) = (Bench::new(), Bench::new(), Bench::new());
    for (number, lengths) in [[1, 2], [3, 4]].iter().enumerate() {
        here.write(&format!("{number}.parquet"), &documents(lengths));
        there.write(&format!("{number}.parquet"), &documents(lengths));
        renamed.write(&format!("x/{number}.parquet"), &documents(lengths));
    }
    let of = |bench: &Bench| counted(bench.open().expect("open")).identity("tokens").expect("identity");
    assert_eq!(of(&here), of(&there));
    assert_ne!(of(&here).digest, of(&renamed).digest);
    assert_eq!(of(&here).content, of(&renamed).content);
    there.write("1.parquet", &documents(&[4, 4]));
    assert_ne!(of(&here), of(&there));
}

#[test]
fn a_file_that_changes_after_opening_is_noticed() {
    let bench = Bench::new();
    bench.write("a.parquet", &documents(&[1]));
    let index = bench.open().expect("open");
    let object = index.files[0].object.clone();
    let read = |cancel: &Cancel| {
        let mut buffer = b"kept".to_vec();
        let result = index.store.fetch(&object, 0..4).wait_into(cancel, &mut buffer);
        (result, buffer)
    };
    assert_eq!(read(&Cancel::new()).1, b"keptPAR1");
    bench.write("a.parquet", &documents(&[1, 2, 3]));
    let (result, buffer) = read(&Cancel::new());
    assert!(matches!(result, Err(Error::Changed { .. })), "{result:?}");
    assert_eq!(buffer, b"kept", "nothing is left of a failed read");
    fs::remove_file(bench.data().join("a.parquet")).expect("remove");
    assert!(matches!(read(&Cancel::new()).0, Err(Error::Store { .. })));
    let cancel = Cancel::new();
    cancel.cancel();
    assert!(matches!(read(&cancel).0, Err(Error::Cancelled)));
}
