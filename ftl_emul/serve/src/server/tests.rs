//! Acknowledged changes survive: at every step of every change the device restarts in its old or new state.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::path::Path;

use ftl_core::{MAPPINGS, Op};
use proptest::prelude::*;

use super::*;
use crate::control::protocol;
use crate::faults;
use crate::hostile;
pub use crate::hostile::{NAMES, PAGE, PAGES};
use crate::namespace::Flags;

/// See [`hostile::make`].
pub fn make(folder: &Path, kind: &str, isolated: bool, spare: u64) {
    hostile::make(folder, kind, isolated, spare).unwrap();
}

/// Opens it, to be served without a clock.
pub fn open(folder: &Path) -> Server {
    Server::open(&Parameters { device: Some(folder.to_owned()), ..Parameters::default() }).unwrap()
}

/// Sizes and OPS blocks that count: those of the settings, which the drive has or will have.
type Acknowledged = (Vec<u64>, Vec<u64>);

fn acknowledged(server: &Server) -> Acknowledged {
    let sizes = server.namespaces().iter().map(|n| n.size_bytes()).collect();
    (sizes, server.ops_blocks_set(&server.settings()))
}

/// Compares the drive with the settings; returns the acknowledged state.
fn checked(server: &Server) -> Acknowledged {
    let (sizes, ops) = acknowledged(server);
    let isolated = server.config.flash().unwrap().mapping.isolated;
    let placement = server.config.flash().unwrap().placement();
    server
        .model
        .with(|drive| {
            drive.check().unwrap();
            let namespaces = server.namespaces();
            let found = division::ops_blocks_of(drive, placement, &namespaces, &ops).unwrap();
            assert_eq!(found, ops, "moves under way included");
            assert_eq!(drive.tenants().len(), namespaces.len());
            for (number, namespace) in namespaces.iter().enumerate() {
                let space = drive.space(namespace.tenant).unwrap();
                assert_eq!(space.logical_pages * PAGE, sizes[number]);
                if isolated && drive.pending_moves().is_empty() {
                    assert_eq!(space.ops_blocks, ops[number] as i64);
                }
            }
        })
        .unwrap();
    (sizes, ops)
}

