//! What a rank wants of a run, step by step: which of its rows, and from where on each lane is still needed. No I/O.

use std::sync::Arc;

use super::assemble::Job;
use super::conductor::Options;
use super::run::Run;
use crate::order::{LaneSet, Mixture, Ring, rank_lanes, rank_rows, union_lanes};

/// Rounds that are walked rather than counted anew. Evidence: a lane's count takes as long as some hundred rounds.
const WALK: u64 = 64;
/// Rows that a lane may be behind another one of the same source, for the memory that is planned for it: half of what
/// a mixture's lanes may be off their weights by.
const SPREAD: u64 = 4;

/// The place of a run in a mixture, which its rows are drawn for.
#[derive(Debug, Clone)]
pub struct Part {
    /// Which rows there are. The steps are those of the mixture.
    pub mixture: Arc<Mixture>,
    /// Which of its sources the run is.
    pub source: usize,
}

/// A rank's rows at any step, and where its lanes are at one of them.
#[derive(Debug)]
pub struct Demand {
    run: Arc<Run>,
    options: Arc<Options>,
    /// The step whose lanes' places are told.
    step: u64,
    drawn: Option<Drawn>,
}

/// The same of a source of a mixture.
#[derive(Debug)]
struct Drawn {
    takers: Takers,
    /// Where they are at the step, and at the one whose rows were asked for last.
    here: Given,
    ahead: Given,
}

/// Who takes the rows of the own lanes of a source.
#[derive(Debug)]
struct Takers {
    part: Part,
    /// The own lanes of the source, increasing.
    lanes: Vec<u64>,
    /// The lanes of the mixture that take rows from them.
    ring: Ring,
}

/// How many rows each own lane has given before a round.
#[derive(Debug, Clone)]
struct Given {
    round: u64,
    rows: Vec<u64>,
}

impl Demand {
    /// What `options` want of a run, at their first step.
    pub fn new(run: &Arc<Run>, options: &Arc<Options>) -> Self {
        let drawn = options.part.clone().map(|part| Drawn::new(part, options));
        let mut demand = Self { run: Arc::clone(run), options: Arc::clone(options), step: 0, drawn };
        demand.go(options.start);
        demand
    }

    /// Goes to a step.
    pub fn go(&mut self, step: u64) {
        self.step = step;
        if let Some(drawn) = &mut self.drawn {
            let round = self.options.steps.row_of(step) / drawn.takers.part.mixture.lanes();
            drawn.here.go(&drawn.takers, round);
        }
    }

    /// The first step that is not wanted.
    pub fn end(&self) -> u64 {
        let steps = &self.options.steps;
        let end = match &self.drawn {
            Some(drawn) => drawn.takers.part.mixture.rows().map(|rows| steps.whole(rows)),
            None => steps.end(self.run.rows()),
        };
        [end, self.options.stop].into_iter().flatten().min().unwrap_or(u64::MAX)
    }

    /// The own rows of a step, and of a mixture where they stand in the rank's batch.
    pub fn job(&mut self, step: u64) -> Job {
        let (options, rows) = (&self.options, self.run.rows());
        let (first, batch) = (options.steps.row_of(step), options.steps.batch_of(step));
        if let Some(drawn) = &mut self.drawn {
            let own = rank_rows(drawn.takers.part.mixture.lanes(), first, batch, options.world, options.rank);
            let (places, rows) = drawn.rows(first..first + batch, &own);
            return Job { step, epoch: 0, rows, places };
        }
        let own = rank_rows(rows.lanes, first, batch, options.world, options.rank);
        Job { step, epoch: rows.epoch_of(first), rows: own, places: Vec::new() }
    }

    /// The first unit of the dealt line that is needed at the step or later.
    pub fn first_unit(&self) -> u64 {
        let rows = self.run.rows();
        match &self.drawn {
            Some(drawn) => {
                let lanes = drawn.takers.lanes.iter().zip(&drawn.here.rows);
                lanes.map(|(lane, given)| rows.first_unit(given * rows.lanes + lane)).min().unwrap_or(0)
            }
            None => rows.first_unit(self.options.steps.row_of(self.step)),
        }
    }

    /// The first token of an own lane's stream that is needed at the step or later.
    pub fn lane_token(&self, lane: u64) -> u64 {
        match &self.drawn {
            Some(drawn) => {
                let at = drawn.takers.lanes.partition_point(|&own| own < lane);
                drawn.here.rows.get(at).map_or(0, |given| self.run.rows().strides.lane(lane).token(*given))
            }
            None => self.run.rows().lane_token(lane, self.options.steps.row_of(self.step)),
        }
    }

    /// Tokens that are needed at a time, at most: those of a step, and of each lane what it may be behind others.
    pub fn most_tokens(&self) -> (u64, u64) {
        let (options, own) = (&self.options, self.run.rows());
        let rows = options.steps.largest_batch_from(options.start) / options.world;
        match &self.drawn {
            Some(drawn) => {
                let Part { mixture, source } = &drawn.takers.part;
                let share = mixture.largest_share(*source, drawn.here.round);
                let row = mixture.lengths().of(drawn.here.round) + own.overlap;
                (((rows as f64 * share).ceil() as u64).saturating_mul(row), SPREAD.saturating_mul(row))
            }
            None => {
                let row = own.row_tokens(options.steps.row_of(options.start));
                (rows.saturating_mul(row), row)
            }
        }
    }

