//! Memory for the data of requests in work, bounded in total and fair.
//!
//! A front end that carries out requests of a client has a [`Room`] with a reserved part, so that it always makes
//! progress. The [`Pool`], which all front ends share, lends more while it has some; no client waits for memory that
//! others have borrowed.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::threads::lock;

/// Maximum that all namespaces together may borrow.
pub const POOL_BYTES: usize = 256 << 20;
/// How often a request that waits for room looks whether it is still wanted, and whether the pool has some again.
const WANTED_CHECK: Duration = Duration::from_millis(250);

/// Borrowed memory.
#[derive(Debug, Default)]
struct Lent {
    all: usize,
    /// By NSID; only namespaces that borrow.
    to: HashMap<u32, usize>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Pool(Mutex<Lent>);

impl Pool {
    fn lent(&self) -> MutexGuard<'_, Lent> {
        lock(&self.0)
    }

    /// Lends to a namespace as long as it then has no more than is left for the others: one alone gets a half, two get a
    /// third each. Some is left for the next one even if memory is not returned.
    fn lend(&self, namespace: u32, bytes: usize) -> bool {
        let mut lent = self.lent();
        let has = lent.to.get(&namespace).copied().unwrap_or(0) + bytes;
        let all = lent.all + bytes;
        let is_fair = has <= POOL_BYTES.saturating_sub(all);
        if is_fair {
            lent.all = all;
            lent.to.insert(namespace, has);
        }
        is_fair
    }

    fn take_back(&self, namespace: u32, bytes: usize) {
        let mut lent = self.lent();
        lent.all -= bytes;
        if let Some(has) = lent.to.get_mut(&namespace) {
            *has -= bytes;
            if *has == 0 {
                lent.to.remove(&namespace);
            }
        }
    }
}

#[derive(Debug, Default)]
struct State {
    own: usize,
    /// Requests that have some, own or borrowed.
    holders: usize,
    /// Requests that wait for some.
    waiting: usize,
}

/// See the module.
#[derive(Debug)]
pub struct Room {
    pool: Arc<Pool>,
    own_bytes: usize,
    state: Mutex<State>,
    less: Condvar,
}

/// Memory of a request, until it is dropped.
#[derive(Debug)]
pub struct Taken {
    room: Arc<Room>,
    bytes: usize,
    /// Its borrower; None if it belongs to the room.
    borrower: Option<u32>,
}

