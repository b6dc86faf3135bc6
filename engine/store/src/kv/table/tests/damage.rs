//! Every flipped bit and every cut of a table is an error, or does no harm.

use super::*;
use std::ops::Bound;

fn sample() -> Vec<IndexEntry> {
    let mut all = Vec::new();
    for n in 0..40u64 {
        let key = [&[0, 0, 0, 5][..], &(n / 3).to_be_bytes()].concat();
        all.push(entry(&key, 1000 - n, n / 10, u32::try_from(n * 37).unwrap()));
    }
    // A long key and a short one make a second block and the plain key coding.
    all.push(entry(&[7; 17_000], 4, 1, 1));
    all.push(entry(b"\x09tail", 5, 1, 1));
    all
}

/// Checks that every answer is right or an error. Returns the number of errors.
fn errors_of_damaged_table(bytes: &[u8], all: &[IndexEntry]) -> usize {
    let Ok(table) = open(bytes) else { return 1 };
    let mut errors = 0;
    assert_eq!(table.entry_count(), all.len() as u64);
    assert_eq!(table.meta(), &META);
    for entry in all {
        match table.get(&entry.key, entry.seqno) {
            Ok(found) => assert_eq!(found, Some((entry.seqno, entry.value))),
            Err(_) => errors += 1,
        }
    }
    match table.versions(&all[0].key) {
        Ok(found) => assert_eq!(found.len(), 3),
        Err(_) => errors += 1,
    }
    match table.scan(Bound::Unbounded, Bound::Unbounded).collect::<Result<Vec<IndexEntry>, _>>() {
        Ok(found) => assert_eq!(found, all),
        Err(_) => errors += 1,
    }
    match table.scan_back(Bound::Unbounded, Bound::Unbounded).collect::<Result<Vec<IndexEntry>, _>>() {
        Ok(found) => assert!(found.iter().rev().eq(all)),
        Err(_) => errors += 1,
    }
    errors += usize::from(table.verify().is_err());
    errors
}

#[test]
fn every_flipped_bit_is_detected() {
    let all = sample();
    for filter in [FilterPolicy::Never, FilterPolicy::Always] {
        let mut bytes = write(&all, filter);
        assert_eq!(errors_of_damaged_table(&bytes, &all), 0);
        println!("{} bytes", bytes.len());
        for at in 0..bytes.len() {
            for mask in [1, 0x80, 0xff, 0x10] {
                bytes[at] ^= mask;
                assert!(errors_of_damaged_table(&bytes, &all) > 0, "byte {at} xor {mask} was not noticed");
                bytes[at] ^= mask;
            }
        }
    }
}

#[test]
fn truncated_and_longer_files_are_refused() {
    let bytes = write(&sample(), FilterPolicy::Always);
    for len in 0..bytes.len() {
        assert!(open(&bytes[..len]).is_err(), "cut to {len}");
    }
    let mut longer = bytes.clone();
    longer.push(0);
    assert!(open(&longer).is_err());
    assert!(open(&[&bytes[..], &bytes[..]].concat()).is_err());
}

#[test]
fn damaged_block_leaves_the_others_readable() {
    let all = sample();
    let mut bytes = write(&all, FilterPolicy::Never);
    bytes[20] ^= 1;
    let table = open(&bytes).unwrap();
    assert!(table.get(&all[0].key, u64::MAX).is_err());
    let last = &all[all.len() - 1];
    assert_eq!(table.get(&last.key, u64::MAX).unwrap(), Some((last.seqno, last.value)));
    let mut walk = table.scan_back(Bound::Unbounded, Bound::Unbounded);
    assert_eq!(walk.by_ref().take_while(Result::is_ok).count(), 2);
    assert!(walk.next().is_none());
}

#[test]
fn blocks_of_another_table_are_damage() {
    let all = sample();
    let mut other = TableWriter::new(Vec::new(), TableMeta { id: 8, ..META }).unwrap();
    all.iter().for_each(|entry| other.add(entry).unwrap());
    let other = other.finish().unwrap();
    let mut bytes = write(&all, FilterPolicy::Auto);
    assert_eq!(bytes.len(), other.len());
    // Everything before the footer comes from the other table.
    let end = bytes.len() - 76;
    bytes[..end].copy_from_slice(&other[..end]);
    let table = open(&bytes).unwrap();
    assert!(table.verify().is_err());
    assert!(table.get(&all[0].key, u64::MAX).is_err());
}
