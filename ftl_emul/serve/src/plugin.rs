//! What nbdkit calls. Every callback checks what it was given, calls the server and turns its error into an errno.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::access;
use crate::config::Medium;
use crate::error::ServeError;
use crate::front_ends::FrontEnds;
use crate::namespace::{Flags, Namespace};
use crate::nbdkit::{self, Exports, Extents, Plugin};
use crate::offline;
use crate::parameters::Parameters;
use crate::server::Server;
use crate::stop;
use crate::transport;
use ftl_core::convert::exact;

/// Bytes of one request at most, as nbdkit has it.
const MAX_REQUEST_BYTES: u32 = 32 << 20;
/// Block status is looked up for so many extents at a time; the client asks again for more.
const MAX_EXTENTS: usize = 4096;

/// Connections at once through one socket. Each has threads and descriptors of its own.
const MAX_CONNECTIONS: usize = 16;
/// Between two lines about connections that were refused.
const TELLING: Duration = Duration::from_secs(10);
/// Larger pieces of memory are the system's again as soon as they are free.
const MAPPED_BYTES: c_int = 256 << 10;

static PARAMETERS: Mutex<Option<Parameters>> = Mutex::new(None);
static DEVICE: OnceLock<Device> = OnceLock::new();

struct Device {
    server: Server,
    /// Export names as C has them, in the order of the namespaces.
    names: Vec<CString>,
    parameters: Parameters,
    /// The others, once they are started.
    front_ends: OnceLock<FrontEnds>,
}

/// Runs a callback; a panic in it ends this request only, and never unwinds into C.
fn guarded<R>(failed: R, work: impl FnOnce() -> R) -> R {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(done) => done,
        Err(_) => {
            nbdkit::error("internal error, please report it");
            nbdkit::set_error(libc::EIO);
            failed
        }
    }
}

fn parameters<R>(work: impl FnOnce(&mut Parameters) -> R) -> R {
    let mut guard = PARAMETERS.lock().unwrap_or_else(PoisonError::into_inner);
    work(guard.get_or_insert_with(Parameters::default))
}

fn reported(done: Result<(), ServeError>) -> c_int {
    match done {
        Ok(()) => 0,
        Err(e) => {
            nbdkit::error(&e.to_string());
            -1
        }
    }
}

/// The status of a request.
#[inline]
fn answered(done: io::Result<()>) -> c_int {
    match done {
        Ok(()) => 0,
        Err(e) => {
            let errno = e.raw_os_error().unwrap_or(libc::EIO);
            // nbdkit takes the first as a request to write zeroes instead; the second is reported once, not with each write.
            if !matches!(errno, libc::EOPNOTSUPP | libc::ENOSPC) {
                nbdkit::error(&e.to_string());
            }
            nbdkit::set_error(errno);
            -1
        }
    }
}

/// The namespace and the device of a connection.
///
/// # Safety
/// `handle` is what [`open`] returned, and nbdkit has not closed it.
#[inline]
unsafe fn connected<'a>(handle: *mut c_void) -> Option<(&'a Namespace, &'static Device)> {
    // SAFETY: open gave nbdkit a pointer to a namespace that lives until close takes it back.
    let namespace = unsafe { handle.cast::<Namespace>().as_ref() }?;
    DEVICE.get().map(|device| (namespace, device))
}

fn flags(flags: u32) -> Flags {
    Flags { fua: flags & nbdkit::FLAG_FUA != 0, may_trim: flags & nbdkit::FLAG_MAY_TRIM != 0 }
}

unsafe extern "C" fn config(key: *const c_char, value: *const c_char) -> c_int {
    guarded(-1, || {
        // SAFETY: nbdkit gives two strings that end in NUL.
        let (key, value) = unsafe { (CStr::from_ptr(key), CStr::from_ptr(value)) };
        reported(parameters(|p| p.set(&key.to_string_lossy(), &value.to_string_lossy())))
    })
}

unsafe extern "C" fn get_ready() -> c_int {
    guarded(-1, || reported(parameters(|p| prepare(p))))
}

