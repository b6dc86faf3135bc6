//! What a conversation costs once packed: parts, recipes, extents, anchors and speed.
//!
//! `cargo run --release -p annals-benches --example blob_ratio [TRAJECTORIES.json]`
//!
//! Without an argument the growing conversation in its three forms, flushed after each frame; with
//! one, also real trajectories (an array of runs with `traj` messages), flushed once a run.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use annals::blob::{
    AnchorKey, AnchorSeed, Body, DeltaStack, Earlier, Extent, GroupId, Packer, Part, Step, assemble,
    decode_group, decode_recipe, encode_recipe, plan,
};
use annals_benches::conversation::{Conversation, Form};
use serde_json::value::RawValue;

type Failure = Box<dyn std::error::Error>;

/// Bytes assumed for a frame's record beside its parts and recipes.
const FRAME_BYTES: usize = 160;

struct Store {
    packer: Packer,
    groups_opened: u64,
    raw: HashMap<GroupId, Arc<Vec<u8>>>,
    parts: BTreeMap<GroupId, Vec<Part>>,
    anchors: HashMap<AnchorKey, (GroupId, u32)>,
    groups_asked: Cell<usize>,
    bodies: Vec<(Option<usize>, Vec<u8>)>,
    total: Total,
}

#[derive(Default)]
struct Total {
    raw: usize,
    new: usize,
    parts: usize,
    part_count: usize,
    recipes: usize,
    lanes: [usize; 4],
    extents: usize,
    frames: usize,
    spent: Duration,
}

impl Earlier for Store {
    fn seed(&self) -> AnchorSeed {
        AnchorSeed(1)
    }
    fn anchor(&self, key: AnchorKey) -> Option<(GroupId, u32)> {
        self.anchors.get(&key).copied()
    }
    fn group(&self, id: GroupId) -> Option<Arc<Vec<u8>>> {
        self.groups_asked.set(self.groups_asked.get() + 1);
        self.packer.group(id).or_else(|| self.raw.get(&id).cloned())
    }
}

/// One kind of body of one run.
#[derive(Default)]
struct Lane {
    name: usize,
    next: u64,
    previous: Option<Body>,
    stack: DeltaStack<usize>,
}

fn lanes() -> [Lane; 4] {
    std::array::from_fn(|name| Lane { name, ..Lane::default() })
}

impl Store {
    fn new() -> Self {
        Self {
            packer: Packer::new(AnchorSeed(1)),
            groups_opened: 0,
            raw: HashMap::new(),
            parts: BTreeMap::new(),
            anchors: HashMap::new(),
            groups_asked: Cell::new(0),
            bodies: Vec::new(),
            total: Total::default(),
        }
    }

    fn put(&mut self, lane: &mut Lane, bytes: Vec<u8>) -> Result<(), Failure> {
        let bytes = Arc::new(bytes);
        let start = now();
        let steps = plan(&bytes, lane.previous.as_ref(), self);
        let opened = &mut self.groups_opened;
        let packed = self.packer.put(&bytes, &steps, &mut || {
            *opened += 1;
            GroupId(*opened)
        })?;
        for anchor in &packed.anchors {
            self.anchors.insert(anchor.key, (anchor.group, anchor.offset));
        }
        let extents = Arc::new(packed.extents);
        let base = lane.stack.base_for(lane.next);
        let recipe = encode_recipe(&extents, base.map(|b| b.1.as_slice()));
        let base = base.map(|b| *b.0);
        lane.stack.push(lane.next, self.bodies.len(), Arc::clone(&extents));
        self.total.spent += start.elapsed();
        lane.next += 1;
        self.total.raw += bytes.len();
        self.total.extents += extents.len();
        self.total.recipes += recipe.len();
        self.total.lanes[lane.name] += recipe.len();
        self.total.new +=
            steps.iter().map(|s| if let Step::New(range) = s { range.len() } else { 0 }).sum::<usize>();
        self.bodies.push((base, recipe));
        lane.previous = Some(Body { bytes, extents });
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        let start = now();
        let parts = self.packer.flush()?;
        self.total.spent += start.elapsed();
        for part in parts {
            self.total.parts += part.encoded.len();
            self.total.part_count += 1;
            // The store's cache of decoded groups, kept whole here; the packer answers for open ones.
            if self.packer.group(part.group).is_none() {
                self.raw.insert(part.group, self.decode(&part)?);
            }
            self.parts.entry(part.group).or_default().push(part);
        }
        Ok(())
    }

    fn decode(&self, last: &Part) -> Result<Arc<Vec<u8>>, Failure> {
        let parts = self.parts.get(&last.group).into_iter().flatten().chain([last]);
        Ok(Arc::new(decode_group(parts.map(|p| (p.codec, p.raw_len, p.encoded.as_slice())))?))
    }

