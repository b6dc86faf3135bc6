//! One behaviour suite that both the real and the simulated disk pass.

use std::io::{ErrorKind, IoSlice};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

use super::sim::SimIo;
use super::{File, Io, LockKind, OpenMode, PathStat, RealIo};

fn write(file: &Arc<dyn File>, bytes: &[u8], offset: u64) {
    file.write_at(&[IoSlice::new(bytes)], offset).unwrap();
}

fn read_all(file: &Arc<dyn File>) -> Vec<u8> {
    let mut buf = vec![0; usize::try_from(file.len().unwrap()).unwrap()];
    assert_eq!(file.read_at(&mut buf, 0).unwrap(), buf.len());
    buf
}

fn for_both_disks(check: impl Fn(&dyn Io, &Path)) {
    let dir = tempfile::tempdir().unwrap();
    check(&RealIo::new(), dir.path());
    let dir = tempfile::tempdir().unwrap();
    check(&*RealIo::new().beneath(dir.path()).unwrap(), dir.path());
    let sim = SimIo::new(7);
    sim.create_dir_all(Path::new("/tmp/store")).unwrap();
    check(&sim, Path::new("/tmp/store"));
}

#[test]
fn open_modes_behave_as_documented() {
    for_both_disks(|io, dir| {
        let path = dir.join("a");
        assert_eq!(io.open(&path, OpenMode::Read).unwrap_err().kind(), ErrorKind::NotFound);
        let error = io.open(&path, OpenMode::Write).unwrap_err();
        assert_eq!((error.kind(), error.path.as_path()), (ErrorKind::NotFound, path.as_path()));
        write(&io.open(&path, OpenMode::CreateNew).unwrap(), b"abc", 0);
        assert_eq!(io.open(&path, OpenMode::CreateNew).unwrap_err().kind(), ErrorKind::AlreadyExists);
        assert_eq!(read_all(&io.open(&path, OpenMode::CreateOrOpen).unwrap()), b"abc", "never truncated");
        let reader = io.open(&path, OpenMode::Read).unwrap();
        assert!(reader.write_at(&[IoSlice::new(b"x")], 0).is_err());
        assert!(reader.set_len(0).is_err());
        let lost = dir.join("none").join("a");
        assert_eq!(io.open(&lost, OpenMode::CreateNew).unwrap_err().kind(), ErrorKind::NotFound);
    });
}

#[test]
fn reads_and_writes_are_positional() {
    for_both_disks(|io, dir| {
        let file = io.open(&dir.join("a"), OpenMode::CreateNew).unwrap();
        write(&file, b"world", 6);
        write(&file, b"hello", 0);
        assert_eq!(read_all(&file), b"hello\0world", "a gap is zeros");
        let mut buf = [9; 8];
        assert_eq!(file.read_at(&mut buf, 8).unwrap(), 3, "short only at the end");
        assert_eq!(&buf, b"rld\x09\x09\x09\x09\x09");
        assert_eq!(file.read_at(&mut buf, 11).unwrap(), 0);
        assert_eq!(file.read_at(&mut buf, 1 << 40).unwrap(), 0);
        write(&file, b"", 99);
        file.write_at(&[], 99).unwrap();
        file.write_at(&[IoSlice::new(b""), IoSlice::new(b"")], 99).unwrap();
        assert_eq!(file.len().unwrap(), 11, "an empty write changes nothing");
        file.set_len(3).unwrap();
        file.set_len(5).unwrap();
        assert_eq!(read_all(&file), b"hel\0\0");
        file.sync().unwrap();
        io.sync_dir(dir).unwrap();
    });
}

#[test]
fn offsets_past_any_file_are_refused() {
    for_both_disks(|io, dir| {
        let file = io.open(&dir.join("a"), OpenMode::CreateNew).unwrap();
        for offset in [u64::MAX, u64::MAX - 1, 1 << 63] {
            assert!(file.write_at(&[IoSlice::new(b"ab")], offset).is_err());
            assert!(file.write_at(&[IoSlice::new(b"ab"), IoSlice::new(b"cd")], offset).is_err());
            assert!(file.set_len(offset).is_err());
        }
        assert_eq!(file.len().unwrap(), 0);
    });
}

