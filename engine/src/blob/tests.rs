//! Bodies packed, then read back from parts and recipes alone.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use proptest::prelude::*;

use super::*;

/// A store of parts, recipes and anchors in memory, as the floor above would keep them.
struct Store {
    packer: Packer,
    next: u64,
    parts: BTreeMap<u64, Vec<Part>>,
    anchors: RefCell<HashMap<AnchorKey, (GroupId, u32)>>,
    lane: DeltaStack<usize>,
    recipes: Vec<(Option<usize>, Vec<u8>)>,
    previous: Option<Body>,
}

const SEED: AnchorSeed = AnchorSeed(77);

impl Earlier for Store {
    fn seed(&self) -> AnchorSeed {
        SEED
    }
    fn anchor(&self, key: AnchorKey) -> Option<(GroupId, u32)> {
        self.anchors.borrow().get(&key).copied()
    }
    fn group(&self, id: GroupId) -> Option<Arc<Vec<u8>>> {
        self.packer.group(id).or_else(|| self.decode(id.0))
    }
}

impl Store {
    fn new() -> Self {
        Self {
            packer: Packer::new(SEED),
            next: 5,
            parts: BTreeMap::new(),
            anchors: RefCell::default(),
            lane: DeltaStack::new(),
            recipes: Vec::new(),
            previous: None,
        }
    }

    fn decode(&self, id: u64) -> Option<Arc<Vec<u8>>> {
        let parts = self.parts.get(&id)?;
        let parts = parts.iter().map(|p| (p.codec, p.raw_len, p.encoded.as_slice()));
        Some(Arc::new(decode_group(parts).unwrap()))
    }

    fn put(&mut self, bytes: &[u8], flush: bool) {
        let steps = plan(bytes, self.previous.as_ref(), self);
        let next = &mut self.next;
        let mut ids = || {
            *next += 3;
            GroupId(*next)
        };
        let packed = self.packer.put(bytes, &steps, &mut ids).unwrap();
        for a in &packed.anchors {
            self.anchors.borrow_mut().insert(a.key, (a.group, a.offset));
        }
        let extents = Arc::new(packed.extents);
        let index = self.recipes.len();
        let base = self.lane.base_for(index as u64);
        let recipe = encode_recipe(&extents, base.map(|b| b.1.as_slice()));
        self.recipes.push((base.map(|b| *b.0), recipe));
        self.lane.push(index as u64, index, Arc::clone(&extents));
        self.previous = Some(Body { bytes: Arc::new(bytes.to_vec()), extents });
        if flush {
            self.flush();
        }
    }

    fn flush(&mut self) {
        for part in self.packer.flush().unwrap() {
            self.parts.entry(part.group.0).or_default().push(part);
        }
    }

    fn recipe(&self, index: usize) -> Vec<Extent> {
        let (base, bytes) = &self.recipes[index];
        let base = base.map(|b| self.recipe(b));
        decode_recipe(bytes, base.as_deref()).unwrap()
    }

    /// Reads a body from what would be on disk.
    fn read(&self, index: usize) -> Vec<u8> {
        assemble(&self.recipe(index), |id| self.decode(id.0)).unwrap()
    }
}

#[derive(Clone, Debug)]
struct Edit {
    at: u32,
    remove: usize,
    insert: Vec<u8>,
}

fn text(max: usize) -> impl Strategy<Value = Vec<u8>> {
    (any::<u64>(), 0..max, 0u8..4).prop_map(|(seed, len, kind)| bytes_of(seed, len, kind))
}

/// Seeded bytes: 0 words, 1 random, 2 one byte, 3 short period.
fn bytes_of(mut seed: u64, len: usize, kind: u8) -> Vec<u8> {
    let mut next = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as u32
    };
    match kind {
        0 => {
            let mut out = Vec::new();
            while out.len() < len {
                out.extend_from_slice(format!("word{} ", next() % 700).as_bytes());
            }
            out.truncate(len);
            out
        }
        1 => (0..len).map(|_| next() as u8).collect(),
        2 => vec![next() as u8; len],
        _ => (0..len).map(|i| (i % 37) as u8).collect(),
    }
}

fn edit() -> impl Strategy<Value = Edit> {
    let at = prop_oneof![Just(0), Just(u32::MAX), any::<u32>()];
    (at, prop_oneof![0..200usize, 0..50_000usize], prop_oneof![text(300), text(20_000)])
        .prop_map(|(at, remove, insert)| Edit { at, remove, insert })
}

fn apply(body: &mut Vec<u8>, edit: &Edit) {
    let at = (body.len() as u64 * u64::from(edit.at) / u64::from(u32::MAX)) as usize;
    let end = (at + edit.remove).min(body.len());
    body.splice(at..end, edit.insert.iter().copied());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn edited_bodies_come_back(
        first in prop_oneof![text(2_000), text(400_000)],
        edits in prop::collection::vec((prop::collection::vec(edit(), 0..4), any::<bool>()), 1..12),
    ) {
        let mut store = Store::new();
        let mut body = first;
        let mut bodies = vec![body.clone()];
        store.put(&body, true);
        for (edits, flush) in &edits {
            for edit in edits {
                apply(&mut body, edit);
            }
            store.put(&body, *flush);
            bodies.push(body.clone());
        }
        store.flush();
        for (i, body) in bodies.iter().enumerate() {
            prop_assert!(store.read(i) == *body, "body {} differs", i);
        }
        // The anchors of each stored part, made again, are those found while writing.
        let mut again = HashMap::new();
        for part in store.parts.values().flatten() {
            let raw = store.decode(part.group.0).unwrap();
            let range = part.raw_start as usize..(part.raw_start + part.raw_len) as usize;
            for (key, at) in anchors_of(&raw[range], SEED) {
                again.insert(key, (part.group, part.raw_start + at as u32));
            }
        }
        let mut found: Vec<_> = store.anchors.borrow().keys().copied().collect();
        let mut made: Vec<_> = again.keys().copied().collect();
        found.sort();
        made.sort();
        prop_assert_eq!(found, made);
    }
}
