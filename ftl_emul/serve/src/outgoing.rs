//! Answers that wait to be sent. Their memory is used again and again as it is: to zero it first, for data that is read
//! into it, took a twentieth of the time of a read.

/// Bytes to send, in order.
#[derive(Debug, Default)]
pub struct Outgoing {
    /// Data that was sent before is before `used`.
    bytes: Vec<u8>,
    used: usize,
}

impl Outgoing {
    /// Bytes that wait.
    pub fn len(&self) -> usize {
        self.used
    }

    /// Whether none do.
    pub fn is_empty(&self) -> bool {
        self.used == 0
    }

    /// All of them.
    pub fn waiting(&self) -> &[u8] {
        &self.bytes[..self.used]
    }

    /// Room for more, which holds anything. It waits to be sent only once it is [`Self::add`]ed.
    pub fn room(&mut self, bytes: usize) -> &mut [u8] {
        let end = self.used + bytes;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        &mut self.bytes[self.used..end]
    }

    /// Data that was put into the beginning of [`Self::room`] now waits.
    pub fn add(&mut self, bytes: usize) {
        self.used = (self.used + bytes).min(self.bytes.len());
    }

    /// Adds a copy.
    pub fn extend(&mut self, bytes: &[u8]) {
        self.room(bytes.len()).copy_from_slice(bytes);
        self.add(bytes.len());
    }

    /// All are sent.
    pub fn clear(&mut self) {
        self.used = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_added_waits() {
        let mut outgoing = Outgoing::default();
        outgoing.extend(b"one");
        outgoing.room(5).copy_from_slice(b"twice");
        assert_eq!(outgoing.waiting(), b"one");
        outgoing.room(2).copy_from_slice(b"is");
        outgoing.add(2);
        outgoing.extend(b"!");
        assert_eq!((outgoing.waiting(), outgoing.len()), (&b"oneis!"[..], 6));
        outgoing.clear();
        assert!(outgoing.is_empty() && outgoing.waiting().is_empty());
        outgoing.extend(b"next");
        assert_eq!(outgoing.waiting(), b"next");
    }
}
