//! What changes at a perturbed step.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use annals::RunReader;
use annals_policy::exchange::ExchangeMetadata;
use annals_policy::providers::{Cost, Prices, set_tool_result};
use annals_proxy::proxy::{BodyEdit, CallAction, GivenAnswer};
use annals_review::{decoded_answer, new_tool_results};
use serde_json::Value;

use crate::oracle::wait;
use crate::steps::{Step, steps};

/// The longest time of one `--perturb` command.
const COMMAND_TIME_MAX: Duration = Duration::from_secs(60);
/// Most bytes of an answer that a command writes.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// How a step is perturbed.
#[derive(Debug, Clone)]
pub enum Perturbation {
    /// The model is asked again.
    Resample,
    /// The model is asked without the newest message of the request.
    DropMessage,
    /// The step gets the answer that another run has at the same step.
    FromRun(Box<RunReader>),
    /// The model is asked with changed results of the tools whose results are new in the request.
    CorruptTool,
    /// Another model is asked.
    Model(String),
    /// A shell command reads the recorded answer and writes another.
    Command(String),
}

/// The action of a perturbed step, and the edit of later requests that goes with it.
#[derive(Debug)]
pub(crate) struct StepPerturbation {
    pub(crate) action: CallAction,
    pub(crate) later: Option<LaterEdit>,
}

/// An edit of all later requests.
#[derive(Clone)]
pub(crate) struct LaterEdit(pub(crate) BodyEdit);

impl std::fmt::Debug for LaterEdit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("LaterEdit")
    }
}

impl Perturbation {
    /// Parses `resample`, `drop`, `run:NAME`, `tool`, `model:NAME` or `cmd:COMMAND`. `other` opens a run.
    ///
    /// # Errors
    /// A sentence that says what is wrong.
    pub fn parse(text: &str, other: impl FnOnce(&str) -> Result<RunReader, String>) -> Result<Self, String> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        match (kind, rest) {
            ("resample", "") => Ok(Self::Resample),
            ("drop", "") => Ok(Self::DropMessage),
            ("tool", "") => Ok(Self::CorruptTool),
            ("run", run) if !run.is_empty() => Ok(Self::FromRun(Box::new(other(run)?))),
            ("model", model) if !model.is_empty() => Ok(Self::Model(model.to_owned())),
            ("cmd", command) if !command.is_empty() => Ok(Self::Command(command.to_owned())),
            _ => Err(format!(
                "{text:?} is no perturbation: write resample, drop, tool, model:NAME, run:RUN or cmd:COMMAND"
            )),
        }
    }

    /// What the perturbed step is expected to cost; `None` if it asks no upstream.
    #[must_use]
    pub fn cost(&self, step: &Step, prices: &Prices) -> Option<Cost> {
        match self {
            Self::FromRun(_) | Self::Command(_) => None,
            Self::Model(model) => Some(prices.cost_by(&step.usage, [Some(model), None])),
            Self::Resample | Self::DropMessage | Self::CorruptTool => Some(step.cost),
        }
    }

    /// The perturbation of one step of a run. `attempt` counts its forks.
    ///
    /// # Errors
    /// Why this step cannot be perturbed so.
    pub(crate) fn at(&self, reader: &RunReader, seq: u32, attempt: u32) -> Result<StepPerturbation, String> {
        let unreadable = |error: annals::Error| error.to_string();
        let ask = |edit: Option<BodyEdit>| StepPerturbation { action: CallAction::Ask(edit), later: None };
        match self {
            Self::Resample => Ok(ask(None)),
            Self::DropMessage => Ok(ask(Some(Arc::new(without_last_message)))),
            Self::Model(model) => {
                let model = model.clone();
                let edit = move |body: &[u8]| {
                    let mut request: Value = serde_json::from_slice(body).ok()?;
                    request.as_object_mut()?.insert("model".to_owned(), Value::from(model.clone()));
                    serde_json::to_vec(&request).ok()
                };
                Ok(ask(Some(Arc::new(edit))))
            }
            Self::CorruptTool => {
                let ids = new_tool_results(reader, seq).map_err(unreadable)?;
                if ids.is_empty() {
                    return Err("its request brings no new tool result".to_owned());
                }
                let edit: BodyEdit = Arc::new(move |body: &[u8]| with_corrupted_results(body, &ids));
                let later = Some(LaterEdit(edit.clone()));
                Ok(StepPerturbation { action: CallAction::Ask(Some(edit)), later })
            }
            Self::FromRun(other) => {
                let prices = Prices::built_in();
                let own = steps(reader, &prices).map_err(unreadable)?;
                let place = own.iter().position(|step| step.seq == seq).unwrap_or(usize::MAX);
                let theirs = steps(other, &prices).map_err(unreadable)?;
                let Some(step) = theirs.get(place) else {
                    return Err(format!("run {} has only {} steps", other.info().name, theirs.len()));
                };
                let body = decoded_answer(other, step.seq).map_err(unreadable)?;
                let frame = other.frame_info(step.seq).map_err(unreadable)?;
                let exchange = serde_json::from_slice::<ExchangeMetadata>(&frame.metadata).ok();
                let kind = exchange.as_ref().and_then(|of| of.volatile.response_headers.get("content-type"));
                let content_type = kind.map(str::to_owned);
                let status = exchange.as_ref().and_then(|of| of.http.status);
                let given = GivenAnswer { body: body.into(), status, content_type };
                Ok(StepPerturbation { action: CallAction::Answer(given), later: None })
            }
            Self::Command(command) => {
                let recorded = decoded_answer(reader, seq).map_err(unreadable)?;
                let body = perturb_by_command(command, &recorded, seq, attempt)?;
                let given = GivenAnswer { body: body.into(), status: None, content_type: None };
                Ok(StepPerturbation { action: CallAction::Answer(given), later: None })
            }
        }
    }
}

