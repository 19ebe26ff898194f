//! The guest's memory, mapped from the files that the client sends (vhost-user protocol, "Memory regions description").

use std::fs::File;
use std::io;
use std::sync::Arc;

use rustix::fs::{SealFlags, fcntl_get_seals};
use vhost::vhost_user::message::VhostUserMemoryRegion;
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};

/// Limit of one client, so that it does not take the address space of others.
const MAX_BYTES: u64 = 4 << 40;
/// Memory of one client.
pub const MAX_REGIONS: usize = 64;

/// The guest's memory, and where the client itself has it.
#[derive(Debug, Clone)]
pub struct Memory {
    /// By guest addresses.
    pub guest: Arc<GuestMemoryMmap>,
    regions: Vec<Region>,
}

#[derive(Debug, Clone)]
struct Region {
    client: u64,
    guest: u64,
    length: u64,
    mapped: Arc<GuestRegionMmap>,
}

impl Region {
    fn map(region: &VhostUserMemoryRegion, file: File, is_trusted: bool) -> io::Result<Self> {
        let (client, guest, length) = (region.user_addr, region.guest_phys_addr, region.memory_size);
        check_file(&file, region.mmap_offset, length, is_trusted)?;
        let bytes = usize::try_from(length).map_err(io::Error::other)?;
        let mapping = MmapRegion::from_file(FileOffset::new(file, region.mmap_offset), bytes)
            .map_err(|e| io::Error::other(format!("guest memory cannot be mapped: {e}")))?;
        let mapped = GuestRegionMmap::new(mapping, GuestAddress(guest));
        let mapped = Arc::new(mapped.ok_or_else(|| io::Error::other("guest memory beyond the last address"))?);
        Ok(Self { client, guest, length, mapped })
    }
}

impl Memory {
    /// Maps it, in addition to the present regions. `is_trusted`: the client may end this server anyway.
    pub fn map(
        before: Option<&Self>,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        is_trusted: bool,
    ) -> io::Result<Self> {
        let mut all = before.map(|before| before.regions.clone()).unwrap_or_default();
        let mut lengths = all.iter().map(|region| region.length).chain(regions.iter().map(|region| region.memory_size));
        let sum = lengths.try_fold(0_u64, u64::checked_add);
        if sum.is_none_or(|sum| sum > MAX_BYTES) {
            return Err(io::Error::other("more than 4 TiB of guest memory"));
        }
        if all.len() + regions.len() > MAX_REGIONS {
            return Err(io::Error::other(format!("more than {MAX_REGIONS} regions of guest memory")));
        }
        for (region, file) in regions.iter().zip(files) {
            all.push(Region::map(region, file, is_trusted)?);
        }
        Self::of(all)
    }

    /// Without a region; None if none remains. Err if there is no such region.
    pub fn without(&self, gone: &VhostUserMemoryRegion) -> io::Result<Option<Self>> {
        let (client, guest, length) = (gone.user_addr, gone.guest_phys_addr, gone.memory_size);
        let is_it = |region: &Region| (region.client, region.guest, region.length) == (client, guest, length);
        let left: Vec<Region> = self.regions.iter().filter(|region| !is_it(region)).cloned().collect();
        if left.len() == self.regions.len() {
            return Err(io::Error::other("unknown region of guest memory"));
        }
        if left.is_empty() { Ok(None) } else { Self::of(left).map(Some) }
    }

    /// Err for regions that overlap.
    fn of(mut regions: Vec<Region>) -> io::Result<Self> {
        regions.sort_by_key(|region| region.guest);
        let mapped = regions.iter().map(|region| Arc::clone(&region.mapped)).collect();
        let guest = GuestMemoryMmap::from_arc_regions(mapped).map_err(io::Error::other)?;
        Ok(Self { guest: Arc::new(guest), regions })
    }

    /// Number of files it is mapped from.
    pub fn pieces(&self) -> usize {
        self.regions.len()
    }

    /// Converts an address of the client, as used for rings, into one of the guest.
    pub fn guest_address(&self, client: u64) -> Option<GuestAddress> {
        let found = self.regions.iter().find(|r| client >= r.client && client - r.client < r.length)?;
        Some(GuestAddress(found.guest + (client - found.client)))
    }
}

/// Err for a file that is shorter than the part to be mapped, or that its owner can truncate: accessing missing pages
/// ends the process, for all clients.
pub fn check_file(file: &File, offset: u64, length: u64, is_trusted: bool) -> io::Result<()> {
    let end = offset.checked_add(length);
    if end.is_none_or(|end| file.metadata().map_or(true, |found| found.len() < end)) {
        return Err(io::Error::other("the memory is shorter than the message says"));
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
    fn client_addresses_are_translated_to_guest_addresses() {
        let regions =
            [VhostUserMemoryRegion::new(1 << 32, 8192, 0x7f00_0000, 0), VhostUserMemoryRegion::new(0, 4096, 0x1000, 0)];
        let mapped = Memory::map(None, &regions, vec![memory(8192, true), memory(4096, true)], false).unwrap();
        assert_eq!(mapped.guest_address(0x7f00_1fff), Some(GuestAddress((1 << 32) + 8191)));
        assert_eq!(mapped.guest_address(0x1000), Some(GuestAddress(0)));
        assert_eq!(mapped.guest_address(0x2000), None);
        assert_eq!(mapped.guest_address(u64::MAX), None);
        let another = VhostUserMemoryRegion::new(8192, 4096, 0x9000, 0);
        let more = Memory::map(Some(&mapped), &[another], vec![memory(4096, true)], false).unwrap();
        assert_eq!(more.guest_address(0x9001), Some(GuestAddress(8193)));
        assert!(Memory::map(Some(&more), &[another], vec![memory(4096, true)], false).is_err());
        let fewer = more.without(&regions[0]).unwrap().unwrap();
        assert_eq!(fewer.guest_address(0x7f00_0000), None);
        assert!(fewer.without(&regions[0]).is_err());
        assert!(fewer.without(&another).unwrap().unwrap().without(&regions[1]).unwrap().is_none());
    }

    #[test]
    fn shrinkable_short_or_overlapping_memory_is_refused() {
        let one = |bytes| [VhostUserMemoryRegion::new(0, bytes, 0, 0)];
        let refused = Memory::map(None, &one(4096), vec![memory(4096, false)], false).unwrap_err();
        assert!(refused.to_string().contains("memoryBacking"));
        assert!(Memory::map(None, &one(4096), vec![memory(4096, false)], true).is_ok());
        assert!(Memory::map(None, &one(8192), vec![memory(4096, true)], false).is_err());
        assert!(Memory::map(None, &one(u64::MAX), vec![memory(4096, true)], false).is_err());
        let twice = [VhostUserMemoryRegion::new(0, 8192, 0, 0), VhostUserMemoryRegion::new(4096, 8192, 8192, 0)];
        assert!(Memory::map(None, &twice, vec![memory(8192, true), memory(8192, true)], false).is_err());
    }
}
