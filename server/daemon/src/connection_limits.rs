//! Limits on open files: how many of them connections may use. Connections of strangers must not use up the
//! files that the store needs: the failure to create its next file would end all writing.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Maximum number of connections of a listener, if the system allows it.
const CONNECTIONS_MAX: u64 = 10_000;
/// Files reserved for other uses: the store (few at a time, whatever its size), a backup, recorders, proxied
/// calls.
const RESERVED_FILES: u64 = 256;

/// Raises the limit on open files to the maximum, and returns the maximum number of connections for each of
/// `doors` listeners.
pub(super) fn connections_max(doors: usize) -> usize {
    let limit = getrlimit(Resource::Nofile);
    // Many shells set 1,024 where a process may ask for more. If raising fails, the old limit stays.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    connections_per_listener(getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX), doors)
}

/// The connections of one listener out of `files` open files; at least one.
fn connections_per_listener(files: u64, doors: usize) -> usize {
    // With a low limit, the store gets half of the files.
    let left = files - RESERVED_FILES.min(files / 2);
    usize::try_from((left / doors.max(1) as u64).clamp(1, CONNECTIONS_MAX)).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::connections_per_listener;

    #[test]
    fn listeners_share_files_left_by_the_store() {
        for (files, doors, most) in
            [(u64::MAX, 3, 10_000), (1024, 1, 768), (1024, 3, 256), (100, 2, 25), (1, 3, 1), (0, 0, 1)]
        {
            assert_eq!(connections_per_listener(files, doors), most, "{files} files, {doors} doors");
        }
    }
}
