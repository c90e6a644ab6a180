//! The decoder's inner loops and whole pages, in bytes of 32-bit tokens a second, beside a copy of as many bytes:
//! `cargo bench -p headrace --bench kernels [-- FILTER]`.
//!
//! Each kernel is run as any processor can and as this one can (`portable`, `detected`).
#![allow(missing_docs, clippy::unwrap_used, reason = "a benchmark")]

use std::hint::black_box;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main, measurement::WallTime};
use headrace::error::{Place, Result};
use headrace::format::parquet::bench_support::{Table, levels, unpack_all, values};
use headrace::format::parquet::cpu::Cpu;
use headrace::format::parquet::footer::{footer_len, read_footer};
use headrace::format::parquet::{ChunkDecoder, Limits, PageValues, TokenChunk, TokenSink, TokensMut};
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::column::writer::ColumnWriter;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

/// Tokens of each measurement: what fits in the second cache with what is made of it.
const TOKENS: usize = 32 << 10;

/// Tokens of a whole chunk, and of a document in it.
const CHUNK_TOKENS: usize = 1 << 20;
const DOCUMENT: usize = 1000;

/// Numbers that any machine makes alike.
fn random(seed: u64) -> impl Iterator<Item = u32> {
    let mut state = seed;
    std::iter::repeat_with(move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ mixed >> 27) as u32
    })
}

/// Token ids as text has them: few that are frequent, many that are rare.
fn ids(vocabulary: u32, count: usize) -> Vec<i32> {
    let skewed = |number: u32| (f64::from(vocabulary).powf(f64::from(number) / f64::from(u32::MAX)) - 1.0) as i32;
    random(1).map(skewed).take(count).collect()
}

/// Bit-packed groups, as a page has them behind the width.
fn pack(numbers: &[u32], width: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(numbers.len() * width as usize / 8 + 8);
    let (mut word, mut bits) = (0_u64, 0);
    for number in numbers {
        word |= u64::from(*number) << bits;
        bits += width;
        while bits >= 8 {
            out.push(word as u8);
            word >>= 8;
            bits -= 8;
        }
    }
    out
}

fn group<'a>(c: &'a mut Criterion, name: &str, tokens: usize) -> BenchmarkGroup<'a, WallTime> {
    let mut group = c.benchmark_group(name);
    group.throughput(Throughput::Bytes(4 * tokens as u64));
    group.warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_secs(1)).sample_size(20);
    group
}