#[derive(Debug, Clone)]
enum Step {
    Write(usize, u64),
    Resize(usize, u64),
    Move(Option<usize>, Option<usize>, u64),
    CancelMoves,
    /// Work of the background thread.
    HandOver(u64),
    Checkpoint,
    Restart,
    Create(u64),
    Delete(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let end = || proptest::option::of(0..NAMES.len());
    prop_oneof![
        4 => (0..NAMES.len(), 0..PAGES).prop_map(|(n, page)| Step::Write(n, page)),
        4 => (0..NAMES.len(), 1..2 * PAGES).prop_map(|(n, pages)| Step::Resize(n, pages)),
        4 => (end(), end(), 1..12u64).prop_map(|(from, to, blocks)| Step::Move(from, to, blocks)),
        1 => Just(Step::CancelMoves),
        2 => (0..4u64).prop_map(Step::HandOver),
        2 => Just(Step::Checkpoint),
        1 => Just(Step::Restart),
        3 => (1..PAGES).prop_map(Step::Create),
        3 => (0..NAMES.len()).prop_map(Step::Delete),
    ]
}

/// Does a step as far as it is possible; a rejected step changes nothing.
fn carry_out(server: &Server, step: &Step) {
    let namespaces = server.namespaces();
    // Steps are about the first three of however many there are.
    let namespace = |n: usize| namespaces.get(n).map(|n| &**n);
    match *step {
        Step::Write(n, page) => {
            let Some(namespace) = namespace(n) else { return };
            let data = [n as u8 + 1; PAGE as usize];
            let flags = Flags { fua: true, may_trim: false };
            let _beyond_the_end = namespace.write(&server.model, &data, page * PAGE, flags, || false);
        }
        Step::Resize(n, pages) => {
            if let Some(namespace) = namespace(n) {
                let _without_room = server.resize(namespace, pages * PAGE, false);
            }
        }
        Step::Move(from, to, blocks) => {
            let _without_blocks = server.move_ops(from.and_then(namespace), to.and_then(namespace), blocks);
        }
        Step::Create(pages) => {
            let _without_room = server.create_namespace(Wanted { size_bytes: pages * PAGE, ..Wanted::default() });
        }
        Step::Delete(n) => {
            if let Some(namespace) = namespaces.get(n) {
                server.delete_namespace(namespace).unwrap();
            }
        }
        Step::CancelMoves => server.cancel_moves().unwrap(),
        Step::HandOver(passes) => drop(server.model.with(|drive| drive.advance_moves(passes)).unwrap()),
        Step::Checkpoint => server.checkpoint(false).unwrap(),
        Step::Restart => server.stop().unwrap(),
    }
}

/// The pages that hold data, by namespace.
fn data(server: &Server) -> HashMap<(u32, u64), Vec<bool>> {
    let holds = |n: &Namespace, page: u64| {
        let mut found = [0; PAGE as usize];
        n.backing.read(&mut found, page * PAGE).unwrap();
        found.iter().any(|&byte| byte != 0)
    };
    let of = |n: &Arc<Namespace>| {
        let pages = (0..n.size_bytes() / PAGE).map(|page| holds(n, page)).collect();
        ((n.nsid(), n.origin.created_ns), pages)
    };
    server.namespaces().iter().map(of).collect()
}

/// Backing files in the folder of a device, by name of the namespace.
fn files(folder: &Path) -> BTreeSet<String> {
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter_map(|name| name.strip_suffix(".img").map(str::to_owned)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn device_starts_with_acknowledged_state_after_a_crash_at_any_step(
        kind in proptest::sample::select(MAPPINGS.iter().map(|(name, ..)| *name).collect::<Vec<_>>()),
        isolated in any::<bool>(),
        spare in 0..8u64,
        steps in proptest::collection::vec(step(), 1..14),
    ) {
        let folder = tempfile::tempdir().unwrap();
        make(folder.path(), kind, isolated, spare);
        let mut server = open(folder.path());
        checkpoint::mark_serving(folder.path()).unwrap();
        for step in &steps {
            let (before, held) = (checked(&server), data(&server));
            let ((), states) = faults::states_during(folder.path(), || carry_out(&server, step));
            let after = checked(&server);
            for state in states {
                let again = open(state.path());
                let found = checked(&again);
                prop_assert!(found == before || found == after, "{:?}: {:?} between {:?} and {:?}", step, found, before, after);
                let still = data(&again);
                for (which, had) in &held {
                    let Some(has) = still.get(which) else {
                        prop_assert!(matches!(step, Step::Delete(_)), "{:?} lost namespace {:?}", step, which);
                        continue;
                    };
                    prop_assert!(had.iter().zip(has).all(|(had, has)| !had || *has), "{:?} lost data", step);
                }
                let names = again.namespaces().iter().map(|n| n.name.clone()).collect::<BTreeSet<_>>();
                prop_assert_eq!(files(state.path()), names, "{:?}: files without a namespace, or the reverse", step);
            }
            if matches!(step, Step::Restart) {
                drop(server);
                server = open(folder.path());
                checkpoint::mark_serving(folder.path()).unwrap();
                prop_assert_eq!(checked(&server), after);
            }
        }
    }

    /// Any placement may be lost, so sizes and OPS blocks come from the settings alone.
    #[test]
    fn device_starts_without_its_placement(
        kind in proptest::sample::select(MAPPINGS.iter().map(|(name, ..)| *name).collect::<Vec<_>>()),
        isolated in any::<bool>(),
        spare in 0..8u64,
        steps in proptest::collection::vec(step(), 1..14),
    ) {
        let folder = tempfile::tempdir().unwrap();
        make(folder.path(), kind, isolated, spare);
        let server = open(folder.path());
        for step in &steps {
            carry_out(&server, step);
        }
        let before = checked(&server);
        drop(server);
        let _never_written = std::fs::remove_file(checkpoint::path_in(folder.path()));
        prop_assert_eq!(checked(&open(folder.path())), before);
    }
}

#[test]
fn a_namespace_that_grew_into_its_ops_without_spare_blocks_starts_after_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    make(folder.path(), "page", true, 0);
    let server = open(folder.path());
    checkpoint::mark_serving(folder.path()).unwrap();
    server.checkpoint(false).unwrap();
    server.resize(&server.namespaces()[2], (PAGES + 64) * PAGE, true).unwrap();
    let before = checked(&server);
    drop(server);
    let server = open(folder.path());
    assert_eq!(checked(&server), before);
    assert_eq!(server.origin, Some(Origin::Corrected(0)));
    server.resize(&server.namespaces()[2], PAGES * PAGE, true).unwrap();
}

#[test]
fn checkpoints_of_two_threads_do_not_damage_each_other() {
    let folder = tempfile::tempdir().unwrap();
    make(folder.path(), "page", true, 0);
    let server = open(folder.path());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| (0..20).for_each(|_| server.checkpoint(false).unwrap()));
        }
    });
    checkpoint::mark_serving(folder.path()).unwrap();
    drop(server);
    assert_eq!(open(folder.path()).origin, Some(Origin::Corrected(0)));
}

