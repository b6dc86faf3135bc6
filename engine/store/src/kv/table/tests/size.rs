//! The size of an entry on disk, for the key shapes that matter.

use super::*;

/// Keys of space, run and frame number, for records of 200 to 1,800 bytes one after another.
fn frames(count: u32, runs: u32) -> Vec<IndexEntry> {
    let mut mix = TableTestRng(1);
    let (mut offset, mut entries) = (64u64, Vec::new());
    for n in 0..count {
        let (run, frame) = (n / (count / runs), n % (count / runs) + 1);
        let mut key = 5u32.to_be_bytes().to_vec();
        key.extend_from_slice(&(1000 + u64::from(run)).to_be_bytes());
        key.extend_from_slice(&frame.to_be_bytes());
        let len = 200 + mix.below(1600);
        let (a, b) = (1 + offset / (64 << 20), u32::try_from(offset % (64 << 20)).unwrap());
        let value = IndexValue { kind: 2, a, b, c: u32::try_from(len).unwrap() };
        entries.push(IndexEntry { key, seqno: 100 + u64::from(n), value });
        offset += len;
    }
    entries
}

/// Keys of six random bytes, for piece numbers in the order of writing.
fn hashes(count: u64) -> Vec<IndexEntry> {
    let mut mix = TableTestRng(2);
    let mut entries: Vec<IndexEntry> = (0..count)
        .map(|n| {
            let key = mix.next().to_be_bytes()[..6].to_vec();
            let value = IndexValue { kind: 3, a: n / 32, b: u32::try_from(n % 32).unwrap(), c: 0 };
            IndexEntry { key, seqno: n / 40, value }
        })
        .collect();
    entries.sort_by(|one, other| one.version_key().cmp(&other.version_key()));
    entries
}

fn cost(name: &str, entries: &[IndexEntry], filter: FilterPolicy) -> f64 {
    let bytes = write(entries, filter);
    let table = open(&bytes).unwrap();
    table.verify().unwrap();
    let found: Vec<IndexEntry> =
        table.scan(std::ops::Bound::Unbounded, std::ops::Bound::Unbounded).map(Result::unwrap).collect();
    assert_eq!(found, entries);
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let each = bytes.len() as f64 / entries.len() as f64;
    println!("{name}, filter {filter:?}: {} bytes, {each:.2} an entry", bytes.len());
    each
}

#[test]
fn entries_cost_few_bytes() {
    for (name, entries, most) in [
        ("10000 frames of one run", frames(10_000, 1), 4.0),
        ("10000 frames of 50 runs", frames(10_000, 50), 5.0),
        ("10000 frames of 1000 runs", frames(10_000, 1000), 5.0),
        ("10000 hashes", hashes(10_000), 8.5),
    ] {
        let plain = cost(name, &entries, FilterPolicy::Never);
        assert!(plain <= most, "{name}: {plain}");
        let auto = cost(name, &entries, FilterPolicy::Auto);
        let always = cost(name, &entries, FilterPolicy::Always);
        assert!(plain <= auto && auto <= always && always < plain + 2.0);
    }
}

/// The keys of runs, their names and their frames once shared blocks and stored most of their bytes.
#[test]
fn a_block_is_cut_where_keyspaces_have_nothing_in_common() {
    let key = |space: u32, rest: &[u8]| entry(&[&space.to_be_bytes()[..], rest].concat(), 9, 1, 5);
    let runs = (0..60u64).map(|run| key(2, &[&16u32.to_be_bytes()[..], &run.to_be_bytes()].concat()));
    let names = (0..60).map(|name| key(3, format!("agent-{name:02}").as_bytes()));
    let both: Vec<IndexEntry> = runs.clone().chain(names.clone()).collect();
    let table = open(&write(&both, FilterPolicy::Never)).unwrap();
    assert_eq!(table.block_count(), 2);
    let cut = cost("60 runs and 60 names", &both, FilterPolicy::Never);
    assert!(cut < 11.0, "{cut}");
    // A cut costs a block, so few keys share one.
    let few: Vec<IndexEntry> = runs.take(1).chain(names.take(1)).chain([key(4, b"abc")]).collect();
    assert_eq!(open(&write(&few, FilterPolicy::Never)).unwrap().block_count(), 1);
}

#[test]
fn an_empty_table_is_small() {
    assert_eq!(write(&[], FilterPolicy::Always).len(), 88);
}
