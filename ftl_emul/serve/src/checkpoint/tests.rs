use super::*;
use crate::config::{DEVICE_FORMAT_VERSION, MappingConfig, Medium, NamespaceConfig};
use crate::model::{Counted, Model};
use crate::namespace::Flags;
use crate::settings::NamespaceSettings;
use ftl_core::TenantId;
use ftl_core::{Geometry, MAPPINGS, NandTiming};
use proptest::prelude::*;

const PAGES: u64 = 512;
const PAGE: u64 = 4096;

fn config(kind: &str) -> DeviceConfig {
    let namespace =
        |name: &str| NamespaceConfig { name: name.into(), size_bytes: PAGES * PAGE, weight: 1.0, ops_blocks: 20 };
    DeviceConfig {
        format_version: DEVICE_FORMAT_VERSION,
        name: "d".into(),
        emulated: true,
        spec: String::new(),
        created: String::new(),
        capacity_bytes: 2 * PAGES * PAGE,
        medium: Medium::Flash(FlashConfig {
            geometry: Geometry {
                page_bytes: PAGE as u32,
                pages_per_block: 16,
                blocks_per_die: 64,
                channels: 2,
                dies_per_channel: 1,
                planes: 1,
            },
            timing: NandTiming { read_ns: 1, program_ns: 1, erase_ns: 1, transfer_ns: 1, suspend_ns: 0 },
            mapping: MappingConfig {
                kind: kind.into(),
                cluster_dies: 1,
                cached_entries: None,
                victim: "greedy".into(),
                separate_gc_frontier: false,
                free_floor: 1,
                copyback: true,
                scheduler: "fifo".into(),
                isolated: true,
                seed: 1,
            },
        }),
        namespaces: vec![namespace("a"), namespace("b")],
    }
}

fn open(folder: &Path, config: &DeviceConfig) -> Vec<Namespace> {
    let open = |origin| Namespace::open(folder, origin, &NamespaceSettings::default()).unwrap();
    Settings::default().present(config).unwrap().into_iter().map(open).collect()
}

fn loaded(folder: &Path, kind: &str) -> (Model, Origin, Vec<Namespace>) {
    let config = config(kind);
    let mut namespaces = open(folder, &config);
    let Placed { drive, origin, .. } = load(folder, &config, &Settings::default(), &mut namespaces).unwrap();
    (Model::Counted(Box::new(Counted::new(drive))), origin, namespaces)
}

fn mapped(model: &Model) -> Vec<Vec<bool>> {
    let of = |drive: &Drive, t: u16| (0..PAGES).map(|page| drive.is_mapped(TenantId(t), page)).collect();
    model
        .with(|drive| {
            drive.check().unwrap();
            vec![of(drive, 0), of(drive, 1)]
        })
        .unwrap()
}

/// Whole pages of a namespace: write or trim.
fn change() -> impl Strategy<Value = (usize, bool, u64, u64)> {
    (0..2usize, any::<bool>(), 0..PAGES, 1..40u64)
}

fn apply(model: &Model, namespaces: &[Namespace], changes: &[(usize, bool, u64, u64)]) {
    for &(which, write, page, count) in changes {
        let length = count.min(PAGES - page) * PAGE;
        let namespace = &namespaces[which];
        if write {
            let data = vec![1; length as usize];
            namespace.write(model, &data, page * PAGE, Flags::default(), || false).unwrap();
        } else {
            namespace.trim(model, page * PAGE, length, Flags::default(), || false).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// For any writes and trims before and after a checkpoint, and with or without one: the placement after a crash
    /// is the placement before it.
    #[test]
    fn placement_after_a_crash_matches_the_data(
        kind in proptest::sample::select(MAPPINGS.iter().map(|(name, ..)| *name).collect::<Vec<_>>()),
        before in proptest::collection::vec(change(), 0..40),
        after in proptest::collection::vec(change(), 0..40),
        saved in any::<bool>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        for name in ["a.img", "b.img"] {
            File::create(folder.path().join(name)).unwrap().set_len(PAGES * PAGE).unwrap();
        }
        let (model, origin, namespaces) = loaded(folder.path(), kind);
        prop_assert!(matches!(origin, Origin::Rebuilt(0, _)));
        apply(&model, &namespaces, &before);
        if saved {
            let state = model.with(|drive| take(drive, &namespaces, None, false, buffer(folder.path()))).unwrap().unwrap();
            write(folder.path(), &state).unwrap();
        }
        apply(&model, &namespaces, &after);
        let (again, origin, _) = loaded(folder.path(), kind);
        prop_assert_eq!(matches!(origin, Origin::Corrected(_)), saved);
        prop_assert_eq!(mapped(&again), mapped(&model));
    }
}

#[test]
fn checkpoint_is_trusted_only_after_a_clean_stop() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.img", "b.img"] {
        File::create(folder.path().join(name)).unwrap().set_len(PAGES * PAGE).unwrap();
    }
    let (model, _, namespaces) = loaded(folder.path(), "page");
    apply(&model, &namespaces, &[(0, true, 3, 5)]);
    let state = model.with(|drive| take(drive, &namespaces, None, true, buffer(folder.path()))).unwrap().unwrap();
    write(folder.path(), &state).unwrap();
    assert_eq!(loaded(folder.path(), "page").1, Origin::Exact);
    mark_serving(folder.path()).unwrap();
    assert_eq!(loaded(folder.path(), "page").1, Origin::Corrected(0));
    mark_stopped(folder.path()).unwrap();
    apply(&model, &namespaces, &[(1, true, 0, 2)]);
    assert_eq!(loaded(folder.path(), "page").1, Origin::Corrected(2));
}

#[test]
fn memory_of_a_checkpoint_is_as_large_as_the_last_one() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(buffer(folder.path()).capacity(), 0);
    write(folder.path(), &[1; 5000]).unwrap();
    let again = buffer(folder.path());
    assert!(again.is_empty() && again.capacity() >= 5000);
}

#[test]
fn checkpoint_of_another_mapping_is_ignored() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["a.img", "b.img"] {
        File::create(folder.path().join(name)).unwrap().set_len(PAGES * PAGE).unwrap();
    }
    let (model, _, namespaces) = loaded(folder.path(), "bast");
    apply(&model, &namespaces, &[(0, true, 3, 5)]);
    let state = model.with(|drive| take(drive, &namespaces, None, true, buffer(folder.path()))).unwrap().unwrap();
    write(folder.path(), &state).unwrap();
    assert_eq!(loaded(folder.path(), "bast").1, Origin::Exact);
    assert!(matches!(loaded(folder.path(), "fast").1, Origin::Rebuilt(5, _)));
}
