//! Files that are complete, old or new, after a power failure at any time.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::sync;

/// Puts `content` at `path` in one step, readable by the owner only.
pub fn replace(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = path.with_file_name(name);
    // Opened first: without a free descriptor nothing is changed, and after the change none is needed.
    let folder = path.parent().map(File::open).transpose()?;
    #[cfg(test)]
    crate::faults::reached();
    let written = write(&new, content);
    #[cfg(test)]
    crate::faults::reached();
    let written = written.and_then(|()| fs::rename(&new, path));
    #[cfg(test)]
    crate::faults::reached();
    if written.is_err() {
        let _already_gone = fs::remove_file(&new);
        return written;
    }
    folder.map_or(Ok(()), |folder| sync_names(&folder))
}

/// Puts on stable storage which files a folder has.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    sync_names(&File::open(folder)?)
}

fn sync_names(folder: &File) -> io::Result<()> {
    #[cfg(test)]
    crate::faults::sync_of_folder()?;
    sync::all(folder)
}

fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(content)?;
    sync::all(&file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_replaced_without_leftovers() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        replace(&path, b"one").unwrap();
        replace(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn failed_write_keeps_the_old_content() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.json");
        replace(&path, b"one").unwrap();
        fs::create_dir(folder.path().join("a.json.new")).unwrap();
        assert!(replace(&path, b"two").is_err());
        assert_eq!(fs::read(&path).unwrap(), b"one");
    }
}
