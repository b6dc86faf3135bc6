//! The `annals` command line: arguments, progress, tables. What it does is done by the engine.
//!
//! Layout: `args` (the command line), `verbs` (a file for each), `door` (the one way into the engine), `out`
//! (everything printed), `failure` (errors and exit codes), `locate` (which store), `address` (`RUN@SEQ`),
//! `input` and `progress` (reading what is imported), `whole_file` and `junit` (files for the user), `tracefork` (its tapes),
//! `allocator` (whose memory is whose).

mod address;
mod allocator;
mod args;
mod door;
mod editor;
mod failure;
mod input;
mod junit;
mod locate;
mod out;
mod profiles;
mod progress;
mod rules;
mod supervision;
mod tracefork;
mod verbs;
mod watched;
mod whole_file;

use std::process::ExitCode;

use clap::Parser;

#[global_allocator]
static ALLOCATOR: allocator::Allocator = allocator::Allocator;

fn main() -> ExitCode {
    let cli = match args::Cli::try_parse() {
        Ok(cli) => cli,
        Err(refused) => return failure::refused(&refused),
    };
    match verbs::run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.tell(),
    }
}
