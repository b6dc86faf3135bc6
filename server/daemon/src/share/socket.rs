//! The socket of a store: in the store's own directory, for its user alone.
//!
//! The socket is created in a private directory and renamed into place once it listens. So its path never
//! names a socket that others may use or that does not listen yet; a stale socket is replaced. A socket
//! address holds about a hundred bytes: for a longer path, Linux gets the path of the open directory instead.

use std::fs::{DirBuilder, File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// Paths up to this length are valid socket addresses on every system.
const ADDRESS_BYTES_MAX: usize = 100;

/// A listening socket and its path; dropping it removes the file.
#[derive(Debug)]
pub(crate) struct ListeningSocket {
    pub(crate) listener: UnixListener,
    pub(crate) place: PathBuf,
}

impl Drop for ListeningSocket {
    fn drop(&mut self) {
        remove_file(&self.place);
    }
}

/// Listens for processes that want to write to the store in this directory. Only the process that holds the
/// lock may call this.
///
/// # Errors
/// The file system has no sockets, or the path is too long for one.
pub(super) fn listen(root: &Path) -> io::Result<UnixListener> {
    let (place, making) = annals::upkeep::socket_paths(root);
    bind_and_move(&place, &making)
}

/// As [`listen`], but dropping the result removes the socket.
///
/// # Errors
/// As [`listen`].
pub(crate) fn listen_guarded(root: &Path) -> io::Result<ListeningSocket> {
    let root = std::path::absolute(root)?;
    Ok(ListeningSocket { listener: listen(&root)?, place: annals::upkeep::socket_paths(&root).0 })
}

/// Listens at a path of the caller's choice.
///
/// # Errors
/// `AddrInUse` if a process listens there; `AlreadyExists` if the path is not a socket; as [`listen`].
pub(crate) fn listen_at(place: &Path) -> io::Result<ListeningSocket> {
    use std::os::unix::fs::FileTypeExt;
    let place = std::path::absolute(place)?;
    match place.symlink_metadata() {
        Ok(there) if !there.file_type().is_socket() => return Err(io::ErrorKind::AlreadyExists.into()),
        Ok(_) if with_socket_address(&place, UnixStream::connect).is_ok() => {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        _ => {}
    }
    let mut making = place.clone().into_os_string();
    making.push(format!(".{}", std::process::id()));
    let listener = bind_and_move(&place, Path::new(&making))?;
    Ok(ListeningSocket { listener, place })
}

#[expect(clippy::disallowed_methods, reason = "a socket is no file of the store's data")]
fn bind_and_move(place: &Path, making: &Path) -> io::Result<UnixListener> {
    let made = making.join("s");
    let clear = || {
        // A link would lead to a file of somebody else.
        if making.symlink_metadata().is_ok_and(|there| there.is_dir()) {
            let _ = std::fs::remove_file(&made);
        }
        let _ = std::fs::remove_dir(making);
    };
    clear();
    DirBuilder::new().mode(0o700).create(making)?;
    let listening = with_socket_address(&made, UnixListener::bind).and_then(|listener| {
        std::fs::set_permissions(&made, Permissions::from_mode(0o600))?;
        std::fs::rename(&made, place)?;
        Ok(listener)
    });
    clear();
    listening
}

/// Connects to the process that listens for the store in this directory.
///
/// # Errors
/// No process listens there, or the path is a link: it could lead to a stranger who asks for everything that
/// is recorded.
pub(super) fn connect(root: &Path) -> io::Result<UnixStream> {
    use std::os::unix::fs::FileTypeExt;
    let place = annals::upkeep::socket_paths(root).0;
    if !place.symlink_metadata()?.file_type().is_socket() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    with_socket_address(&place, UnixStream::connect)
}

/// Removes the socket. Only the process that listens there may call this.
pub(super) fn remove(root: &Path) {
    remove_file(&annals::upkeep::socket_paths(root).0);
}

fn remove_file(place: &Path) {
    #[expect(clippy::disallowed_methods, reason = "a socket is no file of the store's data")]
    let _ = std::fs::remove_file(place);
}

/// Calls `with` with a socket address that stands for the path.
fn with_socket_address<T>(path: &Path, with: impl FnOnce(PathBuf) -> io::Result<T>) -> io::Result<T> {
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
    fn socket_is_private_and_replaces_a_stale_one() {
        let directory = tempfile::tempdir().unwrap();
        let mut deep = directory.path().to_path_buf();
        for place in ["".to_owned(), "d".repeat(200)] {
            deep = deep.join(place);
            std::fs::create_dir_all(&deep).unwrap();
            assert!(connect(&deep).is_err());
            // The first listener is dropped; its socket file stays behind.
            drop(listen(&deep).unwrap());
            assert!(connect(&deep).is_err());
            let listener = listen(&deep).unwrap();
            let (place, making) = annals::upkeep::socket_paths(&deep);
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
