//! Workloads that several programs measure.
#![expect(clippy::unwrap_used, reason = "a measurement fails by panicking")]

use std::path::Path;

use annals::kv::BodyInput;
use annals::runs::{FrameInput, RunBatch};
use annals::{Component, Durability, Frame, Options, Run, RunSpec, Store, Ticket};

use crate::conversation::{BenchConversation, BenchRng, ConversationForm, ConversationStep};

/// Opens a store with this durability.
#[must_use]
pub fn open_store(path: &Path, durability: Durability) -> Store {
    Store::open_with(path, Options { durability, ..Options::default() }).unwrap()
}

/// Begins a run in the default namespace.
#[must_use]
pub fn begin_run(store: &Store, name: &str) -> Run {
    store.namespace("default").unwrap().begin_run(RunSpec::new(name)).unwrap()
}

/// The call of the model and of the tool, to be committed together.
fn step_batch(run: &Run, step: ConversationStep) -> RunBatch<'_> {
    let mut batch = run.batch().unwrap();
    let llm = batch.frame(Frame::new(Component::Llm, step.request, step.response)).unwrap();
    let tool = Frame::new(Component::Tool, step.tool_input, step.tool_output).parent(llm);
    batch.frame(tool).unwrap();
    batch
}

/// Submits a step.
pub fn submit_step(run: &Run, step: ConversationStep) -> Ticket {
    step_batch(run, step).submit().unwrap()
}

/// Records a step and waits for it.
pub fn record_step(run: &Run, step: ConversationStep) {
    step_batch(run, step).commit().unwrap();
}

/// As [`record_step`], with lent bodies.
pub fn record_lent_step(run: &Run, step: &ConversationStep) {
    let mut batch = run.batch().unwrap();
    let lent = |component, input, output| {
        FrameInput::new(component, BodyInput::Lent(input), BodyInput::Lent(output))
    };
    let llm = batch.frame(lent(Component::Llm, &step.request, &step.response)).unwrap();
    batch.frame(lent(Component::Tool, &step.tool_input, &step.tool_output).parent(llm)).unwrap();
    batch.commit().unwrap();
}

/// Bodies of 256 bytes in and 256 out, all different: an equal body would be stored as a reference.
#[must_use]
pub fn small_bodies(count: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let text: Vec<u8> =
        BenchConversation::new(ConversationForm::Plain, 3).take(300).flat_map(|step| step.response).collect();
    let bodies = |index: usize| {
        let at = index * 37 % (text.len() - 512);
        let (mut input, mut output) = (text[at..at + 256].to_vec(), text[at + 256..at + 512].to_vec());
        let number = format!("{index:08}");
        input[..8].copy_from_slice(number.as_bytes());
        output[..8].copy_from_slice(number.as_bytes());
        (input, output)
    };
    (0..count).map(bodies).collect()
}

/// Small frames, all different.
#[must_use]
pub fn small_frames(count: usize) -> Vec<Frame> {
    let bodies = small_bodies(count).into_iter();
    bodies.map(|(input, output)| Frame::new(Component::Tool, input, output)).collect()
}

/// A key of 16 bytes, in no order.
#[must_use]
pub fn scattered_key(number: u64) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&BenchRng(number).next().to_be_bytes());
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}
