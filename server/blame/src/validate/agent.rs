//! The scripted agent: asks a model step by step, does what the answers say, and checks its state at the end.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::wire::{ReadAnswer, WireForm};

/// An answer that the agent cannot take: it ends without a verdict about its task.
pub(crate) const CRASHES: &str = "CRASH";

/// What the agent does.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentScript {
    /// Number of steps.
    pub steps: u32,
    /// The interface that it asks.
    #[serde(default)]
    pub wire: WireForm,
    /// The agent succeeds if one of these holds: each is a set of values that its state must have.
    pub succeeds_if: Vec<BTreeMap<String, String>>,
}

/// What the agent knows and has done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AgentState(pub(crate) BTreeMap<String, String>);

/// An answer of the model.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ScriptedAnswer {
    pub(crate) text: String,
    /// Tool calls: a name, a key and a value.
    pub(crate) calls: Vec<(&'static str, &'static str, &'static str)>,
}

impl AgentState {
    fn number(&self, key: &str) -> i64 {
        self.0.get(key).and_then(|value| value.parse().ok()).unwrap_or(0)
    }

    /// Does what an answer's text says, line by line.
    fn read_text(&mut self, text: &str) {
        for line in text.lines() {
            match line.split_once(' ') {
                Some(("NOTE" | "FOUND" | "RESULT", rest)) => self.set_pair(rest),
                Some(("SYSTEM", rest)) => drop(self.0.insert("system".to_owned(), rest.to_owned())),
                // A summary takes the place of everything known so far, except of what was done.
                Some(("SUMMARY", rest)) => {
                    self.0.retain(|key, _| key.starts_with('#'));
                    rest.split(';').for_each(|pair| self.set_pair(pair.trim()));
                }
                _ => {}
            }
        }
    }

    fn set_pair(&mut self, text: &str) {
        if let Some((key, value)) = text.split_once('=') {
            self.0.insert(key.to_owned(), value.to_owned());
        }
    }

    /// Runs a tool; its result.
    fn run_tool(&mut self, before: &Self, name: &str, key: &str, value: &str) -> String {
        let done = format!("#{key}");
        let result = match name {
            "add" => (before.number(&done) + value.parse::<i64>().unwrap_or(0)).to_string(),
            "double" => (before.number(&done) * 2).to_string(),
            // The balance of an account follows from its number.
            "fetch" => value.bytes().map(i64::from).fold(7, |sum, byte| sum * 31 % 9973 + byte).to_string(),
            _ => "unknown tool".to_owned(),
        };
        self.0.insert(done, result.clone());
        result
    }

    /// Does what an answer says: its text, then its tools. Tools of a parallel answer all read the state that
    /// was there before them, so one may lose the update of another. The results, one for each call.
    pub(crate) fn follow<'a>(
        &mut self,
        text: &str,
        calls: impl Iterator<Item = (&'a str, &'a str, &'a str)>,
    ) -> Vec<String> {
        self.read_text(text);
        let frozen = text.starts_with("PARALLEL").then(|| self.clone());
        calls
            .map(|(name, key, value)| {
                let before = frozen.clone().unwrap_or_else(|| self.clone());
                self.run_tool(&before, name, key, value)
            })
            .collect()
    }

    /// The state after these answers.
    pub(crate) fn after<'a>(answers: impl IntoIterator<Item = &'a ScriptedAnswer>) -> Self {
        let mut state = Self::default();
        for answer in answers {
            state.follow(&answer.text, answer.calls.iter().copied());
        }
        state
    }
}

impl AgentScript {
    fn succeeds(&self, state: &AgentState) -> bool {
        let holds = |wanted: &BTreeMap<String, String>| {
            wanted.iter().all(|(key, value)| state.0.get(key) == Some(value))
        };
        self.succeeds_if.iter().any(holds)
    }
}

/// Runs the agent against the base address of its interface; its output and exit code.
///
/// # Errors
/// If the model cannot be reached or does not answer in its form.
pub fn run_agent(script: &AgentScript, base: &str) -> std::io::Result<(String, u8)> {
    let mut client = ModelClient::connect(base, script.wire)?;
    let mut state = AgentState::default();
    let mut messages = Vec::new();
    for step in 1..=script.steps {
        messages.push(json!({ "role": "user", "content": format!("step {step}") }));
        let ReadAnswer { message, text, calls } = client.ask(&messages)?;
        if text == CRASHES {
            return Err(broken("the answer crashes the agent"));
        }
        let words = calls.iter().map(|(_, name, arguments)| {
            let text = |key: &str| arguments[key].as_str().unwrap_or_default();
            (name.as_str(), text("key"), text("value"))
        });
        let results = state.follow(&text, words);
        // What was said and done stands in every later request.
        messages.push(message);
        for ((id, ..), result) in calls.iter().zip(results) {
            messages.push(script.wire.tool_result(id, &result));
        }
    }
    let passed = script.succeeds(&state);
    let output = json!({ "passed": passed, "state": state.0 });
    Ok((format!("{output}\n"), u8::from(!passed)))
}

/// A connection to the model that is used again.
struct ModelClient {
    from: BufReader<TcpStream>,
    host: String,
    path: String,
    wire: WireForm,
}

fn broken(what: &str) -> std::io::Error {
    std::io::Error::other(what.to_owned())
}

impl ModelClient {
    fn connect(base: &str, wire: WireForm) -> std::io::Result<Self> {
        let rest = base.strip_prefix("http://").ok_or_else(|| broken("the base address is not http"))?;
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        let stream = TcpStream::connect(host)?;
        stream.set_nodelay(true)?;
        let folder = path.trim_matches('/');
        let slash = if folder.is_empty() { "" } else { "/" };
        let path = format!("{slash}{folder}{}", wire.path());
        Ok(Self { from: BufReader::new(stream), host: host.to_owned(), path, wire })
    }

    fn ask(&mut self, messages: &[Value]) -> std::io::Result<ReadAnswer> {
        let body = self.wire.request(messages).to_string();
        let request = format!(
            "POST {} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            self.path,
            self.host,
            body.len()
        );
        self.from.get_mut().write_all(request.as_bytes())?;
        let (status, body) = read_message(&mut self.from)?;
        if !status.contains(" 200 ") {
            return Err(broken(&format!(
                "the model answered {status:?}: {}",
                String::from_utf8_lossy(&body)
            )));
        }
        Ok(self.wire.read(&serde_json::from_slice(&body)?))
    }
}

/// Reads one HTTP message with a length or in chunks: its first line and its body.
pub(crate) fn read_message(from: &mut impl BufRead) -> std::io::Result<(String, Vec<u8>)> {
    let (mut first, mut length, mut chunked) = (String::new(), 0, false);
    if from.read_line(&mut first)? == 0 {
        return Err(std::io::ErrorKind::UnexpectedEof.into());
    }
    loop {
        let mut line = String::new();
        from.read_line(&mut line)?;
        let line = line.trim().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().map_err(|_| broken("a length is no number"))?;
        }
        chunked |= line.starts_with("transfer-encoding:") && line.ends_with("chunked");
    }
    let mut body = Vec::new();
    if !chunked {
        body.resize(length, 0);
        from.read_exact(&mut body)?;
        return Ok((first, body));
    }
    loop {
        let mut line = String::new();
        from.read_line(&mut line)?;
        let size = usize::from_str_radix(line.trim(), 16).map_err(|_| broken("a chunk has no size"))?;
        let mut chunk = vec![0; size + 2];
        from.read_exact(&mut chunk)?;
        body.extend_from_slice(&chunk[..size]);
        if size == 0 {
            return Ok((first, body));
        }
    }
}
