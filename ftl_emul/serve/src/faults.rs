//! Fault injection for tests: the state of a device's folder at every step that a kill or a power failure may come
//! between.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

struct Recorder {
    folder: PathBuf,
    /// By inode: present length, and length on stable storage.
    unsynced: HashMap<u64, u64>,
    lengths: HashMap<u64, u64>,
    states: Vec<tempfile::TempDir>,
}

thread_local! {
    static RECORDER: RefCell<Option<Recorder>> = const { RefCell::new(None) };
    static FOLDER_SYNC_FAILS: Cell<bool> = const { Cell::new(false) };
}

/// Has the next sync of a folder fail, in this thread.
pub fn fail_sync_of_folder() {
    FOLDER_SYNC_FAILS.set(true);
}

/// A folder is about to be synced.
pub fn sync_of_folder() -> io::Result<()> {
    if FOLDER_SYNC_FAILS.take() { Err(io::Error::from_raw_os_error(libc::EIO)) } else { Ok(()) }
}

/// Copies of `folder` as a kill or a power failure would leave it at each step of `work`, in this thread.
pub fn states_during<R>(folder: &Path, work: impl FnOnce() -> R) -> (R, Vec<tempfile::TempDir>) {
    let mut lengths = HashMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let found = entry.unwrap().metadata().unwrap();
        lengths.insert(found.ino(), found.len());
    }
    let recorder = Recorder { folder: folder.to_owned(), unsynced: HashMap::new(), lengths, states: Vec::new() };
    RECORDER.set(Some(recorder));
    let done = work();
    reached();
    (done, RECORDER.take().unwrap().states)
}

/// A file of the folder is about to be replaced, or was.
pub fn reached() {
    RECORDER.with_borrow_mut(|recorder| {
        let Some(recorder) = recorder else { return };
        recorder.states.push(copy(&recorder.folder, &HashMap::new()));
        if !recorder.unsynced.is_empty() {
            recorder.states.push(copy(&recorder.folder, &recorder.unsynced));
        }
    });
}

/// The length of a file was changed.
pub fn resized(file: &File) {
    RECORDER.with_borrow_mut(|recorder| {
        let Some(recorder) = recorder else { return };
        let inode = file.metadata().unwrap().ino();
        if let Some(&length) = recorder.lengths.get(&inode) {
            recorder.unsynced.insert(inode, length);
        }
    });
    reached();
}

/// The length of a file is on stable storage.
pub fn synced(file: &File) {
    RECORDER.with_borrow_mut(|recorder| {
        let Some(recorder) = recorder else { return };
        let found = file.metadata().unwrap();
        recorder.unsynced.remove(&found.ino());
        recorder.lengths.insert(found.ino(), found.len());
    });
    reached();
}

/// `lengths`: lengths on stable storage by inode, if they differ.
fn copy(folder: &Path, lengths: &HashMap<u64, u64>) -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(folder).unwrap() {
        let entry = entry.unwrap();
        let target = copy.path().join(entry.file_name());
        fs::copy(entry.path(), &target).unwrap();
        if let Some(&length) = lengths.get(&entry.metadata().unwrap().ino()) {
            File::options().write(true).open(&target).unwrap().set_len(length).unwrap();
        }
    }
    copy
}
