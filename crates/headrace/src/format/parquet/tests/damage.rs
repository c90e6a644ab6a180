//! Damage: cut and flipped bytes give an error or, without a checksum, other tokens; never a panic, never a hang.

use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{RngAlgorithm, TestRng, TestRunner};

use super::build::{Builder, runs};
use super::files::{Case, cases, footer};
use super::pulls::Stretches;
use super::*;

/// A small file of each encoding, codec and version, the same every time.
fn samples() -> Vec<Case> {
    let mut runner =
        TestRunner::new_with_rng(ProptestConfig::default(), TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let mut samples = Vec::new();
    for encoding in 0..4 {
        for codec in 0..7 {
            for v2 in [false, true] {
                let case = cases(1, 6).new_tree(&mut runner).unwrap().current();
                samples.push(Case { encoding, codec, v2, page_bytes: 60, page_rows: 3, ..case });
            }
        }
    }
    assert_eq!(samples.len(), 56);
    samples
}

/// A chunk whose pages have checksums.
fn checked() -> (Builder, Collected) {
    let documents = [vec![5, 6, 7], vec![], vec![8; 40], vec![9, -1]];
    let mut builder = Builder::new();
    builder.dictionary(&[5, 6, 7, 8]);
    builder.documents(&documents[..1], false);
    builder.v1(1, &runs(&[0]), &runs(&[1]), &[], [8, 3, 3]);
    builder.count(&[0]);
    builder.documents_v2(&documents[2..], false, 2);
    (builder, Collected::of(&documents))
}

/// Every reader, on bytes that may be anything: it must come back.
fn survive(chunk: &TokenChunk, bytes: &[u8]) -> [Option<Collected>; 2] {
    let fast = decode(chunk, bytes, false, &[3]);
    let lengths = decode(chunk, bytes, true, &[1000]);
    let plan = [(2, 3), (0, 40), (100, 1)];
    let mut stretches = Stretches::new(7..200, &plan, chunk.narrow);
    let pulled = decode_to(chunk, bytes, &[50], &mut stretches);
    if let Ok((all, None)) = &fast {
        // What can be read whole can be read in part.
        assert_eq!(lengths.unwrap().0.lengths, all.lengths);
        assert_eq!(pulled.unwrap(), None);
        stretches.check(all);
    }
    let chunk = TokenChunk { len: bytes.len() as u64, ..*chunk };
    let slow = decode_slowly(&chunk, bytes, false, Delivered::default());
    [fast.ok().filter(|(_, unsupported)| unsupported.is_none()).map(|(sink, _)| sink), slow.ok()]
}

#[test]
fn chunks_that_are_cut_anywhere() {
    let mut cut = 0;
    for case in samples() {
        let file = case.write();
        let chunk = footer(&file).unwrap().columns[0].chunks[0].chunk;
        let bytes = &file[chunk.start as usize..(chunk.start + chunk.len) as usize];
        // A chunk of no levels is whole even without its pages.
        if chunk.levels == 0 {
            continue;
        }
        for end in 0..bytes.len().min(1500) {
            assert!(decode(&chunk, &bytes[..end], false, &[0]).is_err());
            let shorter = TokenChunk { len: end as u64, ..chunk };
            assert!(decode(&shorter, &bytes[..end], false, &[0]).is_err(), "{case:?} cut at {end}");
            assert!(decode(&shorter, &bytes[..end], true, &[0]).is_err(), "{case:?} cut at {end}");
            // What is not wanted may be missing: lengths are right or not there.
            if let Ok((lengths, None)) = decode(&chunk, &bytes[..end], true, &[0]) {
                assert_eq!(lengths, Collected::lengths_of(&case.documents()[0]));
            }
            cut += 1;
        }
    }
    assert!(cut > 5000, "{cut}");
}

#[test]
fn files_that_are_cut_anywhere() {
    let case = &samples()[3];
    let file = case.write();
    for end in 0..file.len() {
        assert!(footer(&file[..end]).is_err());
    }
    let len = file.len();
    let bytes = u32::from_le_bytes(file[len - 8..len - 4].try_into().unwrap()) as usize;
    let place = Place::file("f");
    for end in 0..bytes {
        let cut = &file[len - 8 - bytes..][..end];
        assert!(crate::format::parquet::footer::read_footer(cut, len as u64, &place).is_err());
    }
}

#[test]
fn a_checksum_tells_every_flipped_bit_of_a_page() {
    let (builder, wanted) = checked();
    assert_eq!(decode(&builder.chunk, &builder.bytes, false, &[0]).unwrap().0, wanted);
    let mut refused = 0;
    for bit in 0..builder.bytes.len() * 8 {
        let mut bytes = builder.bytes.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        // Headers have no checksum: a flipped bit there may turn the checksum off, but must not change a token.
        match survive(&builder.chunk, &bytes) {
            [Some(found), _] => assert_eq!(found, wanted, "bit {bit}"),
            [None, _] => refused += 1,
        }
    }
    assert!(refused > builder.bytes.len() * 7, "{refused}");
}

/// How often [`anything_may_come`] changes something: a few seconds of a debug build.
const MUTATIONS: usize = 6000;

#[test]
fn anything_may_come() {
    let mut rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let samples = samples();
    let (mut read, mut refused) = (0, 0);
    let chunks: Vec<(TokenChunk, Vec<u8>)> = samples
        .iter()
        .map(|case| {
            let file = case.write();
            let chunk = footer(&file).unwrap().columns[0].chunks[0].chunk;
            (chunk, file[chunk.start as usize..(chunk.start + chunk.len) as usize].to_vec())
        })
        .chain(std::iter::once((checked().0.chunk, checked().0.bytes)))
        .collect();
    for i in 0..MUTATIONS {
        let (chunk, bytes) = &chunks[i % chunks.len()];
        let (mut chunk, mut bytes) = (*chunk, bytes.clone());
        if bytes.is_empty() {
            continue;
        }
        // The first bytes are a header, where a change reaches furthest.
        let reach = if rng.next_u32().is_multiple_of(2) { bytes.len() } else { bytes.len().min(40) };
        for _ in 0..=rng.next_u32() % 4 {
            let at = rng.next_u32() as usize % reach.min(bytes.len()).max(1);
            match rng.next_u32() % 6 {
                0 => bytes[at] ^= 1 << (rng.next_u32() % 8),
                1 => bytes[at] = rng.next_u32() as u8,
                2 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][rng.next_u32() as usize % 5],
                3 => bytes.insert(at, rng.next_u32() as u8),
                4 if bytes.len() > 1 => drop(bytes.remove(at)),
                _ => bytes.truncate(at.max(1)),
            }
        }
        match rng.next_u32() % 8 {
            0 => chunk.rows = u64::from(rng.next_u32()),
            1 => chunk.levels = u64::from(rng.next_u32()),
            2 => chunk.shape.value_bytes ^= 12,
            3 => chunk.codec = (rng.next_u32() % 9) as u8,
            4 => chunk.narrow = !chunk.narrow,
            _ => {}
        }
        chunk.len = bytes.len() as u64;
        match survive(&chunk, &bytes) {
            [None, _] => refused += 1,
            [Some(_), None] => read += 1,
            [Some(fast), Some(slow)] => {
                assert_eq!(fast, slow, "mutation {i}");
                read += 1;
            }
        }
    }
    assert!(read > 50 && refused > 1000, "{read} read, {refused} refused");
}

