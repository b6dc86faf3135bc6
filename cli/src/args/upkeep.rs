//! Verbs that look after a whole store: `doctor`, `repair`, `backup`, `restore`, `compact` and `demo`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
#[command(
    after_help = "Exit codes with --agent: 0 if no problem was found or nothing is known, 1 if a problem makes the capture of all model calls unlikely, or if \
the program cannot start."
)]
pub(crate) struct DoctorArgs {
    /// Inspect a program instead of a store: which model calls a recording is likely to capture, and what to
    /// do about the others. Reads files only, starts nothing, needs no store
    #[arg(long, requires = "command")]
    pub(crate) agent: bool,
    /// Program and its arguments, as for `record`
    #[arg(last = true, requires = "agent", value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct RepairArgs {
    /// Directory of the new store: empty, or not yet existing
    #[arg(long, value_name = "NEWDIR")]
    pub(crate) to: PathBuf,
}

#[derive(Debug, Args)]
#[command(
    after_help = "With --to, each backup is a directory `backup-STORE-TIME` in the folder. It gets this name once it is whole; older backups are removed only after that. \
With --every, the command runs until Ctrl-C; a backup that fails is reported, and the next one is tried at its time. A daemon does the same by itself: \
`annals serve --backup-to DIR`."
)]
pub(crate) struct BackupArgs {
    /// Directory of the copy: empty, or not yet existing
    #[arg(required_unless_present = "to", conflicts_with = "to")]
    pub(crate) dest: Option<PathBuf>,
    /// Make the backup in this existing folder, under a name with the time, and keep the newest ones
    #[arg(long, value_name = "DIR")]
    pub(crate) to: Option<PathBuf>,
    /// With --to: number of this store's backups that are kept in the folder [default: 14]
    #[arg(long, value_name = "N", requires = "to", conflicts_with = "dest", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) keep: Option<u64>,
    /// With --to: make a backup now and then each time this passed, for example 6h [default: once]
    #[arg(long, value_name = "TIME", requires = "to", conflicts_with = "dest")]
    pub(crate) every: Option<String>,
    /// Copy every file, instead of sharing unchanging files with the store by hard link or reflink
    #[arg(long)]
    pub(crate) copy: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "If a daemon serves the store, the daemon compacts it. Compaction needs free space for the rewritten data before it frees any; --dry-run says how much. A \
segment is rewritten if at least a tenth of it is dead."
)]
pub(crate) struct CompactArgs {
    /// Only report what would be rewritten
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Rewrite every file that holds deleted data, however little [default: files of which a tenth is dead]
    #[arg(long)]
    pub(crate) now: bool,
    /// Also recompress live data, which is slower and saves more space; data is recompressed only once
    #[arg(long)]
    pub(crate) recompress: bool,
    /// Write at most this number of bytes per second [default: no limit]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) max_bytes_per_second: Option<u64>,
}

#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// Directory of the backup
    pub(crate) backup: PathBuf,
    /// Directory of the store: empty, or not yet existing
    pub(crate) dest: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Keep the store in this new directory [default: a temporary directory that is deleted]
    #[arg(long, value_name = "DIR")]
    pub(crate) keep: Option<PathBuf>,
    /// Write the longest run as one HTML file
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Record into this store until killed: for the demonstration's child process
    #[arg(long, value_name = "DIR", hide = true)]
    pub(crate) record_into: Option<PathBuf>,
}
