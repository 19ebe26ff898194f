//! Contents of a disk's buffer: data read ahead, and writes that are acknowledged and not yet on the media.

use std::collections::VecDeque;

use crate::convert::whole;
use crate::disk::mechanics::Place;

/// A range that the disk continues to read, until another command needs the arm or the segment is full.
#[derive(Debug, Clone, Copy)]
struct Stream {
    start: u64,
    /// Read so far, at `at_ns`.
    front: u64,
    at_ns: u64,
    limit: u64,
}

/// Result of looking up a read in the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BufferLookup {
    /// The whole range is in the buffer.
    All,
    /// The beginning is; the rest, of this many bytes, is being read now.
    Coming(u64),
    /// No data that helps.
    Nothing,
}

/// Segments with data that was read.
#[derive(Debug, Clone, Default)]
pub struct ReadAhead {
    segment_bytes: u64,
    most: usize,
    stream: Option<Stream>,
    /// Ranges of streams that were broken off, the last first.
    segments: VecDeque<(u64, u64)>,
}

impl ReadAhead {
    /// An empty buffer of `most` segments.
    #[must_use]
    pub fn new(segment_bytes: u64, most: usize) -> Self {
        Self { segment_bytes, most: if segment_bytes == 0 { 0 } else { most }, stream: None, segments: VecDeque::new() }
    }

    /// Position of the head in the stream, if it reads one.
    fn front(stream: &Stream, now_ns: u64, rate_bytes_ns: f64) -> u64 {
        let read = whole(now_ns.saturating_sub(stream.at_ns) as f64 * rate_bytes_ns);
        (stream.front + read).min(stream.limit)
    }

    /// Whether a range was read before the present operation of the arm.
    #[must_use]
    pub fn has(&self, offset: u64, length: u64) -> bool {
        let end = offset + length;
        let stream = self.stream.map(|stream| (stream.start, stream.front));
        self.segments.iter().copied().chain(stream).any(|(from, to)| from <= offset && end <= to)
    }

    /// Looks for a range in the data that is being read ahead. A stream that waits for space in its segment
    /// continues as soon as there is some; the buffer hides the rotational delay.
    pub fn find(&mut self, offset: u64, length: u64, now_ns: u64, rate_bytes_ns: f64) -> BufferLookup {
        let end = offset + length;
        let Some(stream) = &mut self.stream else { return BufferLookup::Nothing };
        let front = Self::front(stream, now_ns, rate_bytes_ns);
        if offset < stream.start || offset > front {
            return BufferLookup::Nothing;
        }
        (stream.front, stream.at_ns) = (front, now_ns);
        stream.limit = stream.limit.max(end + self.segment_bytes);
        // A segment discards the oldest data.
        stream.start = stream.start.max(front.saturating_sub(self.segment_bytes)).min(offset);
        if end <= front { BufferLookup::All } else { BufferLookup::Coming(end - front) }
    }

    /// The head has read a range and continues.
    pub fn follow(&mut self, start: u64, end: u64, now_ns: u64) {
        let start = match &self.stream {
            Some(stream) if stream.start <= start && start <= stream.front => stream.start,
            _ => start,
        };
        let start = start.max(end.saturating_sub(self.segment_bytes)).min(end);
        if self.most > 0 {
            self.stream = Some(Stream { start, front: end, at_ns: now_ns, limit: end + self.segment_bytes });
        }
    }

    /// Stops reading ahead and keeps the data. Returns the position that the head had reached.
    pub fn stop(&mut self, now_ns: u64, rate_bytes_ns: f64) -> Option<u64> {
        let stream = self.stream.take()?;
        let front = Self::front(&stream, now_ns, rate_bytes_ns);
        self.segments.push_front((stream.start.max(front.saturating_sub(self.segment_bytes)), front));
        self.segments.truncate(self.most);
        Some(front)
    }

    /// Position at which reading of the stream started, for its transfer rate; None without a stream.
    #[must_use]
    pub fn stream_at(&self) -> Option<u64> {
        self.stream.map(|stream| stream.front)
    }

    /// Discards data that was overwritten.
    pub fn overwrite(&mut self, offset: u64, length: u64) {
        let end = offset + length;
        self.segments.retain(|&(from, to)| end <= from || to <= offset);
        if self.stream.is_some_and(|stream| offset < stream.limit && stream.start < end) {
            self.stream = None;
        }
    }
}

/// A range that is acknowledged and not yet on the media.
#[derive(Debug, Clone, Copy)]
pub struct Dirty {
    /// First byte.
    pub start: u64,
    /// End, exclusive.
    pub end: u64,
    /// Time at which its beginning is in the buffer.
    pub ready_ns: u64,
    /// Counts up; a flush waits for those up to its own.
    pub number: u64,
    /// Its tenant.
    pub tenant: u16,
    /// Number of times that a nearer command was preferred.
    pub passed_over: u32,
    /// Position of its beginning.
    pub place: Place,
}

/// The write cache.
#[derive(Debug, Clone, Default)]
pub struct WriteCache {
    most_bytes: u64,
    most_places: usize,
    /// Includes the data that is being written to the media.
    bytes: u64,
    /// In the order of their arrival.
    pub dirty: Vec<Dirty>,
}

impl WriteCache {
    /// An empty one.
    #[must_use]
    pub fn new(most_bytes: u64, most_places: usize) -> Self {
        Self { most_bytes, most_places, bytes: 0, dirty: Vec::with_capacity(most_places) }
    }

    /// Whether writes are acknowledged before they are on the media.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.most_bytes > 0
    }

    /// Adds a write, merged with the one that it continues; false when there is no space.
    pub fn put(&mut self, new: Dirty) -> bool {
        let length = new.end - new.start;
        if self.bytes > 0 && self.bytes + length > self.most_bytes {
            return false;
        }
        let touching = self.dirty.iter().position(|d| d.start <= new.end && new.start <= d.end);
        match touching {
            Some(index) => {
                let dirty = &mut self.dirty[index];
                let before = dirty.end - dirty.start;
                // Its continuation arrives while its beginning is written: the interface is faster than the media.
                if new.start < dirty.start {
                    (dirty.start, dirty.place) = (new.start, new.place);
                    dirty.ready_ns = dirty.ready_ns.max(new.ready_ns);
                }
                dirty.end = dirty.end.max(new.end);
                self.bytes += dirty.end - dirty.start - before;
            }
            None if self.dirty.len() < self.most_places => {
                self.bytes += length;
                self.dirty.push(new);
            }
            None => return false,
        }
        true
    }

    /// Whether a range can be read from here.
    #[must_use]
    pub fn holds(&self, offset: u64, length: u64) -> bool {
        self.dirty.iter().any(|d| d.start <= offset && offset + length <= d.end)
    }

    /// Records that this many bytes are on the media.
    pub fn written(&mut self, bytes: u64) {
        self.bytes -= bytes;
    }
}
