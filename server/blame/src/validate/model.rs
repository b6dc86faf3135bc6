//! The scripted model: it listens on the loopback and answers in the form of the interface that it is asked by.

use std::collections::BTreeSet;
use std::io::{BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use super::agent::{ScriptedAnswer, read_message};
use super::wire::WireForm;

/// How the model answers one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StepAnswer {
    /// The same answer always.
    Fixed(ScriptedAnswer),
    /// The first answer is faulty while faults are armed; the second is right.
    Faulty { faulty: ScriptedAnswer, right: ScriptedAnswer },
    /// Says `told` if the request holds `needle`, else `otherwise`: a step that repeats an earlier one.
    Echo { needle: &'static str, told: ScriptedAnswer, otherwise: ScriptedAnswer },
    /// Another number at each asking: an answer that changes and does not matter.
    Chatter,
}

/// The answers of a run, by step.
pub(crate) type Answers = Vec<StepAnswer>;

/// A model that listens.
pub(crate) struct ScriptedModel {
    url: String,
    state: Arc<ModelState>,
}

struct ModelState {
    answers: Mutex<(Answers, BTreeSet<u32>)>,
    is_armed: AtomicBool,
    asked: AtomicU64,
    #[cfg(test)]
    requests: Mutex<Vec<Value>>,
}

impl ModelState {
    fn answers(&self) -> MutexGuard<'_, (Answers, BTreeSet<u32>)> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, request: &[u8]) -> ScriptedAnswer {
        let number = self.asked.fetch_add(1, Ordering::SeqCst);
        let parsed: Value = serde_json::from_slice(request).unwrap_or_default();
        #[cfg(test)]
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).push(parsed.clone());
        let messages = parsed["messages"].as_array().map_or(&[][..], Vec::as_slice);
        let place = messages.iter().filter(|message| message["role"] == "assistant").count();
        let answers = self.answers();
        let step = u32::try_from(place + 1).unwrap_or(0);
        match answers.0.get(place) {
            Some(StepAnswer::Fixed(answer)) => answer.clone(),
            Some(StepAnswer::Faulty { faulty, right }) => {
                let is_faulty = self.is_armed.load(Ordering::SeqCst) && answers.1.contains(&step);
                if is_faulty { faulty.clone() } else { right.clone() }
            }
            Some(StepAnswer::Echo { needle, told, otherwise }) => {
                let text = String::from_utf8_lossy(request);
                if text.contains(needle) { told.clone() } else { otherwise.clone() }
            }
            Some(StepAnswer::Chatter) => {
                ScriptedAnswer { text: format!("NOTE chatter={number}"), calls: Vec::new() }
            }
            None => ScriptedAnswer { text: "done".to_owned(), calls: Vec::new() },
        }
    }
}

impl ScriptedModel {
    /// Listens until the process ends.
    pub(crate) fn start() -> std::io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let url = format!("http://{}", listener.local_addr()?);
        let state = Arc::new(ModelState {
            answers: Mutex::default(),
            is_armed: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            #[cfg(test)]
            requests: Mutex::default(),
        });
        let serving = state.clone();
        std::thread::Builder::new().name("annals-model".to_owned()).spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = serving.clone();
                let thread = std::thread::Builder::new().name("annals-model-client".to_owned());
                // A client that hangs up ends its thread.
                let _ = thread.spawn(move || drop(serve(stream, &state)));
            }
        })?;
        Ok(Self { url, state })
    }

    /// Its base address.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Sets the answers, and the steps whose faults are armed.
    pub(crate) fn set(&self, answers: Answers, armed: &[u32]) {
        *self.state.answers() = (answers, armed.iter().copied().collect());
    }

    /// The requests since the last call.
    #[cfg(test)]
    pub(crate) fn take_requests(&self) -> Vec<Value> {
        std::mem::take(&mut self.state.requests.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Arms or disarms the faults.
    pub(crate) fn arm(&self, armed: bool) {
        self.state.is_armed.store(armed, Ordering::SeqCst);
    }
}

fn serve(stream: TcpStream, state: &ModelState) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut to = stream.try_clone()?;
    let mut from = BufReader::new(stream);
    loop {
        let (line, request) = read_message(&mut from)?;
        let answer = state.answer(&request);
        let body = WireForm::of_request_line(&line).response(&answer, request.len() / 4).to_string();
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        to.write_all(&[head.as_bytes(), body.as_bytes()].concat())?;
    }
}
