//! Inspects a program before it is recorded: what a recording will likely capture, and what not.
//!
//! The inspection is static. It reads files, starts nothing, writes nothing and uses no network. Its input is
//! hostile: file sizes, their number and the findings are bounded; pipes and devices are never opened for
//! reading.
//!
//! Layout: `command` (finds the files of a command line), `sources` (reads them and the files that they
//! import), `text` (comments, lines, imports, variables), `clients` (known clients and their variables),
//! `addresses` (addresses fixed in a program), `environment` (variables and this machine), `inspection`
//! (combines everything), `report` (the result).
//!
//! Left out on purpose: installed packages, child programs (except scripts named in a shell script),
//! languages other than Python, JavaScript and shell, and any certainty: source is searched as text, not
//! parsed.

mod addresses;
mod clients;
mod command;
mod environment;
mod inspection;
mod report;
mod sources;
mod text;

pub use inspection::{StartError, inspect};
pub use report::{
    CaptureLikelihood, DetectedClient, InspectedFile, Inspection, InspectionFinding, InspectionVerdict,
    KeyVariable, NondetSupport, ProgramKind, SourceLine, UpstreamVariable,
};
