//! What a run will read and need, told before it starts.

use super::layout::WindowLayout;
use super::load::Reading;
use super::plan::WindowPlan;
use super::run::Run;
use crate::error::Result;
use crate::order::rank_lanes;

/// What one rank reads in one pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Stored bytes of the chunks that it reads.
    pub bytes: u64,
    /// Bytes of its largest decoded window.
    pub window_bytes: u64,
    /// Windows of the pass in which it reads something.
    pub windows: u64,
    /// Requests that this takes of a remote store, each chunk being read to its end and once; 0 of a local disk. A chunk
    /// of which only the front is needed may take fewer. One with a page that is larger than a read is begun again, and
    /// so is one that the general reader decodes.
    pub requests: u64,
}

/// Plans a whole pass for one rank; reads nothing. `block` is the length of one read in bytes, see [`super::Shares`].
pub fn report(run: &Run, epoch: u64, batch: u64, world: u64, rank: u64, block: usize) -> Result<Report> {
    let order = run.order();
    let pass = order.pass(epoch);
    let lanes = rank_lanes(run.rows().lanes, run.rows().first_row(epoch), batch, world, rank);
    let mut report = Report { bytes: 0, window_bytes: 0, windows: 0, requests: 0 };
    for number in 0..pass.windows() {
        let plan = WindowPlan::new(order, &pass, number, lanes.clone());
        report.bytes += plan.bytes(run.column());
        report.requests += plan.chunks.iter().map(|plan| Reading::requests(run, plan.chunk, block)).sum::<u64>();
        report.windows += u64::from(!plan.chunks.is_empty());
        report.window_bytes = report.window_bytes.max(WindowLayout::new(run, &plan)?.bytes());
    }
    Ok(report)
}
