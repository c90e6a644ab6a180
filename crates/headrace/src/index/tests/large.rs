//! Many small files. Run it with
//! `cargo test --release -p headrace -- --ignored --nocapture a_hundred_thousand`.

use std::fs;
use std::io::Read;
use std::time::{Duration, Instant};

use super::{Bench, documents, text};
use crate::cancel::Cancel;
use crate::index::{Index, Progress};

/// The promise is ten times the time of listing and opening the files; the watchdog is looser, since a loaded
/// machine slows one of them more than the other.
#[test]
#[ignore = "writes 100,000 files"]
fn a_hundred_thousand_files_are_indexed_in_seconds() {
    let bench = Bench::new();
    let bytes = documents(&[3, 0, 5]);
    for folder in 0..100 {
        for file in 0..1000 {
            let path = bench.data().join(format!("{folder:02}/{file:03}.parquet"));
            if file == 0 {
                fs::create_dir(path.parent().expect("parent")).expect("folder");
            }
            fs::write(path, &bytes).expect("write");
        }
    }
    let start = Instant::now();
    let mut opened = 0;
    let mut byte = [0; 1];
    for folder in fs::read_dir(bench.data()).expect("list") {
        for file in fs::read_dir(folder.expect("folder").path()).expect("list") {
            let mut file = fs::File::open(file.expect("file").path()).expect("open");
            file.metadata().expect("metadata");
            opened += file.read(&mut byte).expect("read");
        }
    }
    let floor = start.elapsed();
    assert_eq!(opened, 100_000);
    let timed = |what: &str| {
        let start = Instant::now();
        let progress = Progress::new();
        let mut index = Index::open(&[text(&bench.data())], &bench.options(), &Cancel::new(), &progress).expect("open");
        index.count("tokens", &Cancel::new(), &progress).expect("count");
        assert_eq!(index.token_column("tokens").expect("column").tokens.iter().sum::<u64>(), 800_000);
        let time = start.elapsed();
        // The one place where a test speaks: the figure is what it is for.
        let _ = std::io::Write::write_fmt(
            &mut std::io::stderr(),
            format_args!(
                "{what}: {time:?}, {:.1} x listing and opening ({floor:?})\n",
                time.as_secs_f64() / floor.as_secs_f64()
            ),
        );
        time
    };
    let first = timed("indexed");
    timed("from the cache");
    assert!(first < floor * 20 + Duration::from_secs(5));
}
