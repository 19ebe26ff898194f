//! One client of a namespace: its negotiation, its memory and its queues (vhost-user protocol, as in QEMU's
//! `docs/interop/vhost-user.rst`, whose names of messages are used).

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use ftl_core::convert::exact;
use vhost::VhostUserMemoryRegionBase;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight, VhostUserLog,
    VhostUserMemoryRegion, VhostUserShMemConfig, VhostUserSharedMsg, VhostUserSingleMemoryRegion,
    VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{
    Error, GpuBackend, Result, VhostUserBackendReqHandlerMut, VhostUserProtocolFeatures, VhostUserVirtioFeatures,
};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_DISCARD, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_SEG_MAX,
    VIRTIO_BLK_F_SIZE_MAX, VIRTIO_BLK_F_TOPOLOGY, VIRTIO_BLK_F_WRITE_ZEROES,
};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use virtio_bindings::virtio_ring::{VIRTIO_RING_F_EVENT_IDX, VIRTIO_RING_F_INDIRECT_DESC};
use virtio_queue::{Queue, QueueT};

use crate::descriptors::{Taken, VHOST_USER_CLIENT, VHOST_USER_QUEUE};
use crate::request_memory::Pool;
use crate::vhost_user::in_flight::{self, InFlight};
use crate::vhost_user::memory::{MAX_REGIONS, Memory, check_file};
use crate::vhost_user::request::{Disk, MAX_RANGE_SECTORS, MAX_RANGES, MAX_SEGMENT_BYTES, MAX_SEGMENTS, SECTOR_SHIFT};
use crate::vhost_user::virtqueue::{Setup, Virtqueue, notify};
use crate::vhost_user::workers::Workers;

/// By default QEMU requests as many as the VM has CPUs, and refuses to start if there are fewer.
const MAX_QUEUES: u16 = 64;
/// The value of QEMU.
const MAX_QUEUE_SIZE: u16 = 1024;
/// Of the configuration (`struct virtio_blk_config`, 5.2.4) with what later versions have added, which is 0.
const CONFIG_BYTES: usize = 256;

const FEATURES: u64 = 1 << VIRTIO_F_VERSION_1
    | 1 << VIRTIO_RING_F_INDIRECT_DESC
    | 1 << VIRTIO_RING_F_EVENT_IDX
    | 1 << VIRTIO_BLK_F_SIZE_MAX
    | 1 << VIRTIO_BLK_F_SEG_MAX
    | 1 << VIRTIO_BLK_F_BLK_SIZE
    | 1 << VIRTIO_BLK_F_FLUSH
    | 1 << VIRTIO_BLK_F_TOPOLOGY
    | 1 << VIRTIO_BLK_F_MQ
    | 1 << VIRTIO_BLK_F_DISCARD
    | 1 << VIRTIO_BLK_F_WRITE_ZEROES
    | VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits();

const PROTOCOL_FEATURES: VhostUserProtocolFeatures = VhostUserProtocolFeatures::MQ
    .union(VhostUserProtocolFeatures::REPLY_ACK)
    .union(VhostUserProtocolFeatures::BACKEND_REQ)
    .union(VhostUserProtocolFeatures::CONFIG)
    .union(VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS)
    .union(VhostUserProtocolFeatures::INFLIGHT_SHMFD);

struct Running {
    queue: Arc<Virtqueue>,
    thread: JoinHandle<()>,
}

/// Configuration of a queue by the client.
#[derive(Default)]
struct Ring {
    size: u16,
    /// Descriptors, available and used ring, in the client's memory.
    addresses: Option<[u64; 3]>,
    base: u16,
    kick: Option<File>,
    call: Option<Arc<File>>,
    enabled: bool,
    running: Option<Running>,
}

/// How a namespace is served to a client.
#[derive(Debug, Clone, Copy)]
pub struct Serving {
    /// Unit in which space is allocated and released.
    pub granule_bytes: u64,
    /// The model does not make requests wait.
    pub is_untimed: bool,
    /// See [`Memory::map`].
    pub is_trusted: bool,
    /// See [`crate::server::Server`].
    pub max_poll: Duration,
}

/// See the module.
pub struct Session {
    disk: Arc<Disk>,
    workers: Arc<Workers>,
    serving: Serving,
    features: u64,
    protocol_features: u64,
    memory: Option<Memory>,
    in_flight: Option<Arc<InFlight>>,
    rings: Vec<Ring>,
    /// State of the client, its memory and its queues.
    descriptors: Taken,
}

fn refused(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::ReqHandlerError(io::Error::other(why))
}

