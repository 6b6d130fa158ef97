//! Half-precision numbers (IEEE 754 binary16, and bfloat16), which the language does not have.

/// Widens an IEEE 754 half, whose exponent has five bits and whose fraction has ten.
pub(super) fn to_float(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let exponent = u32::from(bits >> 10 & 0x1F);
    let fraction = u32::from(bits & 0x3FF);
    match (exponent, fraction) {
        // Subnormal numbers are multiples of 2^-24, which a float has exactly.
        (0, fraction) => f32::from_bits((fraction as f32 / 16_777_216.0).to_bits() | sign),
        (0x1F, fraction) => f32::from_bits(sign | 0x7F80_0000 | fraction << 13),
        (exponent, fraction) => f32::from_bits(sign | (exponent + 112) << 23 | fraction << 13),
    }
}

/// Form of numbers of 16 bits: a sign, an exponent, and a fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HalfForm {
    /// IEEE 754 binary16.
    Ieee,
    /// Upper half of a `float32`.
    #[cfg(feature = "netcdf")]
    Bfloat,
}

impl HalfForm {
    /// Returns the bits of the number that is nearest to `value`: of two, the even one. Numbers
    /// beyond the largest become infinite.
    pub(super) fn nearest(self, value: f64) -> u16 {
        // Bits of the fraction, and the exponents of the largest numbers and of the smallest ones
        // that are not subnormal.
        let (fraction, largest, smallest) = match self {
            HalfForm::Ieee => (10, 15, -14),
            #[cfg(feature = "netcdf")]
            HalfForm::Bfloat => (7, 127, -126),
        };
        let sign = (value.to_bits() >> 48) as u16 & 0x8000;
        let infinite = ((largest - smallest + 2) as u16) << fraction;
        if value.is_nan() {
            return sign | infinite | 1 << (fraction - 1);
        }
        // That of a subnormal double is wrong and far below the smallest.
        let exponent = (value.to_bits() >> 52 & 0x7FF) as i32 - 1023;
        if exponent > largest {
            return sign | infinite;
        }
        let exponent = exponent.max(smallest);
        // A power of two, so that only rounding changes anything.
        let units = (value.abs() * 2_f64.powi(fraction - exponent)).round_ties_even() as u16;
        // The leading bit of a number that is not subnormal counts up the exponent, and so does
        // rounding up to the next power.
        sign | ((((exponent - smallest) as u16) << fraction) + units).min(infinite)
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

    /// Checks the rounding of all finite numbers of a form, and of what lies between them.
    #[cfg(feature = "netcdf")]
    fn check_rounding(form: HalfForm, widen: impl Fn(u16) -> f32, infinite: u16) {
        for bits in 0..infinite {
            let value = f64::from(widen(bits));
            let next = f64::from(widen(bits + 1));
            assert_eq!(form.nearest(value), bits);
            assert_eq!(form.nearest(-value), bits | 0x8000);
            // The limit of what is finite lies as if there were one more number.
            let next = if bits + 1 == infinite { 2.0 * value - f64::from(widen(bits - 1)) } else { next };
            let middle = value + (next - value) / 2.0;
            let even = bits + (bits & 1);
            assert_eq!(form.nearest(middle), even, "{bits:04x}");
            assert_eq!(form.nearest(-middle), even | 0x8000, "{bits:04x}");
            assert_eq!(form.nearest(middle.next_down()), bits, "{bits:04x}");
            assert_eq!(form.nearest(middle.next_up()), bits + 1, "{bits:04x}");
        }
        for (value, bits) in [(f64::INFINITY, infinite), (1e300, infinite), (-f64::MAX, infinite | 0x8000)] {
            assert_eq!(form.nearest(value), bits);
        }
        for tiny in [f64::MIN_POSITIVE, 5e-324] {
            assert_eq!([form.nearest(tiny), form.nearest(-tiny)], [0, 0x8000]);
        }
        assert!(widen(form.nearest(f64::NAN)).is_nan());
    }

    #[cfg(feature = "netcdf")]
    #[test]
    fn doubles_become_the_nearest_halves() {
        check_rounding(HalfForm::Ieee, to_float, 0x7C00);
        check_rounding(HalfForm::Bfloat, |bits| f32::from_bits(u32::from(bits) << 16), 0x7F80);
        assert_eq!(HalfForm::Ieee.nearest(f64::NAN), 0x7E00);
        assert_eq!(HalfForm::Bfloat.nearest(f64::NAN), 0x7FC0);
    }
}