#[test]
fn old_settings_that_exceed_the_device_are_fitted() {
    let folder = tempfile::tempdir().unwrap();
    make(folder.path(), "page", true, 0);
    let grown = (PAGES + 64) * PAGE;
    File::options().write(true).open(folder.path().join("c.img")).unwrap().set_len(grown).unwrap();
    let settings = format!("{{\"format_version\":1,\"namespaces\":{{\"c\":{{\"size_bytes\":{grown}}}}}}}");
    std::fs::write(folder.path().join("settings.json"), settings).unwrap();
    let found = checked(&open(folder.path()));
    assert_eq!(found.0, [PAGES * PAGE, PAGES * PAGE, grown]);
    assert_eq!(checked(&open(folder.path())), found);
}

#[test]
fn data_beyond_a_smaller_size_does_not_reappear() {
    let folder = tempfile::tempdir().unwrap();
    make(folder.path(), "page", true, 8);
    let server = open(folder.path());
    let namespace = &server.namespaces()[0];
    let data = [7; PAGE as usize];
    namespace.write(&server.model, &data, (PAGES - 1) * PAGE, Flags::default(), || false).unwrap();
    let ((), states) = faults::states_during(folder.path(), || server.resize(namespace, PAGE, false).unwrap());
    for state in states {
        let again = open(state.path());
        let namespace = &again.namespaces()[0];
        let shrunk = namespace.size_bytes() == PAGE;
        again.resize(namespace, PAGES * PAGE, true).unwrap();
        let mut found = [0; PAGE as usize];
        namespace.backing.read(&mut found, (PAGES - 1) * PAGE).unwrap();
        assert_eq!(found[0], if shrunk { 0 } else { 7 });
    }
}

#[test]
fn a_write_in_progress_is_not_lost_when_its_namespace_is_to_shrink() {
    let folder = tempfile::tempdir().unwrap();
    make(folder.path(), "page", true, 8);
    let server = open(folder.path());
    let namespace = &server.namespaces()[0];
    let (begun, is_begun) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let at = (PAGES - 1) * PAGE;
            let written = namespace.move_now(&server.model, Op::Write, at, PAGE, |backing| {
                begun.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(200));
                backing.write(&[7; PAGE as usize], at, true)
            });
            written.unwrap();
        });
        is_begun.recv().unwrap();
        let refusal = server.resize(namespace, PAGE, true).unwrap_err().to_string();
        assert!(refusal.contains("holds data up to"), "{refusal}");
    });
}

#[test]
fn short_file_is_refused_with_the_command_to_continue() {
    let folder = tempfile::tempdir().unwrap();
    make(folder.path(), "page", true, 0);
    File::options().write(true).open(folder.path().join("c.img")).unwrap().set_len(PAGE).unwrap();
    let parameters = Parameters { device: Some(folder.path().to_owned()), ..Parameters::default() };
    let refusal = Server::open(&parameters).err().unwrap().to_string();
    assert!(refusal.contains("its first 4KiB"), "{refusal}");
    let command = refusal.split("zeroes: ").nth(1).unwrap();
    let file = folder.path().join("c.img");
    let size_bytes = PAGES * PAGE;
    assert_eq!(command, format!("truncate -s {size_bytes} {}", file.display()));
    // Not by a shell: a child has the locks of the devices of all tests until it runs its program.
    File::options().write(true).open(file).unwrap().set_len(size_bytes).unwrap();
    checked(&open(folder.path()));
}

