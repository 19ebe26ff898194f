//! Which block GC collects next.

mod greedy;

use rand_core::RngCore;
use rand_xoshiro::Xoshiro256PlusPlus;
use serde::{Deserialize, Serialize};

use crate::address::BlockId;
use crate::block::{Block, BlockList};
use crate::convert::exact;
use greedy::GreedyIndex;

/// How GC chooses its victim among the full blocks of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum VictimPolicy {
    /// Fewest valid pages; the longest-standing among equals.
    Greedy,
    /// The block written longest ago (also called LRU cleaning).
    Fifo,
    /// Greatest (1 - u) / 2u x age, age counted since the last invalidation (Rosenblum and Ousterhout; Kawaguchi et al.).
    CostBenefit,
    /// Fewest valid pages among d blocks drawn at random (Van Houdt 2013).
    DChoices(u32),
    /// Any block, drawn at random.
    Random,
}

/// The victim policies by name: name, policy, description.
pub const VICTIM_POLICIES: &[(&str, VictimPolicy, &str)] = &[
    ("greedy", VictimPolicy::Greedy, "fewest valid pages"),
    ("fifo", VictimPolicy::Fifo, "oldest written block (LRU cleaning)"),
    ("lru", VictimPolicy::Fifo, "another name of fifo"),
    ("cost-benefit", VictimPolicy::CostBenefit, "greatest (1 - u) / 2u x age since last invalidation"),
    ("d-choices", VictimPolicy::DChoices(10), "fewest valid pages of 10 random blocks"),
    ("random", VictimPolicy::Random, "any full block"),
];

/// Finds a victim policy by name; `d-choices` also as `d-choices:D`.
#[must_use]
pub fn victim_policy(name: &str) -> Option<VictimPolicy> {
    if let Some(d) = name.strip_prefix("d-choices:") {
        return d.parse().ok().filter(|d| (1..=1024).contains(d)).map(VictimPolicy::DChoices);
    }
    VICTIM_POLICIES.iter().find(|(n, ..)| *n == name).map(|&(_, policy, _)| policy)
}

/// The full blocks of one pool, arranged so that its policy finds a victim quickly.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum VictimIndex {
    /// Lists by valid count near the minimum only.
    Greedy(GreedyIndex),
    /// A list for each count of valid pages, each in the order of the last invalidation: for cost-benefit.
    Buckets { lists: Vec<BlockList>, lowest: u32 },
    /// In the order of filling.
    Queue(BlockList),
    /// An unordered array; each block stores its index in it.
    Dense(Vec<BlockId>),
}

impl VictimIndex {
    pub fn new(policy: VictimPolicy, pages_per_block: u32) -> Self {
        match policy {
            VictimPolicy::Greedy => Self::Greedy(GreedyIndex::new(pages_per_block)),
            VictimPolicy::CostBenefit => {
                Self::Buckets { lists: vec![BlockList::EMPTY; pages_per_block as usize + 1], lowest: pages_per_block }
            }
            VictimPolicy::Fifo => Self::Queue(BlockList::EMPTY),
            VictimPolicy::DChoices(_) | VictimPolicy::Random => Self::Dense(Vec::new()),
        }
    }

    pub fn insert(&mut self, blocks: &mut [Block], block: BlockId) {
        match self {
            Self::Greedy(index) => index.insert(blocks, block),
            Self::Buckets { lists, lowest } => {
                let valid = blocks[block].valid;
                lists[valid as usize].push_back(blocks, block);
                *lowest = valid.min(*lowest);
            }
            Self::Queue(list) => list.push_back(blocks, block),
            Self::Dense(members) => {
                blocks[block].set_place(members.len());
                members.push(block);
            }
        }
    }

    pub fn remove(&mut self, blocks: &mut [Block], block: BlockId) {
        match self {
            Self::Greedy(index) => index.remove(blocks, block),
            Self::Buckets { lists, .. } => {
                lists[blocks[block].valid as usize].remove(blocks, block);
            }
            Self::Queue(list) => list.remove(blocks, block),
            Self::Dense(members) => {
                let place = blocks[block].place();
                members.swap_remove(place);
                if let Some(&moved) = members.get(place) {
                    blocks[moved].set_place(place);
                }
            }
        }
    }

    /// Takes note that a page of `block`, which is in this index, is about to become invalid; lowers its count.
    #[inline(always)]
    pub fn invalidate_page(&mut self, blocks: &mut [Block], block: BlockId) {
        match self {
            Self::Greedy(index) => index.invalidate_page(blocks, block),
            Self::Buckets { lists, lowest } => {
                let valid = blocks[block].valid as usize;
                lists[valid].remove(blocks, block);
                lists[valid - 1].push_back(blocks, block);
                blocks[block].valid = exact::<u32>(valid) - 1;
                *lowest = (*lowest).min(exact::<u32>(valid) - 1);
            }
            Self::Queue(_) | Self::Dense(_) => blocks[block].valid -= 1,
        }
    }

