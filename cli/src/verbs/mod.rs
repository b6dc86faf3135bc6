//! The verbs, a file for each or for a few that belong together.

mod attach;
mod blame;
mod check;
mod compact;
mod deliberation;
mod demo;
mod diagnostics;
mod diff;
mod fork;
mod import;
mod init;
mod inspect;
mod kv;
mod ledger;
mod mcp;
mod memory;
mod network;
mod open;
mod open_page;
mod record;
mod replay;
mod report;
mod retain;
mod runs;
mod search;
mod serve;
mod show;
mod stats;
mod suspect;
mod tail;
mod tape;
mod token;
mod tui;
mod upkeep;
mod validate;
mod verify;

use crate::args::{Cli, GlobalArgs, Verb};
use crate::failure::CliResult;
use crate::locate;
use crate::output::CliOutput;
use crate::store_access::{self, StoreAccess, StoreWait};

/// Runs the verb of the command line.
pub(crate) fn run(cli: &Cli) -> CliResult<()> {
    let (global, mut out) = (&cli.global, CliOutput::new(cli.global.json));
    if global.no_upgrade {
        store_access::forbid_upgrades();
    }
    let done = match &cli.verb {
        Verb::Init => init::run(global, &mut out),
        Verb::Record(args) => record::run(global, args),
        Verb::Attach(args) => attach::run(global, args, &mut out),
        Verb::Serve(args) => serve::run(global, args),
        Verb::Token(verb) => token::run(global, verb, &mut out),
        Verb::Mcp(args) => mcp::run(global, args),
        Verb::Import(args) => import::run(global, args, &mut out),
        Verb::Runs(args) => runs::run(global, args, &mut out),
        Verb::Show(args) => show::run(global, args, &mut out),
        Verb::Tail(args) => tail::run(global, args, &mut out),
        Verb::Open(args) => open::run(global, args, &mut out),
        Verb::Report(args) => report::run(global, args, &mut out),
        Verb::Tui(args) => tui::run(global, args),
        Verb::Search(args) => search::run(global, args, &mut out),
        Verb::Suspect(args) => suspect::run(global, args, &mut out),
        Verb::Replay(args) => replay::run(global, args, &mut out),
        Verb::Verify(args) => verify::run(global, args, &mut out),
        Verb::Ledger(verb) => ledger::run(global, verb, &mut out),
        Verb::Check(args) => check::run(global, args, &mut out),
        Verb::Tape(verb) => tape::run(global, verb, &mut out),
        Verb::Diff(args) => diff::run(global, args, &mut out),
        Verb::Fork(args) => fork::run(global, args, &mut out),
        Verb::Blame(args) => blame::run(global, args, &mut out),
        Verb::Validate(args) => validate::run(args, &mut out),
        Verb::ScriptedAgent(args) => validate::agent(args, &mut out),
        Verb::State(args) => show::state(global, args, &mut out),
        Verb::Get(args) => kv::get(global, args, &mut out),
        Verb::Put(args) => kv::put(global, args, &mut out),
        Verb::Del(args) => kv::del(global, args, &mut out),
        Verb::Scan(args) => kv::scan(global, args, &mut out),
        Verb::Remember(args) => memory::remember(global, args, &mut out),
        Verb::Recall(args) => memory::recall(global, args, &mut out),
        Verb::DefineMemory(args) => memory::define(global, args, &mut out),
        Verb::ExportTraining(args) => memory::export_training(global, args, &mut out),
        Verb::Decide(args) => deliberation::decide(global, args, &mut out),
        Verb::Decisions(args) => deliberation::decisions(global, args, &mut out),
        Verb::Decision(args) => deliberation::decision(global, args, &mut out),
        Verb::Diagnose(args) => diagnostics::diagnose(global, args, &mut out),
        Verb::Lessons(args) => diagnostics::lessons(global, args, &mut out),
        Verb::Stats => stats::run(global, &mut out),
        Verb::Retain(args) => retain::retain(global, args, &mut out),
        Verb::Pin(args) => retain::pin(global, args, &mut out),
        Verb::Unpin(args) => retain::unpin(global, args, &mut out),
        Verb::Flag(args) => retain::flag(global, args, &mut out),
        Verb::Unflag(args) => retain::unflag(global, args, &mut out),
        Verb::Forget(args) => retain::forget(global, args, &mut out),
        Verb::Doctor(args) if args.agent => inspect::run(&args.command, &mut out),
        Verb::Doctor(_) => upkeep::doctor(global, &mut out),
        Verb::Repair(args) => upkeep::repair(global, args, &mut out),
        Verb::Compact(args) => compact::run(global, args, &mut out),
        Verb::Backup(args) => upkeep::backup(global, args, &mut out),
        Verb::Restore(args) => upkeep::restore(args, &mut out),
        Verb::Demo(args) => demo::run(args, &mut out),
    };
    // Output printed before a failure is written out before the failure is printed.
    let flushed = out.flush();
    done.and(flushed)
}

/// Opens the store for reading.
fn open_to_read(global: &GlobalArgs) -> CliResult<StoreAccess> {
    StoreAccess::open_to_read(&locate::store(global.store.as_deref()), &global.namespace)
}

/// Opens the store for writing, and creates it if there is none.
fn open_to_write(global: &GlobalArgs) -> CliResult<StoreAccess> {
    let root = locate::store(global.store.as_deref());
    StoreAccess::open_to_write(&root, &global.namespace, StoreWait::from_args(global))
}

/// Opens an existing store for writing.
fn open_existing_to_write(global: &GlobalArgs) -> CliResult<StoreAccess> {
    let root = locate::store(global.store.as_deref());
    StoreAccess::open_existing_to_write(&root, &global.namespace, StoreWait::from_args(global))
}
