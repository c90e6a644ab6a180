//! The first stage of an engine by itself: what a rank reads of a pass, asked for as a run asks for it, and not decoded.
//!
//! For measuring how fast a store is read, and nothing else.

use std::sync::{Arc, Mutex};

use super::conductor::Options;
use super::decode::{Loans, Scratch};
use super::load::{Reading, Reads, read_ahead};
use super::plan::{ChunkPlan, WindowPlan};
use super::pool::Pool;
use super::run::Run;
use super::shares::Shares;
use crate::cancel::Cancel;
use crate::error::Result;
use crate::order::rank_lanes;

/// Reads a pass for one rank, window after window, on `options.workers` threads; gives the bytes.
///
/// # Errors
/// [`crate::Error::Memory`] if the budget is too small for one step, and whatever keeps a chunk from being read.
pub fn fetch(run: &Arc<Run>, options: &Options, epoch: u64, cancel: &Cancel) -> Result<u64> {
    let shares = Shares::new(run, options)?;
    let loans = Arc::new(Loans::new(options.memory, &shares));
    let reading = Reading { block: shares.block, loans, counter: None, cancel: cancel.clone() };
    let (order, rows) = (run.order(), run.rows());
    let (pass, batch) = (order.pass(epoch), options.steps.batch_of(options.start));
    let lanes = rank_lanes(rows.lanes, rows.first_row(epoch), batch, options.world, options.rank);
    let windows = (0..pass.windows()).map(|number| WindowPlan::new(order, &pass, number, lanes.clone()));
    // A window follows the one before without a pause, so they are one line of chunks.
    let chunks: Arc<[ChunkPlan]> = windows.flat_map(|window| window.chunks).collect();
    let reads = Arc::new(Mutex::new(Reads::default()));
    let tasks = (0..chunks.len()).map(|number| {
        let (run, chunks, reads, reading) = (Arc::clone(run), Arc::clone(&chunks), Arc::clone(&reads), reading.clone());
        move |scratch: &mut Scratch| {
            let ahead = read_ahead(&reads, &run, &chunks, number, &reading);
            let stream = ahead.unwrap_or_else(|| reading.open(&run, chunks[number].chunk));
            scratch.drain(stream, &reading.cancel)
        }
    });
    let pool = Pool::start(options.workers, shares.block)?;
    let read = pool.decode(tasks).finish(cancel)?;
    Ok(read.iter().sum())
}
