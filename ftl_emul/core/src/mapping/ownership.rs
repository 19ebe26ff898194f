//! Creation, deletion and resizing of tenants, and moves of blocks between them, for all mappings.
//!
//! A move of OPS blocks is first requested, which checks that the giver can work without the blocks, and then carried
//! out block by block. Blocks are moved erased; if the giver has none to spare, its own GC or merges free one, a
//! limited number of times per call, so that no call takes long and the floor of free blocks is always kept.

use std::ops::Range;

use crate::address::BlockId;
use crate::block::{Block, BlockState};
use crate::convert::exact;
use crate::error::FtlError;
use crate::mapping::tenancy::{Domain, SHARED_DOMAIN, Transfer};
use crate::mapping::wear::Wear;
use crate::mapping::{Mapping, MoveProgress, Placement, TenantSpace};
use crate::nand::{Nand, Untimed};
use crate::op::TenantId;
use crate::pool::SPARE;

/// What a giver can offer a taker.
pub(in crate::mapping) enum Offer<P> {
    /// An erased block, removed from all lists of the giver.
    Block(BlockId),
    /// The giver has to free a block there first.
    NeedsRoom(P),
    /// There is no block to give at the moment.
    Nothing,
}

/// Operations of a mapping on the blocks of its domains.
pub(in crate::mapping) trait Ownership: Mapping {
    /// Where a giver frees a block.
    type Place;

    /// The drive's blocks.
    fn blocks(&self) -> &[Block];

    /// The same, to be changed.
    fn blocks_mut(&mut self) -> &mut [Block];

    /// The domain that owns a block; None is the spare. The block may be of a damaged snapshot.
    fn domain_of_block(&self, block: &Block) -> Option<u32>;

    /// Which of the places that [`super::tenancy::Tenancy::spare`] has is a block's.
    fn place_of(&self, block: BlockId) -> usize;

    /// Resets the state of a domain to that of one without blocks.
    fn reset_domain(&mut self, domain: u32);

    /// Puts an erased block, which is spare and in no list, in a domain.
    fn put_in_domain(&mut self, block: BlockId, domain: u32);

    /// Takes an erased block from a domain, or from the spare (None), if there is one to give to the taker.
    fn offer(&mut self, giver: Option<u32>, taker: Option<u32>) -> Offer<Self::Place>;

    /// Frees a block for a move; false if no block there can be freed.
    fn make_room_at<N: Nand>(&mut self, place: Self::Place, cause: TenantId, nand: &mut N) -> bool;

    /// Erased blocks of a domain.
    fn free_blocks(&self, domain: u32) -> u64;

    /// Free pages in a domain's open blocks for host writes; 0 without such blocks.
    fn open_pages(&self, _domain: u32) -> u64 {
        0
    }

    /// Reduces the OPS blocks of a domain after a tenant has grown.
    fn fit_ops(&mut self, _domain: u32, _cause: TenantId) {}

    /// See [`Mapping::create_tenant`].
    fn create(&mut self, pages: u64, placement: Placement, ops_blocks: u64) -> Result<TenantId, FtlError> {
        let (tenant, needed) = self.tenancy_mut().add_tenant(pages, placement, ops_blocks)?;
        let domain = self.tenancy().domain_of(tenant)?;
        if placement == Placement::Isolated {
            self.reset_domain(domain);
        }
        self.take_spare(domain, needed);
        Ok(tenant)
    }

    /// See [`Mapping::delete_tenant`].
    fn delete(&mut self, tenant: TenantId) -> Result<(), FtlError> {
        let domain = self.tenancy().domain_of(tenant)?;
        self.tenancy_mut().cancel_moves_of(tenant);
        self.trim_pages(tenant, 0..self.pages(tenant));
        if !self.tenancy_mut().remove_tenant(tenant)? {
            self.dissolve(domain);
        }
        Ok(())
    }

    /// See [`Mapping::resize_tenant`].
    fn resize(&mut self, tenant: TenantId, pages: u64) -> Result<(), FtlError> {
        let from_spare = self.tenancy().blocks_to_resize(tenant, pages)?;
        let domain = self.tenancy().domain_of(tenant)?;
        self.trim_pages(tenant, pages..self.pages(tenant));
        self.take_spare(domain, from_spare);
        self.tenancy_mut().set_pages(tenant, pages)?;
        self.fit_ops(domain, tenant);
        Ok(())
    }

