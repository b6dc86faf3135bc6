//! Bodies are packed, then read back from parts and recipes alone.

use std::cell::RefCell;
use std::collections::HashMap;

use proptest::prelude::*;

use super::store::{BlobTestStore, SEED, bytes_of};
use crate::blob::*;

#[derive(Clone, Debug)]
struct BodyEdit {
    at: usize,
    remove: usize,
    insert: Vec<u8>,
}

fn text(max: usize) -> impl Strategy<Value = Vec<u8>> {
    (any::<u64>(), 0..max, 0u8..4).prop_map(|(seed, len, kind)| bytes_of(seed, len, kind))
}

fn edit() -> impl Strategy<Value = BodyEdit> {
    // In thousandths of the body length.
    let at = prop_oneof![Just(0), Just(1000), 0..1000usize];
    (at, prop_oneof![0..200usize, 0..50_000usize], prop_oneof![text(300), text(20_000)])
        .prop_map(|(at, remove, insert)| BodyEdit { at, remove, insert })
}

fn apply(body: &mut Vec<u8>, edit: &BodyEdit) {
    let at = body.len() * edit.at / 1000;
    let end = (at + edit.remove).min(body.len());
    body.splice(at..end, edit.insert.iter().copied());
}

proptest! {
    #[test]
    fn edited_bodies_round_trip(
        first in prop_oneof![text(2_000), text(400_000)],
        edits in prop::collection::vec((prop::collection::vec(edit(), 0..4), any::<bool>()), 1..12),
    ) {
        let mut store = BlobTestStore::new();
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
        // Recomputing the anchors of each stored part gives those found while writing.
        let mut again = HashMap::new();
        for part in store.parts.values().flatten() {
            let raw = store.decode(part.group.0).unwrap();
            let range = part.raw_start as usize..(part.raw_start + part.raw_len) as usize;
            for (key, at) in anchors_of(&raw[range], SEED) {
                again.insert(key, (part.group, part.raw_start + u32::try_from(at).unwrap()));
            }
        }
        let mut found: Vec<_> = store.anchors.borrow().keys().copied().collect();
        let mut made: Vec<_> = again.keys().copied().collect();
        found.sort();
        made.sort();
        prop_assert_eq!(found, made);
    }
}

/// Number of new raw bytes that the body added.
fn new_bytes(store: &mut BlobTestStore, body: &[u8]) -> usize {
    let before: usize = raw_len(store);
    store.put(body, true);
    raw_len(store) - before
}

fn raw_len(store: &BlobTestStore) -> usize {
    store.parts.values().flatten().map(|p| p.raw_len as usize).sum()
}

/// A request of `steps` messages in one of three forms: plain, moving marker, changing head.
fn request(form: usize, steps: usize) -> Vec<u8> {
    let nonce = bytes_of(steps as u64, 24, 1).iter().map(|b| format!("{b:02x}")).collect::<String>();
    let mut out = format!("{{head {} system ", if form == 2 { &nonce } else { "" }).into_bytes();
    out.extend(bytes_of(1, 2000, 0));
    for step in 0..steps {
        out.extend(b",{role:user,text:");
        out.extend(bytes_of(100 + step as u64, 3000, 0));
        if form == 1 && step + 1 == steps {
            out.extend(b",cache_control:{type:ephemeral}");
        }
        out.extend(b"}");
    }
    out.extend(b"]}");
    out
}

#[test]
fn grown_request_stores_only_what_it_adds() {
    for form in 0..3 {
        let mut store = BlobTestStore::new();
        for steps in 1..40 {
            let cost = new_bytes(&mut store, &request(form, steps));
            let most = if steps == 1 { 6000 } else { 3600 };
            assert!(cost < most, "form {form}, step {steps}: {cost} new bytes");
        }
        for steps in 1..40 {
            assert!(store.read(steps - 1) == request(form, steps));
        }
    }
}

#[test]
fn moved_text_is_found_by_anchors_alone() {
    let mut store = BlobTestStore::new();
    let (a, b) = (bytes_of(1, 40_000, 0), bytes_of(2, 30_000, 1));
    store.put(&[a.clone(), b.clone()].concat(), true);
    store.previous = None;
    let cost = new_bytes(&mut store, &[b"other words before ", b.as_slice(), b" between ", &a].concat());
    // Anchors are some hundred bytes apart: up to that many bytes at a border may be stored again.
    assert!(cost < 300, "{cost} new bytes");
}

#[test]
fn big_incompressible_bodies_span_raw_groups() {
    let mut store = BlobTestStore::new();
    let noise = bytes_of(3, 2_000_000, 1);
    store.put(b"", true);
    store.put(&noise, true);
    store.put(b"", true);
    assert!(store.parts.values().flatten().all(|p| p.codec == Codec::Raw));
    assert!(store.parts.len() >= 8);
    for (index, body) in [&[][..], &noise, &[]].into_iter().enumerate() {
        assert!(store.read(index) == body);
    }
}

/// Anchors that point anywhere: stale, colliding, out of bounds.
struct LyingAnchors<'a>(&'a BlobTestStore, RefCell<usize>);

impl EarlierBytes for LyingAnchors<'_> {
    fn seed(&self) -> AnchorSeed {
        SEED
    }
    fn anchor(&self, _: AnchorKey) -> Option<(GroupId, u32)> {
        let mut turn = self.1.borrow_mut();
        *turn += 1;
        let group = self.0.parts.keys().nth(*turn % 2).copied().unwrap_or(9);
        Some((GroupId(group), [0, 77, 4000, u32::MAX, 262_143][*turn % 5]))
    }
    fn group(&self, id: GroupId) -> Option<std::sync::Arc<Vec<u8>>> {
        self.0.group(id)
    }
}

