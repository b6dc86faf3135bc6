//! How many files this process may have open, and how many of them connections may be: what strangers at a door take must not be what the store
//! wants for its next file, which would end all writing.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Connections at a door, where the system allows it.
const CONNECTIONS_MAX: u64 = 10_000;
/// Files that are kept for everything else: the store's, which are few at a time however many it has, a backup's, recorders, calls of a proxy.
const KEPT: u64 = 256;

/// Has the system let this process open as many files as it may ask for, and gives how many connections each of so many doors may let in.
pub(super) fn connections_max(doors: usize) -> usize {
    let limit = getrlimit(Resource::Nofile);
    // Many shells allow 1,024 where a process may ask for more. Where that is refused, what there was remains.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    each(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX), doors)
}

/// What a door may let in of so many files; one at least, as nobody could say anything otherwise.
fn each(files: u64, doors: usize) -> usize {
    // Where little is allowed the store gets half of it.
    let left = files - KEPT.min(files / 2);
    usize::try_from((left / doors.max(1) as u64).clamp(1, CONNECTIONS_MAX)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::each;

    #[test]
    fn doors_share_what_the_store_does_not_need() {
        for (files, doors, most) in
            [(u64::MAX, 3, 10_000), (1024, 1, 768), (1024, 3, 256), (100, 2, 25), (1, 3, 1), (0, 0, 1)]
        {
            assert_eq!(each(files, doors), most, "{files} files, {doors} doors");
        }
    }
}