    /// See [`Mapping::space`].
    fn space_of(&self, tenant: TenantId) -> Result<TenantSpace, FtlError> {
        let tenancy = self.tenancy();
        let known = tenancy.known(tenant)?;
        let domain = &tenancy.domains[known.domain as usize];
        Ok(TenantSpace {
            placement: if known.domain == SHARED_DOMAIN { Placement::Shared } else { Placement::Isolated },
            logical_pages: self.pages(tenant),
            mapped_pages: known.mapped_pages,
            logical_blocks: domain.logical_blocks,
            ops_blocks: tenancy.ops_blocks(known.domain),
            min_ops_blocks: tenancy.min_ops_blocks,
            open_pages: self.open_pages(known.domain),
            free_blocks: self.free_blocks(known.domain),
            erases_min_max: domain.wear.min_max(),
            pending_out_blocks: tenancy.pending_out_blocks(known.domain),
        })
    }

    /// Unmaps pages of a tenant, in no time.
    fn trim_pages(&mut self, tenant: TenantId, pages: Range<u64>) {
        for page in pages {
            self.trim_page(tenant, page, &mut Untimed);
        }
    }

    /// Gives spare blocks to a domain, from the dies with most of them.
    fn take_spare(&mut self, domain: u32, count: u64) {
        for _ in 0..count {
            let spare = &mut self.tenancy_mut().spare;
            let fullest = (0..spare.len()).rev().max_by_key(|&place| spare[place].len());
            let Some(block) = fullest.and_then(|place| spare[place].pop()) else { return };
            self.assign(block, Some(domain));
        }
    }

    /// Changes the owner of an erased block that is in no list; None makes it spare.
    fn assign(&mut self, block: BlockId, domain: Option<u32>) {
        let entry = &mut self.blocks_mut()[block];
        entry.pool = SPARE;
        let erases = entry.erases;
        match domain {
            None => {
                let place = self.place_of(block);
                self.tenancy_mut().spare[place].push(erases, block);
            }
            Some(domain) => {
                let owner = &mut self.tenancy_mut().domains[domain as usize];
                owner.blocks += 1;
                owner.wear.add(erases);
                self.put_in_domain(block, domain);
            }
        }
    }

    /// Returns all blocks of a domain without data to the spare, erasing written ones.
    fn dissolve(&mut self, domain: u32) {
        self.reset_domain(domain);
        for block in (0..exact::<u32>(self.blocks().len())).map(BlockId) {
            if self.domain_of_block(&self.blocks()[block]) == Some(domain) {
                let entry = &mut self.blocks_mut()[block];
                let erases = entry.erases + u32::from(entry.state != BlockState::Free);
                *entry = Block { erases, ..Block::SPARE };
                self.assign(block, None);
            }
        }
        self.tenancy_mut().domains[domain as usize] = Domain { in_use: domain == SHARED_DOMAIN, ..Domain::default() };
    }

    /// See [`Mapping::advance_moves`].
    fn hand_over<N: Nand>(&mut self, max_gc_passes: u64, nand: &mut N) -> MoveProgress {
        let mut progress = MoveProgress::default();
        let mut index = 0;
        while let Some(&Transfer { from, to, blocks }) = self.tenancy().transfers.get(index) {
            if blocks == 0 {
                self.tenancy_mut().transfers.remove(index);
                continue;
            }
            let (Ok(giver), Ok(taker)) = (self.tenancy().domain_of_end(from), self.tenancy().domain_of_end(to)) else {
                index += 1;
                continue;
            };
            match self.offer(giver, taker) {
                Offer::Block(block) => {
                    if let Some(giver) = giver {
                        let erases = self.blocks()[block].erases;
                        let giver = &mut self.tenancy_mut().domains[giver as usize];
                        giver.blocks -= 1;
                        giver.wear.remove(erases);
                    }
                    self.assign(block, taker);
                    progress.moved_blocks += 1;
                    self.tenancy_mut().transfers[index].blocks -= 1;
                }
                Offer::NeedsRoom(place) => {
                    if progress.gc_passes == max_gc_passes {
                        break;
                    }
                    progress.gc_passes += 1;
                    if !self.make_room_at(place, from.unwrap_or(TenantId(0)), nand) {
                        index += 1;
                    }
                }
                Offer::Nothing => index += 1,
            }
        }
        progress.pending_blocks = self.tenancy().transfers.iter().map(|t| t.blocks).sum();
        progress
    }

    /// The wear of each domain's blocks, from the blocks themselves.
    fn count_wear(&self) -> Vec<Wear> {
        let mut wear = vec![Wear::default(); self.tenancy().domains.len()];
        for block in self.blocks() {
            if let Some(wear) = self.domain_of_block(block).and_then(|domain| wear.get_mut(domain as usize)) {
                wear.add(block.erases);
            }
        }
        wear
    }
}