    fn recipe(&self, index: usize) -> Result<Vec<Extent>, Failure> {
        let (base, bytes) = &self.bodies[index];
        let base = base.map(|b| self.recipe(b)).transpose()?;
        Ok(decode_recipe(bytes, base.as_deref())?)
    }

    /// Decodes everything from parts and recipes; the number of raw bytes must come out again.
    fn check(&self) -> Result<(), Failure> {
        let mut groups = HashMap::new();
        for (id, parts) in &self.parts {
            let raw = decode_group(parts.iter().map(|p| (p.codec, p.raw_len, p.encoded.as_slice())))?;
            groups.insert(*id, Arc::new(raw));
        }
        let mut raw = 0;
        for index in 0..self.bodies.len() {
            raw += assemble(&self.recipe(index)?, |id| groups.get(&id).cloned())?.len();
        }
        if raw == self.total.raw { Ok(()) } else { Err(format!("{raw} bytes came back").into()) }
    }

    #[expect(clippy::print_stdout, reason = "the figures are what this program is for")]
    fn report(&self, name: &str) {
        let t = &self.total;
        let stored = t.parts + t.recipes + t.frames * FRAME_BYTES;
        println!(
            "{name}: raw {:.2} MB, new {:.0} KB, parts {} in {} ({} groups), recipes {}, extents/body {:.1}, anchors {}, groups asked {}, {:.0} MB/s",
            t.raw as f64 / 1e6,
            t.new as f64 / 1e3,
            t.parts,
            t.part_count,
            self.parts.len(),
            t.recipes,
            t.extents as f64 / self.bodies.len() as f64,
            self.anchors.len(),
            self.groups_asked.get(),
            t.raw as f64 / 1e6 / t.spent.as_secs_f64(),
        );
        println!("    recipes of requests, responses, tool inputs, tool outputs: {:?}", t.lanes);
        println!(
            "    with {} frames of {FRAME_BYTES} bytes and 10% spare: 1/{:.1}",
            t.frames,
            t.raw as f64 / (stored as f64 * 1.1)
        );
    }
}

#[expect(clippy::disallowed_methods, reason = "a measurement reads the clock")]
fn now() -> Instant {
    Instant::now()
}

fn growing(form: Form, steps: usize) -> Result<(), Failure> {
    let mut store = Store::new();
    let mut lanes = lanes();
    for step in Conversation::new(form, 42).take(steps) {
        let [request, response, input, output] = &mut lanes;
        store.put(request, step.request)?;
        store.put(response, step.response)?;
        store.flush()?;
        store.put(input, step.tool_input)?;
        store.put(output, step.tool_output)?;
        store.flush()?;
        store.total.frames += 2;
    }
    store.check()?;
    store.report(&format!("{}, {steps} steps", form.name()));
    Ok(())
}

#[derive(serde::Deserialize)]
struct Run<'a> {
    #[serde(borrow)]
    traj: Vec<&'a RawValue>,
}

#[derive(serde::Deserialize)]
struct Message<'a> {
    role: String,
    #[serde(borrow, default)]
    tool_calls: Option<Vec<&'a RawValue>>,
}

fn real(path: &str) -> Result<(), Failure> {
    let mut text = String::new();
    #[expect(clippy::disallowed_methods, reason = "the input file of a measurement")]
    std::io::Read::read_to_string(&mut std::fs::File::open(path)?, &mut text)?;
    let runs: Vec<Run> = serde_json::from_str(&text)?;
    let mut store = Store::new();
    for run in &runs {
        let [mut request, mut response, mut input, mut output] = lanes();
        let mut calls: Vec<&str> = Vec::new();
        for (i, raw) in run.traj.iter().enumerate() {
            let message: Message = serde_json::from_str(raw.get())?;
            match message.role.as_str() {
                "assistant" => {
                    let before: Vec<&str> = run.traj[..i].iter().map(|m| m.get()).collect();
                    let body = format!(r#"{{"model":"unknown","messages":[{}]}}"#, before.join(","));
                    store.put(&mut request, body.into_bytes())?;
                    store.put(&mut response, raw.get().as_bytes().to_vec())?;
                    store.total.frames += 1;
                    calls = message.tool_calls.unwrap_or_default().into_iter().map(RawValue::get).collect();
                }
                "tool" => {
                    let call = calls.first().copied().unwrap_or("null");
                    calls.drain(..calls.len().min(1));
                    store.put(&mut input, call.as_bytes().to_vec())?;
                    store.put(&mut output, raw.get().as_bytes().to_vec())?;
                    store.total.frames += 1;
                }
                _ => {}
            }
        }
        store.flush()?;
    }
    store.check()?;
    store.report(&format!("real, {} runs", runs.len()));
    Ok(())
}

fn main() -> Result<(), Failure> {
    for steps in [200, 1_000] {
        for form in Form::ALL {
            growing(form, steps)?;
        }
    }
    if let Some(path) = std::env::args().nth(1) {
        real(&path)?;
    }
    Ok(())
}