impl Session {
    /// A client that has just connected.
    pub fn new(disk: Arc<Disk>, pool: &Arc<Pool>, serving: Serving, descriptors: Taken) -> Self {
        Self {
            workers: Workers::new(pool, disk.namespace.nsid()),
            disk,
            serving,
            features: 0,
            protocol_features: 0,
            memory: None,
            in_flight: None,
            rings: (0..MAX_QUEUES).map(|_| Ring::default()).collect(),
            descriptors,
        }
    }

    /// Whether the client takes messages about changes of the configuration.
    pub fn takes_messages(&self) -> bool {
        self.protocol_features & VhostUserProtocolFeatures::BACKEND_REQ.bits() != 0
    }

    /// The client has disconnected, or is disconnected. With `give_up`, it does not wait for answers.
    pub fn close(&mut self, give_up: bool) {
        // All of them together first.
        for running in self.rings.iter().filter_map(|ring| ring.running.as_ref()) {
            if give_up {
                running.queue.give_up();
            }
            running.queue.stop();
        }
        for index in 0..self.rings.len() {
            self.stop_ring(index);
        }
        self.workers.close();
    }

    fn ring(&mut self, index: impl Into<u32>) -> Result<&mut Ring> {
        let index = index.into();
        let found = usize::try_from(index).ok().and_then(|index| self.rings.get_mut(index));
        found.ok_or_else(|| refused(format!("queue {index} does not exist")))
    }

    /// Err, which ends the client, where its memory and queues have more descriptors than others leave it.
    fn count_descriptors(&mut self) -> Result<()> {
        let pieces = self.memory.as_ref().map_or(0, Memory::pieces);
        let has_some = |ring: &&Ring| ring.kick.is_some() || ring.call.is_some() || ring.running.is_some();
        let queues = self.rings.iter().filter(has_some).count();
        if self.descriptors.resize(VHOST_USER_CLIENT + pieces + queues * VHOST_USER_QUEUE) {
            return Ok(());
        }
        Err(refused(format!(
            "the remaining file descriptors are reserved for other sockets: too few for {pieces} pieces of memory and {queues} queues"
        )))
    }

    /// Starts a queue once it has been kicked and enabled ("Ring states").
    fn start_ring(&mut self, index: u32) -> Result<()> {
        let is_enabled_anyway = self.features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() == 0;
        let event_idx = self.features & (1 << VIRTIO_RING_F_EVENT_IDX) != 0;
        let durable = self.features & (1 << VIRTIO_BLK_F_FLUSH) == 0;
        let (disk, workers) = (Arc::clone(&self.disk), Arc::clone(&self.workers));
        let (memory, in_flight, serving) = (self.memory.clone(), self.in_flight.clone(), self.serving);
        let ring = self.ring(index)?;
        if ring.running.is_some() || ring.kick.is_none() || !(ring.enabled || is_enabled_anyway) {
            return Ok(());
        }
        let Some(memory) = memory else { return Err(refused("a queue without memory")) };
        let [descriptors, available, used] = ring.addresses.ok_or_else(|| refused("a queue without addresses"))?;
        let address = |client| memory.guest_address(client).ok_or_else(|| refused("a ring outside of the memory"));
        let mut queue = Queue::new(MAX_QUEUE_SIZE).map_err(|e| refused(e.to_string()))?;
        let set_up = |queue: &mut Queue| -> Result<()> {
            queue.try_set_size(ring.size).map_err(|e| refused(e.to_string()))?;
            queue.try_set_desc_table_address(address(descriptors)?).map_err(|e| refused(e.to_string()))?;
            queue.try_set_avail_ring_address(address(available)?).map_err(|e| refused(e.to_string()))?;
            queue.try_set_used_ring_address(address(used)?).map_err(|e| refused(e.to_string()))
        };
        set_up(&mut queue)?;
        queue.set_event_idx(event_idx);
        queue.set_ready(true);
        // A ring at address 0 is none to the library.
        if !queue.is_valid(&*memory.guest) || queue.avail_ring() == 0 {
            return Err(refused("a ring outside of the memory"));
        }
        let position = queue.used_idx(&*memory.guest, std::sync::atomic::Ordering::Acquire);
        let position = position.map_err(|e| refused(e.to_string()))?.0;
        queue.set_next_used(position);
        queue.set_next_avail(ring.base);
        let mut resumed = Vec::new();
        let mut tracker = None;
        if let Some(in_flight) = &in_flight {
            let mut part = InFlight::queue(in_flight, exact::<u16>(index), ring.size)
                .ok_or_else(|| refused(format!("no memory for {} requests in flight of queue {index}", ring.size)))?;
            resumed = part.resume(position);
            // Requests taken from the available ring are either in the used ring or in flight.
            queue.set_next_avail(position.wrapping_add(exact::<u16>(resumed.len())));
            tracker = Some(part);
        }
        let Some(kick) = ring.kick.as_ref().map(File::try_clone) else { return Ok(()) };
        let setup = Setup {
            ring: queue,
            memory: Arc::clone(&memory.guest),
            kick: kick.map_err(Error::ReqHandlerError)?,
            call: ring.call.clone(),
            tracker,
            resumed,
            durable,
            is_untimed: serving.is_untimed,
            max_poll: serving.max_poll,
        };
        let (queue, thread) = Virtqueue::start(setup, disk, workers).map_err(Error::ReqHandlerError)?;
        ring.running = Some(Running { queue, thread });
        Ok(())
    }

