//! A program before it is recorded: what of it a recording is likely to capture, and what not.
//!
//! A static look. Files are read, nothing of the program is started, nothing is written, no network is used. What is read is hostile:
//! files, their bytes, their number, and what is said of them are bounded; pipes and devices are never opened for reading.
//!
//! Layout: `command` (which files a command line leads to), `sources` (these and those beside them that they import, read), `text`
//! (comments, lines, imports, variables), `clients` (what reads which variable), `addresses` (addresses that are fixed in a program),
//! `surroundings` (this process's environment, this machine), `look` (all of it put together), `report` (what comes out).
//!
//! Left out on purpose: installed packages, programs that a program starts (but scripts that a shell script names), languages other than Python,
//! JavaScript and shell, and any certainty: source text is looked at as text, not parsed.

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
