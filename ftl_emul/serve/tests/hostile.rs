//! The inputs that fuzzing has found, and some that are valid, at each front end: nothing panics, and it still serves.

use std::fs;
use std::panic;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use ftl_serve::hostile::{Device, Door};

static PANICS: AtomicUsize = AtomicUsize::new(0);

#[test]
fn corpus_inputs_do_not_panic_a_front_end() {
    // Front ends end a connection at a panic and continue, so that nothing else shows a panic.
    panic::set_hook(Box::new(|what| {
        PANICS.fetch_add(1, Ordering::Relaxed);
        eprintln!("{what}");
    }));
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    let folder = tempfile::tempdir().expect("a folder");
    let device = Device::new(folder.path()).expect("a device");
    for (name, door) in Door::ALL {
        let mut inputs: Vec<_> =
            fs::read_dir(corpora.join(name)).expect(name).map(|each| each.expect(name).path()).collect();
        inputs.sort();
        assert!(!inputs.is_empty(), "{name} has inputs");
        for path in inputs {
            let bytes = fs::read(&path).expect(name);
            device.receive(door, &bytes).expect(name);
            assert_eq!(PANICS.load(Ordering::Relaxed), 0, "{}", path.display());
        }
    }
}
