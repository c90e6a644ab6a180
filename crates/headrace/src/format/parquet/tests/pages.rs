//! Pages as writers made them at one time or another, and pages that contradict themselves.

use super::build::{Builder, SHAPE, levels, plain, runs, varint};
use super::*;
use crate::format::parquet::{Outcome, TokenShape, decode_stream};

/// The error of a chunk that must not be readable.
#[track_caller]
fn refused(builder: &Builder) -> String {
    match decode(&builder.chunk, &builder.bytes, false, &[0]) {
        Err(error @ Error::Data { .. }) => error.to_string(),
        other => panic!("expected an error, found {other:?}"),
    }
}

/// Both readers give the documents.
#[track_caller]
fn gives(builder: &Builder, documents: &[Vec<i32>]) {
    for steps in [&[0][..], &[1, 7], &[100_000]] {
        let fast = decode(&builder.chunk, &builder.bytes, false, steps).unwrap();
        assert_eq!(fast, (Collected::of(documents), None));
        let fast = decode(&builder.chunk, &builder.bytes, true, steps).unwrap();
        assert_eq!(fast, (Collected::lengths_of(documents), None));
    }
    let slow = decode_slowly(&builder.chunk, &builder.bytes, false, Delivered::default()).unwrap();
    assert_eq!(slow, Collected::of(documents));
}

#[test]
fn a_document_may_go_over_pages_of_version_1() {
    let mut builder = Builder::new();
    builder.documents(&[vec![1], vec![], vec![2, 3]], false);
    builder.documents(&[vec![4, 5]], true);
    builder.documents(&[vec![6], vec![], vec![]], true);
    builder.documents(&[vec![7]], false);
    gives(&builder, &[vec![1], vec![], vec![2, 3, 4, 5, 6], vec![], vec![], vec![7]]);
}

#[test]
fn a_page_of_version_2_begins_with_a_row() {
    let mut builder = Builder::new();
    builder.documents_v2(&[vec![1], vec![2, 3]], false, 2);
    builder.documents_v2(&[vec![], vec![4]], false, 2);
    gives(&builder, &[vec![1], vec![2, 3], vec![], vec![4]]);
    let mut builder = Builder::new();
    builder.documents_v2(&[vec![1]], false, 1);
    builder.documents_v2(&[vec![4]], true, 0);
    assert!(refused(&builder).contains("expected a version 2 page to begin with a row, found the rest of one"));
    let mut builder = Builder::new();
    builder.documents_v2(&[vec![1], vec![2]], false, 3);
    assert!(refused(&builder).contains("expected 3 rows in the page, found 2"));
}

#[test]
fn unknown_pages_and_pages_of_nothing_are_passed_over() {
    let mut builder = Builder::new();
    builder.unknown();
    builder.documents(&[], false);
    builder.documents(&[vec![1]], false);
    builder.unknown();
    builder.documents(&[vec![2]], true);
    builder.unknown();
    let fast = decode(&builder.chunk, &builder.bytes, false, &[0]).unwrap();
    assert_eq!(fast, (Collected::of(&[vec![1, 2]]), None));
}

#[test]
fn nothing_but_nulls_needs_no_dictionary() {
    for dictionary in [false, true] {
        let mut builder = Builder::new();
        if dictionary {
            builder.dictionary(&[]);
        }
        builder.v1(3, &runs(&[0; 3]), &runs(&[0, 1, 0]), &[], [8, 3, 3]);
        builder.count(&[0; 3]);
        let fast = decode(&builder.chunk, &builder.bytes, false, &[0]).unwrap();
        assert_eq!(fast, (Collected::of(&[vec![], vec![], vec![]]), None));
    }
    let mut builder = Builder::new();
    builder.v1(1, &runs(&[0]), &runs(&[3]), &[1, 2, 0], [8, 3, 3]);
    builder.count(&[0]);
    assert!(refused(&builder).contains("expected a dictionary page"), "a page of tokens does need one");
}

