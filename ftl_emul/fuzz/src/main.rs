//! One front end of `ftl-serve` under libFuzzer: FRONT_END names it, as in [`Door::ALL`].

#![no_main]

use std::sync::OnceLock;
use std::{env, fs, process};

use ftl_serve::hostile::{Device, Door, MOST_BYTES};
use libfuzzer_sys::fuzz_target;

static DEVICE: OnceLock<(Device, Door)> = OnceLock::new();

fn device() -> (Device, Door) {
    let name = env::var("FRONT_END").expect("FRONT_END names what is fuzzed");
    let Some((_, door)) = Door::ALL.into_iter().find(|(each, _)| *each == name) else {
        panic!("FRONT_END={name} is not one of {:?}", Door::ALL.map(|(each, _)| each));
    };
    let folder = env::temp_dir().join(format!("ftl-fuzz-{}", process::id()));
    fs::create_dir(&folder).expect("a folder");
    (Device::new(&folder).expect("a device"), door)
}

fuzz_target!(|bytes: &[u8]| {
    let (device, door) = DEVICE.get_or_init(device);
    if bytes.len() <= MOST_BYTES {
        device.receive(*door, bytes).expect("the stranger is heard");
    }
});
