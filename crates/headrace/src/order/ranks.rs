//! Ranks: which rows of a global batch a rank gets, and which lanes it therefore reads.

/// Lanes as sorted, disjoint, non-adjacent ranges.
pub type LaneSet = Vec<std::ops::Range<u64>>;

/// Whether a rank owns a fixed block of lanes (else: a contiguous part of each batch).
fn owns_lanes(lanes: u64, batch: u64, world: u64) -> bool {
    batch.is_multiple_of(lanes) && lanes.is_multiple_of(world)
}

/// The rows of the global batch `first..first + batch` that rank `rank` of `world` gets, in order.
///
/// `world` must divide `batch`.
pub fn rank_rows(lanes: u64, first: u64, batch: u64, world: u64, rank: u64) -> Vec<u64> {
    let share = batch / world;
    if owns_lanes(lanes, batch, world) {
        let (own, end) = (lanes / world, first + batch);
        let mut rows = Vec::with_capacity(share as usize);
        // The rank's block of each round that the batch has a part of.
        for round in first / lanes..end.div_ceil(lanes) {
            let start = round * lanes + own * rank;
            rows.extend(start.max(first)..(start + own).min(end));
        }
        rows
    } else {
        (first + share * rank..first + share * (rank + 1)).collect()
    }
}

/// The lanes of all rows that a rank gets while batches of `batch` rows follow one another from row `first` on.
pub fn rank_lanes(lanes: u64, first: u64, batch: u64, world: u64, rank: u64) -> LaneSet {
    if owns_lanes(lanes, batch, world) {
        let own = lanes / world;
        return vec![own * rank..own * (rank + 1)];
    }
    let share = batch / world;
    if share >= lanes {
        return vec![0..lanes];
    }
    // Batches begin at as many places among the lanes as it takes until they are back at the first.
    let mut parts = Vec::new();
    for step in 0..lanes / gcd(lanes, batch) {
        let start = (first + step * batch + share * rank) % lanes;
        parts.push(start..(start + share).min(lanes));
        if start + share > lanes {
            parts.push(0..start + share - lanes);
        }
    }
    union_lanes(parts)
}

/// The union of lane ranges, in the form of a [`LaneSet`].
pub fn union_lanes(mut parts: Vec<std::ops::Range<u64>>) -> LaneSet {
    parts.retain(|part| !part.is_empty());
    parts.sort_unstable_by_key(|part| part.start);
    let mut merged: LaneSet = Vec::new();
    for part in parts {
        match merged.last_mut() {
            Some(last) if part.start <= last.end => last.end = last.end.max(part.end),
            _ => merged.push(part),
        }
    }
    merged
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_row_has_one_rank_and_ranks_read_their_lanes_only(
            lanes in 1_u64..13, share in 1_u64..7, world in 1_u64..7, first in 0_u64..40,
        ) {
            let batch = share * world;
            let sets: Vec<LaneSet> = (0..world).map(|rank| rank_lanes(lanes, first, batch, world, rank)).collect();
            for step in 0..20 {
                let start = first + step * batch;
                let mut all = Vec::new();
                for rank in 0..world {
                    let rows = rank_rows(lanes, start, batch, world, rank);
                    prop_assert_eq!(rows.len() as u64, share);
                    prop_assert!(rows.is_sorted());
                    for row in &rows {
                        prop_assert!(sets[rank as usize].iter().any(|part| part.contains(&(row % lanes))));
                    }
                    all.extend(rows);
                }
                all.sort_unstable();
                prop_assert_eq!(all, (start..start + batch).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn ranks_own_contiguous_lanes_where_the_batch_allows() {
        assert_eq!(rank_lanes(12, 0, 24, 3, 1), vec![4..8]);
        assert_eq!(rank_rows(12, 12, 12, 3, 1), vec![16, 17, 18, 19]);
        assert_eq!(rank_lanes(8, 0, 4, 2, 0), vec![0..2, 4..6]);
        assert_eq!(rank_lanes(1, 0, 4, 2, 1), vec![0..1]);
    }
}