/// More buffers than one system call takes, with empty buffers between.
#[test]
fn a_vectored_write_writes_every_buffer() {
    for_both_disks(|io, dir| {
        let file = io.open(&dir.join("a"), OpenMode::CreateNew).unwrap();
        let pieces: Vec<Vec<u8>> =
            (0..3000_u16).map(|i| vec![i.to_le_bytes()[0]; usize::from(i % 7)]).collect();
        let slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        file.write_at(&slices, 5).unwrap();
        assert_eq!(read_all(&file)[5..], pieces.concat());
    });
}

#[test]
fn create_rename_and_remove_change_names() {
    for_both_disks(|io, dir| {
        for name in ["b", "a", "c"] {
            write(&io.open(&dir.join(name), OpenMode::CreateNew).unwrap(), name.as_bytes(), 0);
        }
        io.create_dir_all(&dir.join("d/e")).unwrap();
        io.create_dir_all(&dir.join("d/e")).unwrap();
        assert_eq!(io.list(dir).unwrap(), ["a", "b", "c", "d"]);
        assert_eq!(io.list(&dir.join("d")).unwrap(), ["e"]);
        assert_eq!(io.list(&dir.join("x")).unwrap_err().kind(), ErrorKind::NotFound);

        let replaced = io.open(&dir.join("b"), OpenMode::Read).unwrap();
        io.rename(&dir.join("a"), &dir.join("./b")).unwrap();
        assert_eq!(io.list(dir).unwrap(), ["b", "c", "d"]);
        assert_eq!(read_all(&io.open(&dir.join("b"), OpenMode::Read).unwrap()), b"a");
        assert_eq!(read_all(&replaced), b"b", "an open file outlives its name");
        assert_eq!(io.rename(&dir.join("a"), &dir.join("b")).unwrap_err().kind(), ErrorKind::NotFound);
        let across = io.rename(&dir.join("b"), &dir.join("d/b")).unwrap_err();
        assert_eq!(across.kind(), ErrorKind::InvalidInput);
        io.rename(&dir.join("b"), &dir.join("b")).unwrap();

        let gone = io.open(&dir.join("c"), OpenMode::Write).unwrap();
        io.remove(&dir.join("c")).unwrap();
        assert_eq!(io.remove(&dir.join("c")).unwrap_err().kind(), ErrorKind::NotFound);
        write(&gone, b"still", 0);
        assert_eq!(read_all(&gone), b"still");
        assert_eq!(io.list(dir).unwrap(), ["b", "d"]);
        assert_eq!(io.sync_dir(&dir.join("x")).unwrap_err().kind(), ErrorKind::NotFound);
        assert!(io.create_dir_all(&dir.join("b")).is_err(), "a file has the name");
    });
}

#[test]
fn stat_reports_length_and_kind() {
    for_both_disks(|io, dir| {
        write(&io.open(&dir.join("a"), OpenMode::CreateNew).unwrap(), b"abc", 0);
        assert_eq!(io.stat(&dir.join("a")).unwrap(), Some(PathStat { len: 3, is_dir: false }));
        assert!(io.stat(dir).unwrap().unwrap().is_dir);
        assert_eq!(io.stat(&dir.join("b")).unwrap(), None);
        let here = Path::new("");
        assert!(io.stat(here).unwrap().unwrap().is_dir, "the empty path is the working directory");
        io.list(here).unwrap();
        io.sync_dir(here).unwrap();
        assert_eq!(io.stat(&dir.join("a/b")).unwrap(), None);
    });
}

#[test]
fn map_holds_the_whole_file_and_outlives_it() {
    for_both_disks(|io, dir| {
        let path = dir.join("a");
        let file = io.open(&path, OpenMode::CreateNew).unwrap();
        assert!(file.map().unwrap().is_empty());
        let bytes: Vec<u8> = (0..10_000_u32).map(|i| (i % 255) as u8).collect();
        write(&file, &bytes, 0);
        let map = io.open(&path, OpenMode::Read).unwrap().map().unwrap();
        drop(file);
        io.remove(&path).unwrap();
        assert_eq!(&*map, bytes);
        assert_eq!(map.as_ref().len(), 10_000);
    });
}

