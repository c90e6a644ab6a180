//! Numbers that lie on a circle: those of a stretch of it are found without looking at the others.

/// Numbers with their places on a circle, in the order in which they lie.
#[derive(Debug, Clone)]
pub struct Ring {
    /// The places that the circle has.
    size: u64,
    /// The place of each number.
    points: Vec<(u64, u64)>,
}

impl Ring {
    /// Numbers with their places, all before `size`.
    pub(super) fn new(size: u64, points: impl Iterator<Item = (u64, u64)>) -> Self {
        let mut points: Vec<_> = points.collect();
        points.sort_unstable();
        Self { size, points }
    }

    /// The numbers that lie in the `length` places from `start` on, which may go on behind the circle's end.
    pub(super) fn stretch(&self, start: u64, length: u64) -> impl Iterator<Item = u64> + '_ {
        let before = |place: u64| self.points.partition_point(|&(point, _)| point < place);
        let (first, end) = (before(start), start + length);
        let head = &self.points[first..before(end.min(self.size)).max(first)];
        let tail = &self.points[..before(end.saturating_sub(self.size))];
        head.iter().chain(tail).map(|&(_, number)| number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_stretch_holds_what_lies_in_it(
            places in prop::collection::vec(0_u64..20, 0..30), start in 0_u64..20, length in 0_u64..=20,
        ) {
            let ring = Ring::new(20, (0..).zip(&places).map(|(number, &place)| (place, number)));
            let mut found: Vec<u64> = ring.stretch(start, length).collect();
            found.sort_unstable();
            let is_in = |place: u64| (place + 20 - start) % 20 < length;
            let wanted: Vec<u64> = (0..).zip(&places).filter(|(_, place)| is_in(**place)).map(|(number, _)| number).collect();
            prop_assert_eq!(found, wanted);
        }
    }
}
