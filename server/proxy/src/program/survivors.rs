//! Finds processes that outlive the program: by the proxy's address in their environment, or by the program's
//! output pipes that they hold open.
//!
//! Works only on Linux, which lists processes in files; elsewhere none is found.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use annals_text::visible::is_hidden;

/// Maximum number of characters shown of a command.
const COMMAND_CHARS: usize = 160;

/// A process that outlives the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Survivor {
    /// Its process id.
    pub pid: u32,
    /// Its command line, secrets masked, cut to 160 characters.
    pub command: String,
}

impl std::fmt::Display for Survivor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({})", self.pid, self.command)
    }
}

/// The user's processes that have `marker` in their environment, or hold one of these pipes (by inode) open.
/// annals' own processes are excluded.
pub(super) fn survivors(marker: &str, pipes: &[u64]) -> Vec<Survivor> {
    #[expect(clippy::disallowed_methods, reason = "the system's list of processes is no data of a store")]
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let own = rustix::process::geteuid().as_raw();
    let annals = std::fs::read_link("/proc/self/exe").ok();
    let mut found = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        if pid == std::process::id() || entry.metadata().is_ok_and(|known| known.uid() != own) {
            continue;
        }
        let process = entry.path();
        if !has_marker(&process, marker) && !holds_pipe(&process, pipes) {
            continue;
        }
        if annals.is_some() && std::fs::read_link(process.join("exe")).ok() == annals {
            continue;
        }
        found.push(Survivor { pid, command: command(&process) });
    }
    found.sort_unstable_by_key(|survivor| survivor.pid);
    found
}

#[expect(clippy::disallowed_methods, reason = "a file that the system makes up")]
fn has_marker(process: &Path, marker: &str) -> bool {
    let environment = std::fs::read(process.join("environ")).unwrap_or_default();
    memchr::memmem::find(&environment, marker.as_bytes()).is_some()
}

/// Whether a process holds one of these pipes open.
fn holds_pipe(process: &Path, pipes: &[u64]) -> bool {
    if pipes.is_empty() {
        return false;
    }
    #[expect(clippy::disallowed_methods, reason = "a listing that the system makes up")]
    let Ok(descriptors) = std::fs::read_dir(process.join("fd")) else { return false };
    let of_pipe = |target: &Path| {
        pipes.iter().any(|inode| target.as_os_str().as_bytes() == format!("pipe:[{inode}]").as_bytes())
    };
    descriptors.flatten().any(|entry| std::fs::read_link(entry.path()).is_ok_and(|target| of_pipe(&target)))
}

#[expect(clippy::disallowed_methods, reason = "a file that the system makes up")]
fn command(process: &Path) -> String {
    let bytes = std::fs::read(process.join("cmdline")).unwrap_or_default();
    let words = bytes.split(|byte| *byte == 0).filter(|word| !word.is_empty());
    let mut words: Vec<_> = words.map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    if let Some(program) = words.first_mut() {
        *program = program.rsplit('/').next().unwrap_or_default().to_owned();
    }
    let line = annals_policy::redact::mask_arguments(&words, &[], |_| Vec::new()).0.join(" ");
    line.chars().take(COMMAND_CHARS).map(|c| if is_hidden(c) { ' ' } else { c }).collect()
}