#[test]
fn locks_exclude_until_dropped() {
    for_both_disks(|io, dir| {
        let path = dir.join("LOCK");
        let [a, b, c] = [0, 1, 2].map(|_| io.open(&path, OpenMode::CreateOrOpen).unwrap());
        assert!(a.try_lock(LockKind::Shared).unwrap());
        assert!(b.try_lock(LockKind::Shared).unwrap());
        assert!(!c.try_lock(LockKind::Exclusive).unwrap());
        drop(b);
        assert!(!c.try_lock(LockKind::Exclusive).unwrap());
        drop(a);
        assert!(c.try_lock(LockKind::Exclusive).unwrap());
        let d = io.open(&path, OpenMode::Read).unwrap();
        assert!(!d.try_lock(LockKind::Shared).unwrap());
        drop(c);
        assert!(d.try_lock(LockKind::Shared).unwrap());
    });
}

#[test]
fn clocks_random_bytes_and_threads() {
    for_both_disks(|io, dir| {
        assert!(io.now_ns() > 1_500_000_000_000_000_000);
        let (first, second) = (io.monotonic_ns(), io.monotonic_ns());
        assert!(first <= second);
        let (mut a, mut b) = ([0; 33], [0; 33]);
        io.random(&mut a).unwrap();
        io.random(&mut b).unwrap();
        assert_ne!(a, b);
        let file = io.open(&dir.join("a"), OpenMode::CreateNew).unwrap();
        let theirs = Arc::clone(&file);
        let body = move || {
            assert_eq!(std::thread::current().name(), Some("annals-test"));
            theirs.write_at(&[IoSlice::new(b"hi")], 0).unwrap();
        };
        io.spawn("annals-test", Box::new(body)).unwrap().join().unwrap();
        assert_eq!(read_all(&file), b"hi");
    });
}

#[test]
#[expect(clippy::disallowed_methods, reason = "looks at what the system itself made")]
fn created_files_and_directories_are_private() {
    let dir = tempfile::tempdir().unwrap();
    let io = RealIo::new();
    let inner = dir.path().join("x/y");
    io.create_dir_all(&inner).unwrap();
    io.open(&inner.join("new"), OpenMode::CreateNew).unwrap();
    io.open(&inner.join("or"), OpenMode::CreateOrOpen).unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!([mode(&dir.path().join("x")), mode(&inner)], [0o700; 2]);
    assert_eq!([mode(&inner.join("new")), mode(&inner.join("or"))], [0o600; 2]);
}