fn prepare(parameters: &Parameters) -> Result<(), ServeError> {
    raise_descriptor_limit();
    let server = Server::open(parameters)?;
    if let Some(command) = &parameters.command {
        offline::carry_out(&server, command)?;
        // Nothing is to be served, and nbdkit has nothing to tidy up yet.
        std::process::exit(0);
    }
    let names = server.namespaces().iter().filter_map(|n| CString::new(n.name.as_str()).ok()).collect();
    let device = Device { server, names, parameters: parameters.clone(), front_ends: OnceLock::new() };
    if let Some(origin) = &device.server.origin {
        eprintln!("slo-ctl: {} (emulated): placement {origin}", device.server.config.name);
    }
    if DEVICE.set(device).is_err() {
        return crate::error::refuse("the device is open already");
    }
    Ok(())
}

/// As many descriptors as this process may have: connections through the many sockets of a device.
fn raise_descriptor_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills in, and then reads, `limit`. Where it refuses, the limit stays as it was.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

unsafe extern "C" fn after_fork() -> c_int {
    guarded(-1, || {
        let Some(device) = DEVICE.get() else { return -1 };
        let started = device
            .server
            .start()
            .and_then(|()| FrontEnds::start(&device.server, &device.parameters))
            .map(|started| drop(device.front_ends.set(started)))
            .and_then(|()| stop::start(device.parameters.stop_fd, device.parameters.sockets.clone()));
        reported(started)
    })
}

unsafe extern "C" fn cleanup() {
    guarded((), || {
        if let Some(device) = DEVICE.get() {
            if let Some(front_ends) = device.front_ends.get() {
                front_ends.stop();
            }
            if reported(device.server.stop()) != 0 {
                // nbdkit itself would end as if all were saved.
                // SAFETY: every connection has ended, and what there is to tidy up is in memory only.
                unsafe { libc::_exit(1) };
            }
        }
    });
}

/// Refuses a client that has all connections it may have, before it gets threads.
unsafe extern "C" fn preconnect(_readonly: c_int) -> c_int {
    static REFUSED: Mutex<(u64, Option<Instant>)> = Mutex::new((0, None));
    guarded(-1, || {
        let Some(folder) = DEVICE.get().and_then(|device| device.parameters.sockets.as_deref()) else { return 0 };
        if !access::is_crowded(folder, nbdkit::peer_pid(), MAX_CONNECTIONS) {
            return 0;
        }
        let mut refused = REFUSED.lock().unwrap_or_else(PoisonError::into_inner);
        refused.0 += 1;
        if refused.1.is_none_or(|last| last.elapsed() >= TELLING) {
            eprintln!(
                "slo-ctl: refused {} connections: a socket takes {MAX_CONNECTIONS} at once (process {})",
                refused.0,
                nbdkit::peer_pid().unwrap_or(-1)
            );
            *refused = (0, Some(Instant::now()));
        }
        -1
    })
}

unsafe extern "C" fn list_exports(_readonly: c_int, _is_tls: c_int, exports: *mut Exports) -> c_int {
    guarded(-1, || {
        let Some(device) = DEVICE.get() else { return -1 };
        for name in &device.permitted() {
            // SAFETY: this is the callback that nbdkit gave `exports` to.
            if !unsafe { nbdkit::add_export(exports, name) } {
                return -1;
            }
        }
        0
    })
}

unsafe extern "C" fn default_export(_readonly: c_int, _is_tls: c_int) -> *const c_char {
    guarded(ptr::null(), || match DEVICE.get().map(Device::permitted).as_deref() {
        // Among several there is no telling which one an empty name means.
        Some([only]) => only.as_ptr(),
        _ => ptr::null(),
    })
}

impl Device {
    /// The exports that the peer of this thread's connection may use.
    fn permitted(&self) -> Vec<&CStr> {
        let through = self.parameters.sockets.as_deref().map(|folder| access::sockets_of(folder, nbdkit::peer_pid()));
        let may = |name: &&CString| through.as_ref().is_none_or(|sockets| sockets.permit(&name.to_string_lossy()));
        self.names.iter().filter(may).map(CString::as_c_str).collect()
    }
}

