//! `annals ledger`: checkpoints, proofs, gaps. The engine makes them. `annals-proof`, which shares no code
//! with the engine, checks proofs.

use std::path::Path;

use annals::ledger::{Checkpoint, Signature};
use annals_proof::{About, Body, Kept, PrivateKey, PublicKey, Verdict};
use annals_text::hex::encode;
use serde_json::{Map, Value, json};

use crate::address::Address;
use crate::args::{CheckArgs, CheckpointArgs, Global, LedgerVerb, ProveArgs};
use crate::door;
use crate::failure::{Code, Failure, Result, output};
use crate::input;
use crate::out::{Out, count, many, printable, time};
use crate::whole_file;

/// Most bytes of a checkpoint or key file: both are small.
const SMALL_BYTES_MAX: usize = 1 << 20;

pub(super) fn run(global: &Global, verb: &LedgerVerb, out: &mut Out) -> Result<()> {
    match verb {
        LedgerVerb::Checkpoint(args) => checkpoint(global, args, out),
        LedgerVerb::Prove(args) => prove(global, args, out),
        LedgerVerb::Check(args) => check(args, out),
        LedgerVerb::Gaps => gaps(global, out),
    }
}

fn checkpoint(global: &Global, args: &CheckpointArgs, out: &mut Out) -> Result<()> {
    let key = args.sign.as_deref().map(private_key).transpose()?;
    let checkpoint = super::reading(global)?.checkpoint()?;
    let json = checkpoint.to_json(signature(key.as_ref(), &checkpoint).as_ref()).map_err(own)?;
    annals_proof::Checkpoint::parse(json.as_bytes())?;
    out.line(json)
}

fn prove(global: &Global, args: &ProveArgs, out: &mut Out) -> Result<()> {
    let address = Address::parse(&args.target)?;
    let key = args.sign.as_deref().map(private_key).transpose()?;
    let since = match &args.since {
        Some(path) => {
            Some(door::checkpoint(&input::small(path, SMALL_BYTES_MAX)?).map_err(|f| f.at(path.display()))?)
        }
        None => None,
    };
    let proof = super::reading(global)?.prove(&address.run, address.seq, since.as_ref())?;
    let json = proof.to_json(signature(key.as_ref(), &proof.checkpoint).as_ref()).map_err(own)?;
    // A proof that `annals-proof` does not accept is not handed out.
    let verdict = annals_proof::check(json.as_bytes(), None, None)?;
    let Some(path) = args.output.as_deref().filter(|path| path.as_os_str() != "-") else {
        return out.line(json);
    };
    let line = format!("{json}\n");
    let written = whole_file::write(path, |file| file.write_all(line.as_bytes()).map_err(output));
    written?.map_err(|error| {
        let message = format!("cannot write {}: {error}", path.display());
        Failure::new(Code::Failed, message, "name a writable file, or leave out -o")
    })?;
    if out.json {
        return out.object(&said(&verdict, args.sign.is_some()));
    }
    out.line(format_args!("wrote the proof of {} to {}", of(&verdict), path.display()))?;
    head(&verdict, out)
}

fn check(args: &CheckArgs, out: &mut Out) -> Result<()> {
    let key = args.key.as_deref().map(public_key).transpose()?;
    let kept = args.checkpoint.as_deref().map(|path| kept(path, None)).transpose()?;
    let json = input::small(&args.proof, annals_proof::JSON_BYTES_MAX)?;
    let verdict = annals_proof::check(&json, key.as_ref(), kept.as_ref().map(|(kept, _)| kept))
        .map_err(|error| Failure::from(error).at(args.proof.display()))?;
    if out.json {
        return out.object(&said(&verdict, key.is_some()));
    }
    let last = count(verdict.checkpoint.leaves);
    let place = format!("record {}, in leaf {} of {last}", count(verdict.seqno), count(verdict.leaf));
    out.marked(true, "holds", format_args!(": {} is {place}", of(&verdict)))?;
    for (name, value) in fields(&verdict.about) {
        out.line(format_args!("  {name:<12}{}", printable(&value)))?;
    }
    head(&verdict, out)?;
    match verdict.kept {
        Some(Kept::Same) => out.line("the checkpoint that you kept has the same ledger")?,
        Some(Kept::Covers) => out.line("the checkpoint that you kept covers it")?,
        Some(Kept::GrownFrom) => {
            out.line("it is newer than the checkpoint that you kept; what that covers was not rewritten")?;
        }
        None if key.is_some() => {}
        None => out.line(
            "this ledger is not authenticated: --key checks who signed it, --checkpoint compares it with \
             a checkpoint that you kept",
        )?,
    }
    Ok(())
}