#[test]
fn nobody_waits_to_read_while_a_change_takes_long() {
    let folder = tempfile::tempdir().unwrap();
    make(folder.path(), "page", true, 8);
    let server: &'static Server = Box::leak(Box::new(open(folder.path())));
    let change = server.change();
    let (done, ends) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        server.totals().unwrap();
        let answer = |command: &[u8]| protocol::answer(server, &mut protocol::Session::new(true), command);
        let answers = [&br#"{"v":1,"op":"stats"}"#[..], br#"{"v":1,"op":"settings"}"#].map(answer);
        let is_done = |answer: &Vec<u8>| serde_json::from_slice::<serde_json::Value>(answer).unwrap()["ok"] == true;
        done.send(answers.iter().all(is_done)).unwrap();
    });
    let answered = ends.recv_timeout(Duration::from_secs(60));
    drop(change);
    assert_eq!(answered, Ok(true));
}

#[test]
fn a_change_of_a_deleted_namespace_does_not_reach_the_one_that_has_its_tenant() {
    let folder = tempfile::tempdir().unwrap();
    make(folder.path(), "page", true, 8);
    let parameters =
        Parameters { device: Some(folder.path().to_owned()), latency: Latency::Real, ..Parameters::default() };
    let server = Server::open(&parameters).unwrap();
    let gone = Arc::clone(&server.namespaces()[1]);
    server.delete_namespace(&gone).unwrap();
    let made = server.create_namespace(Wanted { size_bytes: PAGES * PAGE, ..Wanted::default() }).unwrap();
    assert_eq!(made.tenant, gone.tenant);
    let (before, settings) = (checked(&server), server.settings());
    for refused in [
        server.resize(&gone, PAGE, false),
        server.move_ops(Some(&gone), None, 1),
        server.move_ops(None, Some(&gone), 1),
        server.set_weight(&gone, 7.0),
        server.set_limit(&gone, Limit { iops: Some(1.0), bytes_s: None }),
        server.attach_namespace(&gone, &BTreeSet::from(["nqn.x"]), false),
        server.delete_namespace(&gone),
    ] {
        assert!(refused.unwrap_err().to_string().contains("no longer exists"));
    }
    assert_eq!((checked(&server), server.settings()), (before, settings));
}