    /// The block to collect; None when the pool has no full block. `stamps` (last invalidation of each block, on the
    /// clock of host page writes) serve cost-benefit only, which alone keeps them.
    pub fn choose(
        &mut self,
        policy: VictimPolicy,
        blocks: &mut [Block],
        stamps: &[u64],
        now: u64,
        rng: &mut Xoshiro256PlusPlus,
    ) -> Option<BlockId> {
        match self {
            Self::Greedy(index) => index.choose(blocks),
            Self::Buckets { lists, lowest } => {
                while lists.get(*lowest as usize)?.head().is_none() {
                    *lowest += 1;
                    if *lowest as usize == lists.len() {
                        *lowest -= 1;
                        return None;
                    }
                }
                oldest_best(&lists[*lowest as usize..], *lowest, stamps, now)
            }
            Self::Queue(list) => list.head(),
            Self::Dense(members) => {
                let draws = if let VictimPolicy::DChoices(d) = policy { d } else { 1 };
                let n = members.len() as u64;
                (0..draws)
                    .filter(|_| n > 0)
                    .map(|_| members[exact::<usize>(below(rng, n))])
                    .min_by_key(|&b| blocks[b].valid)
            }
        }
    }

    /// The block that will probably be chosen next, if known without a search.
    #[inline]
    pub fn likely_next(&self) -> Option<BlockId> {
        match self {
            Self::Greedy(index) => index.likely_next(),
            Self::Queue(list) => list.head(),
            Self::Buckets { .. } | Self::Dense(_) => None,
        }
    }

    /// True when this is the kind of index that the policy uses, with a list for every count of valid pages.
    pub fn fits(&self, policy: VictimPolicy, pages_per_block: u32) -> bool {
        let lists = pages_per_block as usize + 1;
        match (self, policy) {
            (Self::Greedy(index), VictimPolicy::Greedy) => index.fits(lists),
            (Self::Buckets { lists: l, lowest }, VictimPolicy::CostBenefit) => {
                l.len() == lists && *lowest <= pages_per_block
            }
            (Self::Queue(_), VictimPolicy::Fifo)
            | (Self::Dense(_), VictimPolicy::DChoices(_) | VictimPolicy::Random) => true,
            _ => false,
        }
    }

    /// Verifies the links of the lists, and that every member is in the right list.
    pub fn check(&self, blocks: &[Block]) -> Result<(), String> {
        match self {
            Self::Greedy(index) => index.check(blocks),
            Self::Buckets { lists, lowest } => (0..)
                .zip(lists)
                .try_for_each(|(valid, list)| list.check(blocks, |b| b.valid == valid && valid >= *lowest).map(drop)),
            Self::Queue(list) => list.check(blocks, |_| true).map(drop),
            Self::Dense(members) => check_places(members, blocks, |_| true),
        }
    }

    /// Every block in the index, for invariant checks.
    pub fn members(&self, blocks: &[Block]) -> Vec<BlockId> {
        match self {
            Self::Greedy(index) => {
                let near = index.lists().iter().flat_map(|l| l.iter(blocks));
                near.chain(index.far().iter().copied()).collect()
            }
            Self::Buckets { lists, .. } => lists.iter().flat_map(|l| l.iter(blocks)).collect(),
            Self::Queue(list) => list.iter(blocks).collect(),
            Self::Dense(members) => members.clone(),
        }
    }
}

/// Verifies an array of blocks that store their indices in it.
fn check_places(members: &[BlockId], blocks: &[Block], belongs: impl Fn(&Block) -> bool) -> Result<(), String> {
    (0..).zip(members).try_for_each(|(place, &member)| match blocks.get(member.index()) {
        Some(block) if block.place() == place && belongs(block) => Ok(()),
        _ => Err(format!("block {member} is in the wrong place {place}")),
    })
}

/// Cost-benefit over the heads of the buckets: within a bucket u is equal and the head has waited longest, so the
/// best of the heads is the best of all.
fn oldest_best(lists: &[BlockList], lowest: u32, stamps: &[u64], now: u64) -> Option<BlockId> {
    let pages = f64::from(lowest) + lists.len() as f64 - 1.0;
    let score = |valid: u32, block: BlockId| {
        let age = (now - stamps[block.index()]) as f64 + 1.0;
        let v = f64::from(valid);
        if valid == 0 { f64::INFINITY } else { (pages - v) / (2.0 * v) * age }
    };
    (lowest..)
        .zip(lists)
        .filter_map(|(valid, list)| list.head().map(|b| (score(valid, b), b)))
        .reduce(|best, next| if next.0 > best.0 { next } else { best })
        .map(|(_, block)| block)
}

/// A number below `n`, uniform to within n / 2^64.
#[inline]
pub(crate) fn below(rng: &mut Xoshiro256PlusPlus, n: u64) -> u64 {
    ((u128::from(rng.next_u64()) * u128::from(n)) >> 64) as u64
}
