//! The checks of the fuzz targets `checkpoint` and `proof`; `cli/proof/tests/corpora.rs` runs them on the kept
//! corpora. They run both readers of a checkpoint, which share no code, and the checker of proofs.

use serde_json::Value;

/// If the first byte is a space, repairs what a fuzzer cannot guess: the digest, and the root of a tree with one
/// mark.
pub(crate) fn put_right(json: &[u8]) -> Option<Vec<u8>> {
    json.strip_prefix(b" ")?;
    let mut value: Value = serde_json::from_slice(json).ok()?;
    let checkpoint = match value.get("checkpoint") {
        Some(_) => value.get_mut("checkpoint")?,
        None => &mut value,
    };
    if let [mark] = checkpoint.get("marks")?.as_array()?.as_slice() {
        let node = mark.get("node")?.clone();
        *checkpoint.get_mut("root")? = node;
    }
    let text = |name: &str| Some(checkpoint.get(name)?.as_str()?.to_owned());
    let number = |of: &Value, name: &str| of.get(name)?.as_u64();
    let mut lines = format!(
        "annals checkpoint {}\nstore {}\nleaves {}\nroot {}\nseqno {}\ntime_ns {}\n",
        number(checkpoint, "annals_checkpoint")?,
        text("store")?,
        number(checkpoint, "leaves")?,
        text("root")?,
        number(checkpoint, "seqno")?,
        number(checkpoint, "time_ns")?
    );
    // The fields of later versions, where they are there.
    for name in ["living", "erased", "erased_leaves", "runs", "last_run"] {
        lines += &number(checkpoint, name).map(|count| format!("{name} {count}\n")).unwrap_or_default();
    }
    if let Some(living) = checkpoint.get("living_by_mark") {
        let counts: Option<String> =
            living.as_array()?.iter().map(|count| Some(format!(" {}", count.as_u64()?))).collect();
        lines += &format!("living_by_mark{}\n", counts?);
    }
    for name in ["permanent", "run_span"] {
        lines += &number(checkpoint, name).map(|count| format!("{name} {count}\n")).unwrap_or_default();
    }
    for part in checkpoint.get("run_parts").and_then(Value::as_array).into_iter().flatten() {
        let [first, records, dropped, snapshots] =
            ["first", "records", "dropped", "snapshots"].map(|name| number(part, name));
        lines += &format!("runs {} {} {} {}\n", first?, records?, dropped?, snapshots?);
    }
    for mark in checkpoint.get("marks")?.as_array()? {
        let (leaves, seqno, time_ns) =
            (number(mark, "leaves")?, number(mark, "seqno")?, number(mark, "time_ns")?);
        lines += &format!("mark {leaves} {seqno} {time_ns} {}\n", mark.get("node")?.as_str()?);
    }
    let digest = blake3::hash(lines.as_bytes()).to_hex().to_string();
    *checkpoint.get_mut("digest")? = digest.into();
    serde_json::to_vec(&value).ok()
}

/// Both readers must agree on a checkpoint. The engine does not check signatures; the holder of the key does.
pub(crate) fn checkpoint(data: &[u8]) {
    let data = put_right(data).unwrap_or_else(|| data.to_vec());
    let ours = annals::ledger::Checkpoint::from_json(&data);
    match annals_proof::CheckedCheckpoint::parse(&data) {
        Ok(theirs) => {
            let ours = ours.unwrap_or_else(|e| panic!("the engine refuses what the checker takes: {e}"));
            assert_eq!(ours.statement(), theirs.statement());
            assert_eq!(ours.digest().0, theirs.digest());
            let again = ours.to_json(None).unwrap_or_default();
            assert!(annals_proof::CheckedCheckpoint::parse(again.as_bytes()).is_ok(), "{again}");
        }
        Err(error) if ours.is_ok() => {
            let signed = serde_json::from_slice::<Value>(&data).is_ok_and(|v| v.get("signature").is_some());
            assert!(signed, "the checker refuses what the engine takes: {error}");
        }
        Err(_) => {}
    }
}

/// An accepted proof must also be accepted with its own checkpoint, with the same result.
pub(crate) fn proof(data: &[u8]) {
    let data = put_right(data).unwrap_or_else(|| data.to_vec());
    let Ok(verdict) = annals_proof::check(&data, None, None) else { return };
    let value: Value = serde_json::from_slice(&data).unwrap_or_default();
    let own = value.get("checkpoint").map(Value::to_string).unwrap_or_default();
    let kept = annals_proof::CheckedCheckpoint::parse(own.as_bytes());
    let kept = kept.unwrap_or_else(|e| panic!("its own checkpoint is refused: {e}"));
    let again = annals_proof::check(&data, None, Some(&kept));
    let again = again.unwrap_or_else(|e| panic!("refused with its own checkpoint: {e}"));
    assert_eq!(format!("{:?}", verdict.about), format!("{:?}", again.about));
}
