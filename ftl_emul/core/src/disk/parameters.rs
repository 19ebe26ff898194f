//! Parameters of a hard disk: those of its data sheet, and assumed ones.

use serde::{Deserialize, Serialize};

use crate::error::{FtlError, invalid};

/// One disk. Rates are sustained ones, including the time of switching heads and cylinders.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DiskParameters {
    /// Capacity in bytes.
    pub capacity_bytes: u64,
    /// Surfaces with a head each.
    pub heads: u32,
    /// One revolution.
    pub rotation_ns: u64,
    /// Read seek, track to track.
    pub seek_min_ns: u64,
    /// Read seek, the average over all pairs of cylinders.
    pub seek_average_ns: u64,
    /// Read seek, full stroke.
    pub seek_max_ns: u64,
    /// Additional settling time before a write.
    pub write_settle_ns: u64,
    /// Sustained rate at the outer diameter, where addresses begin.
    pub outer_bytes_s: u64,
    /// Sustained rate at the inner diameter.
    pub inner_bytes_s: u64,
    /// Zones of as many cylinders each, with rates that fall in equal steps.
    pub zones: u32,
    /// Between host and buffer.
    pub interface_bytes_s: u64,
    /// Host, interface and controller, for each command.
    pub command_ns: u64,
    /// Commands that the disk holds and may reorder.
    pub queue_depth: u32,
    /// Size of a buffer segment, for one stream that is read ahead.
    pub segment_bytes: u64,
    /// Streams that the buffer remembers.
    pub segments: u32,
    /// Size of the buffer for writes that are acknowledged before they are on the media; 0 disables the write cache.
    pub write_cache_bytes: u64,
    /// Places on the media that these writes may be for.
    pub write_cache_places: u32,
}

impl DiskParameters {
    /// Rejects invalid parameters.
    pub fn validate(&self) -> Result<(), FtlError> {
        let within = |name: &'static str, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            invalid(name, format!("{value} is not between {least} and {most}"))
        };
        within("capacity_bytes", self.capacity_bytes, 1 << 20, 1 << 50)?;
        within("heads", u64::from(self.heads), 1, 64)?;
        within("rotation_ns", self.rotation_ns, 100_000, 1_000_000_000)?;
        within("seek_min_ns", self.seek_min_ns, 0, 1_000_000_000)?;
        within("seek_average_ns", self.seek_average_ns, self.seek_min_ns, 1_000_000_000)?;
        within("seek_max_ns", self.seek_max_ns, self.seek_average_ns, 1_000_000_000)?;
        within("write_settle_ns", self.write_settle_ns, 0, 1_000_000_000)?;
        within("outer_bytes_s", self.outer_bytes_s, 1000, 100_000_000_000)?;
        within("inner_bytes_s", self.inner_bytes_s, 1000, self.outer_bytes_s)?;
        within("zones", u64::from(self.zones), 1, 1024)?;
        within("interface_bytes_s", self.interface_bytes_s, 1000, 100_000_000_000)?;
        within("command_ns", self.command_ns, 1, 1_000_000_000)?;
        within("queue_depth", u64::from(self.queue_depth), 1, 256)?;
        within("segment_bytes", self.segment_bytes, 0, 1 << 32)?;
        within("segments", u64::from(self.segments), 0, 1024)?;
        within("write_cache_bytes", self.write_cache_bytes, 0, 1 << 32)?;
        within("write_cache_places", u64::from(self.write_cache_places), 1, 1024)?;
        // The curve through the three seek times must not decrease, so both of its terms have to increase.
        let (min, mean, max) = (self.seek_min_ns as f64, self.seek_average_ns as f64, self.seek_max_ns as f64);
        if -10.0 * min + 15.0 * mean - 5.0 * max < 0.0 || 7.0 * min - 15.0 * mean + 8.0 * max < 0.0 {
            return invalid(
                "seek_max_ns",
                "no rising seek curve goes through these three times; full stroke is mostly twice the average",
            );
        }
        Ok(())
    }
}

/// A preset of a disk.
#[derive(Debug, Clone, Copy)]
pub struct DiskPreset {
    /// The name used on the command line.
    pub name: &'static str,
    /// The disk it models, the source of its figures, and which of them are assumed.
    pub description: &'static str,
    /// Its figures.
    pub parameters: DiskParameters,
}

/// The disks that need no further description.
pub const DISK_PRESETS: &[DiskPreset] = &[
    DiskPreset {
        name: "cheetah-15k7",
        description: "Seagate Cheetah 15K.7 SAS ST3300657SS, the disk of Chimint and Taurus in SAC '15, table 2: 300 GB, \
                      15000/min, 204 to 122 MB/s sustained, 16 MB of buffer, 6 Gb/s (data sheet). Read seeks 0.2, 3.4 and \
                      6.6 ms (track to track, average, full stroke), write seeks 3.9 ms on average: product manual 100516226 \
                      Rev. A, May 2009, as quoted in the sources of Mero (desim). Assumed: 4 heads, 16 zones, 100 us a \
                      command, the buffer's division, and 32 commands and places that are sorted",
        parameters: DiskParameters {
            capacity_bytes: 300_000_000_000,
            heads: 4,
            rotation_ns: 4_000_000,
            seek_min_ns: 200_000,
            seek_average_ns: 3_400_000,
            seek_max_ns: 6_600_000,
            write_settle_ns: 500_000,
            outer_bytes_s: 204_000_000,
            inner_bytes_s: 122_000_000,
            zones: 16,
            interface_bytes_s: 600_000_000,
            command_ns: 100_000,
            queue_depth: 32,
            segment_bytes: 512 << 10,
            segments: 16,
            write_cache_bytes: 8 << 20,
            write_cache_places: 32,
        },
    },
    DiskPreset {
        name: "barracuda-xt",
        description: "Seagate Barracuda XT ST32000641AS: 2 TB, 7200/min, 8 heads, 138 MB/s sustained at the outer diameter, \
                      64 MB of buffer, SATA with NCQ (data sheet, as printed in motherboards.org's review 1975). Average seek \
                      8.5 ms (write 9.5) and 1 ms track to track are those of Seagate's 7200/min disks of that year, not \
                      found for this one. Half the outer rate at the inner diameter and a full stroke of 17 ms are what \
                      H. Wong measured on a 7200/min disk of 1 TB (Discovering hard disk physical geometry through \
                      microbenchmarking, 2019: Samsung HD103SJ, 2937 to 1546 sectors a track). Assumed: 3 Gb/s, 16 zones, \
                      100 us a command, the buffer's division, and 32 places that are sorted",
        parameters: DiskParameters {
            capacity_bytes: 2_000_000_000_000,
            heads: 8,
            rotation_ns: 8_333_333,
            seek_min_ns: 1_000_000,
            seek_average_ns: 8_500_000,
            seek_max_ns: 17_000_000,
            write_settle_ns: 1_000_000,
            outer_bytes_s: 138_000_000,
            inner_bytes_s: 69_000_000,
            zones: 16,
            interface_bytes_s: 300_000_000,
            command_ns: 100_000,
            queue_depth: 32,
            segment_bytes: 2 << 20,
            segments: 16,
            write_cache_bytes: 32 << 20,
            write_cache_places: 32,
        },
    },
];

/// Finds a preset by name.
#[must_use]
pub fn disk_preset(name: &str) -> Option<&'static DiskPreset> {
    DISK_PRESETS.iter().find(|preset| preset.name == name)
}
