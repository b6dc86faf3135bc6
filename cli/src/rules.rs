//! `--rules FILE`, and the options of the command line for what may differ in a replay.

use std::path::Path;

use annals::replay::matching::Rules;
use annals_server::{Origin, RULES_BYTES_MAX, RulesFile};

use crate::args::RuleArgs;
use crate::failure::{CliResult, Failure};
use crate::input;
use crate::output::printable;

/// Reads the rules of a file. Without a file, there are none.
pub(crate) fn read(file: Option<&Path>) -> CliResult<RulesFile> {
    let Some(file) = file else { return Ok(RulesFile::default()) };
    if file.as_os_str() == "-" {
        let hint = "standard input is the program's: name a file";
        return Err(Failure::usage("--rules takes a file", hint));
    }
    let refused = |place: &str, what: &str| {
        let message = format!("{}{place}: {}", file.display(), printable(what));
        let hint = "\"Rules of your own\" in docs/record.md describes files of rules";
        Failure::usage(message, hint)
    };
    let text = String::from_utf8(input::read_small(file, RULES_BYTES_MAX)?).map_err(|error| {
        refused("", &format!("not UTF-8 after byte {}", error.utf8_error().valid_up_to()))
    })?;
    RulesFile::parse(&text)
        .map_err(|error| refused(&format!(":{}:{}", error.line, error.column), &error.what))
}

/// Reads the rules of a file. Without a file, returns the rules that the run was recorded with.
pub(crate) fn read_or_recorded(file: Option<&Path>, run: &str, origin: &Origin) -> CliResult<RulesFile> {
    if file.is_some() {
        return read(file);
    }
    origin.rules().map_err(|error| {
        let message = format!("the rules that run `{run}` was recorded with cannot be used: {error}");
        Failure::usage(message, "--rules FILE replaces them; an empty file has no rules")
    })
}

/// Builds the matcher from a file and the options of the command line.
pub(crate) fn matcher(file: &RulesFile, args: &RuleArgs) -> CliResult<Rules> {
    let refused = |error| Failure::usage(error, "`annals replay --help` has the forms of rules");
    let mut rules = file.matcher.clone();
    for preset in &args.matcher {
        rules = rules.preset(preset).map_err(refused)?;
    }
    for path in &args.ignore {
        rules = rules.ignore(path).map_err(refused)?;
    }
    for rule in &args.rule {
        rules = rules.rule(rule).map_err(refused)?;
    }
    Ok(rules)
}
