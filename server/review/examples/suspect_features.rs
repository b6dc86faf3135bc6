//! Prints the signals' values of every step of annotated logs, for `.ci/suspect/fit.py`, which fits the
//! weights. Reads JSON Lines on standard input: `{"task": TEXT, "messages": [{"role", "name", "content"}]}`.
//! Prints a JSON line for each: `{"signals": [NAME], "steps": [{"seq", "agent", "values"}]}`.

use std::io::{BufRead, Write};

use annals_review::suspect::{Signal, Transcript, features};
use serde::Deserialize;
use serde_json::json;

#[derive(Deserialize)]
struct Log {
    task: Option<String>,
    messages: Vec<LogMessage>,
}

#[derive(Deserialize)]
struct LogMessage {
    role: String,
    name: Option<String>,
    content: String,
}

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let log: Log = serde_json::from_str(&line?)?;
        let messages = log.messages.iter().map(|message| {
            let name = message.name.as_deref().unwrap_or(&message.role);
            (message.role.as_str(), name, message.content.clone())
        });
        let steps: Vec<_> = features(&Transcript::of_agents(log.task.clone(), messages))
            .into_iter()
            .map(|step| json!({ "seq": step.seq, "agent": step.agent, "values": step.values }))
            .collect();
        let signals = Signal::ALL.map(Signal::name);
        writeln!(out, "{}", json!({ "signals": signals, "steps": steps }))?;
    }
    Ok(())
}
