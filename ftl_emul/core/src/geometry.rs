//! Geometry and latencies of a drive, and presets.

use serde::{Deserialize, Serialize};

use crate::error::{FtlError, invalid};

/// Latencies of one die and its channel, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NandTiming {
    /// Time from the command until the data is in the die's register.
    pub read_ns: u64,
    /// Programming one page.
    pub program_ns: u64,
    /// Erasing one block.
    pub erase_ns: u64,
    /// Moving one page over the channel.
    pub transfer_ns: u64,
    /// Suspending a program or an erase for a read, and resuming it; 0 where reads wait for its end.
    #[serde(default)]
    pub suspend_ns: u64,
}

/// The shape of a drive. Capacity for tenants, plus over-provisioning, plus blocks that GC keeps free.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Geometry {
    /// Bytes of a page: the unit of mapping and of programming.
    pub page_bytes: u32,
    /// Pages of a block: the unit of erasing.
    pub pages_per_block: u32,
    /// Erasable blocks of one die, all planes together.
    pub blocks_per_die: u32,
    /// Channels; dies are spread over them evenly.
    pub channels: u32,
    /// Dies on each channel.
    pub dies_per_channel: u32,
    /// Planes of a die that one operation programs together; each page bears its part of the program time.
    pub planes: u32,
}

impl Geometry {
    /// Dies of the drive.
    #[must_use]
    pub fn dies(&self) -> u32 {
        self.channels * self.dies_per_channel
    }

    /// Blocks of the drive.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        u64::from(self.blocks_per_die) * u64::from(self.dies())
    }

    /// Pages of the drive.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.blocks() * u64::from(self.pages_per_block)
    }

    /// Blocks that `pages` logical pages fill, rounded up.
    #[must_use]
    pub fn blocks_for(&self, pages: u64) -> u64 {
        pages.div_ceil(u64::from(self.pages_per_block))
    }

    /// Refuses shapes that make no drive.
    pub fn validate(&self) -> Result<(), FtlError> {
        if !self.page_bytes.is_power_of_two() || !(512..=1 << 20).contains(&self.page_bytes) {
            return invalid("page_bytes", format!("{} is not a power of two from 512 to 1 MiB", self.page_bytes));
        }
        if !(4..=65_536).contains(&self.pages_per_block) {
            return invalid("pages_per_block", format!("{} is not between 4 and 65536", self.pages_per_block));
        }
        if self.channels == 0 || self.dies_per_channel == 0 || self.planes == 0 {
            return invalid("channels, dies_per_channel, planes", "each must be at least 1");
        }
        if u64::from(self.channels) * u64::from(self.dies_per_channel) > 4096 {
            return invalid("dies", "at most 4096");
        }
        if self.blocks_per_die < 4 {
            return invalid("blocks_per_die", format!("{}: a die needs at least 4 blocks", self.blocks_per_die));
        }
        if self.blocks() >= u64::from(u32::MAX) {
            return invalid("blocks", format!("{} blocks; at most {}", self.blocks(), u32::MAX - 1));
        }
        Ok(())
    }
}

/// A preset of a drive, without its size.
#[derive(Debug, Clone, Copy)]
pub struct Preset {
    /// The name used on the command line.
    pub name: &'static str,
    /// The drive it models, and the source of its figures.
    pub description: &'static str,
    /// Bytes of a page (the mapping unit).
    pub page_bytes: u32,
    /// Pages of a block.
    pub pages_per_block: u32,
    /// Channels.
    pub channels: u32,
    /// Dies on each channel.
    pub dies_per_channel: u32,
    /// Planes of a die.
    pub planes: u32,
    /// Physical over logical capacity, minus one.
    pub over_provisioning: f64,
    /// Latencies of one mapping unit on one die.
    pub timing: NandTiming,
}

/// The drives that need no further description.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "fast15",
        description: "the simulated SSD of Kim, Lee and Noh, FAST '15, table 3 (MLC, 4 KiB pages, 512 KiB blocks); \
                      8 channels of one die each",
        page_bytes: 4096,
        pages_per_block: 128,
        channels: 8,
        dies_per_channel: 1,
        planes: 1,
        over_provisioning: 0.15,
        timing: NandTiming {
            read_ns: 60_000,
            program_ns: 800_000,
            erase_ns: 1_500_000,
            transfer_ns: 102_000,
            suspend_ns: 0,
        },
    },
    Preset {
        name: "tlc",
        description: "a data-centre TLC drive on SK hynix's 176-layer flash (ISSCC 2021, as tabulated by AnandTech, \
                      February 2021: four planes, 168 MB/s program throughput, tR 50 us, 1.6 Gb/s; a 16 KiB NAND page \
                      holds four 4 KiB mapping units); 24 MiB blocks and 3.5 ms erase are assumptions",
        page_bytes: 4096,
        pages_per_block: 6144,
        channels: 8,
        dies_per_channel: 4,
        planes: 4,
        over_provisioning: 0.28,
        timing: NandTiming {
            read_ns: 50_000,
            program_ns: 97_500,
            erase_ns: 3_500_000,
            transfer_ns: 20_500,
            suspend_ns: 0,
        },
    },
    Preset {
        name: "qlc",
        description: "a data-centre QLC drive on Intel's 144-layer flash (ISSCC 2021, as tabulated by AnandTech, \
                      February 2021: four planes, 40 MB/s program throughput, tR 85 us, 48 MB blocks, 1.2 Gb/s), with the \
                      16 KiB mapping unit of current high-capacity drives; 10 ms erase is an assumption",
        page_bytes: 16384,
        pages_per_block: 3072,
        channels: 8,
        dies_per_channel: 4,
        planes: 4,
        over_provisioning: 0.07,
        timing: NandTiming {
            read_ns: 85_000,
            program_ns: 1_640_000,
            erase_ns: 10_000_000,
            transfer_ns: 109_000,
            suspend_ns: 0,
        },
    },
];

/// Finds a preset by name.
#[must_use]
pub fn preset(name: &str) -> Option<&'static Preset> {
    PRESETS.iter().find(|p| p.name == name)
}
