//! Ad hoc: decodes all files of a folder for a comparison from outside.
use super::files::footer;
use super::*;
use std::fmt::Write as _;

#[test]
fn dump() {
    let Ok(dir) = std::env::var("HEADRACE_DUMP") else { return };
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "parquet") {
            continue;
        }
        let file = std::fs::read(&path).unwrap();
        let mut out = String::new();
        match footer(&file) {
            Err(error) => writeln!(out, "ERR {error}").unwrap(),
            Ok(footer) => {
                for column in &footer.columns {
                    for (g, group) in column.chunks.iter().enumerate() {
                        let c = group.chunk;
                        let bytes = &file[c.start as usize..(c.start + c.len) as usize];
                        let fast = decode(&c, bytes, false, &[0, 100, 5000]);
                        let slow = decode_slowly(&c, bytes, false, Delivered::default());
                        let lens = decode(&c, bytes, true, &[0]);
                        let (fast, slow, lens) = match (fast, slow, lens) {
                            (Ok((f, None)), Ok(s), Ok((l, None))) => (f, s, l),
                            (f, s, _) => {
                                let show = |r: std::result::Result<String, Error>| r.unwrap_or_else(|e| e.to_string());
                                writeln!(
                                    out,
                                    "ERR {} {g} fast {} slow {}",
                                    column.name,
                                    show(f.map(|f| format!("ok {:?}", f.1))),
                                    show(s.map(|_| "ok".into()))
                                )
                                .unwrap();
                                continue;
                            }
                        };
                        assert_eq!(fast, slow, "{path:?} {}", column.name);
                        assert_eq!(fast.lengths, lens.lengths);
                        let tokens: u64 = fast.lengths.iter().sum();
                        let docs = fast.lengths.iter().filter(|l| **l > 0).count() as u64;
                        assert!(group.tokens.is_none_or(|t| t == tokens), "{path:?} {:?}", group);
                        assert!(group.documents.is_none_or(|t| t == docs), "{path:?} {:?}", group);
                        writeln!(
                            out,
                            "{}\t{g}\t{:?}\t{:?}\t{:?}\t{:?}",
                            column.name, group.tokens, group.documents, fast.lengths, fast.values
                        )
                        .unwrap();
                    }
                }
                writeln!(out, "FIELDS {:?} {:?}", footer.fields, footer.schema.is_ok()).unwrap();
            }
        }
        std::fs::write(path.with_extension("txt"), out).unwrap();
    }
}
