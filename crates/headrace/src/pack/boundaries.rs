//! Where documents begin in a row, in the forms that attention kernels take.

use super::Span;

/// The per-position arrays of one row, each as long as the row.
#[derive(Debug)]
pub struct Boundaries<'a> {
    /// 0, 1, 2 … for the parts of the row in order; padding is one more part.
    pub document_ids: &'a mut [i32],
    /// 0, 1, 2 … within each part.
    pub position_ids: &'a mut [i32],
}

/// Fills the arrays of one row from its spans.
pub fn write_boundaries(spans: &[Span], row: Boundaries<'_>) {
    let length = row.document_ids.len();
    let mut at = 0;
    for (id, end) in ends(spans, length).enumerate() {
        row.document_ids[at..end].fill(id as i32);
        for (position, place) in row.position_ids[at..end].iter_mut().enumerate() {
            *place = position as i32;
        }
        at = end;
    }
}

/// Cumulative lengths of the parts of all rows laid end to end, each row cut to its first `length` positions; and
/// the longest part. Strictly increasing from 0 to rows x `length`.
pub fn cu_seqlens<'a>(rows: impl Iterator<Item = &'a [Span]>, length: usize) -> (Vec<i32>, i32) {
    let mut lengths = vec![0];
    let (mut longest, mut base) = (0, 0);
    for spans in rows {
        let mut before = 0;
        for end in ends(spans, length) {
            longest = longest.max(end - before);
            lengths.push((base + end) as i32);
            before = end;
        }
        base += length;
    }
    (lengths, longest as i32)
}

/// Where each part of a row ends, within `length` positions; what no span covers is one more part.
fn ends(spans: &[Span], length: usize) -> impl Iterator<Item = usize> + '_ {
    let parts = spans.iter().map(|span| span.positions as usize).chain(std::iter::once(length));
    let mut at = 0;
    parts.map_while(move |part| {
        let rest = length - at;
        at += part.min(rest);
        (rest > 0 && part > 0).then_some(at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(positions: u32) -> Span {
        Span { chunk: 0, row: 0, first: 0, tokens: positions, positions }
    }

    fn arrays(spans: &[Span], length: usize) -> (Vec<i32>, Vec<i32>) {
        let (mut ids, mut positions) = (vec![-1; length], vec![-1; length]);
        write_boundaries(spans, Boundaries { document_ids: &mut ids, position_ids: &mut positions });
        (ids, positions)
    }

    #[test]
    fn positions_restart_and_padding_is_a_part_of_its_own() {
        assert_eq!(arrays(&[span(2), span(3)], 5), (vec![0, 0, 1, 1, 1], vec![0, 1, 0, 1, 2]));
        assert_eq!(arrays(&[span(2)], 5), (vec![0, 0, 1, 1, 1], vec![0, 1, 0, 1, 2]));
        assert_eq!(arrays(&[], 2), (vec![0, 0], vec![0, 1]));
    }

    #[test]
    fn cumulative_lengths_increase_strictly_and_end_with_the_row() {
        let (full, cut) = ([span(2), span(3)], [span(4), span(1)]);
        let rows: [&[Span]; 3] = [&full, &cut, &[]];
        assert_eq!(cu_seqlens(rows.into_iter(), 5), (vec![0, 2, 5, 9, 10, 15], 5));
        // With an overlap of one, the last position is no input: a part that lies there alone has no length.
        assert_eq!(cu_seqlens([full.as_slice(), &cut].into_iter(), 4), (vec![0, 2, 4, 8], 4));
    }
}