    /// Stops a queue once its requests are answered.
    fn stop_ring(&mut self, index: usize) {
        let Some(ring) = self.rings.get_mut(index) else { return };
        if let Some(Running { queue, thread }) = ring.running.take() {
            queue.stop();
            if thread.join().is_err() {
                self.disk.say("a queue failed");
            }
            ring.base = queue.drain();
        }
    }

    /// Queues that run take requests from it at once; without any, their next access to it ends them.
    fn use_memory(&mut self, memory: Option<Memory>) -> Result<()> {
        let guest = memory.as_ref().map(|memory| Arc::clone(&memory.guest)).unwrap_or_default();
        for running in self.rings.iter().filter_map(|ring| ring.running.as_ref()) {
            running.queue.set_memory(Arc::clone(&guest));
        }
        self.memory = memory;
        self.count_descriptors()
    }

    /// `struct virtio_blk_config` (5.2.4), little-endian.
    fn configuration(&self) -> [u8; CONFIG_BYTES] {
        let mut config = [0; CONFIG_BYTES];
        let mut put = |at: usize, bytes: &[u8]| config[at..at + bytes.len()].copy_from_slice(bytes);
        let sectors = self.serving.granule_bytes >> SECTOR_SHIFT;
        let sectors = u16::try_from(sectors).unwrap_or(u16::MAX).max(1);
        put(0, &(self.disk.namespace.size_bytes() >> SECTOR_SHIFT).to_le_bytes()); // capacity
        put(8, &MAX_SEGMENT_BYTES.to_le_bytes()); // size_max
        put(12, &MAX_SEGMENTS.to_le_bytes()); // seg_max
        put(20, &(1_u32 << SECTOR_SHIFT).to_le_bytes()); // blk_size
        put(24, &[3]); // physical_block_exp: 4 KiB
        put(26, &8_u16.to_le_bytes()); // min_io_size: 4 KiB
        put(28, &u32::from(sectors).to_le_bytes()); // opt_io_size: a page of flash
        put(34, &MAX_QUEUES.to_le_bytes()); // num_queues
        put(36, &MAX_RANGE_SECTORS.to_le_bytes()); // max_discard_sectors
        put(40, &MAX_RANGES.to_le_bytes()); // max_discard_seg
        put(44, &u32::from(sectors).to_le_bytes()); // discard_sector_alignment
        put(48, &MAX_RANGE_SECTORS.to_le_bytes()); // max_write_zeroes_sectors
        put(52, &MAX_RANGES.to_le_bytes()); // max_write_zeroes_seg
        put(56, &[1]); // write_zeroes_may_unmap
        config
    }
}

