//! Layout of data on the platters, seek times and rotational delays.

use crate::convert::whole;
use crate::disk::parameters::DiskParameters;
use crate::error::FtlError;

const NS_PER_S: f64 = 1e9;

/// Cylinders of the same rate.
#[derive(Debug, Clone, Copy)]
struct Zone {
    first_byte: u64,
    first_cylinder: f64,
    bytes_ns: f64,
    /// Of one revolution, so that sectors that pass by while heads are switched are not counted.
    track_bytes: f64,
}

/// A place under a head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Place {
    /// Counted from the outside.
    pub cylinder: f64,
    /// Part of a revolution, 0 to 1.
    pub angle: f64,
}

/// The mechanics of one disk, without state.
#[derive(Debug, Clone)]
pub struct Mechanics {
    parameters: DiskParameters,
    cylinders: f64,
    zones: Vec<Zone>,
    /// Nanoseconds for each root of a cylinder, and for each cylinder.
    root_ns: f64,
    linear_ns: f64,
}

impl Mechanics {
    /// Lays out a disk. Refuses parameters that make none.
    pub fn new(parameters: DiskParameters) -> Result<Self, FtlError> {
        parameters.validate()?;
        let p = &parameters;
        let (outer, inner) = (p.outer_bytes_s as f64 / NS_PER_S, p.inner_bytes_s as f64 / NS_PER_S);
        let rotation_ns = p.rotation_ns as f64;
        let mean_track = f64::midpoint(outer, inner) * rotation_ns;
        let cylinders = (p.capacity_bytes as f64 / (mean_track * f64::from(p.heads))).round().max(1.0);
        let count = f64::from(p.zones);
        let step = (outer - inner) / (count - 1.0).max(1.0);
        let (mut zones, mut first_byte) = (Vec::with_capacity(p.zones as usize), 0.0);
        for number in 0..p.zones {
            let bytes_ns = outer - step * f64::from(number);
            let track_bytes = bytes_ns * rotation_ns;
            let first_cylinder = cylinders / count * f64::from(number);
            zones.push(Zone { first_byte: whole(first_byte), first_cylinder, bytes_ns, track_bytes });
            first_byte += cylinders / count * f64::from(p.heads) * track_bytes;
        }
        // Lee and Katz, "An analytic performance model of disk arrays", SIGMETRICS 1993: a sqrt(d - 1) + b (d - 1) + c,
        // with a, b and c from the least, the average and the longest seek.
        let (min, mean, max) = (p.seek_min_ns as f64, p.seek_average_ns as f64, p.seek_max_ns as f64);
        let root_ns = (-10.0 * min + 15.0 * mean - 5.0 * max) / (3.0 * cylinders.sqrt());
        let linear_ns = (7.0 * min - 15.0 * mean + 8.0 * max) / (3.0 * cylinders);
        Ok(Self { parameters, cylinders, zones, root_ns, linear_ns })
    }

    /// The parameters of the disk.
    #[must_use]
    pub fn parameters(&self) -> &DiskParameters {
        &self.parameters
    }

    /// Number of cylinders, from the capacity and a track's mean size.
    #[must_use]
    pub fn cylinders(&self) -> u64 {
        whole(self.cylinders)
    }

    fn zone(&self, offset_bytes: u64) -> &Zone {
        let after = self.zones.partition_point(|zone| zone.first_byte <= offset_bytes);
        &self.zones[after.max(1) - 1]
    }

    /// Sustained rate at an offset, bytes per nanosecond.
    #[must_use]
    pub fn rate_bytes_ns(&self, offset_bytes: u64) -> f64 {
        self.zone(offset_bytes).bytes_ns
    }

    /// Time under the head of a range, nanoseconds.
    #[must_use]
    pub fn transfer_ns(&self, offset_bytes: u64, length_bytes: u64) -> u64 {
        whole((length_bytes as f64 / self.rate_bytes_ns(offset_bytes)).round())
    }

    /// Position of an offset.
    #[must_use]
    pub fn place(&self, offset_bytes: u64) -> Place {
        let zone = self.zone(offset_bytes);
        let tracks = (offset_bytes - zone.first_byte) as f64 / zone.track_bytes;
        let cylinder = zone.first_cylinder + (tracks / f64::from(self.parameters.heads)).floor();
        Place { cylinder: cylinder.min(self.cylinders - 1.0).floor(), angle: tracks.fract() }
    }

    /// Seek time over a number of cylinders, including settling for a read, in nanoseconds; 0 without a seek.
    #[must_use]
    pub fn seek_ns(&self, distance_cylinders: f64) -> u64 {
        if distance_cylinders < 1.0 {
            return 0;
        }
        let beyond = distance_cylinders - 1.0;
        whole(self.root_ns * beyond.sqrt() + self.linear_ns * beyond) + self.parameters.seek_min_ns
    }

