//! The replies of COMMAND about the commands.

use super::CommandSchema;
use crate::resp::Reply;

/// Flags that exist only in annals.
const OWN: [&str; 11] = [
    "settled", "apart", "whole", "joined", "stores", "operate", "action", "changes", "reveals", "redacts",
    "both",
];

/// The entry of COMMAND and COMMAND INFO.
pub fn info_entry(command: &CommandSchema) -> Reply {
    let (first, last, step) = command.keys;
    let number = |number: i32| Reply::Integer(number.into());
    let flags = command
        .flags
        .iter()
        .filter(|flag| !OWN.contains(flag))
        .map(|flag| Reply::Simple((*flag).into()))
        .collect();
    let categories = categories(command).into_iter().map(|name| Reply::Simple(name.into())).collect();
    Reply::Array(vec![
        Reply::text(command.name),
        number(command.arity),
        Reply::Set(flags),
        number(first),
        number(last),
        number(step),
        Reply::Set(categories),
        Reply::Array(Vec::new()),
        Reply::Array(Vec::new()),
        Reply::Array(Vec::new()),
    ])
}

fn categories(command: &CommandSchema) -> Vec<String> {
    let mut categories = vec![format!("@{}", command.group)];
    categories.extend(["write", "readonly"].iter().filter(|of| command.flags.contains(of)).map(
        |of| match *of {
            "readonly" => "@read".to_owned(),
            of => format!("@{of}"),
        },
    ));
    categories.push(if command.flags.contains(&"fast") { "@fast" } else { "@slow" }.to_owned());
    categories
}

/// The entry of COMMAND DOCS.
pub fn docs_entry(command: &CommandSchema) -> (Reply, Reply) {
    let pair = |key: &str, value: Reply| (Reply::text(key), value);
    let mut about = vec![
        pair("summary", Reply::text(command.summary)),
        pair("since", Reply::text(command.since)),
        pair("group", Reply::text(command.group)),
    ];
    let arguments = arguments(command.arguments);
    if !arguments.is_empty() {
        about.push(pair("arguments", Reply::Array(arguments)));
    }
    (Reply::text(command.name), Reply::Map(about))
}

/// Parses an argument line such as `key value [NX|XX] [EX seconds] [key ...]`.
fn arguments(line: &str) -> Vec<Reply> {
    let mut arguments = Vec::new();
    let mut rest = line.trim();
    while !rest.is_empty() {
        let (part, is_optional) = if rest.starts_with('[') {
            let end = rest.find(']').unwrap_or(rest.len());
            let part = rest.get(1..end).unwrap_or_default();
            rest = rest.get(end + 1..).unwrap_or_default().trim_start();
            (part, true)
        } else {
            let end = rest.find(" [").unwrap_or(rest.len());
            // A part ends before the next optional one. A word in capitals takes the word after it, also
            // after a bar.
            let words = rest.get(..end).unwrap_or_default();
            let mut taken = words.find(' ').unwrap_or(words.len());
            let ends_in_token = |taken| {
                let last = words.get(..taken).unwrap_or_default().rsplit([' ', '|']).next();
                last.is_some_and(is_token)
            };
            while ends_in_token(taken)
                && let Some(next) = words.get(taken + 1..)
            {
                taken += 1 + next.find(' ').unwrap_or(next.len());
            }
            let part = words.get(..taken).unwrap_or_default();
            rest = rest.get(taken..).unwrap_or_default().trim_start();
            (part, false)
        };
        if !part.is_empty() {
            arguments.push(argument(part, is_optional));
        }
    }
    arguments
}

fn is_token(word: &str) -> bool {
    word.bytes().any(|byte| byte.is_ascii_uppercase())
}