#[test]
fn any_footer_may_come() {
    let mut rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut refused = 0;
    for case in samples().iter().step_by(5) {
        let file = case.write();
        for _ in 0..300 {
            let mut file = file.clone();
            let len = file.len();
            let footer_bytes = u32::from_le_bytes(file[len - 8..len - 4].try_into().unwrap()) as usize;
            for _ in 0..=rng.next_u32() % 3 {
                let at = len - 1 - rng.next_u32() as usize % (footer_bytes + 8);
                file[at] ^= rng.next_u32() as u8;
            }
            match footer(&file) {
                Err(_) => refused += 1,
                Ok(footer) => {
                    for chunk in footer.columns.iter().flat_map(|column| &column.chunks) {
                        let chunk = chunk.chunk;
                        survive(&chunk, &file[chunk.start as usize..(chunk.start + chunk.len) as usize]);
                    }
                }
            }
        }
    }
    assert!(refused > 1000, "{refused}");
}

#[test]
fn a_schema_that_nests_without_end_is_refused() {
    // A footer of one field: a list of 200,000 groups of one child each.
    let mut footer = vec![0x29, 0xfc];
    super::build::varint(&mut footer, 200_000);
    for _ in 0..200_000 {
        footer.extend([0x48, 1, b'a', 0x15, 2, 0]);
    }
    footer.push(0);
    let error = crate::format::parquet::footer::read_footer(&footer, 1 << 30, &Place::file("f")).unwrap_err();
    assert!(error.to_string().contains("groups deep"), "{error}");
    // A list that declares a thousand million elements and has none.
    let error = crate::format::parquet::footer::read_footer(
        &[0x29, 0xfc, 0x80, 0x94, 0xeb, 0xdc, 0x03],
        1 << 30,
        &Place::file("f"),
    );
    assert!(error.is_err());
}
