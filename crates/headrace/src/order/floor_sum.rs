//! Sums of Euclid's kind.

/// The sum of floor((a * t + b) / m) for t from 0 to n - 1, modulo 2^64: by Euclid's algorithm in O(log m).
pub fn floor_sum(mut n: u64, mut m: u64, mut a: u64, mut b: u64) -> u64 {
    let mut sum = 0_u64;
    loop {
        let pairs = if n.is_multiple_of(2) { (n / 2).wrapping_mul(n.wrapping_sub(1)) } else { (n / 2).wrapping_mul(n) };
        let (whole_a, whole_b);
        (whole_a, a) = divided(a, m);
        (whole_b, b) = divided(b, m);
        sum = sum.wrapping_add(pairs.wrapping_mul(whole_a)).wrapping_add(n.wrapping_mul(whole_b));
        let most = u128::from(a) * u128::from(n) + u128::from(b);
        // Numbers of 64 bits, which all are soon, are divided several times as fast.
        (n, b) = match u64::try_from(most) {
            Ok(most) if most < m => return sum,
            Ok(most) => (most / m, most % m),
            Err(_) => ((most / u128::from(m)) as u64, (most % u128::from(m)) as u64),
        };
        (m, a) = (a, m);
    }
}

/// Quotient and remainder. Most quotients are 0 or 1, for which nothing is divided.
fn divided(number: u64, by: u64) -> (u64, u64) {
    match number.checked_sub(by) {
        None => (0, number),
        Some(rest) if rest < by => (1, rest),
        Some(_) => (number / by, number % by),
    }
}

#[cfg(test)]
mod tests {
    use super::super::moves::POINTS;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sums_agree_with_adding(
            n in 0_u64..60, m in prop_oneof![1_u64..50, POINTS..=POINTS], a: u64, b: u64, small: bool,
        ) {
            let (a, b) = if small { (a % 200, b % 200) } else { (a, b) };
            let parts = (0..u128::from(n)).map(|t| (u128::from(a) * t + u128::from(b)) / u128::from(m));
            prop_assert_eq!(floor_sum(n, m, a, b), parts.sum::<u128>() as u64);
        }
    }
}
