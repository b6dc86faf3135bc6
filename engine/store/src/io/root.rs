//! Names inside a store, resolved from the store's open directory without following a link.
//!
//! A path beneath a [`RootDir`] is walked directory by directory. Each step refuses a link, so no name in the
//! store leads to a file elsewhere, and a directory that is renamed meanwhile stays the one that was opened.
//! Linux can do this in one call (`openat2`), but only for opening: creating directories, renaming, linking,
//! removing and `stat` need the walk in any case, so it is the only way here. A path outside of every root is
//! the user's own and follows links.

use std::ffi::OsStr;
use std::io::{Error, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;

/// The open directory of a store.
#[derive(Debug)]
pub(super) struct RootDir {
    path: PathBuf,
    dir: OwnedFd,
}

/// Where a path leads: a directory, and a name in it.
#[derive(Debug)]
pub(super) enum Place<'a> {
    /// A path of the user's own: links are followed.
    Outside(&'a Path),
    /// A name in a directory of the store: it is never a link. `None`: the root itself.
    Inside { root: &'a RootDir, dir: Option<OwnedFd>, name: &'a OsStr },
}

const DIR_FLAGS: OFlags = OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

impl RootDir {
    /// Opens a directory, which the user may name by a link.
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let dir = rustix::fs::openat(CWD, or_current_dir(path), DIR_FLAGS, Mode::empty())?;
        Ok(Self { path: path.to_path_buf(), dir })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The names that lead from the root to `path`; `None` for a path outside.
    pub(super) fn names<'a>(&self, path: &'a Path) -> Option<Vec<&'a OsStr>> {
        let rest = path.strip_prefix(&self.path).ok()?;
        let parts = rest.components().filter(|part| *part != Component::CurDir);
        parts.map(|part| if let Component::Normal(name) = part { Some(name) } else { None }).collect()
    }

    /// The place of a path that is inside.
    pub(super) fn place<'a>(&'a self, names: &[&'a OsStr]) -> Result<Place<'a>, Error> {
        let Some((name, parents)) = names.split_last() else {
            return Ok(Place::Inside { root: self, dir: None, name: OsStr::new(".") });
        };
        let mut dir = None;
        for parent in parents {
            dir = Some(Place::Inside { root: self, dir, name: parent }.open_dir()?);
        }
        Ok(Place::Inside { root: self, dir, name })
    }
}

impl Place<'_> {
    pub(super) fn dir(&self) -> BorrowedFd<'_> {
        match self {
            Self::Outside(_) => CWD,
            Self::Inside { root, dir, .. } => dir.as_ref().unwrap_or(&root.dir).as_fd(),
        }
    }

    pub(super) fn name(&self) -> &Path {
        match self {
            Self::Outside(path) => or_current_dir(path),
            Self::Inside { name, .. } => Path::new(name),
        }
    }

    /// Opens a regular file. Any other kind of file is refused, and never waited for.
    pub(super) fn open_file(&self, flags: OFlags, mode: Mode) -> Result<OwnedFd, Error> {
        // Without NONBLOCK, opening a named pipe waits for its other end. It changes nothing for a file.
        let always = OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
        let opened = self.open(flags | always, mode)?;
        let facts = rustix::fs::fstat(&opened)?;
        let kind = FileType::from_raw_mode(facts.st_mode);
        if kind != FileType::RegularFile {
            return Err(self.wrong_kind(kind, "a file"));
        }
        // What a backup shares by a second name is never written again, so another name is somebody else's.
        let writes = flags.contains(OFlags::RDWR);
        if matches!(self, Self::Inside { .. }) && writes && facts.st_nlink > 1 {
            let what = "it is to be written and has another name (a hard link): put a copy in its place";
            return Err(Error::new(ErrorKind::InvalidData, what));
        }
        Ok(opened)
    }

    /// Opens a directory.
    pub(super) fn open_dir(&self) -> Result<OwnedFd, Error> {
        self.open(DIR_FLAGS, Mode::empty())
    }

    /// Makes a directory. One that exists is accepted; false then.
    pub(super) fn make_dir(&self, mode: Mode) -> Result<bool, Error> {
        match rustix::fs::mkdirat(self.dir(), self.name(), mode) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Facts about the name itself inside a store, about what it leads to outside.
    pub(super) fn stat(&self) -> Result<rustix::fs::Stat, Errno> {
        let follow = match self {
            Self::Outside(_) => AtFlags::empty(),
            Self::Inside { .. } => AtFlags::SYMLINK_NOFOLLOW,
        };
        rustix::fs::statat(self.dir(), self.name(), follow)
    }

    fn open(&self, flags: OFlags, mode: Mode) -> Result<OwnedFd, Error> {
        let nofollow = match self {
            Self::Outside(_) => OFlags::empty(),
            Self::Inside { .. } => OFlags::NOFOLLOW,
        };
        let call = || rustix::fs::openat(self.dir(), self.name(), flags | nofollow, mode);
        rustix::io::retry_on_intr(call).map_err(|errno| {
            let wanted = if flags.contains(OFlags::DIRECTORY) { "a directory" } else { "a file" };
            // The system's own text ("Too many levels of symbolic links") does not say what is wrong.
            match (errno, self.stat()) {
                (Errno::LOOP | Errno::NOTDIR | Errno::NXIO | Errno::ISDIR | Errno::MLINK, Ok(facts)) => {
                    self.wrong_kind(FileType::from_raw_mode(facts.st_mode), wanted)
                }
                _ => errno.into(),
            }
        })
    }

    /// The error for a name that is something else than a store keeps there.
    pub(super) fn wrong_kind(&self, kind: FileType, wanted: &str) -> Error {
        let found = match kind {
            FileType::RegularFile => "a file",
            FileType::Directory => "a directory",
            FileType::Symlink => "a symbolic link",
            FileType::Fifo => "a named pipe",
            FileType::Socket => "a socket",
            FileType::CharacterDevice | FileType::BlockDevice => "a device",
            _ => "a special file",
        };
        match (self, kind) {
            // A path below a file is a path that is missing.
            (_, FileType::RegularFile) => {
                Error::new(ErrorKind::NotADirectory, format!("it is {found}, not {wanted}"))
            }
            (Self::Outside(_), _) => {
                Error::new(ErrorKind::InvalidInput, format!("it is {found}, not {wanted}"))
            }
            (Self::Inside { .. }, _) => Error::new(
                ErrorKind::InvalidData,
                format!("it is {found}, and a store keeps {wanted} there: put the original back"),
            ),
        }
    }
}

/// The empty path is the working directory: `parent` of a bare name returns it.
pub(super) fn or_current_dir(dir: &Path) -> &Path {
    if dir.as_os_str().is_empty() { Path::new(".") } else { dir }
}
