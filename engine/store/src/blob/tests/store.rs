//! A blob store in memory, used like the real one above this module, and seeded bytes.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::blob::*;

/// A store of parts, recipes and anchors in memory.
pub(super) struct BlobTestStore {
    pub(super) packer: Packer,
    pub(super) next: u64,
    pub(super) parts: BTreeMap<u64, Vec<EncodedPart>>,
    pub(super) anchors: RefCell<HashMap<AnchorKey, (GroupId, u32)>>,
    pub(super) lane: DeltaStack<usize>,
    /// Base, recipe and length of each body.
    pub(super) recipes: Vec<(Option<usize>, Vec<u8>, u64)>,
    pub(super) previous: Option<LaneBody>,
    /// Anchors of the parts that are not flushed yet.
    pending_anchors: Vec<Anchor>,
}

pub(super) const SEED: AnchorSeed = AnchorSeed(77);

impl EarlierBytes for BlobTestStore {
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

impl BlobTestStore {
    pub(super) fn new() -> Self {
        Self {
            packer: Packer::new(SEED),
            next: 5,
            parts: BTreeMap::new(),
            anchors: RefCell::default(),
            lane: DeltaStack::new(),
            recipes: Vec::new(),
            previous: None,
            pending_anchors: Vec::new(),
        }
    }

    pub(super) fn decode(&self, id: u64) -> Option<Arc<Vec<u8>>> {
        let parts = self.parts.get(&id)?;
        let parts = parts.iter().map(|p| (p.codec, p.raw_len, p.encoded.as_slice()));
        Some(Arc::new(decode_group(parts).unwrap()))
    }

    pub(super) fn put(&mut self, bytes: &[u8], flush: bool) {
        let whole = Arc::new(bytes.to_vec());
        let compared = ComparedBody::new(&whole, self.previous.as_ref());
        assert_eq!(compared.id(), crate::ids::BlobId::of(bytes));
        let plan = plan(bytes, compared.previous_match(), self);
        let next = &mut self.next;
        let mut ids = || {
            *next += 3;
            GroupId(*next)
        };
        let packed = self.packer.put(bytes, &plan, false, &mut ids).unwrap();
        for a in &packed.anchors {
            self.anchors.borrow_mut().insert(a.key, (a.group, a.offset));
        }
        self.pending_anchors.extend(packed.anchors);
        let extents = Arc::new(packed.extents);
        let index = self.recipes.len();
        let base = self.lane.base_for(index as u64);
        let recipe = encode_recipe(&extents, base.map(|b| b.1.as_slice()));
        self.recipes.push((base.map(|b| *b.0), recipe, bytes.len() as u64));
        self.lane.push(index as u64, index, Arc::clone(&extents));
        let body = compared.into_body(extents);
        self.previous = Some(body);
        if flush {
            self.flush();
        }
    }

    pub(super) fn flush(&mut self) {
        let mut wanted = Vec::new();
        for part in self.packer.flush().unwrap() {
            let (group, from) = (part.group, part.raw_start);
            self.parts.entry(group.0).or_default().push(part);
            let raw = &self.decode(group.0).unwrap()[from as usize..];
            let anchor = |(key, at)| Anchor { key, group, offset: from + u32::try_from(at).unwrap() };
            wanted.extend(anchors_of(raw, SEED).into_iter().map(anchor));
        }
        let mut found = std::mem::take(&mut self.pending_anchors);
        let place = |anchor: &Anchor| (anchor.group, anchor.offset);
        wanted.sort_by_key(place);
        found.sort_by_key(place);
        assert_eq!(found, wanted, "anchors of the parts alone");
    }

    pub(super) fn recipe(&self, index: usize) -> Vec<Extent> {
        let (base, bytes, len) = &self.recipes[index];
        let base = base.map(|b| self.recipe(b));
        decode_recipe(bytes, base.as_deref(), *len).unwrap()
    }

    /// Reads a body from what would be on disk.
    pub(super) fn read(&self, index: usize) -> Vec<u8> {
        assemble(&self.recipe(index), |e| self.decode(e.group.0)).unwrap()
    }
}

/// Seeded bytes: 0 words, 1 random, 2 one byte, 3 short period.
pub(super) fn bytes_of(mut seed: u64, len: usize, kind: u8) -> Vec<u8> {
    let mut next = move || {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) % 7_000
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
        1 => (0..len).map(|_| low(next())).collect(),
        2 => vec![low(next()); len],
        _ => (0..len).map(|i| low(i as u64 % 37)).collect(),
    }
}

fn low(value: u64) -> u8 {
    value.to_le_bytes()[0]
}
