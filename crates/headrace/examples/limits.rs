//! What decoding a folder costs on one thread: `cargo run --release --example limits -- FOLDER COLUMN [CHUNKS]`.
#![allow(clippy::print_stdout, reason = "a program for people")]

use headrace::cancel::Cancel;
use headrace::index::{Index, OpenOptions, Progress};
use headrace::inspect::limits;

fn main() -> headrace::Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [folder, column, rest @ ..] = args.as_slice() else {
        println!("usage: limits FOLDER COLUMN [CHUNKS]");
        return Ok(());
    };
    let chunks = rest.first().and_then(|count| count.parse().ok()).unwrap_or(16);
    let cancel = Cancel::new();
    let options = OpenOptions::default();
    let index = Index::open(std::slice::from_ref(folder), &options, &cancel, &Progress::new())?;
    let found = limits(&index, column, chunks, &cancel)?;
    let each = |nanos: u64| nanos as f64 / found.tokens.max(1) as f64;
    println!(
        "{folder}: {} chunks, {} tokens, {:.2} stored and {:.2} page bytes a token, {}% narrow",
        found.chunks,
        found.tokens,
        each(found.stored_bytes),
        each(found.page_bytes),
        found.narrow_tokens * 100 / found.tokens.max(1),
    );
    println!(
        "  ns a token: decompress {:.3}, levels {:.3}, decode {:.3}, without decompression {:.3}",
        each(found.decompress_ns),
        each(found.levels_ns),
        each(found.decode_ns),
        each(found.decode_ns.saturating_sub(found.decompress_ns)),
    );
    Ok(())
}
