//! Whole datasets of small files, sound and damaged.

use crate::cancel::Cancel;
use crate::error::{Error, Result};
use crate::index::Progress;
use crate::index::tests::{Bench, documents, text, tokens};
use crate::inspect::{Fault, VerifyOptions, VerifyReport, lengths, verify};

fn check(bench: &Bench, column: Option<&str>) -> Result<VerifyReport> {
    let options = VerifyOptions { column: column.map(str::to_owned), threads: Some(2), ..VerifyOptions::default() };
    verify(&[text(&bench.data())], &options, &Cancel::new(), &Progress::new())
}

fn places(faults: &[Fault]) -> Vec<(&str, Option<u32>, Option<&str>)> {
    let name = |uri: &'_ str| uri.rfind('/').map_or(0, |slash| slash + 1);
    faults.iter().map(|fault| (&fault.uri[name(&fault.uri)..], fault.row_group, fault.column.as_deref())).collect()
}

#[test]
fn lengths_are_those_of_all_files() {
    let bench = Bench::new();
    bench.write("a.parquet", &documents(&[0, 5, 700]));
    bench.write("b.parquet", &tokens("tokens", &[vec![None, Some(vec![1])], vec![Some(vec![2; 5])]], false));
    let index = bench.open().expect("open");
    let found = lengths(&index, "tokens", &Cancel::new(), &Progress::new()).expect("lengths");
    assert_eq!((found.documents, found.tokens, found.min, found.max), (6, 711, 0, 700));
    let counts: Vec<u64> = found.buckets.iter().map(|bucket| bucket.documents).collect();
    assert_eq!(counts, [2, 1, 0, 2, 0, 0, 0, 0, 0, 0, 1]);
    let error = lengths(&index, "other", &Cancel::new(), &Progress::new()).expect_err("no such column");
    assert!(error.to_string().contains("tokens"), "{error}");
}

#[test]
fn every_fault_is_found_and_the_rest_is_read() {
    let bench = Bench::new();
    let sound = documents(&[3, 0, 4]);
    bench.write("a.parquet", &sound);
    bench.write("cut.parquet", &sound[..sound.len() - 9]);
    bench.write("empty.parquet", &[]);
    bench.write("head.parquet", &[b"PAR2", &sound[4..]].concat());
    // Each byte before the footer, one at a time: whatever comes of it, no other file is lost.
    let footer = u32::from_le_bytes(sound[sound.len() - 8..sound.len() - 4].try_into().expect("four")) as usize;
    let files = ["cut.parquet", "empty.parquet", "head.parquet"];
    let mut found = 0;
    for at in 4..sound.len() - 8 - footer {
        let mut damaged = sound.clone();
        damaged[at] ^= 0xff;
        bench.write("z.parquet", &damaged);
        let report = check(&bench, None).expect("verify");
        assert_eq!((report.files, report.row_groups, report.rows), (5, 3, 9));
        assert!(report.tokens == 14 || report.tokens == 21, "{report:?}");
        let places = places(&report.faults);
        assert_eq!(places[..3], files.map(|file| (file, None, None)), "{report:?}");
        for place in &places[3..] {
            assert_eq!(*place, ("z.parquet", Some(0), Some("tokens")), "{report:?}");
        }
        found += places.len() - 3;
    }
    assert!(found > 0);
}

#[test]
fn a_column_that_is_named_must_be_there() {
    let bench = Bench::new();
    bench.write("a.parquet", &documents(&[1]));
    bench.write("b.parquet", &tokens("other", &[vec![Some(vec![1, 2])]], true));
    assert_eq!(check(&bench, None).expect("verify").faults, []);
    let report = check(&bench, Some("tokens")).expect("verify");
    assert_eq!(places(&report.faults), [("b.parquet", None, Some("tokens"))]);
    // Only the named column counts as tokens.
    assert_eq!(report.tokens, 1);
}

#[test]
fn it_ends_when_asked_to_and_when_nothing_is_there() {
    let bench = Bench::new();
    assert!(matches!(check(&bench, None), Err(Error::Argument(_))));
    bench.write("a.parquet", &documents(&[1]));
    let cancel = Cancel::new();
    cancel.cancel();
    let done = verify(&[text(&bench.data())], &VerifyOptions::default(), &cancel, &Progress::new());
    assert!(matches!(done, Err(Error::Cancelled)), "{done:?}");
}