#[test]
fn wrong_anchors_and_previous_body_keep_bytes_exact() {
    let mut store = BlobTestStore::new();
    let old = bytes_of(1, 300_000, 0);
    store.put(&old, true);
    let body = [&old[..150_000], &bytes_of(9, 50_000, 0), &old[100_000..]].concat();
    let mut previous = store.previous.clone().unwrap();
    for shorten in [false, true] {
        if shorten {
            std::sync::Arc::make_mut(&mut previous.extents).pop();
        }
        let whole = std::sync::Arc::new(body.clone());
        let compared = ComparedBody::new(&whole, Some(&previous));
        let plan = plan(&body, compared.previous_match(), &LyingAnchors(&store, RefCell::new(0)));
        let rebuilt: Vec<u8> = plan
            .steps
            .iter()
            .flat_map(|step| match step {
                PlanStep::Old(e) => assemble(&[*e], |e| store.group(e.group)).unwrap(),
                PlanStep::New(range) => body[range.clone()].to_vec(),
            })
            .collect();
        assert!(rebuilt == body);
    }
}

/// A recipe that is too long to read is worse than bytes stored twice.
#[test]
fn body_with_too_many_extents_is_stored_again() {
    let steps_max = EXTENTS_MAX / 4;
    for (pieces, steps) in [(steps_max, steps_max), (steps_max + 1, 1)] {
        let body = std::sync::Arc::new(bytes_of(7, pieces, 1));
        let byte = |at| Extent { group: GroupId(1), offset: at, len: 1 };
        let extents = (0..u32::try_from(pieces).unwrap()).map(byte).collect();
        let previous = ComparedBody::new(&body, None).into_body(std::sync::Arc::new(extents));
        let compared = ComparedBody::new(&body, Some(&previous));
        assert_eq!(
            plan(&body, compared.previous_match(), &BlobTestStore::new()).steps.len(),
            steps,
            "{pieces} pieces"
        );
    }
}

#[test]
fn changed_middle_is_found_to_the_byte() {
    use crate::blob::compare::compare;
    let (a, b) = (bytes_of(1, 5_000, 0), bytes_of(2, 9_000, 0));
    for (was, is) in [(130, 300), (300, 130), (0, 700), (700, 0), (2_000, 2_000)] {
        let old = [a.as_slice(), &bytes_of(3, was, 1), &b].concat();
        let new = [a.as_slice(), &bytes_of(4, is, 1), &b, b"a grown tail"].concat();
        let whole =
            |same: &CommonRange| old[same.old..same.old + same.len] == new[same.new..same.new + same.len];
        let found = compare(&new, &old, MATCH_BYTES_MIN, RESYNC_BYTES_MIN);
        assert!(found.iter().all(whole));
        let covered: usize = found.iter().map(|same| same.len).sum();
        // A byte at a border may be equal by chance, and then counts for either side.
        assert!((14_000..14_003).contains(&covered), "{was} -> {is}: {found:?}");
    }
}

#[test]
fn plan_of_another_body_is_refused() {
    let mut packer = Packer::new(SEED);
    let mut ids = || GroupId(1);
    for steps in [vec![], vec![PlanStep::New(0..3)], vec![PlanStep::New(1..4)], vec![PlanStep::New(0..5)]] {
        assert!(matches!(
            packer.put(b"four", &steps.into(), false, &mut ids),
            Err(BlobError::PlanMismatch { .. })
        ));
    }
    assert!(packer.flush().unwrap().is_empty());
}

#[test]
fn anchors_do_not_depend_on_slices_or_neighbours() {
    let text = bytes_of(4, 20_000, 0);
    let whole = anchors_of(&text, SEED);
    let mut writer = GroupWriter::new(GroupId(1), Codec::Zstd, SEED).unwrap();
    let mut sliced = Vec::new();
    for slice in text.chunks(61) {
        writer.append(slice, None::<std::iter::Empty<usize>>, &mut sliced).unwrap();
    }
    let sliced: Vec<_> = sliced.iter().map(|a| (a.key, a.offset as usize)).collect();
    assert_eq!(sliced, whole);
    let moved = anchors_of(&[&bytes_of(5, 777, 0), text.as_slice()].concat(), SEED);
    let shared = whole.iter().filter(|(key, at)| moved.contains(&(*key, at + 777))).count();
    assert!(shared + 2 >= whole.len(), "{shared} of {}", whole.len());
}

#[test]
fn lane_always_finds_its_base_and_keeps_few_recipes() {
    let mut lane = DeltaStack::new();
    for index in 0..5_000u64 {
        let base = lane.base_for(index).map(|b| *b.0);
        assert_eq!(base, DeltaStack::<u64>::base_index(index), "body {index}");
        lane.push(index, index, std::sync::Arc::default());
        assert!(lane.recipe_count() <= 14, "body {index} leaves {}", lane.recipe_count());
    }
    // Resumed from the chain of the last body alone.
    let mut chain = vec![4_999u64];
    while let Some(base) = DeltaStack::<u64>::base_index(chain[0]) {
        chain.insert(0, base);
    }
    let mut again = DeltaStack::new();
    chain.into_iter().for_each(|index| again.push(index, index, std::sync::Arc::default()));
    for index in 5_000..9_000u64 {
        assert_eq!(again.base_for(index).map(|b| *b.0), DeltaStack::<u64>::base_index(index));
        again.push(index, index, std::sync::Arc::default());
    }
}
