//! The guest's memory, mapped from the files that the client sends (vhost-user protocol, "Memory regions description").

use std::fs::File;
use std::io;

use rustix::fs::{SealFlags, fcntl_get_seals};
use vhost::vhost_user::message::VhostUserMemoryRegion;
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};

/// Of one client, so that no client takes the address space of the others.
const MAX_BYTES: u64 = 4 << 40;

/// The guest's memory, and where the client itself has it.
#[derive(Debug, Clone)]
pub struct Memory {
    /// By guest addresses.
    pub guest: std::sync::Arc<GuestMemoryMmap>,
    regions: Vec<Place>,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    client: u64,
    guest: u64,
    length: u64,
}

impl Memory {
    /// Maps it. `is_trusted`: the client may end this server anyway.
    pub fn map(regions: &[VhostUserMemoryRegion], files: Vec<File>, is_trusted: bool) -> io::Result<Self> {
        let places: Vec<Place> = regions
            .iter()
            .map(|region| Place { client: region.user_addr, guest: region.guest_phys_addr, length: region.memory_size })
            .collect();
        let all = places.iter().try_fold(0_u64, |all, place| all.checked_add(place.length));
        if all.is_none_or(|all| all > MAX_BYTES) {
            return Err(io::Error::other("more than 4 TiB of guest memory"));
        }
        let mut mapped = Vec::new();
        for ((region, place), file) in regions.iter().zip(&places).zip(files) {
            check_file(&file, region.mmap_offset, place.length, is_trusted)?;
            let length = usize::try_from(place.length).map_err(io::Error::other)?;
            let mapping = MmapRegion::from_file(FileOffset::new(file, region.mmap_offset), length)
                .map_err(|e| io::Error::other(format!("guest memory cannot be mapped: {e}")))?;
            let region = GuestRegionMmap::new(mapping, GuestAddress(place.guest));
            mapped.push(region.ok_or_else(|| io::Error::other("guest memory beyond the last address"))?);
        }
        mapped.sort_by_key(|region| vm_memory::GuestMemoryRegion::start_addr(region).0);
        let guest = GuestMemoryMmap::from_regions(mapped).map_err(io::Error::other)?;
        Ok(Self { guest: std::sync::Arc::new(guest), regions: places })
    }

    /// The guest's address for one of the client, which is what rings are given by.
    pub fn guest_address(&self, client: u64) -> Option<GuestAddress> {
        let found = self.regions.iter().find(|r| client >= r.client && client - r.client < r.length)?;
        Some(GuestAddress(found.guest + (client - found.client)))
    }
}

/// Err for a file that is shorter than what is to be mapped, or that its owner can make so: touching what is missing ends
/// the process, for all clients.
pub fn check_file(file: &File, offset: u64, length: u64, is_trusted: bool) -> io::Result<()> {
    let end = offset.checked_add(length);
    if end.is_none_or(|end| file.metadata().map_or(true, |found| found.len() < end)) {
        return Err(io::Error::other("its memory is shorter than it says"));
    }
    let is_sealed = fcntl_get_seals(file).is_ok_and(|seals| seals.contains(SealFlags::SHRINK));
    if is_sealed || is_trusted {
        return Ok(());
    }
    Err(io::Error::other(
        "its memory is not a memfd with seals: use <memoryBacking><source type='memfd'/><access mode='shared'/> in \
         libvirt, memory-backend-memfd,share=on in QEMU",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{MemfdFlags, fcntl_add_seals, memfd_create};

    fn memory(bytes: u64, sealed: bool) -> File {
        let file = File::from(memfd_create("guest", MemfdFlags::ALLOW_SEALING).unwrap());
        file.set_len(bytes).unwrap();
        if sealed {
            fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        }
        file
    }

    #[test]
    fn addresses_of_the_client_become_those_of_the_guest() {
        let regions =
            [VhostUserMemoryRegion::new(1 << 32, 8192, 0x7f00_0000, 0), VhostUserMemoryRegion::new(0, 4096, 0x1000, 0)];
        let mapped = Memory::map(&regions, vec![memory(8192, true), memory(4096, true)], false).unwrap();
        assert_eq!(mapped.guest_address(0x7f00_1fff), Some(GuestAddress((1 << 32) + 8191)));
        assert_eq!(mapped.guest_address(0x1000), Some(GuestAddress(0)));
        assert_eq!(mapped.guest_address(0x2000), None);
        assert_eq!(mapped.guest_address(u64::MAX), None);
    }

    #[test]
    fn memory_that_can_shrink_or_is_short_or_overlaps_is_refused() {
        let one = |bytes| [VhostUserMemoryRegion::new(0, bytes, 0, 0)];
        let refused = Memory::map(&one(4096), vec![memory(4096, false)], false).unwrap_err();
        assert!(refused.to_string().contains("memoryBacking"));
        assert!(Memory::map(&one(4096), vec![memory(4096, false)], true).is_ok());
        assert!(Memory::map(&one(8192), vec![memory(4096, true)], false).is_err());
        assert!(Memory::map(&one(u64::MAX), vec![memory(4096, true)], false).is_err());
        let twice = [VhostUserMemoryRegion::new(0, 8192, 0, 0), VhostUserMemoryRegion::new(4096, 8192, 8192, 0)];
        assert!(Memory::map(&twice, vec![memory(8192, true), memory(8192, true)], false).is_err());
    }
}
