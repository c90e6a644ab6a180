//! How the memory budget is shared out, before anything is taken of it.

use super::assemble::batch_bytes;
use super::conductor::Options;
use super::decode::{Loans, Scratch};
use super::load::Reading;
use super::run::{PackSpec, Run};
use crate::error::{Error, Result};

/// Reads are at most this large. Evidence: half a second at 16 MB/s, far below the 20 s after which a store counts as silent.
const LARGEST_BLOCK: u64 = 8 << 20;
/// And at least this large where the memory budget is small: below it, requests cost more than bytes.
const SMALLEST_BLOCK: u64 = 256 << 10;
/// Of what is left after the batches, workers' buffers take at most one part in so many: from a local disk, where small
/// reads cost little and windows are better off with the rest, and from a remote store. Evidence: writers make pages of
/// a megabyte, so two threads have room for them in 150 MB.
const BUFFERS_PART: u64 = 8;
const REMOTE_BUFFERS_PART: u64 = 2;
/// Where batches are small, up to this many are ready ahead of use and half as many are assembled at once: waking
/// threads costs more than they do. All of those hold at most one part in so many of what the budget has to spare, of a
/// mixture as many times more.
const SMALL_BATCHES: u64 = 8;
const BATCHES_PART: u64 = 32;
/// Each source of a mixture makes a part of a batch only, so there are as many more batches and parts, up to so many times.
/// Evidence: with twice as many a mixture of eight takes a twentieth more CPU time.
const MOST_PARTS: u64 = 4;

/// How the memory budget is shared out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shares {
    /// Bytes of one read, and of a page without extra memory.
    pub block: usize,
    /// Bytes of what does not grow with the window: batches, threads' buffers.
    pub fixed: u64,
    /// The same with the largest blocks: what it is at most in a larger budget.
    pub most_fixed: u64,
    /// Batches that are ready ahead of use.
    pub ready: usize,
    /// Batches that are assembled at once.
    pub group: usize,
}

impl Shares {
    /// Shares out `options.memory` for a rank of a run.
    ///
    /// # Errors
    /// [`Error::Memory`] if it is too small for one step; [`Error::Argument`] if rows change their length behind the first.
    pub fn new(run: &Run, options: &Options) -> Result<Self> {
        let rows = run.rows();
        options.check_behind(rows.strides.lane(0).current().1 * rows.lanes)?;
        Self::of_parts(&[run], &run.pack(options.steps.row_of(options.start)), options)
    }

    /// The same among all runs of a mixture, whose rows are packed as `pack` says.
    ///
    /// # Errors
    /// See [`Shares::new`].
    pub(super) fn of_parts(runs: &[&Run], pack: &PackSpec, options: &Options) -> Result<Self> {
        let rows = options.steps.largest_batch_from(options.start) / options.world;
        let most = i32::MAX as u64;
        if pack.boundaries && rows.saturating_mul(pack.seq_len) > most {
            let (found, seq_len) = (rows * pack.seq_len, pack.seq_len);
            return Err(Error::Argument(format!(
                "cu_seqlens are int32: a rank's rows may hold at most {most} tokens, got {rows} x {seq_len} = {found}"
            )));
        }
        let documents = runs.iter().fold(0_u64, |sum, run| sum.saturating_add(run.index().rows()));
        let batch = batch_bytes(pack, rows, documents).max(1);
        let workers = options.workers as u64;
        let ahead: u64 = runs.iter().map(|run| Reading::ahead_blocks(run, workers)).sum();
        let blocks = workers * Scratch::BLOCKS + ahead;
        let small = workers * Scratch::bytes(0);
        let fixed = |batches: u64, block: u64| batches.saturating_add(small).saturating_add(blocks * block);
        // One more than are ready is being assembled.
        let (mut ready, mut group) = (options.prefetch, 1);
        let least = fixed(batch.saturating_mul(ready as u64 + 1), SMALLEST_BLOCK);
        let parts = (runs.len() as u64).min(MOST_PARTS);
        let small_batches = SMALL_BATCHES * parts;
        let spare = options.memory.saturating_sub(least) / BATCHES_PART * parts;
        let many = (spare / batch * 2 / 3).min(small_batches) as usize;
        if many > ready {
            (ready, group) = (many, many / 2);
        }
        let batches = batch.saturating_mul((ready + group) as u64);
        let most_batches = batch.saturating_mul((small_batches * 3 / 2).max(options.prefetch as u64 + 1));
        let part = if ahead > 0 { REMOTE_BUFFERS_PART } else { BUFFERS_PART };
        let spare = options.memory.saturating_sub(batches) / part;
        let block = (spare.saturating_sub(small) / blocks).clamp(SMALLEST_BLOCK, LARGEST_BLOCK);
        let (needed, available) = (fixed(batches, block), options.memory);
        if needed > available {
            let purpose = format!("{} batches of {rows} rows and {workers} workers' buffers", ready + group);
            return Err(Error::Memory { purpose, needed: fixed(batches, SMALLEST_BLOCK), available });
        }
        Ok(Self { block: block as usize, fixed: needed, most_fixed: fixed(most_batches, LARGEST_BLOCK), ready, group })
    }

    /// Bytes for windows, of a budget of `memory`.
    pub fn windows(&self, memory: u64) -> u64 {
        (memory - self.fixed) / Loans::PARTS * (Loans::PARTS - 1)
    }

    /// Groups that may wait to be taken. Of the one that is taken all but one batch are ready, too.
    pub fn groups_ahead(&self) -> usize {
        if self.group == 1 { self.ready } else { (self.ready / self.group - 1).max(1) }
    }
}