fn gaps(global: &Global, out: &mut Out) -> Result<()> {
    let door = super::reading(global)?;
    let mut found = 0u64;
    door.gaps(&mut |gap| {
        found += 1;
        let (what, rule) = (gap.kind.name(), gap.rule.as_str());
        if out.json {
            return out.object(&json!({
                "what": what,
                "rule": rule,
                "namespace": gap.namespace,
                "run": gap.name,
                "uid": gap.run.0,
                "frames": gap.frames,
                "why": gap.why,
                "seqno": gap.seqno.0,
                "time_ns": gap.time_ns,
            }));
        }
        let frames = many(u64::from(gap.frames), "frame");
        let when = time(gap.time_ns);
        out.line(format_args!(
            "{what} {when}: run{}{} (number {}, {frames}), by record {}: {}{}",
            gap.name.as_deref().map_or(String::new(), |name| format!(" {}", printable(name))),
            gap.namespace.map_or(String::new(), |name| format!(" of namespace {}", printable(&name))),
            gap.run.0,
            gap.seqno,
            printable(rule),
            if gap.why.is_empty() { String::new() } else { format!(" ({})", printable(&gap.why)) },
        ))
    })?;
    if out.json || found > 0 { Ok(()) } else { out.line("no gaps") }
}

/// Reads a checkpoint file with both parsers. With a key, that key must have signed the checkpoint.
pub(super) fn kept(path: &Path, key: Option<&PublicKey>) -> Result<(annals_proof::Checkpoint, Checkpoint)> {
    let json = input::small(path, SMALL_BYTES_MAX)?;
    let at = |failure: Failure| failure.at(path.display());
    let read = annals_proof::Checkpoint::parse(&json).map_err(|error| at(error.into()))?;
    if let Some(key) = key {
        read.signed_by(key).map_err(|error| at(error.into()))?;
    }
    Ok((read, door::checkpoint(&json).map_err(at)?))
}

pub(super) fn public_key(path: &Path) -> Result<PublicKey> {
    PublicKey::from_pem(&pem(path)?).map_err(|error| Failure::from(error).at(path.display()))
}

fn private_key(path: &Path) -> Result<PrivateKey> {
    PrivateKey::from_pem(&pem(path)?).map_err(|error| Failure::from(error).at(path.display()))
}

fn pem(path: &Path) -> Result<String> {
    Ok(String::from_utf8_lossy(&input::small(path, SMALL_BYTES_MAX)?).into_owned())
}

fn signature(key: Option<&PrivateKey>, checkpoint: &Checkpoint) -> Option<Signature> {
    let key = key?;
    Some(Signature { public_key: key.public().0, bytes: key.sign(&checkpoint.statement()) })
}

fn own(error: annals::Error) -> Failure {
    Failure::new(Code::Failed, error, "this is a bug in annals: please report it")
}

/// Names the run or frame that a proof is about.
fn of(verdict: &Verdict) -> String {
    match &verdict.about {
        About::Frame(frame) => format!("frame {} of run {}", frame.seq, printable(&frame.run)),
        About::Run(run) => format!("run {}", printable(&run.run)),
    }
}

/// Prints the checkpoint of a proof.
fn head(verdict: &Verdict, out: &mut Out) -> Result<()> {
    let checkpoint = &verdict.checkpoint;
    let made = time(checkpoint.time_ns);
    out.line(format_args!("ledger of store {}, {made}", encode(&checkpoint.store)))?;
    out.line(format_args!("  root        {}", encode(&checkpoint.root)))?;
    out.line(format_args!("  checkpoint  {}", encode(&checkpoint.digest())))?;
    match &checkpoint.signature {
        Some(signature) => out.line(format_args!("  signed by   {}", signature.key)),
        None => out.line("  not signed"),
    }
}

fn fields(about: &About) -> Vec<(&'static str, String)> {
    let body = |body: &Body| format!("{} bytes, BLAKE3 {}", count(body.bytes), body.blake3);
    match about {
        About::Frame(frame) => {
            let mut fields = vec![
                ("component", frame.component.clone()),
                ("severity", frame.severity.clone()),
                ("started", time(frame.started_ns)),
                ("input", body(&frame.input)),
                ("output", body(&frame.output)),
                ("metadata", body(&frame.metadata)),
            ];
            if frame.error {
                fields.push(("error", "the component failed".to_owned()));
            }
            if frame.open {
                fields.push(("open", "begun, and not finished when this was recorded".to_owned()));
            }
            fields
        }
        About::Run(run) => vec![
            ("status", run.status.clone()),
            ("severity", run.severity.clone()),
            ("agent", run.agent.clone()),
            ("model", run.model.clone()),
            ("started", time(run.started_ns)),
            ("frames", count(u64::from(run.frames))),
            ("fingerprint", run.fingerprint.clone()),
            ("metadata", body(&run.metadata)),
        ],
    }
}

/// The verdict as JSON.
fn said(verdict: &Verdict, key_named: bool) -> Map<String, Value> {
    let checkpoint = &verdict.checkpoint;
    let kept = verdict.kept.map(|kept| match kept {
        Kept::Same => "same",
        Kept::Covers => "covers",
        Kept::GrownFrom => "grown_from",
    });
    let said = json!({
        "about": verdict.about,
        "seqno": verdict.seqno,
        "leaf": verdict.leaf,
        "leaves": checkpoint.leaves,
        "store": encode(&checkpoint.store),
        "root": encode(&checkpoint.root),
        "time_ns": checkpoint.time_ns,
        "digest": encode(&checkpoint.digest()),
        "signed_by": checkpoint.signature.map(|signature| signature.key.to_string()),
        "kept": kept,
        "vouched": key_named || kept.is_some(),
    });
    match said {
        Value::Object(said) => said,
        _ => Map::new(),
    }
}
