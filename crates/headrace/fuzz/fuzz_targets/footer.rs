//! Any bytes as a footer: it is read or refused, and every chunk that it names lies in the file.
#![no_main]

use headrace::error::Place;
use headrace::format::parquet::footer::{footer_len, read_footer};
use libfuzzer_sys::fuzz_target;

/// The size of the file that the footer is said to end.
const FILE_BYTES: u64 = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let place = Place::file("fuzz");
    let _ = footer_len(data.len() as u64, data, &place);
    let Ok(footer) = read_footer(data, FILE_BYTES, &place) else { return };
    for column in &footer.columns {
        assert_eq!(column.chunks.len(), footer.row_groups.len());
        let _ = footer.column(&column.name, &place);
        for (group, chunk) in footer.row_groups.iter().zip(&column.chunks) {
            assert_eq!(group.rows, chunk.chunk.rows);
            assert!(chunk.chunk.start + chunk.chunk.len <= FILE_BYTES);
        }
    }
    let _ = footer.why_not("tokens");
});