/// Beneath a root nothing is reached through a link, by any operation, and a special file is not waited for.
#[test]
#[expect(clippy::disallowed_methods, reason = "makes links and pipes")]
fn no_operation_beneath_a_root_follows_a_link() {
    use std::os::unix::fs::symlink;
    let dir = tempfile::tempdir().unwrap();
    let (root, foreign) = (dir.path().join("root"), dir.path().join("foreign"));
    std::fs::create_dir_all(root.join("real")).unwrap();
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join("secret"), "secret").unwrap();
    symlink(foreign.join("secret"), root.join("file")).unwrap();
    symlink(foreign.join("new"), root.join("dangling")).unwrap();
    symlink(&foreign, root.join("dir")).unwrap();
    assert!(std::process::Command::new("mkfifo").arg(root.join("pipe")).status().unwrap().success());
    // The root itself may be a link.
    symlink(&root, dir.path().join("link")).unwrap();
    let root = dir.path().join("link");
    let io = RealIo::new().beneath(&root).unwrap();
    let kind = |error: super::IoError| error.kind();
    for name in ["file", "dangling", "pipe", "dir/secret"] {
        for how in [OpenMode::Read, OpenMode::Write, OpenMode::CreateOrOpen] {
            let error = io.open(&root.join(name), how).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidData, "{name} {how:?}: {error}");
            let what = if name == "pipe" { "a named pipe" } else { "a symbolic link" };
            assert!(error.to_string().contains(what), "{error}");
        }
        assert_eq!(io.id(&root.join("dir/secret")).map_err(kind), Err(ErrorKind::InvalidData));
    }
    for name in ["dir", "dir/below"] {
        let dir = root.join(name);
        let inner = dir.join("a");
        assert_eq!(io.list(&dir).map_err(kind), Err(ErrorKind::InvalidData));
        assert_eq!(io.create_dir_all(&dir).map_err(kind), Err(ErrorKind::InvalidData));
        assert_eq!(io.sync_dir(&dir).map_err(kind), Err(ErrorKind::InvalidData));
        assert_eq!(io.open_dir(&dir).map(drop).map_err(kind), Err(ErrorKind::InvalidData));
        assert_eq!(io.remove(&inner).map_err(kind), Err(ErrorKind::InvalidData));
        assert_eq!(io.open(&inner, OpenMode::CreateNew).map(drop).map_err(kind), Err(ErrorKind::InvalidData));
    }
    assert_eq!(
        io.rename(&root.join("dir/secret"), &root.join("dir/b")).map_err(kind),
        Err(ErrorKind::InvalidData)
    );
    assert_eq!(io.link(&root.join("file"), &root.join("real/b")).map_err(kind), Err(ErrorKind::InvalidData));
    assert_eq!(
        io.clone_file(&root.join("file"), &root.join("real/b")).map_err(kind),
        Err(ErrorKind::InvalidData)
    );
    assert_eq!(io.list(&root.join("real")).unwrap(), Vec::<String>::new());
    assert_eq!(std::fs::read_dir(&foreign).unwrap().count(), 1);
    assert_eq!(std::fs::read(foreign.join("secret")).unwrap(), b"secret");
    // What stands there is a link of some bytes, and removing it removes the link.
    assert!(!io.stat(&root.join("dir")).unwrap().unwrap().is_dir);
    io.remove(&root.join("file")).unwrap();
    // Outside of the root everything is as the user names it.
    let file = io.open(&dir.path().join("root/dir/secret"), OpenMode::Read).unwrap();
    assert_eq!(read_all(&file), b"secret");
    // A root that was moved away is still the one that was opened.
    let file = io.open(&root.join("real/f"), OpenMode::CreateNew).unwrap();
    assert_eq!(io.id(&root.join("real/f")).unwrap(), Some(file.id().unwrap()));
    std::fs::rename(dir.path().join("root"), dir.path().join("moved")).unwrap();
    std::fs::create_dir_all(dir.path().join("root/real")).unwrap();
    assert_eq!(io.list(&root.join("real")).unwrap(), ["f"]);
    assert_eq!(RealIo::new().list(&root.join("real")).unwrap(), Vec::<String>::new());
}

#[test]
fn directories_are_locked_until_dropped() {
    for_both_disks(|io, dir| {
        io.create_dir_all(&dir.join("d")).unwrap();
        let [a, b] = [0, 1].map(|_| io.open_dir(&dir.join("d")).unwrap());
        assert_eq!(
            (a.id().unwrap(), Some(a.id().unwrap())),
            (b.id().unwrap(), io.id(&dir.join("d")).unwrap())
        );
        assert!(a.try_lock(LockKind::Exclusive).unwrap());
        assert!(!b.try_lock(LockKind::Shared).unwrap());
        drop(a);
        assert!(b.try_lock(LockKind::Exclusive).unwrap());
        assert_eq!(io.id(&dir.join("x")).unwrap(), None);
        assert_eq!(io.open_dir(&dir.join("x")).unwrap_err().kind(), ErrorKind::NotFound);
    });
}

#[test]
fn allocated_space_changes_neither_length_nor_bytes() {
    for_both_disks(|io, dir| {
        let file = io.open(&dir.join("a"), OpenMode::CreateNew).unwrap();
        write(&file, b"abc", 0);
        file.allocate(100_000).unwrap();
        assert_eq!(read_all(&file), b"abc");
        file.allocate(10).unwrap();
        write(&file, b"d", 5000);
        file.set_len(2).unwrap();
        assert_eq!(read_all(&file), b"ab");
    });
}
