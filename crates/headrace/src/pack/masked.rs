//! Documents that stay where they are in their rows, and whose tokens do not count for the loss.

use super::Span;

/// Documents of one dataset, each masked from a step on.
///
/// Of a million of them a chunk's rows still fit a processor's cache, which is what looking one up costs.
#[derive(Debug, Clone, Default)]
pub struct Masked {
    /// Chunks that have some, ascending, each with the place of its first one in `rows`.
    chunks: Box<[(u32, usize)]>,
    /// Ascending in each chunk.
    rows: Box<[u32]>,
    /// The first step of each.
    since: Box<[u64]>,
}

impl Masked {
    /// Documents by chunk, row, and the step from which on they are masked; of one that comes twice the first step counts.
    pub fn new(mut documents: Vec<(u32, u32, u64)>) -> Self {
        documents.sort_unstable();
        documents.dedup_by_key(|document| (document.0, document.1));
        let mut chunks: Vec<(u32, usize)> = Vec::new();
        for (at, &(chunk, ..)) in documents.iter().enumerate() {
            if chunks.last().is_none_or(|last| last.0 != chunk) {
                chunks.push((chunk, at));
            }
        }
        let rows = documents.iter().map(|&(_, row, _)| row).collect();
        let since = documents.iter().map(|&(_, _, since)| since).collect();
        Self { chunks: chunks.into(), rows, since }
    }

    /// Whether a part of a row is masked at a step.
    pub fn holds(&self, span: &Span, step: u64) -> bool {
        let Ok(chunk) = self.chunks.binary_search_by_key(&span.chunk, |chunk| chunk.0) else { return false };
        let start = self.chunks[chunk].1;
        let end = self.chunks.get(chunk + 1).map_or(self.rows.len(), |next| next.1);
        self.rows[start..end].binary_search(&span.row).is_ok_and(|at| self.since[start + at] <= step)
    }

    /// Writes 0 to the places of masked parts in the mask of a row of a step, and leaves the others.
    pub fn write(&self, spans: &[Span], step: u64, mask: &mut [u8]) {
        let mut at = 0;
        for span in spans {
            let end = mask.len().min(at + span.positions as usize);
            if self.holds(span, step) {
                mask[at..end].fill(0);
            }
            at = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_masked_from_their_step_on_with_what_was_added_to_them() {
        let span = |chunk, row, positions| Span { chunk, row, first: 0, tokens: positions, positions };
        let spans = [span(0, 7, 2), span(1, 7, 3), span(1, 8, 1)];
        let masked = Masked::new(vec![(1, 8, 4), (1, 7, 9), (1, 7, 5), (0, 8, 0)]);
        let mask = |step| {
            let mut mask = [1; 6];
            masked.write(&spans, step, &mut mask);
            mask
        };
        assert_eq!(mask(3), [1; 6]);
        assert_eq!(mask(4), [1, 1, 1, 1, 1, 0]);
        assert_eq!(mask(5), [1, 1, 0, 0, 0, 0]);
        let mut padded = [1, 1, 1, 0];
        Masked::new(vec![(0, 7, 0)]).write(&spans[..1], 0, &mut padded);
        assert_eq!(padded, [0, 0, 1, 0], "padding is left as it is");
    }
}
