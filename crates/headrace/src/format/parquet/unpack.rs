//! Bit unpacking: 32 values at a time, with the width known at compile time.

/// Reads 32 values of `width` bits (at most 32) from the front of `data`, which holds `4 * width` bytes or is padded
/// with zeros here.
pub(super) fn unpack32(data: &[u8], width: u32, out: &mut [u32; 32]) {
    let bytes = 4 * width as usize;
    let mut padded = [0; 128];
    let data = match data.get(..bytes) {
        Some(data) => data,
        None => {
            let have = data.len().min(128);
            padded[..have].copy_from_slice(&data[..have]);
            &padded[..bytes.min(128)]
        }
    };
    macro_rules! by_width {
        ($($width:literal)*) => {
            match width {
                $($width => unpack::<$width>(data, out),)*
                _ => out.fill(0),
            }
        };
    }
    by_width!(1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32);
}

#[inline]
fn unpack<const WIDTH: usize>(data: &[u8], out: &mut [u32; 32]) {
    let mut words = [0_u32; 33];
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
        for width in 1..=32_u32 {
            let values: Vec<u32> = (1..=32_u32).map(|i| i.wrapping_mul(0x9e37_79b9) >> (32 - width)).collect();
            let mut data = vec![0_u8; 4 * width as usize];
            for (i, value) in values.iter().enumerate() {
                for bit in 0..width as usize {
                    let at = i * width as usize + bit;
                    data[at / 8] |= ((value >> bit & 1) as u8) << (at % 8);
                }
            }
            let mut out = [0; 32];
            unpack32(&data, width, &mut out);
            assert_eq!(out.as_slice(), values, "{width} bits");
            let mut cut = [0; 32];
            unpack32(&data[..2 * width as usize], width, &mut cut);
            assert_eq!(cut[..16], values[..16]);
            assert_eq!(cut[16..], [0; 16]);
        }
        let mut out = [7; 32];
        unpack32(&[], 0, &mut out);
        assert_eq!(out, [0; 32]);
    }
}
