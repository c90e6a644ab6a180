//! Bit unpacking: blocks of values, with the width known at compile time.

use super::cpu::{Cpu, Kernel};

/// Values of a block: 1 KiB of them, which stays in the first cache along with what is made of them.
pub(super) const BLOCK: usize = 256;

/// Values that are unpacked together: they begin and end at whole bytes whatever their width.
const STEP: usize = 32;

/// Reads `count` values of `width` bits (at most 32) from the front of `data` into the front of `out`.
///
/// `data` may hold fewer than `count`: those beyond its end are zeros or made of the bits that are there. What `out`
/// holds behind them is of no use.
pub(super) fn unpack(cpu: Cpu, data: &[u8], width: u32, count: usize, out: &mut [u32; BLOCK]) {
    cpu.run(Unpack { data, width, count, out });
}

struct Unpack<'a> {
    data: &'a [u8],
    width: u32,
    count: usize,
    out: &'a mut [u32; BLOCK],
}

impl Kernel for Unpack<'_> {
    type Out = ();

    #[inline(always)]
    fn run(self) {
        let Self { data, width, count, out } = self;
        macro_rules! by_width {
            ($($number:literal)*) => {
                match width {
                    $($number => unpack_all::<$number>(data, count, out),)*
                    _ => out.fill(0),
                }
            };
        }
        by_width!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32);
    }
}

#[inline(always)]
fn unpack_all<const WIDTH: usize>(data: &[u8], count: usize, out: &mut [u32; BLOCK]) {
    let (steps, _) = out.as_chunks_mut::<STEP>();
    let steps = &mut steps[..count.div_ceil(STEP).min(BLOCK / STEP)];
    let mut rest = data;
    for step in steps {
        let mut padded = [0; 128];
        let whole = match rest.split_at_checked(STEP / 8 * WIDTH) {
            Some((now, later)) => {
                rest = later;
                now
            }
            None => {
                padded[..rest.len()].copy_from_slice(rest);
                rest = &[];
                &padded[..STEP / 8 * WIDTH]
            }
        };
        unpack_step::<WIDTH>(whole, step);
    }
}

#[inline(always)]
fn unpack_step<const WIDTH: usize>(data: &[u8], out: &mut [u32; STEP]) {
    let mut words = [0_u32; STEP + 1];
    let (chunks, _) = data.as_chunks::<4>();
    for (word, chunk) in words[..WIDTH].iter_mut().zip(chunks) {
        *word = u32::from_le_bytes(*chunk);
    }
    let mask = u64::from(u32::MAX >> (32 - WIDTH));
    for (i, value) in out.iter_mut().enumerate() {
        let bit = i * WIDTH;
        let pair = u64::from(words[bit / 32]) | u64::from(words[bit / 32 + 1]) << 32;
        *value = (pair >> (bit % 32) & mask) as u32;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that panics has failed")]
mod tests {
    use super::*;

    #[test]
    fn every_width() {
        for cpu in [Cpu::Portable, Cpu::detect()] {
            for width in 1..=32_u32 {
                let values: Vec<u32> =
                    (1..=BLOCK as u32).map(|i| i.wrapping_mul(0x9e37_79b9) >> (32 - width)).collect();
                let mut data = vec![0_u8; BLOCK / 8 * width as usize];
                for (i, value) in values.iter().enumerate() {
                    for bit in 0..width as usize {
                        let at = i * width as usize + bit;
                        data[at / 8] |= ((value >> bit & 1) as u8) << (at % 8);
                    }
                }
                let mut out = [0; BLOCK];
                unpack(cpu, &data, width, BLOCK, &mut out);
                assert_eq!(out.as_slice(), values, "{width} bits");
                for count in (0..BLOCK).step_by(8) {
                    let mut cut = [0; BLOCK];
                    unpack(cpu, &data[..count / 8 * width as usize], width, count, &mut cut);
                    assert_eq!(cut[..count], values[..count]);
                    // More than there is.
                    unpack(cpu, &data[..count / 8 * width as usize], width, BLOCK, &mut cut);
                    assert_eq!(cut[..count], values[..count]);
                }
            }
            let mut out = [7; BLOCK];
            unpack(cpu, &[], 0, BLOCK, &mut out);
            assert_eq!(out, [0; BLOCK]);
        }
    }
}