unsafe extern "C" fn open(_readonly: c_int) -> *mut c_void {
    guarded(ptr::null_mut(), || {
        let wanted = nbdkit::export_name();
        let found = DEVICE.get().and_then(|device| {
            let permitted = device.permitted();
            let name = match (wanted.as_str(), &permitted[..]) {
                ("", [only]) => only.to_string_lossy(),
                (wanted, several) => several.iter().find(|n| n.to_bytes() == wanted.as_bytes())?.to_string_lossy(),
            };
            device.server.namespace(&name)
        });
        match found {
            Some(namespace) => Arc::into_raw(namespace).cast_mut().cast(),
            None => {
                nbdkit::error(&format!("no export {wanted:?} here"));
                nbdkit::set_error(libc::ENOENT);
                ptr::null_mut()
            }
        }
    })
}

unsafe extern "C" fn close(handle: *mut c_void) {
    guarded((), || {
        // SAFETY: it is what open made of an Arc, and nbdkit uses it no more.
        drop(unsafe { Arc::from_raw(handle.cast::<Namespace>()) });
    });
}

unsafe extern "C" fn get_size(handle: *mut c_void) -> i64 {
    // SAFETY: nbdkit passes what open returned.
    unsafe { connected(handle) }.map_or(-1, |(namespace, _)| exact::<i64>(namespace.size_bytes()))
}

unsafe extern "C" fn yes(_handle: *mut c_void) -> c_int {
    1
}

unsafe extern "C" fn is_rotational(handle: *mut c_void) -> c_int {
    // SAFETY: nbdkit passes what open returned.
    let connected = unsafe { connected(handle) };
    c_int::from(connected.is_some_and(|(_, device)| matches!(device.server.config.medium, Medium::Disks(..))))
}

unsafe extern "C" fn can_fua(_handle: *mut c_void) -> c_int {
    nbdkit::FUA_NATIVE
}

unsafe extern "C" fn block_size(
    handle: *mut c_void,
    minimum: *mut u32,
    preferred: *mut u32,
    maximum: *mut u32,
) -> c_int {
    // SAFETY: nbdkit passes what open returned.
    let Some((_, device)) = (unsafe { connected(handle) }) else { return -1 };
    let page = exact::<u32>(device.server.config.granule_bytes()).clamp(4096, MAX_REQUEST_BYTES);
    // SAFETY: nbdkit passes three places of its own to fill in.
    unsafe {
        *minimum = 1;
        *preferred = page;
        *maximum = MAX_REQUEST_BYTES;
    }
    0
}

unsafe extern "C" fn pread(handle: *mut c_void, buffer: *mut c_void, count: u32, offset: u64, _flags: u32) -> c_int {
    guarded(-1, || {
        // SAFETY: nbdkit passes what open returned, and `count` bytes for this call alone.
        let (connected, buffer) =
            unsafe { (connected(handle), std::slice::from_raw_parts_mut(buffer.cast::<u8>(), count as usize)) };
        let Some((namespace, device)) = connected else { return -1 };
        transport::make_room_to_read(&namespace.name, buffer.len(), nbdkit::is_tls());
        answered(namespace.read(&device.server.model, buffer, offset, nbdkit::is_gone))
    })
}

unsafe extern "C" fn pwrite(handle: *mut c_void, buffer: *const c_void, count: u32, offset: u64, given: u32) -> c_int {
    guarded(-1, || {
        // SAFETY: nbdkit passes what open returned, and `count` bytes that nobody changes during this call.
        let (connected, buffer) =
            unsafe { (connected(handle), std::slice::from_raw_parts(buffer.cast::<u8>(), count as usize)) };
        let Some((namespace, device)) = connected else { return -1 };
        answered(namespace.write(&device.server.model, buffer, offset, flags(given), nbdkit::is_gone))
    })
}

unsafe extern "C" fn flush(handle: *mut c_void, _flags: u32) -> c_int {
    guarded(-1, || {
        // SAFETY: nbdkit passes what open returned.
        let Some((namespace, device)) = (unsafe { connected(handle) }) else { return -1 };
        answered(namespace.flush(&device.server.model, nbdkit::is_gone))
    })
}