#[test]
fn statistics_are_given_while_a_namespace_is_deleted() {
    let folder = tempfile::tempdir().unwrap();
    make(folder.path(), "page", true, 8);
    let server = open(folder.path());
    let answer = |command: &[u8]| {
        let answer = protocol::answer(&server, &mut protocol::Session::new(true), command);
        serde_json::from_slice::<serde_json::Value>(&answer).unwrap()["ok"] == true
    };
    let gone = server.namespaces()[1].tenant;
    let settings = server.change();
    std::thread::scope(|scope| {
        let asked = server.model.with(|drive| {
            let asked = [scope.spawn(|| server.totals().is_ok()), scope.spawn(|| answer(br#"{"v":1,"op":"stats"}"#))];
            // They wait for the drive by then.
            std::thread::sleep(Duration::from_millis(200));
            server.publish(&settings, |present| {
                present.namespaces = present.namespaces.iter().filter(|n| n.tenant != gone).cloned().collect();
            });
            drive.delete_tenant(gone).unwrap();
            asked
        });
        assert_eq!(asked.unwrap().map(|asked| asked.join().unwrap()), [true, true]);
    });
}

#[test]
fn a_namespace_is_attached_to_all_given_hosts_or_to_none() {
    let folder = tempfile::tempdir().unwrap();
    make(folder.path(), "page", true, 8);
    let server = open(folder.path());
    let namespace = &server.namespaces()[0];
    let hosts: Vec<String> = (0..65).map(|number| format!("nqn.{number:02}")).collect();
    let all: BTreeSet<&str> = hosts.iter().map(|host| &**host).collect();
    server.attach_namespace(namespace, &all, false).unwrap_err();
    assert!(hosts.iter().all(|host| namespace.is_attached_to(host)));
    server.attach_namespace(namespace, &BTreeSet::from([&*hosts[0], &*hosts[64]]), false).unwrap();
    let attached: Vec<bool> = [0, 1, 64].iter().map(|&number| namespace.is_attached_to(&hosts[number])).collect();
    assert_eq!(attached, [false, true, false]);
}

#[test]
fn refused_change_is_not_stored() {
    let folder = tempfile::tempdir().unwrap();
    make(folder.path(), "page", true, 8);
    let server = open(folder.path());
    let before = checked(&server);
    faults::fail_sync_of_folder();
    server.resize(&server.namespaces()[0], (PAGES + 16) * PAGE, true).unwrap_err();
    assert_eq!(checked(&server), before);
    drop(server);
    let server = open(folder.path());
    assert_eq!(checked(&server), before);
    faults::fail_sync_of_folder();
    server.create_namespace(Wanted { size_bytes: PAGE, ops_blocks: Some(6), ..Wanted::default() }).unwrap_err();
    assert_eq!(checked(&server), before);
    drop(server);
    assert_eq!(checked(&open(folder.path())), before);
    assert_eq!(files(folder.path()), NAMES.map(str::to_owned).into());
}

#[test]
fn namespace_gets_its_part_of_unallocated_blocks_and_frees_its_name() {
    let folder = tempfile::tempdir().unwrap();
    make(folder.path(), "page", true, 2);
    let server = open(folder.path());
    let too_large = Wanted { size_bytes: PAGE, ..Wanted::default() };
    assert!(server.create_namespace(too_large).unwrap_err().to_string().contains("only 0 bytes are unallocated"));
    let namespaces = server.namespaces();
    for name in ["a", "b"] {
        server.delete_namespace(&server.namespace(name).unwrap()).unwrap();
    }
    let refused = namespaces[0].read(&server.model, &mut [0; 512], 0, || false).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::ENXIO));
    let spare = server.model.with(|drive| drive.spare_blocks()).unwrap();
    // One half of what is free, and so of the spare blocks.
    let wanted = Wanted { name: Some("a".into()), size_bytes: PAGES * PAGE, ..Wanted::default() };
    let made = server.create_namespace(wanted.clone()).unwrap();
    assert_eq!((made.nsid(), made.origin.handle, made.origin.config.ops_blocks), (4, 0, spare / 2 - PAGES / 16));
    assert!(server.create_namespace(wanted).unwrap_err().to_string().contains("already"));
    let last = server.create_namespace(Wanted { size_bytes: PAGES * PAGE, ..Wanted::default() }).unwrap();
    assert_eq!((last.nsid(), last.name.as_str(), server.unallocated_bytes()), (5, "ns5", 0));
    let before = checked(&server);
    drop(server);
    let server = open(folder.path());
    assert_eq!(checked(&server), before);
    server.delete_namespace(&last).unwrap_err();
    server.delete_namespace(&server.namespace("ns5").unwrap()).unwrap();
    let next = server.create_namespace(Wanted { size_bytes: PAGES * PAGE, ..Wanted::default() }).unwrap();
    assert_eq!(next.nsid(), 6, "numbers used before the restart included");
}

#[test]
fn totals_never_decrease_when_a_namespace_is_deleted() {
    let folder = tempfile::tempdir().unwrap();
    make(folder.path(), "page", true, 2);
    let server = open(folder.path());
    let namespaces = server.namespaces();
    let data = [7; PAGE as usize];
    for namespace in namespaces.iter() {
        for page in (0..PAGES).chain(0..PAGES) {
            namespace.write(&server.model, &data, page * PAGE, Flags::default(), || false).unwrap();
        }
    }
    let before = server.totals().unwrap();
    assert_eq!((before.host_written_bytes, server.answered(Op::Write)), (3 * 2 * PAGES * PAGE, 3 * 2 * PAGES));
    server.delete_namespace(&namespaces[1]).unwrap();
    assert_eq!((server.totals().unwrap(), server.answered(Op::Write)), (before, 3 * 2 * PAGES));
    server.stop().unwrap();
    drop(server);
    assert_eq!(open(folder.path()).totals().unwrap(), before);
}
