//! Where a store's socket stands: in the store's own directory, for its user alone.
//!
//! It is made in a directory that nobody else may enter and moved into place once it listens, so that at its place there is never one that
//! others may use or that does not listen yet; one that a dead process left is replaced by that. An address of a socket has room for a hundred
//! bytes or so: where a store's path is longer, Linux is given its open directory instead.

use std::fs::{DirBuilder, File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Paths up to this length are addresses everywhere.
const ADDRESS_BYTES_MAX: usize = 100;

/// A socket that is listened at, and its place; taken away once this is dropped.
#[derive(Debug)]
pub(crate) struct Listening {
    pub(crate) listener: UnixListener,
    pub(crate) place: PathBuf,
}

impl Drop for Listening {
    fn drop(&mut self) {
        take_away(&self.place);
    }
}

/// Listens for whoever wants to write to the store in this directory. Only whoever holds its lock may ask for that.
///
/// # Errors
/// Where the file system holds no sockets, or the path is too long for one.
pub(super) fn listen(root: &Path) -> io::Result<UnixListener> {
    let (place, making) = annals::socket_paths(root);
    listen_by(&place, &making)
}

/// The same, for whoever takes the socket away by dropping what this gives.
///
/// # Errors
/// As [`listen`].
pub(crate) fn listen_for(root: &Path) -> io::Result<Listening> {
    let root = std::path::absolute(root)?;
    Ok(Listening { listener: listen(&root)?, place: annals::socket_paths(&root).0 })
}

/// Listens at a place of the caller's choice.
///
/// # Errors
/// `AddrInUse` where somebody listens there; `AlreadyExists` where something else than a socket stands there; as [`listen`].
pub(crate) fn listen_at(place: &Path) -> io::Result<Listening> {
    use std::os::unix::fs::FileTypeExt;
    let place = std::path::absolute(place)?;
    match place.symlink_metadata() {
        Ok(there) if !there.file_type().is_socket() => return Err(io::ErrorKind::AlreadyExists.into()),
        Ok(_) if at(&place, UnixStream::connect).is_ok() => return Err(io::ErrorKind::AddrInUse.into()),
        _ => {}
    }
    let mut making = place.clone().into_os_string();
    making.push(format!(".{}", std::process::id()));
    let listener = listen_by(&place, Path::new(&making))?;
    Ok(Listening { listener, place })
}

#[expect(clippy::disallowed_methods, reason = "a socket is no file of the store's data")]
fn listen_by(place: &Path, making: &Path) -> io::Result<UnixListener> {
    let made = making.join("s");
    let clear = || {
        let _ = std::fs::remove_file(&made);
        let _ = std::fs::remove_dir(making);
    };
    clear();
    DirBuilder::new().mode(0o700).create(making)?;
    let listening = at(&made, UnixListener::bind).and_then(|listener| {
        std::fs::set_permissions(&made, Permissions::from_mode(0o600))?;
        std::fs::rename(&made, place)?;
        Ok(listener)
    });
    clear();
    listening
}

/// Connects to whoever listens for the store in this directory.
///
/// # Errors
/// Where nobody does.
pub(super) fn connect(root: &Path) -> io::Result<UnixStream> {
    at(&annals::socket_paths(root).0, UnixStream::connect)
}

/// Takes the socket away. Only whoever listens there may.
pub(super) fn remove(root: &Path) {
    take_away(&annals::socket_paths(root).0);
}

fn take_away(place: &Path) {
    #[expect(clippy::disallowed_methods, reason = "a socket is no file of the store's data")]
    let _ = std::fs::remove_file(place);
}

/// Does something with the address that stands for a path.
fn at<T>(path: &Path, with: impl FnOnce(PathBuf) -> io::Result<T>) -> io::Result<T> {
    if path.as_os_str().len() <= ADDRESS_BYTES_MAX {
        return with(path.to_owned());
    }
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    #[expect(clippy::disallowed_methods, reason = "a directory is opened as an address, not to be read")]
    let directory = File::open(directory)?;
    with(Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::fs::PermissionsExt;

    use super::{connect, listen, remove};

    #[test]
    #[expect(clippy::disallowed_methods, reason = "what the socket is like is to be seen")]
    fn a_socket_is_for_its_user_alone_and_takes_the_place_of_a_dead_one() {
        let directory = tempfile::tempdir().unwrap();
        let mut deep = directory.path().to_path_buf();
        for place in ["".to_owned(), "d".repeat(200)] {
            deep = deep.join(place);
            std::fs::create_dir_all(&deep).unwrap();
            assert!(connect(&deep).is_err());
            // The first is dropped, and what it listened at stays behind.
            drop(listen(&deep).unwrap());
            assert!(connect(&deep).is_err());
            let listener = listen(&deep).unwrap();
            let (place, making) = annals::socket_paths(&deep);
            assert_eq!(std::fs::metadata(&place).unwrap().permissions().mode() & 0o777, 0o600);
            assert!(!making.exists());
            connect(&deep).unwrap().write_all(b"here").unwrap();
            let mut got = Vec::new();
            listener.accept().unwrap().0.read_to_end(&mut got).unwrap();
            assert_eq!(got, b"here");
            remove(&deep);
            assert!(!place.exists());
        }
    }
}