/// A request without its newest message; `None` if it has fewer than two.
fn without_last_message(body: &[u8]) -> Option<Vec<u8>> {
    let mut request: Value = serde_json::from_slice(body).ok()?;
    let list = ["messages", "input", "contents"]
        .into_iter()
        .find(|key| request.get(*key).is_some_and(Value::is_array))?;
    let messages = request.get_mut(list)?.as_array_mut()?;
    if messages.len() < 2 {
        return None;
    }
    messages.pop();
    serde_json::to_vec(&request).ok()
}

fn with_corrupted_results(body: &[u8], ids: &[String]) -> Option<Vec<u8>> {
    let mut request: Value = serde_json::from_slice(body).ok()?;
    let mut changed = false;
    for id in ids {
        changed |= set_tool_result(&mut request, id, "error: the tool returned no usable result");
    }
    changed.then(|| serde_json::to_vec(&request).ok()).flatten()
}

/// Runs a command that reads the recorded answer and writes another. `ANNALS_STEP` is the frame and
/// `ANNALS_ATTEMPT` counts the forks of the step.
fn perturb_by_command(command: &str, recorded: &[u8], seq: u32, attempt: u32) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| format!("the command of --perturb cannot be run: {error}");
    let mut child = Command::new("sh")
        .args(["-c", command])
        .env("ANNALS_STEP", seq.to_string())
        .env("ANNALS_ATTEMPT", attempt.to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .process_group(0)
        .spawn()
        .map_err(failed)?;
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let (code, body) = std::thread::scope(|scope| {
        let writing = scope.spawn(|| stdin.map(|mut stdin| stdin.write_all(recorded)));
        let reading = scope.spawn(|| {
            let mut body = Vec::new();
            let read = stdout.map(|from| from.take(ANSWER_BYTES_MAX).read_to_end(&mut body));
            read.transpose().map(|_| body)
        });
        let code = wait(&mut child, COMMAND_TIME_MAX).map_err(failed)?;
        let _ = writing.join();
        let body = reading.join().map_err(|_| "its output was lost".to_owned())?.map_err(failed)?;
        Ok::<_, String>((code, body))
    })?;
    match code {
        Some(0) if body.is_empty() => Err("the command of --perturb wrote no answer".to_owned()),
        Some(0) => Ok(body),
        Some(code) => Err(format!("the command of --perturb ended with {code}")),
        None => Err("the command of --perturb crashed or ran too long".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn edits_drop_the_newest_message_and_corrupt_results() {
        let body = json!({"model":"m","messages":[{"role":"user","content":"a"},
            {"role":"tool","tool_call_id":"t","content":"42"}]})
        .to_string();
        let of = |bytes: Option<Vec<u8>>| serde_json::from_slice::<Value>(&bytes.unwrap()).unwrap();
        let dropped = of(without_last_message(body.as_bytes()));
        assert_eq!(dropped["messages"], json!([{"role":"user","content":"a"}]));
        let corrupted = of(with_corrupted_results(body.as_bytes(), &["t".to_owned()]));
        assert!(corrupted["messages"][1]["content"].as_str().unwrap().starts_with("error"));
        assert_eq!(with_corrupted_results(body.as_bytes(), &["u".to_owned()]), None);
        assert_eq!(without_last_message(br#"{"messages":[{}]}"#), None);
    }

    #[test]
    fn perturbing_command_must_write_an_answer() {
        assert_eq!(perturb_by_command("tr a b", b"banana", 3, 0), Ok(b"bbnbnb".to_vec()));
        assert_eq!(perturb_by_command("cat >/dev/null; echo $ANNALS_STEP", b"", 3, 0), Ok(b"3\n".to_vec()));
        assert!(perturb_by_command("cat >/dev/null", b"x", 1, 0).unwrap_err().contains("wrote no answer"));
        assert!(perturb_by_command("exit 4", b"x", 1, 0).unwrap_err().contains("ended with 4"));
        assert!(perturb_by_command("kill -9 $$", b"x", 1, 0).unwrap_err().contains("crashed"));
        // A process that the shell leaves behind holds standard output, and is ended.
        assert_eq!(perturb_by_command("cat; sleep 100000 &", b"x", 1, 0), Ok(b"x".to_vec()));
    }
}
