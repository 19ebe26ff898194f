//! Division of the blocks of a device among its namespaces. The settings are authoritative, and are written before a
//! change is acknowledged; a drive from a checkpoint, or a new one, is adapted to them when the device is opened.

use std::borrow::Borrow;

use ftl_core::convert::{exact, signed, unsigned};
use ftl_core::{Drive, FtlError, Placement, TenantId};

use crate::config::FlashConfig;
use crate::error::ServeError;
use crate::namespace::Namespace;
use crate::settings::Settings;

/// GC passes for each block of the drive, at most, to free the blocks of moves with at start.
const GC_PASSES_PER_BLOCK: u64 = 8;
const GC_PASSES_AT_ONCE: u64 = 1024;

/// Over-provisioning blocks of every namespace as they were set, in their order; with pages that are shared, those that
/// each has brought along.
#[must_use]
pub fn ops_blocks_set<N: Borrow<Namespace>>(namespaces: &[N], settings: &Settings) -> Vec<u64> {
    let of = |n: &Namespace| settings.of(&n.name).ops_blocks.unwrap_or(n.origin.config.ops_blocks);
    namespaces.iter().map(|n| of(n.borrow())).collect()
}

/// Adds to, or takes from, the blocks of one namespace. What it does not have comes from those it shares blocks with.
pub fn shift(ops_blocks: &mut [u64], which: usize, by: i64) {
    let mut missing = 0;
    match u64::try_from(by) {
        Ok(more) => ops_blocks[which] = ops_blocks[which].saturating_add(more),
        Err(_) => {
            missing = by.unsigned_abs().saturating_sub(ops_blocks[which]);
            ops_blocks[which] = ops_blocks[which].saturating_sub(by.unsigned_abs());
        }
    }
    for other in ops_blocks {
        let taken = missing.min(*other);
        *other -= taken;
        missing -= taken;
    }
}

/// Namespaces that own blocks together, by their places in the order of the namespaces.
fn owners(placement: Placement, namespaces: usize) -> Vec<Vec<usize>> {
    match placement {
        Placement::Shared if namespaces == 0 => Vec::new(),
        Placement::Shared => vec![(0..namespaces).collect()],
        Placement::Isolated => (0..namespaces).map(|number| vec![number]).collect(),
    }
}

/// OPS blocks that the owner of a tenant will have after all pending moves.
fn ops_blocks_to_be(drive: &Drive, tenants: &[TenantId]) -> Result<i64, FtlError> {
    let mut ops = drive.space(tenants[0])?.ops_blocks;
    for (from, to, blocks) in drive.pending_moves() {
        let among = |end: Option<TenantId>| end.is_some_and(|tenant| tenants.contains(&tenant));
        ops += signed(blocks) * (i64::from(among(to)) - i64::from(among(from)));
    }
    Ok(ops)
}

/// Gives the namespaces of a drive the sizes they have and the blocks that were set. With `finish`, moves under way
/// are carried out. Err when the drive cannot get there.
pub fn bring_about(
    drive: &mut Drive,
    placement: Placement,
    namespaces: &[&Namespace],
    ops_blocks: &[u64],
    finish: bool,
) -> Result<(), FtlError> {
    let page_bytes = u64::from(drive.geometry().page_bytes);
    let pages = |number: usize| namespaces[number].size_bytes() / page_bytes;
    let owners = owners(placement, namespaces.len());
    let tenants = |owner: &[usize]| owner.iter().map(|&n| namespaces[n].tenant).collect::<Vec<_>>();
    let set = |owner: &[usize]| owner.iter().map(|&n| ops_blocks[n]).fold(0, u64::saturating_add);

    let sizes_agree = (0..namespaces.len())
        .all(|n| drive.space(namespaces[n].tenant).is_ok_and(|space| space.logical_pages == pages(n)));
    let mut blocks_agree = true;
    for owner in &owners {
        blocks_agree &= ops_blocks_to_be(drive, &tenants(owner))? == i64::try_from(set(owner)).unwrap_or(i64::MAX);
    }
    if sizes_agree && blocks_agree {
        if finish {
            carry_out_moves(drive);
        }
        return Ok(());
    }

    drive.cancel_moves();
    let mut growing = Vec::new();
    for (number, namespace) in namespaces.iter().enumerate() {
        if drive.space(namespace.tenant)?.logical_pages > pages(number) {
            drive.resize_tenant(namespace.tenant, pages(number))?;
        } else {
            growing.push((namespace.tenant, pages(number)));
        }
    }
    // What owners will have in all, sizes included.
    let block_pages = u64::from(drive.block_pages());
    let wanted: Vec<u64> = owners
        .iter()
        .map(|owner| owner.iter().map(|&n| pages(n).div_ceil(block_pages)).sum::<u64>().saturating_add(set(owner)))
        .collect();
    // Growing takes spare blocks first, and may so get more than it should: what is too much goes back once more.
    give_surplus(drive, &owners, namespaces, &wanted)?;
    for (tenant, pages) in growing {
        drive.resize_tenant(tenant, pages)?;
    }
    give_surplus(drive, &owners, namespaces, &wanted)?;
    for (owner, &wanted) in owners.iter().zip(&wanted) {
        let tenant = namespaces[owner[0]].tenant;
        let missing = wanted.saturating_sub(owned(drive, tenant)?).min(drive.spare_blocks());
        drive.request_move(None, Some(tenant), missing)?;
        carry_out_moves(drive);
    }
    Ok(())
}

fn owned(drive: &Drive, tenant: TenantId) -> Result<u64, FtlError> {
    let space = drive.space(tenant)?;
    Ok(unsigned(signed(space.logical_blocks) + space.ops_blocks))
}