fn cpus() -> [(&'static str, Cpu); 2] {
    [("portable", Cpu::Portable), ("detected", Cpu::detect())]
}

fn kernels(c: &mut Criterion) {
    let mut wide = vec![0_i32; TOKENS];
    let mut narrow = vec![0_u16; TOKENS];
    let from = ids(50_304, TOKENS);
    group(c, "copy", TOKENS).bench_function("memcpy", |b| b.iter(|| black_box(&mut wide).copy_from_slice(&from)));

    // One packed group around each document's start, runs between, as parquet-cpp writes them.
    let (mut rep, mut count) = (Vec::new(), 0);
    while count < TOKENS {
        rep.extend([3, 0xfe]);
        let run = DOCUMENT - 8;
        rep.extend([(run << 1 & 0x7f | 0x80) as u8, (run >> 6) as u8, 1]);
        count += DOCUMENT;
    }
    let mut def = vec![];
    let mut header = (count as u64) << 1;
    while header >= 0x80 {
        def.push(header as u8 | 0x80);
        header >>= 7;
    }
    def.extend([header as u8, 3]);
    group(c, "levels", count).bench_function("documents of 1000", |b| {
        b.iter(|| levels(black_box(&rep), black_box(&def), count as u64).unwrap());
    });

    for (name, cpu) in cpus() {
        let mut unpacked = vec![0_u32; TOKENS];
        for width in [8, 12, 16, 17] {
            let numbers: Vec<u32> = random(2).map(|number| number >> (32 - width)).take(TOKENS).collect();
            let data = pack(&numbers, width);
            group(c, "unpack", TOKENS).bench_function(format!("{width} bits, {name}"), |b| {
                b.iter(|| unpack_all(cpu, black_box(&data), width, &mut unpacked));
            });
            assert_eq!(unpacked, numbers);
        }

        let entries: Vec<i32> = (0..50_304).rev().collect();
        let table = Table::new(cpu, &entries, true).unwrap();
        let indices: Vec<[u8; 2]> = from.iter().map(|id| (*id as u16).to_le_bytes()).collect();
        let mut gather = group(c, "gather", TOKENS);
        gather.bench_function(format!("16 bits to u16, {name}"), |b| {
            b.iter(|| table.gather16(cpu, black_box(&indices), TokensMut::U16(&mut narrow)).unwrap());
        });
        gather.bench_function(format!("16 bits to i32, {name}"), |b| {
            b.iter(|| table.gather16(cpu, black_box(&indices), TokensMut::I32(&mut wide)).unwrap());
        });
        drop(gather);
        let entries: Vec<i32> = (0..128_256).rev().collect();
        let table = Table::new(cpu, &entries, false).unwrap();
        let indices: Vec<u32> = ids(128_256, TOKENS).into_iter().map(|id| id as u32).collect();
        group(c, "gather", TOKENS).bench_function(format!("17 bits to i32, {name}"), |b| {
            b.iter(|| table.gather32(cpu, black_box(&indices), TokensMut::I32(&mut wide)).unwrap());
        });

        let plain: Vec<u8> = from.iter().flat_map(|id| id.to_le_bytes()).collect();
        let split: Vec<u8> = (0..4).flat_map(|byte| from.iter().map(move |id| id.to_le_bytes()[byte])).collect();
        let delta = delta(&from);
        for (encoding, kind, data) in [(0, "plain", &plain), (9, "byte stream split", &split), (5, "delta", &delta)] {
            let mut group = group(c, kind, TOKENS);
            group.bench_function(format!("to i32, {name}"), |b| {
                b.iter(|| values(cpu, black_box(data), encoding, None, TokensMut::I32(&mut wide)).unwrap());
            });
            assert_eq!(wide, from);
            group.bench_function(format!("to u16, {name}"), |b| {
                b.iter(|| values(cpu, black_box(data), encoding, None, TokensMut::U16(&mut narrow)).unwrap());
            });
        }
    }
}

/// Values as differences, in blocks of 128 and miniblocks of 32.
fn delta(ids: &[i32]) -> Vec<u8> {
    let mut out = Vec::new();
    let number = |out: &mut Vec<u8>, mut value: u64| {
        while value >= 0x80 {
            out.push(value as u8 | 0x80);
            value >>= 7;
        }
        out.push(value as u8);
    };
    let signed = |out: &mut Vec<u8>, value: i32| number(out, (i64::from(value) << 1 ^ i64::from(value) >> 63) as u64);
    number(&mut out, 128);
    number(&mut out, 4);
    number(&mut out, ids.len() as u64);
    signed(&mut out, ids[0]);
    let differences: Vec<i32> = ids.windows(2).map(|pair| pair[1] - pair[0]).collect();
    for block in differences.chunks(128) {
        let least = *block.iter().min().unwrap();
        signed(&mut out, least);
        let width = (block.iter().max().unwrap() - least + 1).ilog2() + 1;
        out.extend([width as u8; 4]);
        let mut numbers: Vec<u32> = block.iter().map(|difference| (difference - least) as u32).collect();
        numbers.resize(128, 0);
        out.extend(pack(&numbers, width));
    }
    out
}

/// A file of one chunk, and where that lies.
fn file(ids: &[i32], compression: Compression, dictionary: bool) -> (Vec<u8>, TokenChunk) {
    let message = "message m { optional group t (LIST) { repeated group list { optional int32 element; } } }";
    let properties = WriterProperties::builder()
        .set_compression(compression)
        .set_encoding(Encoding::PLAIN)
        .set_dictionary_enabled(dictionary)
        .build();
    let schema = Arc::new(parse_message_type(message).unwrap());
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties)).unwrap();
    let mut row_group = writer.next_row_group().unwrap();
    let mut column = row_group.next_column().unwrap().unwrap();
    let reps: Vec<i16> = (0..ids.len()).map(|at| i16::from(at % DOCUMENT > 0)).collect();
    let ColumnWriter::Int32ColumnWriter(values) = column.untyped() else { unreachable!() };
    values.write_batch(ids, Some(&vec![3; ids.len()]), Some(&reps)).unwrap();
    column.close().unwrap();
    row_group.close().unwrap();
    let file = writer.into_inner().unwrap();
    let (size, place) = (file.len() as u64, Place::file("bench"));
    let len = footer_len(size, &file[file.len() - 8..], &place).unwrap() as usize;
    let footer = read_footer(&file[file.len() - 8 - len..file.len() - 8], size, &place).unwrap();
    let chunk = footer.columns[0].chunks[0].chunk;
    (file[chunk.start as usize..][..chunk.len as usize].to_vec(), chunk)
}

/// Takes every token, or only the lengths.
struct Taking {
    values: bool,
    narrow: Vec<u16>,
    wide: Vec<i32>,
}

impl TokenSink for Taking {
    fn wants(&mut self, _tokens: Range<u64>) -> bool {
        self.values
    }

    fn documents(&mut self, _continued: bool, _lengths: &[u64], values: &mut PageValues<'_>) -> Result<()> {
        while self.values && values.left() > 0 {
            let count = (values.left() as usize).min(TOKENS);
            match self.narrow.is_empty() {
                true => values.read(TokensMut::I32(&mut self.wide[..count]))?,
                false => values.read(TokensMut::U16(&mut self.narrow[..count]))?,
            }
        }
        Ok(())
    }
}

fn pages(c: &mut Criterion) {
    let zstd = Compression::ZSTD(ZstdLevel::try_new(1).unwrap());
    for (name, compression) in [("none", Compression::UNCOMPRESSED), ("snappy", Compression::SNAPPY), ("zstd", zstd)] {
        for dictionary in [true, false] {
            let (bytes, chunk) = file(&ids(50_304, CHUNK_TOKENS), compression, dictionary);
            assert!(chunk.narrow);
            let mut group = group(c, "pages", CHUNK_TOKENS);
            group.measurement_time(Duration::from_secs(2));
            for (kept, values, narrow) in [("u16", true, TOKENS), ("i32", true, 0), ("lengths", false, 0)] {
                let mut sink = Taking { values, narrow: vec![0; narrow], wide: vec![0; TOKENS] };
                for (path, cpu) in cpus() {
                    let mut decoder = ChunkDecoder::new(Limits { page_bytes: 1 << 30 }).with_cpu(cpu);
                    let kind = if dictionary { "dictionary" } else { "plain" };
                    group.bench_function(format!("{name}, {kind}, {kept}, {path}"), |b| {
                        b.iter(|| {
                            decoder.begin(&chunk, Place::default());
                            decoder.push(black_box(&bytes), &mut sink).unwrap()
                        });
                    });
                }
            }
        }
    }
}

criterion_group!(benches, kernels, pages);
criterion_main!(benches);