    /// Time from `at_ns` until the platter has turned to an angle, nanoseconds; less than a revolution.
    #[must_use]
    pub fn rotation_wait_ns(&self, at_ns: u64, angle: f64) -> u64 {
        let rotation_ns = self.parameters.rotation_ns;
        let target_ns = whole(angle * rotation_ns as f64) % rotation_ns;
        (target_ns + rotation_ns - at_ns % rotation_ns) % rotation_ns
    }

    /// Seek and rotation from a cylinder to a place, beginning at `at_ns`, nanoseconds.
    #[must_use]
    pub fn position_ns(&self, from_cylinder: f64, to: Place, write: bool, at_ns: u64) -> u64 {
        let settle_ns = if write { self.parameters.write_settle_ns } else { 0 };
        let moving_ns = self.seek_ns((to.cylinder - from_cylinder).abs()) + settle_ns;
        moving_ns + self.rotation_wait_ns(at_ns + moving_ns, to.angle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::disk::parameters::DISK_PRESETS;
    use proptest::prelude::*;

    #[test]
    fn seek_times_match_the_data_sheet_and_grow_with_distance() {
        for preset in DISK_PRESETS {
            let disk = Mechanics::new(preset.parameters).unwrap();
            let (p, count) = (preset.parameters, disk.cylinders());
            assert_eq!(disk.seek_ns(0.0), 0);
            assert_eq!(disk.seek_ns(1.0), p.seek_min_ns);
            let longest = disk.seek_ns(count as f64) as f64;
            assert!((longest / p.seek_max_ns as f64 - 1.0).abs() < 0.001, "{longest}");
            let curve: Vec<u64> = (0..count).map(|d| disk.seek_ns(d as f64)).collect();
            assert!(curve.windows(2).all(|pair| pair[0] <= pair[1]), "{}", preset.name);
            // Two random cylinders are d apart with probability 2 (n - d) / n^2.
            let n = count as f64;
            let mean: f64 = curve.iter().enumerate().map(|(d, &ns)| ns as f64 * 2.0 * (n - d as f64) / (n * n)).sum();
            assert!((mean / p.seek_average_ns as f64 - 1.0).abs() < 0.01, "{mean}");
        }
    }

    #[test]
    fn zones_fill_the_disk_from_the_outside_in() {
        for preset in DISK_PRESETS {
            let (disk, p) = (Mechanics::new(preset.parameters).unwrap(), preset.parameters);
            assert_eq!(disk.rate_bytes_ns(0), p.outer_bytes_s as f64 / 1e9);
            let inner = disk.rate_bytes_ns(p.capacity_bytes - 1);
            assert!((inner * 1e9 / p.inner_bytes_s as f64 - 1.0).abs() < 1e-9);
            let places: Vec<f64> = (0..1000).map(|n| disk.place(p.capacity_bytes / 1000 * n).cylinder).collect();
            assert!(places.windows(2).all(|pair| pair[0] < pair[1]));
            assert_eq!(disk.place(0).cylinder, 0.0);
            let last = disk.place(p.capacity_bytes - 1).cylinder;
            assert!((disk.cylinders() as f64 - last) / (disk.cylinders() as f64) < 0.001, "{last}");
        }
    }

    proptest! {
        #[test]
        fn rotational_wait_is_below_one_revolution(at_ns in 0..u64::MAX / 2, offset in 0..300_000_000_000u64) {
            let disk = Mechanics::new(DISK_PRESETS[0].parameters).unwrap();
            let place = disk.place(offset);
            let wait_ns = disk.rotation_wait_ns(at_ns, place.angle);
            prop_assert!(wait_ns < 4_000_000);
            // Once there it is there.
            prop_assert_eq!(disk.rotation_wait_ns(at_ns + wait_ns, place.angle), 0);
            let most_ns = 6_600_000 + 4_000_000;
            prop_assert!(disk.position_ns(0.0, place, false, at_ns) <= most_ns);
        }

        #[test]
        fn adjacent_sectors_pass_the_head_in_order(offset in 0..299_000_000_000u64, length in 1..1_000_000u64) {
            let disk = Mechanics::new(DISK_PRESETS[0].parameters).unwrap();
            let (here, there) = (disk.place(offset), disk.place(offset + length));
            if disk.rate_bytes_ns(offset) == disk.rate_bytes_ns(offset + length) {
                let turned = disk.transfer_ns(offset, length) as f64 / 4_000_000.0;
                let off = (here.angle + turned - there.angle).rem_euclid(1.0);
                prop_assert!(off.min(1.0 - off) < 1e-5, "{}", off);
            }
        }
    }
}