fn argument(part: &str, is_optional: bool) -> Reply {
    let pair = |key: &str, value: Reply| (Reply::text(key), value);
    let (part, is_multiple) = match part.strip_suffix("...") {
        Some(part) => (part.trim_end(), true),
        None => (part, false),
    };
    let mut about = if part.contains('|') {
        let each = part.split('|').map(|part| argument(part, false)).collect();
        vec![
            pair("name", Reply::text(part.to_ascii_lowercase())),
            pair("type", Reply::text("oneof")),
            pair("arguments", Reply::Array(each)),
        ]
    } else {
        let (token, name) = match part.split_once(' ') {
            Some((token, name)) if is_token(token) => (Some(token), name),
            _ if is_token(part) => (Some(part), ""),
            _ => (None, part),
        };
        let kind = match name {
            "" => "pure-token",
            "key" => "key",
            "pattern" => "pattern",
            "count" | "index" | "increment" | "decrement" | "seconds" | "milliseconds" | "cursor" => {
                "integer"
            }
            "unix-time-seconds" | "unix-time-milliseconds" => "unix-time",
            _ => "string",
        };
        let name = if name.is_empty() { part.to_ascii_lowercase() } else { name.to_owned() };
        let mut about = vec![pair("name", Reply::text(&name)), pair("type", Reply::text(kind))];
        if kind != "pure-token" {
            about.push(pair("display_text", Reply::text(&name)));
        }
        about.extend(token.map(|token| pair("token", Reply::text(token))));
        about
    };
    let flags: Vec<Reply> = [("optional", is_optional), ("multiple", is_multiple)]
        .iter()
        .filter(|(_, set)| *set)
        .map(|(flag, _)| Reply::Simple((*flag).into()))
        .collect();
    if !flags.is_empty() {
        about.push(pair("flags", Reply::Set(flags)));
    }
    Reply::Map(about)
}

/// The content of docs/commands.md.
#[cfg(test)]
fn page() -> String {
    use std::fmt::Write;

    let mut text = String::from(HEAD);
    let mut group = "";
    for command in super::all_commands() {
        if command.group != group {
            group = command.group;
            // Writing to a string cannot fail.
            let _ = write!(text, "\n## {group}\n");
        }
        let line = format!("{} {}", command.name.to_ascii_uppercase(), command.arguments);
        let _ = write!(
            text,
            "\n### {}\n`{}`\n\n{}\n",
            command.name.to_ascii_uppercase(),
            line.trim_end(),
            command.summary
        );
        let mut notes = Vec::new();
        if ["apart", "whole"].iter().any(|flag| command.flags.contains(flag)) {
            notes.push("not within MULTI");
        }
        if command.since.starts_with("annals") {
            notes.push("ours");
        }
        if !notes.is_empty() {
            let _ = writeln!(text, "({})", notes.join("; "));
        }
    }
    text
}

#[cfg(test)]
const HEAD: &str = "# Commands

<!-- Made from the table that COMMAND DOCS serves: ANNALS_WRITE_COMMANDS=1 cargo test -p annals-wire --lib commands_page_matches -->

The commands of `annals serve` ([daemon.md](daemon.md)). `[x]` is optional, `a|b` is a choice, `...` repeats, CAPITALS are literal and ignore case. Maps are arrays
of names and values in RESP2.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_page_matches_command_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/commands.md");
        if std::env::var_os("ANNALS_WRITE_COMMANDS").is_some() {
            #[expect(clippy::disallowed_methods, reason = "the page is written where that was asked for")]
            std::fs::write(path, page()).unwrap();
        }
        #[expect(clippy::disallowed_methods, reason = "the page is in the repository")]
        let written = std::fs::read(path).unwrap();
        assert!(
            String::from_utf8_lossy(&written) == page(),
            "docs/commands.md is another: ANNALS_WRITE_COMMANDS=1 cargo test -p annals-wire --lib commands_page_matches"
        );
    }

    fn field<'a>(reply: &'a Reply, name: &str) -> Option<&'a Reply> {
        let Reply::Map(pairs) = reply else { panic!("a map") };
        pairs.iter().find(|(key, _)| *key == Reply::text(name)).map(|(_, value)| value)
    }

    #[test]
    fn argument_line_is_split_into_arguments() {
        let told = arguments("key value [NX|XX] [EX seconds] MATCH pattern [key ...]");
        let names: Vec<_> = told.iter().map(|argument| field(argument, "name").unwrap().clone()).collect();
        assert_eq!(names, ["key", "value", "nx|xx", "seconds", "pattern", "key"].map(Reply::text));
        assert_eq!(field(&told[2], "type"), Some(&Reply::text("oneof")));
        assert_eq!(field(&told[3], "token"), Some(&Reply::text("EX")));
        assert_eq!(field(&told[4], "token"), Some(&Reply::text("MATCH")));
        let flags = Reply::Set(vec![Reply::Simple("optional".into()), Reply::Simple("multiple".into())]);
        assert_eq!(field(&told[5], "flags"), Some(&flags));
        let told = arguments("FP32 vector|QUESTION text [K count] key");
        let names: Vec<_> = told.iter().map(|argument| field(argument, "name").unwrap().clone()).collect();
        assert_eq!(names, ["fp32 vector|question text", "count", "key"].map(Reply::text));
        assert!(arguments("").is_empty());
    }
}