/// Makes blocks spare that owners have beyond `wanted`, as far as they can do without.
fn give_surplus(
    drive: &mut Drive,
    owners: &[Vec<usize>],
    namespaces: &[&Namespace],
    wanted: &[u64],
) -> Result<(), FtlError> {
    for (owner, &wanted) in owners.iter().zip(wanted) {
        let tenant = namespaces[owner[0]].tenant;
        let space = drive.space(tenant)?;
        let can_spare = unsigned(space.ops_blocks - signed(space.min_ops_blocks));
        let surplus = owned(drive, tenant)?.saturating_sub(wanted).min(can_spare);
        drive.request_move(Some(tenant), None, surplus)?;
    }
    carry_out_moves(drive);
    Ok(())
}

/// Completes pending moves without taking time. Blocks that cannot be freed yet stay pending.
fn carry_out_moves(drive: &mut Drive) {
    let most = GC_PASSES_PER_BLOCK * drive.geometry().blocks();
    let mut passes = 0;
    while passes < most {
        let progress = drive.advance_moves(GC_PASSES_AT_ONCE);
        passes += progress.gc_passes.max(1);
        if progress.pending_blocks == 0 || (progress.moved_blocks, progress.gc_passes) == (0, 0) {
            return;
        }
    }
}

/// A drive without data whose namespaces have the sizes they should and the blocks that were set, or as nearly as
/// the drive allows: sizes come first, as they were acknowledged.
pub fn new_drive(flash: &FlashConfig, namespaces: &mut [Namespace], ops_blocks: &[u64]) -> Result<Drive, ServeError> {
    let mut drive = Drive::new(flash.geometry, flash.mapping_options()?, flash.drive_options()?)?;
    let block_pages = u64::from(drive.block_pages());
    let pages = |n: &Namespace| n.size_bytes() / u64::from(flash.geometry.page_bytes);
    let logical: u64 = namespaces.iter().map(|n| pages(n).div_ceil(block_pages)).sum();
    let left = drive.spare_blocks().saturating_sub(logical);
    let mut divided = vec![0; namespaces.len()];
    let owners = owners(flash.placement(), namespaces.len());
    for owner in &owners {
        // The first of those who share brings along what all of them have.
        divided[owner[0]] = owner.iter().map(|&n| ops_blocks[n]).fold(0, u64::saturating_add);
    }
    let owners: Vec<usize> = owners.iter().map(|owner| owner[0]).collect();
    fit(&mut divided, &owners, drive.min_ops_blocks(), left);
    for (namespace, &ops) in namespaces.iter_mut().zip(&divided) {
        namespace.tenant = drive.create_tenant(pages(namespace), flash.placement(), ops)?;
    }
    Ok(drive)
}

/// Gives every owner its minimum, and divides the rest in proportion to what was requested beyond that.
fn fit(ops_blocks: &mut [u64], owners: &[usize], minimum: u64, available: u64) {
    let wanted = owners.iter().map(|&n| ops_blocks[n].max(minimum)).fold(0, u64::saturating_add);
    if wanted <= available {
        for &n in owners {
            ops_blocks[n] = ops_blocks[n].max(minimum);
        }
        return;
    }
    let beyond = wanted.saturating_sub(minimum * owners.len() as u64);
    let left = available.saturating_sub(minimum * owners.len() as u64);
    for &owner in owners {
        let more = u128::from(ops_blocks[owner].max(minimum) - minimum) * u128::from(left) / u128::from(beyond.max(1));
        ops_blocks[owner] = minimum + exact::<u64>(more);
    }
}

/// Blocks of every namespace after all moves in progress. `set` if that agrees with it.
pub fn ops_blocks_of<N: Borrow<Namespace>>(
    drive: &Drive,
    placement: Placement,
    namespaces: &[N],
    set: &[u64],
) -> Result<Vec<u64>, FtlError> {
    let mut found = set.to_vec();
    for owner in owners(placement, namespaces.len()) {
        let tenants: Vec<TenantId> = owner.iter().map(|&n| namespaces[n].borrow().tenant).collect();
        let has = ops_blocks_to_be(drive, &tenants)?;
        let was = owner.iter().map(|&n| set[n]).fold(0, u64::saturating_add);
        let by = has.saturating_sub(i64::try_from(was).unwrap_or(i64::MAX));
        shift(&mut found[owner[0]..=owner[owner.len() - 1]], 0, by);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn missing_blocks_come_from_other_namespaces() {
        let mut ops = [5, 3, 9];
        shift(&mut ops, 1, -6);
        assert_eq!(ops, [2, 0, 9]);
        shift(&mut ops, 1, 4);
        assert_eq!(ops, [2, 4, 9]);
    }

    proptest! {
        #[test]
        fn fitting_settings_are_kept_and_minimums_respected(
            wanted in proptest::collection::vec(0u64..u64::MAX / 64, 1..9),
            minimum in 0u64..100,
            more in 0u64..1_000,
        ) {
            let owners: Vec<usize> = (0..wanted.len()).collect();
            let available = minimum * wanted.len() as u64 + more;
            let mut divided = wanted.clone();
            fit(&mut divided, &owners, minimum, available);
            prop_assert!(divided.iter().sum::<u64>() <= available);
            prop_assert!(divided.iter().all(|&ops| ops >= minimum));
            let fits = wanted.iter().map(|&ops| ops.max(minimum)).sum::<u64>() <= available;
            prop_assert!(!fits || divided.iter().zip(&wanted).all(|(has, wants)| has >= wants));
        }
    }
}