#[test]
fn a_chunk_may_give_up_its_dictionary_more_than_once() {
    let mut builder = Builder::new();
    builder.dictionary(&[10, -20, 30]);
    let indexed = |builder: &mut Builder, rows: usize| {
        // Width 2; a run of index 1, then 8 packed of which those beyond the last value name no entry.
        let mut values = vec![2];
        varint(&mut values, 2 << 1);
        values.extend([1, 3, 0b1100_1001, 0xff]);
        builder.v1(rows, &runs(&vec![0; rows]), &runs(&vec![3; rows]), &values, [8, 3, 3]);
        builder.count(&vec![0; rows]);
    };
    indexed(&mut builder, 5);
    builder.documents(&[vec![7, 8]], false);
    indexed(&mut builder, 3);
    builder.documents(&[vec![9]], false);
    let rows = [-20, -20, -20, 30, 10];
    let mut documents: Vec<Vec<i32>> = rows.iter().map(|token| vec![*token]).collect();
    documents.push(vec![7, 8]);
    documents.extend(rows[..3].iter().map(|token| vec![*token]));
    documents.push(vec![9]);
    gives(&builder, &documents);
    let mut builder = builder.clone();
    indexed(&mut builder, 6);
    assert!(refused(&builder).contains("expected a dictionary index below 3, found 3"));
}

#[test]
fn levels_may_be_packed_the_old_way() {
    let documents = [vec![1, 2], vec![], vec![3, 4, 5], vec![6]];
    let mut builder = Builder::new();
    builder.documents(&documents[..2], false);
    builder.documents(&[vec![3]], false);
    // From the highest bit on, without a length: 1 1 0, and 3 3 3.
    builder.v1(3, &[0b1100_0000], &[0b1111_1100], &plain(&[vec![4, 5], vec![6]]), [0, 4, 4]);
    builder.count(&[1, 1, 0]);
    let fast = decode(&builder.chunk, &builder.bytes, false, &[0]).unwrap();
    assert_eq!(fast, (Collected::of(&documents), None));
    let slow = decode_slowly(&builder.chunk, &builder.bytes, false, Delivered::default()).unwrap_err();
    assert!(slow.to_string().contains("expected levels that are encoded as runs"), "{slow}");
}

#[test]
fn what_is_not_known_is_named_before_any_of_its_page_is_handed_on() {
    let mut base = Builder::new();
    base.documents(&[vec![1, 2], vec![3]], false);
    let what = |encodings: [i64; 3], codec: u8| {
        let mut builder = base.clone();
        builder.v1(3, &runs(&[1, 1, 0]), &runs(&[3; 3]), &plain(&[vec![4, 5], vec![6]]), encodings);
        builder.count(&[1, 1, 0]);
        builder.chunk.codec = codec;
        let (sink, unsupported) = decode(&builder.chunk, &builder.bytes, false, &[0]).unwrap();
        let Unsupported { what, delivered } = unsupported.unwrap();
        let wanted = if codec == 0 { Collected::of(&[vec![1, 2], vec![3]]) } else { Collected::default() };
        assert_eq!((delivered.rows, delivered.tokens), (wanted.lengths.len() as u64, wanted.values.len() as u64));
        assert_eq!(sink, wanted);
        what
    };
    assert_eq!(what([7, 3, 3], 0), "values of encoding 7");
    assert_eq!(what([0, 9, 3], 0), "definition levels of encoding 9");
    assert_eq!(what([0, 3, 3], 3), "compression codec 3");
}

#[test]
fn a_null_token_is_refused_by_its_row() {
    let mut builder = Builder::new();
    builder.documents(&[vec![1], vec![]], false);
    builder.v1(3, &runs(&[0, 0, 1]), &runs(&[3, 3, 2]), &plain(&[vec![4], vec![5]]), [0, 3, 3]);
    builder.count(&[0, 0, 1]);
    let wanted = "/data/a.parquet, column \"tokens\", row group 3, row 3: page at byte 45: \
                  expected tokens, found a null inside a list";
    assert_eq!(refused(&builder), wanted);
    let slow = decode_slowly(&builder.chunk, &builder.bytes, false, Delivered::default()).unwrap_err().to_string();
    assert!(slow.ends_with("row 3: expected tokens, found a null inside a list"), "{slow}");
}

