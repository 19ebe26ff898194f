//! RAID-0: which disk has which bytes.

/// Distribution of an array's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stripe {
    /// Disks.
    pub disks: u64,
    /// Bytes of one disk before the next one's turn.
    pub unit_bytes: u64,
}

impl Stripe {
    /// Bytes of disk `disk` that lie before an offset of the array.
    #[must_use]
    pub fn before(&self, offset: u64, disk: u64) -> u64 {
        let row = self.disks * self.unit_bytes;
        let within = (offset % row).saturating_sub(disk * self.unit_bytes).min(self.unit_bytes);
        offset / row * self.unit_bytes + within
    }

    /// The part of a range on disk `disk`: one range, as the units of one disk are adjacent. None if it has no part.
    #[must_use]
    pub fn part(&self, offset: u64, length: u64, disk: u64) -> Option<(u64, u64)> {
        let (from, to) = (self.before(offset, disk), self.before(offset + length, disk));
        (to > from).then_some((from, to - from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_byte_is_on_one_disk_and_units_are_round_robin(
            disks in 1..5u64, unit_bytes in 1..9u64, offset in 0..200u64, length in 0..60u64,
        ) {
            let stripe = Stripe { disks, unit_bytes };
            let parts: u64 = (0..disks).filter_map(|d| stripe.part(offset, length, d)).map(|(_, part)| part).sum();
            prop_assert_eq!(parts, length);
            for byte in offset..offset + length {
                let owner = byte / unit_bytes % disks;
                for disk in 0..disks {
                    prop_assert_eq!(stripe.part(byte, 1, disk).is_some(), disk == owner);
                }
            }
        }
    }
}
