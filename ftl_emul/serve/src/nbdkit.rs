//! The C interface of nbdkit (nbdkit-plugin.h, API version 2), as far as it is used. The crate `nbdkit` wraps the same
//! interface; a plugin on it, when tried, had 0.6 of the memory plugin's IOPS at queue depth 1, this one has all.

use std::ffi::{CStr, CString, c_char, c_int, c_void};

/// Requests may come from many threads at once, on one connection too.
pub const THREAD_MODEL_PARALLEL: c_int = 3;
/// FUA is done by the plugin.
pub const FUA_NATIVE: c_int = 2;
pub const FLAG_MAY_TRIM: u32 = 1 << 0;
pub const FLAG_FUA: u32 = 1 << 1;
pub const FLAG_REQ_ONE: u32 = 1 << 2;
pub const EXTENT_HOLE: u32 = 1 << 0;
pub const EXTENT_ZERO: u32 = 1 << 1;

/// What nbdkit collects block status in.
#[repr(C)]
pub struct Extents {
    _opaque: [u8; 0],
}

/// What nbdkit collects exports in.
#[repr(C)]
pub struct Exports {
    _opaque: [u8; 0],
}

type Flag = Option<unsafe extern "C" fn(*mut c_void) -> c_int>;
type Range = Option<unsafe extern "C" fn(*mut c_void, u32, u64, u32) -> c_int>;
type Unused = Option<unsafe extern "C" fn()>;

/// `struct nbdkit_plugin`. Fields keep the order and the types of the header.
#[repr(C)]
pub struct Plugin {
    pub struct_size: u64,
    pub api_version: c_int,
    pub thread_model: c_int,
    pub name: *const c_char,
    pub longname: *const c_char,
    pub version: *const c_char,
    pub description: *const c_char,
    pub load: Unused,
    pub unload: Unused,
    pub config: Option<unsafe extern "C" fn(*const c_char, *const c_char) -> c_int>,
    pub config_complete: Option<unsafe extern "C" fn() -> c_int>,
    pub config_help: *const c_char,
    pub open: Option<unsafe extern "C" fn(c_int) -> *mut c_void>,
    pub close: Option<unsafe extern "C" fn(*mut c_void)>,
    pub get_size: Option<unsafe extern "C" fn(*mut c_void) -> i64>,
    pub can_write: Flag,
    pub can_flush: Flag,
    pub is_rotational: Flag,
    pub can_trim: Flag,
    pub of_version_1: [Unused; 5],
    pub errno_is_preserved: c_int,
    pub dump_plugin: Unused,
    pub can_zero: Flag,
    pub can_fua: Flag,
    pub pread: Option<unsafe extern "C" fn(*mut c_void, *mut c_void, u32, u64, u32) -> c_int>,
    pub pwrite: Option<unsafe extern "C" fn(*mut c_void, *const c_void, u32, u64, u32) -> c_int>,
    pub flush: Option<unsafe extern "C" fn(*mut c_void, u32) -> c_int>,
    pub trim: Range,
    pub zero: Range,
    pub magic_config_key: *const c_char,
    pub can_multi_conn: Flag,
    pub can_extents: Flag,
    pub extents: Option<unsafe extern "C" fn(*mut c_void, u32, u64, u32, *mut Extents) -> c_int>,
    pub can_cache: Flag,
    pub cache: Range,
    pub thread_model_now: Option<unsafe extern "C" fn() -> c_int>,
    pub can_fast_zero: Flag,
    pub preconnect: Option<unsafe extern "C" fn(c_int) -> c_int>,
    pub get_ready: Option<unsafe extern "C" fn() -> c_int>,
    pub after_fork: Option<unsafe extern "C" fn() -> c_int>,
    pub list_exports: Option<unsafe extern "C" fn(c_int, c_int, *mut Exports) -> c_int>,
    pub default_export: Option<unsafe extern "C" fn(c_int, c_int) -> *const c_char>,
    pub export_description: Option<unsafe extern "C" fn(*mut c_void) -> *const c_char>,
    pub cleanup: Unused,
    pub block_size: Option<unsafe extern "C" fn(*mut c_void, *mut u32, *mut u32, *mut u32) -> c_int>,
}

#[cfg(not(test))]
mod exported {
    use super::{Exports, Extents, c_char, c_int};