#[test]
fn a_value_that_is_no_token_is_refused_by_its_row() {
    let shape = |value_bytes, bits, signed| TokenShape { value_bytes, bits, signed, ..SHAPE };
    let cases: [(TokenShape, i64, &str); 7] = [
        (shape(8, 64, true), 1 << 31, "expected tokens in -2147483648..=2147483647, found 2147483648"),
        (shape(8, 64, true), -(1 << 40), "found -1099511627776"),
        (shape(8, 64, false), -1, "expected tokens in 0..=2147483647, found 18446744073709551615"),
        (shape(4, 32, false), -1, "expected tokens in 0..=2147483647, found 4294967295"),
        (shape(4, 8, true), 128, "expected tokens in -128..=127, found 128"),
        (shape(4, 8, false), 256, "expected tokens in 0..=255, found 256"),
        (shape(4, 16, false), -1, "expected tokens in 0..=65535, found 4294967295"),
    ];
    for (shape, bad, wanted) in cases {
        for dictionary in [false, true] {
            let mut builder = Builder::new();
            builder.chunk.shape = shape;
            let bytes = usize::from(shape.value_bytes);
            let stored = [5, 6, 7, bad, 8].map(|value: i64| value.to_le_bytes()[..bytes].to_vec()).concat();
            let (rep, def) = levels(&[vec![0; 2], vec![], vec![0; 3]], false);
            builder.count(&rep);
            if dictionary {
                let entries: Vec<i32> =
                    stored.chunks(4).map(|four| i32::from_le_bytes(four.try_into().unwrap())).collect();
                builder.dictionary(&entries);
                // The header counts halves of 64-bit values; set it right: five entries.
                if bytes == 8 {
                    let at = builder.bytes.iter().position(|byte| *byte == 20).unwrap();
                    builder.bytes[at] = 10;
                }
                builder.v1(6, &runs(&rep), &runs(&def), &[3, 3, 0b1000_1000, 0b1000_0110, 0], [8, 3, 3]);
            } else {
                builder.v1(6, &runs(&rep), &runs(&def), &stored, [0, 3, 3]);
            }
            let message = refused(&builder);
            assert!(message.contains(wanted) && message.contains("row 2"), "{message}");
            let slow = decode_slowly(&builder.chunk, &builder.bytes, false, Delivered::default());
            let slow = slow.unwrap_err().to_string();
            assert!(slow.contains(wanted) && slow.contains("row 2"), "{slow}");
            decode(&builder.chunk, &builder.bytes, true, &[0]).expect("lengths are readable");
        }
    }
}

#[test]
fn checksums_are_checked() {
    let mut builder = Builder::new();
    builder.documents(&[vec![1, 2, 3]], false);
    *builder.bytes.last_mut().unwrap() ^= 1;
    assert!(refused(&builder).contains("page at byte 4: expected the checksum "));
    builder.chunk.shape.bits = 64;
    assert!(refused(&builder).contains("expected the shape of a token column"));
}

#[test]
fn counts_that_contradict_are_refused() {
    let base = || {
        let mut builder = Builder::new();
        builder.documents(&[vec![1], vec![2, 3]], false);
        builder
    };
    let mut builder = base();
    builder.chunk.levels += 1;
    assert!(refused(&builder).ends_with("expected 4 levels in the column chunk, found 3"));
    let mut builder = base();
    builder.chunk.levels -= 1;
    assert!(refused(&builder).ends_with("expected 2 more levels of the column chunk's 2, found 3"));
    let mut builder = base();
    builder.chunk.rows += 1;
    assert!(refused(&builder).ends_with("expected 3 rows in the column chunk, found 2"));
    let mut builder = base();
    builder.chunk.rows -= 1;
    assert!(refused(&builder).ends_with("expected 1 rows in the row group, found more"));
    let mut builder = base();
    builder.chunk.len -= 1;
    let message = refused(&builder);
    assert!(message.contains("bytes left of the column chunk, found one of"), "{message}");
    let mut builder = Builder::new();
    builder.documents(&[vec![1]], true);
    assert!(refused(&builder).contains("expected a list to begin"));
    for (count, values, wanted) in [
        (2, vec![0; 12], "expected as many values as the levels say, found 1 more"),
        (2, vec![0; 7], "expected 2 more values of 4 bytes, found 7 bytes"),
        (3, vec![0; 12], "expected 1 more levels, found the end of the levels"),
    ] {
        let mut builder = Builder::new();
        builder.v1(count, &runs(&[0; 2]), &runs(&[3; 2]), &values, [0, 3, 3]);
        builder.count(&vec![0; count]);
        let message = refused(&builder);
        assert!(message.ends_with(wanted), "{message}");
    }
    let mut builder = base();
    builder.dictionary(&[1]);
    assert!(refused(&builder).contains("expected one dictionary page before all data pages, found another"));
}