unsafe extern "C" fn trim(handle: *mut c_void, count: u32, offset: u64, given: u32) -> c_int {
    guarded(-1, || {
        // SAFETY: nbdkit passes what open returned.
        let Some((namespace, device)) = (unsafe { connected(handle) }) else { return -1 };
        answered(namespace.trim(&device.server.model, offset, u64::from(count), flags(given), nbdkit::is_gone))
    })
}

unsafe extern "C" fn zero(handle: *mut c_void, count: u32, offset: u64, given: u32) -> c_int {
    guarded(-1, || {
        // SAFETY: nbdkit passes what open returned.
        let Some((namespace, device)) = (unsafe { connected(handle) }) else { return -1 };
        answered(namespace.zero(&device.server.model, offset, u64::from(count), flags(given), nbdkit::is_gone))
    })
}

unsafe extern "C" fn extents(handle: *mut c_void, count: u32, offset: u64, given: u32, extents: *mut Extents) -> c_int {
    guarded(-1, || {
        // SAFETY: nbdkit passes what open returned.
        let Some((namespace, _)) = (unsafe { connected(handle) }) else { return -1 };
        let end = offset.saturating_add(u64::from(count)).min(namespace.size_bytes());
        let (mut at, mut found) = (offset, 0);
        while at < end && found < MAX_EXTENTS {
            let extent = match namespace.backing.extent_at(at, end) {
                Ok(extent) => extent,
                Err(e) => return answered(Err(e)),
            };
            let kind = if extent.hole { nbdkit::EXTENT_HOLE | nbdkit::EXTENT_ZERO } else { 0 };
            // SAFETY: this is the callback that nbdkit gave `extents` to.
            if !unsafe { nbdkit::add_extent(extents, at, extent.length, kind) } {
                return -1;
            }
            at += extent.length;
            found += 1;
            if given & nbdkit::FLAG_REQ_ONE != 0 {
                break;
            }
        }
        0
    })
}

/// What nbdkit calls after loading this library.
#[unsafe(no_mangle)]
pub extern "C" fn plugin_init() -> *const Plugin {
    let help = c"device=<FOLDER>            (required) Folder of the emulated device.
latency=none|real          When requests are done. [none]
time-scale=<X>             Real seconds for each modelled one. [1]
checkpoint-seconds=<S>     How often the placement of pages is saved. [60]
Use `slo-ctl device serve` rather than this plugin by itself.";
    // SAFETY: takes numbers. Where the C library has no such thing, memory is released later.
    unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MAPPED_BYTES) };
    Box::leak(Box::new(Plugin {
        struct_size: size_of::<Plugin>() as u64,
        api_version: 2,
        thread_model: nbdkit::THREAD_MODEL_PARALLEL,
        name: c"slo-ctl".as_ptr(),
        longname: c"slo-ctl emulated device".as_ptr(),
        version: concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast(),
        description: c"an EMULATED SSD with tenants, garbage collection and modelled time, or EMULATED disks".as_ptr(),
        load: None,
        unload: None,
        config: Some(config),
        config_complete: None,
        config_help: help.as_ptr(),
        open: Some(open),
        close: Some(close),
        get_size: Some(get_size),
        can_write: Some(yes),
        can_flush: Some(yes),
        is_rotational: Some(is_rotational),
        can_trim: Some(yes),
        of_version_1: [None; 5],
        errno_is_preserved: 0,
        dump_plugin: None,
        can_zero: Some(yes),
        can_fua: Some(can_fua),
        pread: Some(pread),
        pwrite: Some(pwrite),
        flush: Some(flush),
        trim: Some(trim),
        zero: Some(zero),
        magic_config_key: c"device".as_ptr(),
        can_multi_conn: Some(yes),
        can_extents: Some(yes),
        extents: Some(extents),
        can_cache: None,
        cache: None,
        thread_model_now: None,
        can_fast_zero: Some(yes),
        preconnect: Some(preconnect),
        get_ready: Some(get_ready),
        after_fork: Some(after_fork),
        list_exports: Some(list_exports),
        default_export: Some(default_export),
        export_description: None,
        cleanup: Some(cleanup),
        block_size: Some(block_size),
    }))
}
