//! Bit unpacking: blocks of values, with the width known at compile time.

use super::cpu::{Cpu, Kernel};

/// Calls a function for a width that is known only now.
macro_rules! by_width {
    ($width:expr, $function:ident, $arguments:tt, $none:expr) => {
        by_width!($width, $function, $arguments, $none,
            1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32)
    };
    ($width:expr, $function:ident, $arguments:tt, $none:expr, $($number:literal)*) => {
        match $width {
            $($number => $function::<$number> $arguments,)*
            _ => $none,
        }
    };
}

/// Values of a block: 1 KiB of them, which stays in the first cache along with what is made of them.
pub(super) const BLOCK: usize = 256;

/// Values that are unpacked together: they begin and end at whole bytes whatever their width.
const STEP: usize = 32;

/// Reads `count` values of `width` bits (at most 32) from the front of `data` into the front of `out`.
///
/// `data` may hold fewer than `count`; what `out` holds behind those that are there is of no use.
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
        by_width!(width, unpack_all, (data, count, out), out.fill(0));
    }
}

/// Reads [`STEP`] values, for kernels: `data` holds all their bytes.
#[inline(always)]
pub(super) fn unpack32(data: &[u8], width: u32, out: &mut [u32; STEP]) {
    by_width!(width, unpack_step, (data, out), out.fill(0));
}

#[inline(always)]
fn unpack_all<const WIDTH: usize>(data: &[u8], count: usize, out: &mut [u32; BLOCK]) {
    let (steps, _) = out.as_chunks_mut::<STEP>();
    let mut steps = steps[..count.div_ceil(STEP).min(BLOCK / STEP)].iter_mut();
    let mut whole = data.chunks_exact(STEP / 8 * WIDTH);
    for (data, step) in whole.by_ref().zip(steps.by_ref()) {
        unpack_step::<WIDTH>(data, step);
    }
    if let Some(step) = steps.next() {
        let mut padded = [0; STEP / 8 * 32];
        let rest = whole.remainder();
        padded[..rest.len()].copy_from_slice(rest);
        unpack_step::<WIDTH>(&padded[..STEP / 8 * WIDTH], step);
    }
}

/// From `4 * WIDTH` bytes: the eight bytes around each value, which for the last ones end with the data.
#[inline(always)]
fn unpack_step<const WIDTH: usize>(data: &[u8], out: &mut [u32; STEP]) {
    let data = &data[..STEP / 8 * WIDTH];
    let mask = u32::MAX >> (32 - WIDTH);
    if WIDTH == 1 {
        let word = data.first_chunk::<4>().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        out.iter_mut().enumerate().for_each(|(i, value)| *value = word >> i & mask);
        return;
    }
    // Eight values are so many bytes, and as many as a vector holds: in this form they are made in one.
    let (eights, _) = out.as_chunks_mut::<8>();
    for (number, eight) in eights.iter_mut().enumerate() {
        let mut values = [0; 8];
        for (i, value) in values.iter_mut().enumerate() {
            let bit = (number * 8 + i) * WIDTH;
            let at = (bit / 8).min(data.len() - 8);
            let word = data[at..].first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes));
            *value = (word >> (bit - 8 * at)) as u32 & mask;
        }
        *eight = values;
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