#[test]
fn a_small_page_of_many_documents_is_handed_on_in_batches() {
    let rows = 1_000_000_u64;
    let mut builder = Builder::new();
    let mut run = Vec::new();
    varint(&mut run, rows << 1);
    run.push(0);
    builder.v1(rows as usize, &run, &run, &[], [0, 3, 3]);
    (builder.chunk.levels, builder.chunk.rows) = (rows, rows);
    assert!(builder.bytes.len() < 50);
    let (sink, _) = decode(&builder.chunk, &builder.bytes, false, &[0]).unwrap();
    assert_eq!(sink.lengths, vec![0; rows as usize]);
    // One document of a million tokens, all of them one dictionary entry.
    let mut builder = Builder::new();
    builder.dictionary(&[42]);
    let mut rep = vec![2, 0];
    varint(&mut rep, (rows - 1) << 1);
    rep.push(1);
    let mut def = run.clone();
    *def.last_mut().unwrap() = 3;
    let values = [&[0], &run[..run.len() - 1]].concat();
    builder.v1(rows as usize, &rep, &def, &values, [8, 3, 3]);
    (builder.chunk.levels, builder.chunk.rows) = (rows, 1);
    gives(&builder, &[vec![42; rows as usize]]);
}

#[test]
fn a_page_beyond_the_limit_is_a_matter_of_memory() {
    let mut builder = Builder::new();
    builder.documents(&[vec![1; 100]], false);
    let limits = Limits { page_bytes: 400 };
    let mut decoder = ChunkDecoder::new(limits);
    decoder.begin(&builder.chunk, place());
    let error = decoder.push(&builder.bytes, &mut Collected::default()).unwrap_err();
    let Error::Memory { purpose, needed: 416, available: 400 } = &error else { panic!("{error}") };
    assert_eq!(purpose, "a page of /data/a.parquet, column \"tokens\", row group 3");
    let bytes = builder.bytes.clone().into();
    let (none, mut sink) = (Delivered::default(), Collected::default());
    let error = fallback::decode(&builder.chunk, &place(), bytes, none, limits, &mut sink).unwrap_err();
    assert!(matches!(error, Error::Memory { .. }), "{error}");
}

#[test]
fn a_chunk_of_no_rows_is_done_at_once() {
    let builder = Builder::new();
    assert_eq!(decode(&builder.chunk, &[], false, &[0]).unwrap(), (Collected::default(), None));
    assert_eq!(decode_slowly(&builder.chunk, &[], false, Delivered::default()).unwrap(), Collected::default());
}

#[test]
fn a_stream_asks_for_what_it_needs_and_no_more() {
    let mut builder = Builder::new();
    let documents: Vec<Vec<i32>> = (0..50).map(|i| vec![i; i as usize]).collect();
    documents.chunks(5).for_each(|part| builder.documents(part, false));
    let (mut at, mut sink) = (0, Collected::default());
    let bytes = &builder.bytes;
    let mut fill = |buffer: &mut Vec<u8>, skip: usize, want: usize| {
        assert_eq!(skip, 0);
        let more = want - buffer.len();
        assert!(more > 0 && at + more <= bytes.len());
        buffer.extend_from_slice(&bytes[at..at + more]);
        at += more;
        Ok(())
    };
    let mut decoder = ChunkDecoder::new(LIMITS);
    let mut buffer = Vec::new();
    let outcome = decode_stream(&mut decoder, &builder.chunk, place(), &mut fill, &mut buffer, &mut sink);
    assert_eq!(outcome.unwrap(), Outcome::Complete);
    assert_eq!((sink, at), (Collected::of(&documents), bytes.len()));
    let mut fill = |_: &mut Vec<u8>, _: usize, _: usize| Ok(());
    let outcome =
        decode_stream(&mut decoder, &builder.chunk, place(), &mut fill, &mut buffer, &mut Collected::default());
    assert!(outcome.unwrap_err().to_string().ends_with("page at byte 4: expected 64 bytes, found 0"));
}
