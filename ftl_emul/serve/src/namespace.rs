//! A namespace: what one guest sees as its disk.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ftl_core::{Op, TenantId};

use crate::backing::{self, Backing};
use crate::error::ServeError;
use crate::model::{Model, Request};
use crate::recent::Latencies;

/// Requests answered, by the codes of [`Op`], and their bytes.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Answered {
    requests: [AtomicU64; 5],
    bytes: [AtomicU64; 5],
}

impl Answered {
    fn count(&self, op: Op, bytes: u64) {
        self.requests[op as usize].fetch_add(1, Ordering::Relaxed);
        self.bytes[op as usize].fetch_add(bytes, Ordering::Relaxed);
    }

    /// Requests of a kind.
    #[must_use]
    pub fn requests(&self, op: Op) -> u64 {
        self.requests[op as usize].load(Ordering::Relaxed)
    }

    /// Their bytes.
    #[must_use]
    pub fn bytes(&self, op: Op) -> u64 {
        self.bytes[op as usize].load(Ordering::Relaxed)
    }
}

/// One namespace while it is served.
#[derive(Debug)]
pub struct Namespace {
    /// Export name.
    pub name: String,
    /// Its number on the model.
    pub tenant: TenantId,
    /// Its data.
    pub backing: Backing,
    /// What it has done since the start.
    pub answered: Answered,
    /// How long reads and writes took, as the client saw it.
    pub latencies: Latencies,
    size_bytes: AtomicU64,
}

/// How a request asks to be served.
#[derive(Debug, Clone, Copy, Default)]
pub struct Flags {
    /// On stable storage before the answer.
    pub fua: bool,
    /// Space may be given back.
    pub may_trim: bool,
}

impl Namespace {
    /// Opens the namespace whose backing file lies in `folder`.
    pub fn open(folder: &Path, name: &str, tenant: TenantId, size_bytes: u64) -> Result<Self, ServeError> {
        let backing = Backing::open(&folder.join(format!("{name}.img")), size_bytes)?;
        Ok(Self {
            name: name.to_owned(),
            tenant,
            backing,
            answered: Answered::default(),
            latencies: Latencies::default(),
            size_bytes: AtomicU64::new(size_bytes),
        })
    }

    /// Logical size.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes.load(Ordering::Relaxed)
    }

    /// Changes the logical size; connections see it when they are made anew.
    pub fn set_size_bytes(&self, size_bytes: u64) {
        self.size_bytes.store(size_bytes, Ordering::Relaxed);
    }

    /// Reads.
    pub fn read(&self, model: &Model, buffer: &mut [u8], offset: u64, gone: impl FnMut() -> bool) -> io::Result<()> {
        let length = buffer.len() as u64;
        self.serve(model, Op::Read, offset, length, gone, || self.backing.read(buffer, offset))
    }

    /// Writes.
    pub fn write(
        &self,
        model: &Model,
        buffer: &[u8],
        offset: u64,
        flags: Flags,
        gone: impl FnMut() -> bool,
    ) -> io::Result<()> {
        let length = buffer.len() as u64;
        self.serve(model, Op::Write, offset, length, gone, || self.backing.write(buffer, offset, flags.fua))
    }

    /// Puts everything answered so far on stable storage.
    pub fn flush(&self, model: &Model, gone: impl FnMut() -> bool) -> io::Result<()> {
        self.serve(model, Op::Flush, 0, 0, gone, || self.backing.flush())
    }

    /// Gives space back where the file system can; the guest may not rely on what it reads there afterwards.
    pub fn trim(
        &self,
        model: &Model,
        offset: u64,
        length: u64,
        flags: Flags,
        gone: impl FnMut() -> bool,
    ) -> io::Result<()> {
        self.serve(model, Op::Trim, offset, length, gone, || {
            match self.backing.punch(offset, length) {
                Err(e) if !backing::is_unsupported(&e) => return Err(e),
                _ => {}
            }
            if flags.fua { self.backing.flush() } else { Ok(()) }
        })
    }

    /// Makes a range read as zeroes. `EOPNOTSUPP` where that would mean writing them.
    pub fn zero(
        &self,
        model: &Model,
        offset: u64,
        length: u64,
        flags: Flags,
        gone: impl FnMut() -> bool,
    ) -> io::Result<()> {
        self.serve(model, Op::WriteZeroes, offset, length, gone, || {
            let zeroed =
                if flags.may_trim { self.backing.punch(offset, length) } else { self.backing.zero(offset, length) };
            match zeroed {
                Err(e) if backing::is_unsupported(&e) => return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
                Err(e) => return Err(e),
                Ok(()) => {}
            }
            if flags.fua { self.backing.flush() } else { Ok(()) }
        })
    }

    /// Lets a request arrive at the model, moves its data, and returns when the model says that it is done.
    #[inline]
    fn serve(
        &self,
        model: &Model,
        op: Op,
        offset: u64,
        length: u64,
        gone: impl FnMut() -> bool,
        move_data: impl FnOnce() -> io::Result<()>,
    ) -> io::Result<()> {
        if offset.checked_add(length).is_none_or(|end| end > self.size_bytes()) {
            let errno = if op == Op::Read { libc::EINVAL } else { libc::ENOSPC };
            return Err(io::Error::from_raw_os_error(errno));
        }
        let request = Request { tenant: self.tenant, op, offset, length };
        let arrived = Instant::now();
        let ticket = model.begin(request, arrived);
        let moved = move_data();
        model.end(request, ticket, moved.is_ok(), gone);
        moved?;
        self.answered.count(op, length);
        self.latencies.record(op, arrived.elapsed() + model.on_top());
        Ok(())
    }
}
