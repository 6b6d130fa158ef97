//! Half-precision numbers (IEEE 754 binary16), which the language does not have.

/// Widens an IEEE 754 half, whose exponent has five bits and whose fraction has ten.
pub(super) fn to_float(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let (exponent, fraction) = (u32::from(bits >> 10 & 0x1F), u32::from(bits & 0x3FF));
    match (exponent, fraction) {
        // Subnormal numbers are multiples of 2^-24, which a float has exactly.
        (0, fraction) => f32::from_bits((fraction as f32 / 16_777_216.0).to_bits() | sign),
        (0x1F, fraction) => f32::from_bits(sign | 0x7F80_0000 | fraction << 13),
        (exponent, fraction) => f32::from_bits(sign | (exponent + 112) << 23 | fraction << 13),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_are_widened_exactly() {
        let cases = [
            (0x3C00_u16, 1.0_f32),
            (0xC000, -2.0),
            (0x7BFF, 65504.0),
            (0x0400, 6.103_515_6e-5),
            (0x0001, 5.960_464_5e-8),
            (0x03FF, 6.097_555e-5),
            (0x7C00, f32::INFINITY),
            (0xFC00, f32::NEG_INFINITY),
            (0x8000, -0.0),
            (0x3555, 0.333_251_95),
        ];
        for (half, float) in cases {
            assert_eq!(to_float(half).to_bits(), float.to_bits(), "{half:04x}");
        }
        assert!(to_float(0x7E00).is_nan());
    }
}