impl VhostUserBackendReqHandlerMut for Session {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(FEATURES)
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        if features & !FEATURES != 0 {
            return Err(refused(format!("features {:#x} that were not offered", features & !FEATURES)));
        }
        self.features = features;
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(PROTOCOL_FEATURES)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        if features & !PROTOCOL_FEATURES.bits() != 0 {
            return Err(refused(format!("protocol features {features:#x} that were not offered")));
        }
        self.protocol_features = features;
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(MAX_QUEUES.into())
    }

    fn set_mem_table(
        &mut self,
        regions: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<VhostUserMemoryRegionBase>>> {
        let memory = Memory::map(None, regions, files, self.serving.is_trusted).map_err(Error::ReqHandlerError)?;
        self.use_memory(Some(memory))?;
        Ok(None)
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(MAX_REGIONS as u64)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        file: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<VhostUserMemoryRegionBase>> {
        let memory = Memory::map(self.memory.as_ref(), &[**region], vec![file], self.serving.is_trusted);
        self.use_memory(Some(memory.map_err(Error::ReqHandlerError)?))?;
        Ok(None)
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let left = self.memory.as_ref().map_or(Ok(None), |memory| memory.without(region));
        self.use_memory(left.map_err(Error::ReqHandlerError)?)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        self.ring(index)?.size = u16::try_from(num)
            .ok()
            .filter(|size| size.is_power_of_two() && *size <= MAX_QUEUE_SIZE)
            .ok_or_else(|| refused(format!("a queue of {num} entries: a power of two up to {MAX_QUEUE_SIZE}")))?;
        Ok(())
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        if !flags.is_empty() {
            return Err(refused("the log of written memory was not offered"));
        }
        self.ring(index)?.addresses = Some([descriptor, available, used]);
        Ok(())
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.ring(index)?.base = u16::try_from(base).map_err(|_| refused("a ring index of more than 16 bits"))?;
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        self.ring(index)?.kick = None;
        self.stop_ring(exact::<usize>(index));
        let base = self.ring(index)?.base;
        Ok(VhostUserVringState::new(index, base.into()))
    }

    fn set_vring_kick(&mut self, index: u8, kick: Option<File>) -> Result<()> {
        let Some(kick) = kick else { return Err(refused("a queue without notifications")) };
        // Another descriptor is another start.
        self.stop_ring(index.into());
        self.ring(index)?.kick = Some(kick);
        self.count_descriptors()?;
        self.start_ring(index.into())
    }

    fn set_vring_call(&mut self, index: u8, call: Option<File>) -> Result<()> {
        let ring = self.ring(index)?;
        ring.call = call.map(Arc::new);
        if let Some(running) = &ring.running {
            running.queue.set_call(ring.call.clone());
        }
        // Requests that were answered without it, as before a restart of the server, are then found.
        ring.call.as_deref().into_iter().for_each(notify);
        self.count_descriptors()
    }

    fn set_vring_err(&mut self, _index: u8, _file: Option<File>) -> Result<()> {
        Ok(())
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        self.ring(index)?.enabled = enable;
        if enable {
            return self.start_ring(index);
        }
        self.stop_ring(exact::<usize>(index));
        Ok(())
    }

    fn get_config(&mut self, offset: u32, size: u32, _flags: VhostUserConfigFlags) -> Result<Vec<u8>> {
        let from = exact::<usize>(offset);
        let found = from
            .checked_add(exact::<usize>(size))
            .and_then(|to| self.configuration().get(from..to).map(<[u8]>::to_vec));
        found.ok_or(Error::InvalidParam)
    }

    fn set_config(&mut self, _offset: u32, _buf: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        // No feature that was offered lets the driver write.
        Err(refused("the configuration cannot be written"))
    }

    fn get_inflight_fd(&mut self, wanted: &VhostUserInflight) -> Result<(VhostUserInflight, File)> {
        let (queues, size) = (wanted.num_queues, wanted.queue_size);
        if queues > MAX_QUEUES || size > MAX_QUEUE_SIZE {
            return Err(refused(format!("requests in flight of {queues} queues of {size} entries")));
        }
        let (file, length) = in_flight::create(queues, MAX_QUEUE_SIZE).map_err(Error::ReqHandlerError)?;
        Ok((VhostUserInflight::new(length, 0, queues, size), file))
    }

    fn set_inflight_fd(&mut self, given: &VhostUserInflight, file: File) -> Result<()> {
        let queues = given.num_queues;
        if queues > MAX_QUEUES {
            return Err(refused(format!("requests in flight of {queues} queues")));
        }
        check_file(&file, given.mmap_offset, given.mmap_size, self.serving.is_trusted)
            .map_err(Error::ReqHandlerError)?;
        let mapped = InFlight::map(file, given.mmap_offset, given.mmap_size, queues);
        self.in_flight = Some(Arc::new(mapped.map_err(Error::ReqHandlerError)?));
        Ok(())
    }

    // The messages below need features that are not offered, or belong to other kinds of device.

    fn reset_device(&mut self) -> Result<()> {
        Err(Error::InvalidOperation("RESET_DEVICE"))
    }

    fn set_gpu_socket(&mut self, _gpu_backend: GpuBackend) -> Result<()> {
        Err(Error::InvalidOperation("GPU_SET_SOCKET"))
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        Err(Error::InvalidOperation("GET_SHARED_OBJECT"))
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _fd: File,
    ) -> Result<Option<File>> {
        Err(Error::InvalidOperation("SET_DEVICE_STATE_FD"))
    }

    fn check_device_state(&mut self) -> Result<()> {
        Err(Error::InvalidOperation("CHECK_DEVICE_STATE"))
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        Err(Error::InvalidOperation("GET_SHMEM_CONFIG"))
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Result<()> {
        Err(Error::InvalidOperation("SET_LOG_BASE"))
    }
}
