//! Statement of invariants.

/// Fails with the message when the condition does not hold.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}

pub(in crate::mapping) use ensure;