impl Room {
    /// A room with this much reserved memory.
    pub fn new(pool: &Arc<Pool>, own_bytes: usize) -> Arc<Self> {
        Arc::new(Self { pool: Arc::clone(pool), own_bytes, state: Mutex::default(), less: Condvar::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn take_of(self: &Arc<Self>, state: &mut State, bytes: usize, namespace: Option<u32>) -> Option<Taken> {
        let borrower = if state.own + bytes <= self.own_bytes {
            state.own += bytes;
            None
        } else {
            Some(namespace.filter(|&namespace| self.pool.lend(namespace, bytes))?)
        };
        state.holders += 1;
        Some(Taken { room: Arc::clone(self), bytes, borrower })
    }

    /// Memory for a request of a namespace; without one nothing is borrowed. None if there is none now.
    pub fn try_take(self: &Arc<Self>, bytes: usize, namespace: Option<u32>) -> Option<Taken> {
        self.take_of(&mut self.state(), bytes, namespace)
    }

    /// Waits for memory. If the room is empty, and the request neither fits into it nor can borrow its memory, it gets
    /// only a piece of `piece_bytes`, which is reused. None if no client waits for the request any more.
    pub fn take(
        self: &Arc<Self>,
        bytes: usize,
        piece_bytes: usize,
        namespace: u32,
        gone: impl Fn() -> bool,
    ) -> Option<Taken> {
        let mut state = self.state();
        loop {
            if let Some(taken) = self.take_of(&mut state, bytes, Some(namespace)) {
                return Some(taken);
            }
            if state.holders == 0 {
                return self.take_of(&mut state, piece_bytes.min(self.own_bytes), None);
            }
            state.waiting += 1;
            let (again, waited) = self.less.wait_timeout(state, WANTED_CHECK).unwrap_or_else(PoisonError::into_inner);
            state = again;
            state.waiting -= 1;
            if waited.timed_out() && gone() {
                return None;
            }
        }
    }
}

impl Taken {
    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        let mut state = self.room.state();
        state.holders -= 1;
        match self.borrower {
            Some(namespace) => self.room.pool.take_back(namespace, self.bytes),
            None => state.own -= self.bytes,
        }
        let is_awaited = state.waiting > 0;
        drop(state);
        if is_awaited {
            self.room.less.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use proptest::prelude::*;

    use super::*;

    const MIB: usize = 1 << 20;

    #[test]
    fn request_waits_for_memory_held_by_its_own_export() {
        let room = Room::new(&Arc::default(), 2 * MIB);
        let most: Vec<Taken> = std::iter::from_fn(|| room.try_take(MIB, Some(1))).collect();
        assert_eq!(most.len(), 2 + POOL_BYTES / 2 / MIB);
        assert!(room.take(MIB, MIB, 1, || true).is_none(), "nobody waits for it any more");
        let second = Arc::clone(&room);
        let waiting = thread::spawn(move || second.take(MIB, MIB, 1, || false).map(|taken| taken.bytes()));
        drop(most);
        assert_eq!(waiting.join().unwrap(), Some(MIB));
        let state = room.state();
        assert_eq!((state.own, state.holders, state.waiting), (0, 0, 0));
        assert_eq!(room.pool.lent().all, 0);
    }

    #[test]
    fn every_namespace_keeps_a_part_of_the_pool() {
        let pool = Arc::default();
        let mut held = Vec::new();
        for namespace in 1..=200 {
            let room = Room::new(&pool, 2 * MIB);
            let before = held.len();
            while let Some(taken) = room.try_take(MIB, Some(namespace)) {
                held.push(taken);
            }
            assert!(held.len() >= before + 2, "its own part");
        }
        assert!(pool.lent().all <= POOL_BYTES);
        let late = Room::new(&pool, 2 * MIB);
        let taken = late.take(32 * MIB, MIB, 201, || false).unwrap();
        assert_eq!(taken.bytes(), MIB, "a large request goes on in pieces, without waiting for anybody else");
        drop(held);
        drop(taken);
        assert_eq!(late.take(32 * MIB, MIB, 201, || false).unwrap().bytes(), 32 * MIB);
    }

    #[test]
    fn without_a_namespace_nothing_is_borrowed() {
        let room = Room::new(&Arc::default(), MIB);
        assert!(room.try_take(MIB + 1, None).is_none());
        assert!(room.try_take(MIB, None).is_some());
    }

    proptest! {
        #[test]
        fn no_more_is_lent_than_there_is_and_all_of_it_comes_back(
            steps in proptest::collection::vec((0usize..4, 1u32..5, 1usize..80 * MIB, any::<bool>()), 1..200),
        ) {
            let pool = Arc::default();
            let rooms: Vec<_> = (0..4).map(|_| Room::new(&pool, 2 * MIB)).collect();
            let mut held = Vec::new();
            for (room, namespace, bytes, gives_back) in steps {
                if gives_back && !held.is_empty() {
                    held.swap_remove(bytes % held.len());
                }
                held.extend(rooms[room].try_take(bytes, Some(namespace)));
                let lent = pool.lent();
                prop_assert!(lent.all <= POOL_BYTES);
                prop_assert_eq!(lent.all, lent.to.values().sum::<usize>());
                prop_assert!(lent.to.values().all(|&has| has <= POOL_BYTES / 2));
            }
            held.clear();
            let lent = pool.lent();
            prop_assert_eq!((lent.all, lent.to.len()), (0, 0));
        }
    }
}
