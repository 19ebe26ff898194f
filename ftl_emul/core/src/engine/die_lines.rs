//! Pages that wait for the dies that hold them, each die's in the order of the scheduler.
//!
//! Only pages on free dies are in flight, so that no page waits for a busy die before pages for free ones. The
//! scheduler determines the order: a page keeps the tag of its turn.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fixedbitset::FixedBitSet;

use crate::address::DieId;
use crate::engine::die_times::die_at;

/// A page that had its turn when its die was busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WaitingPage {
    /// The scheduler's, of the moment of its turn.
    pub tag: u64,
    /// The order of those with the same tag.
    number: u64,
    pub tenant: u16,
    pub slot: u32,
    pub page: u64,
    /// Read of a page that the host writes partly.
    pub rewrite: bool,
}

impl WaitingPage {
    pub fn new(tag: u64, tenant: u16, slot: u32, page: u64, rewrite: bool) -> Self {
        Self { tag, number: 0, tenant, slot, page, rewrite }
    }
}

#[derive(Debug, Clone, Default)]
struct Line {
    pages: BinaryHeap<Reverse<WaitingPage>>,
    /// Pages to be served before background work may delay those that wait once more.
    before_background: usize,
    /// Numbers and tenants of pages to which no page of another tenant was preferred since they arrived.
    newcomers: Vec<(u64, u16)>,
}

/// By die.
#[derive(Debug)]
pub(super) struct DieLines {
    lines: Vec<Line>,
    /// Dies that pages wait for.
    dies: FixedBitSet,
    added: u64,
}

impl DieLines {
    pub fn new(dies: u32) -> Self {
        Self { lines: vec![Line::default(); dies as usize], dies: FixedBitSet::with_capacity(dies as usize), added: 0 }
    }

    /// True when no page waits for a die.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.dies.is_clear()
    }

    pub fn add(&mut self, die: DieId, page: WaitingPage) {
        self.added += 1;
        let line = &mut self.lines[die.index()];
        self.dies.insert(die.index());
        line.newcomers.push((self.added, page.tenant));
        line.pages.push(Reverse(WaitingPage { number: self.added, ..page }));
    }

    /// The page with the lowest tag among the first of each of these dies, if it may start: its tag and die.
    #[inline]
    pub fn first(&self, dies: &FixedBitSet, may_start: impl Fn(DieId, u64) -> bool) -> Option<(u64, DieId)> {
        let firsts = self.dies.intersection(dies).filter_map(|die| {
            let Reverse(page) = self.lines[die].pages.peek()?;
            may_start(die_at(die), page.tag).then_some((page, die_at(die)))
        });
        firsts.min().map(|(page, die)| (page.tag, die))
    }

    /// Removes the first page of a die's queue; returns whether another tenant's page was preferred to it.
    pub fn take(&mut self, die: DieId) -> Option<(WaitingPage, bool)> {
        let line = &mut self.lines[die.index()];
        let Reverse(page) = line.pages.pop()?;
        line.before_background = line.before_background.saturating_sub(1);
        if line.pages.is_empty() {
            self.dies.remove(die.index());
        }
        let newcomer = line.newcomers.iter().position(|&(number, _)| number == page.number);
        if let Some(at) = newcomer {
            line.newcomers.swap_remove(at);
        }
        Some((page, newcomer.is_none()))
    }

    /// Whether the pages that wait for a die let a step of background work go first, which they do once each.
    pub fn yields(&mut self, die: DieId) -> bool {
        let line = &mut self.lines[die.index()];
        let yields = line.before_background == 0;
        if yields {
            line.before_background = line.pages.len();
        }
        yields
    }

    /// Tenants of the pages that wait for a die, one for each page.
    pub fn tenants(&self, die: DieId) -> impl Iterator<Item = u16> {
        self.lines[die.index()].pages.iter().map(|Reverse(page)| page.tenant)
    }

    /// A die begins to serve a tenant: calls `overtaken` for each page of others that waits for the first such time.
    #[inline]
    pub fn begin(&mut self, die: DieId, tenant: u16, mut overtaken: impl FnMut(u16)) {
        self.lines[die.index()].newcomers.retain(|&(_, other)| {
            if other != tenant {
                overtaken(other);
            }
            other == tenant
        });
    }

    /// For another scheduler, to which tags of this one mean nothing: pages that had their turn go first.
    pub fn forget_tags(&mut self) {
        for line in &mut self.lines {
            let pages = std::mem::take(&mut line.pages);
            line.pages = pages.into_iter().map(|Reverse(page)| Reverse(WaitingPage { tag: 0, ..page })).collect();
        }
    }
}