    unsafe extern "C" {
        pub fn nbdkit_error(format: *const c_char, ...);
        pub fn nbdkit_set_error(errno: c_int);
        pub fn nbdkit_export_name() -> *const c_char;
        pub fn nbdkit_peer_pid() -> i64;
        pub fn nbdkit_is_tls() -> c_int;
        pub fn nbdkit_nanosleep(seconds: u32, nanoseconds: u32) -> c_int;
        pub fn nbdkit_add_extent(extents: *mut Extents, offset: u64, length: u64, kind: u32) -> c_int;
        pub fn nbdkit_add_export(exports: *mut Exports, name: *const c_char, description: *const c_char) -> c_int;
    }
}

/// Tells the operator (and ends the request with the errno set last).
pub fn error(message: &str) {
    let Ok(message) = CString::new(message.replace('\0', " ")) else { return };
    // SAFETY: both are strings that end in NUL and outlive the call; the format takes exactly one string.
    unsafe { exported::nbdkit_error(c"%s".as_ptr(), message.as_ptr()) };
}

/// What the client is told when the callback returns -1.
pub fn set_error(errno: i32) {
    // SAFETY: takes a number, in any thread that nbdkit calls us in.
    unsafe { exported::nbdkit_set_error(errno) };
}

/// The export that the client of this thread's connection asks for.
pub fn export_name() -> String {
    // SAFETY: valid in callbacks of a connection, and only called in those.
    let name = unsafe { exported::nbdkit_export_name() };
    if name.is_null() {
        return String::new();
    }
    // SAFETY: nbdkit gives a string that ends in NUL and lives as long as the connection.
    unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned()
}

/// The process at the other end of this thread's connection; None where the socket does not say.
pub fn peer_pid() -> Option<i64> {
    // SAFETY: takes nothing, in callbacks of a connection only.
    let pid = unsafe { exported::nbdkit_peer_pid() };
    (pid >= 0).then_some(pid)
}

/// True when this thread's connection is encrypted, or that is not to be told.
pub fn is_tls() -> bool {
    // SAFETY: takes nothing, in callbacks of a connection only.
    unsafe { exported::nbdkit_is_tls() != 0 }
}

/// True when the server is stopping or the client of this thread's request has gone away.
pub fn is_gone() -> bool {
    // SAFETY: takes numbers, in callbacks of a connection only.
    unsafe { exported::nbdkit_nanosleep(0, 1) != 0 }
}

/// Adds one extent; false when the answer is full or memory short.
///
/// # Safety
/// `extents` is what nbdkit handed to the callback now running.
pub unsafe fn add_extent(extents: *mut Extents, offset: u64, length: u64, kind: u32) -> bool {
    // SAFETY: as the caller promises.
    unsafe { exported::nbdkit_add_extent(extents, offset, length, kind) == 0 }
}

/// Adds one export.
///
/// # Safety
/// `exports` is what nbdkit handed to the callback now running.
pub unsafe fn add_export(exports: *mut Exports, name: &CStr) -> bool {
    // SAFETY: as the caller promises; the name outlives the call, and there is no description.
    unsafe { exported::nbdkit_add_export(exports, name.as_ptr(), std::ptr::null()) == 0 }
}

/// nbdkit exports these to its plugins; a test binary has no nbdkit around it.
#[cfg(test)]
mod exported {
    use super::{Exports, Extents, c_char, c_int};

    pub unsafe fn nbdkit_error(_: *const c_char, _: *const c_char) {}
    pub unsafe fn nbdkit_set_error(_: c_int) {}
    pub unsafe fn nbdkit_export_name() -> *const c_char {
        std::ptr::null()
    }
    pub unsafe fn nbdkit_peer_pid() -> i64 {
        -1
    }
    pub unsafe fn nbdkit_is_tls() -> c_int {
        0
    }
    pub unsafe fn nbdkit_nanosleep(_: u32, _: u32) -> c_int {
        0
    }
    pub unsafe fn nbdkit_add_extent(_: *mut Extents, _: u64, _: u64, _: u32) -> c_int {
        -1
    }
    pub unsafe fn nbdkit_add_export(_: *mut Exports, _: *const c_char, _: *const c_char) -> c_int {
        -1
    }
}