    /// The own lanes while each of the steps' segments lasts; of a mixture's source they are always the same.
    pub fn lanes(&self) -> Vec<LaneSet> {
        let one = |lane| lane..lane + 1;
        if let Some(drawn) = &self.drawn {
            return vec![union_lanes(drawn.takers.lanes.iter().copied().map(one).collect())];
        }
        let (options, lanes) = (&self.options, self.run.rows().lanes);
        let segments = options.steps.segments();
        if options.is_one_step() {
            // Only what its rows touch.
            let (row, batch) = (options.steps.row_of(options.start), options.steps.batch_of(options.start));
            let own = rank_rows(lanes, row, batch, options.world, options.rank);
            return vec![union_lanes(own.iter().map(|row| row % lanes).map(one).collect()); segments.len()];
        }
        let ends = segments.iter().skip(1).map(|next| next.step).chain([u64::MAX]);
        // What is past was shared out among other ranks, perhaps.
        let own = segments.iter().zip(ends).map(|(segment, end)| match end <= options.start {
            true => LaneSet::new(),
            false => rank_lanes(lanes, segment.row, segment.batch, options.world, options.rank),
        });
        own.collect()
    }
}

impl Drawn {
    fn new(part: Part, options: &Options) -> Self {
        let (mixture, steps) = (&part.mixture, &options.steps);
        let source_lane = |lane| mixture.source_lane(part.source, lane);
        let mut lanes: Vec<u64> = if options.is_one_step() {
            let (row, batch) = (steps.row_of(options.start), steps.batch_of(options.start));
            let own = rank_rows(mixture.lanes(), row, batch, options.world, options.rank).into_iter();
            own.filter(|&row| mixture.source(row) == part.source)
                .map(|row| source_lane(row % mixture.lanes()))
                .collect()
        } else {
            let ends = steps.segments().iter().skip(1).map(|next| next.step).chain([u64::MAX]);
            let later = steps.segments().iter().zip(ends).filter(|(_, end)| *end > options.start);
            let own = later.flat_map(|(segment, _)| {
                rank_lanes(mixture.lanes(), segment.row, segment.batch, options.world, options.rank)
            });
            own.flat_map(|lanes| source_lane(lanes.start)..=source_lane(lanes.end - 1)).collect()
        };
        lanes.sort_unstable();
        lanes.dedup();
        let given = Given { round: 0, rows: vec![0; lanes.len()] };
        Self { takers: Takers::new(part, lanes), here: given.clone(), ahead: given }
    }

    /// Of the own rows of a mixture among some rows of it: those of this source, as places among `own`, and as rows of
    /// the source.
    fn rows(&mut self, all: std::ops::Range<u64>, own: &[u64]) -> (Vec<usize>, Vec<u64>) {
        let lanes = self.takers.part.mixture.lanes();
        self.ahead.go(&self.takers, all.start / lanes);
        let source_lanes = self.takers.source_lanes();
        let (mut places, mut rows) = (Vec::new(), Vec::new());
        let mut given = self.ahead.rows.clone();
        for round in all.start / lanes..all.end.div_ceil(lanes) {
            // Lanes of the mixture that share one of the source take its rows in their order.
            let mut takers: Vec<(u64, usize)> = self.takers.of(round).collect();
            takers.sort_unstable();
            for (taker, at) in takers {
                if let Ok(place) = own.binary_search(&(round * lanes + taker)) {
                    places.push(place);
                    rows.push(given[at] * source_lanes + self.takers.lanes[at]);
                }
                given[at] += 1;
            }
        }
        (places, rows)
    }
}

impl Takers {
    fn new(part: Part, lanes: Vec<u64>) -> Self {
        let takers = lanes.iter().flat_map(|&lane| part.mixture.takers(part.source, lane));
        let ring = part.mixture.ring(takers);
        Self { part, lanes, ring }
    }

    fn source_lanes(&self) -> u64 {
        self.part.mixture.source_lanes(self.part.source)
    }

    /// The lanes of the mixture that take a row of an own lane in a round, in any order, with that lane's number among
    /// the own ones.
    fn of(&self, round: u64) -> impl Iterator<Item = (u64, usize)> + '_ {
        let Part { mixture, source } = &self.part;
        let number = |own| self.lanes.partition_point(|&lane| lane < own);
        let takers = mixture.taking(*source, round, &self.ring);
        takers.map(move |taker| (taker, number(mixture.source_lane(*source, taker))))
    }
}

impl Given {
    fn go(&mut self, takers: &Takers, round: u64) {
        if !(self.round..=self.round + WALK).contains(&round) {
            let Part { mixture, source } = &takers.part;
            self.rows = takers.lanes.iter().map(|&lane| mixture.given(*source, lane, round)).collect();
        } else {
            for (_, at) in (self.round..round).flat_map(|round| takers.of(round)) {
                self.rows[at] += 1;
            }
        }
        self.round = round;
    }
}
