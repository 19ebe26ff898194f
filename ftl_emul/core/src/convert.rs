//! Conversions of numbers beyond what `From` offers.

/// The same number in another integer type, which must be able to represent it. From u64 to usize it is free.
#[inline(always)]
#[track_caller]
pub fn exact<U>(n: impl TryInto<U>) -> U {
    match n.try_into() {
        Ok(n) => n,
        Err(_) => unreachable!("the number is too large for its type, although its size was checked before"),
    }
}

/// The same number with a sign, or the largest signed number.
#[must_use]
pub fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// The same number, or 0 instead of a negative one.
#[must_use]
pub fn unsigned(n: i64) -> u64 {
    u64::try_from(n).unwrap_or(0)
}

/// The integer part of a number, clamped to the range of u64.
#[inline(always)]
#[must_use]
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "as documented")]
pub fn whole(n: f64) -> u64 {
    n as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_saturate() {
        assert_eq!([-1.5, 0.9, 7.9, f64::NAN, 1e300].map(whole), [0, 0, 7, 0, u64::MAX]);
    }

    #[test]
    fn signed_numbers_saturate() {
        assert_eq!([0, 7, u64::MAX].map(signed), [0, 7, i64::MAX]);
        assert_eq!([-7, 0, 7].map(unsigned), [0, 0, 7]);
    }

    #[test]
    #[should_panic(expected = "too large for its type")]
    fn numbers_are_never_truncated() {
        exact::<u32>(1_u64 << 32);
    }
}
