//! `annals ledger`: checkpoints, proofs, gaps. The engine makes them. `annals-proof`, which shares no code
//! with the engine, checks proofs.

use std::path::{Path, PathBuf};

use annals::StoreId;
use annals::ledger::{Checkpoint, ErasureReport, Signature};
use annals_proof::{BodyClaim, CheckpointAgreement, PrivateKey, ProofClaim, ProofVerdict, PublicKey};
use annals_server::{
    WITNESS_BYTES_MAX, list_witnesses, only_of_another_store, witness_inside_store, write_witness,
};
use annals_text::hex::encode;
use serde_json::{Map, Value, json};

use crate::address::RunAddress;
use crate::args::{CheckpointArgs, GlobalArgs, LedgerCheckArgs, LedgerVerb, ProveArgs};
use crate::atomic_file::{self, FileAccess};
use crate::failure::{CliResult, Failure, FailureCode, output_failure};
use crate::input;
use crate::locate;
use crate::output::{CliOutput, count, plural, print_note, printable, time};
use crate::store_access::{self, StoreAccess};

/// Most bytes of a checkpoint or key file: both are small.
const SMALL_BYTES_MAX: usize = WITNESS_BYTES_MAX;

pub(super) fn run(global: &GlobalArgs, verb: &LedgerVerb, out: &mut CliOutput) -> CliResult<()> {
    match verb {
        LedgerVerb::Checkpoint(args) => checkpoint(global, args, out),
        LedgerVerb::Prove(args) => prove(global, args, out),
        LedgerVerb::Check(args) => check(args, out),
        LedgerVerb::Gaps => print_gaps(global, out),
    }
}

fn checkpoint(global: &GlobalArgs, args: &CheckpointArgs, out: &mut CliOutput) -> CliResult<()> {
    let key = args.sign.as_deref().map(private_key).transpose()?;
    let door = super::open_to_read(global)?;
    let checkpoint = door.checkpoint()?;
    if let Some(folder) = &args.to {
        if let Some(message) = witness_inside_store(folder, &locate::store(global.store.as_deref())) {
            return Err(Failure::usage(message, "name a folder that the store's owner cannot change"));
        }
        check_newest_witness(&door, folder)?;
    }
    let signature = signature(key.as_ref(), &checkpoint);
    let json = checkpoint.to_json(signature.as_ref()).map_err(internal_failure)?;
    annals_proof::CheckedCheckpoint::parse(json.as_bytes())?;
    let Some(folder) = &args.to else { return out.json_line(&json) };
    let file = write_witness(folder, &checkpoint, signature.as_ref()).map_err(|error| {
        let message = format!("cannot add a checkpoint to {}: {error}", folder.display());
        Failure::failed(message, "name a folder that exists and can be written")
    })?;
    let (leaves, file) = (checkpoint.leaves, file.display().to_string());
    if out.json {
        return out
            .object(&json!({ "file": file, "leaves": leaves, "digest": checkpoint.digest().to_string() }));
    }
    out.line(format_args!("kept a checkpoint of {} leaves: {}", count(leaves), printable(&file)))
}

/// A folder in which no checkpoint can be read any more. Somebody may have spoiled them.
fn only_malformed(folder: &Path, first: &str, end: &str) -> Failure {
    let message = format!("no checkpoint in {} is readable{end}; for example {first}", folder.display());
    Failure::damage(message, "find out who changed the folder; compare with another copy of it")
}

/// Checks that the store has the history of the newest checkpoint in a folder, and that not all of them are another
/// store's. A newer one would cover up what was done.
fn check_newest_witness(door: &StoreAccess, folder: &Path) -> CliResult<()> {
    let witnesses = Witnesses::read(folder, None)?;
    for witness in &witnesses.malformed {
        print_note(printable(&format!("not compared, because it is malformed: {witness}")));
    }
    let other = witnesses.all.last().map(|witness| witness.checkpoint.store);
    let malformed = witnesses.malformed.clone();
    let Some(newest) = witnesses.of_store(door.id()).newest else {
        let Some(other) = other else {
            return match malformed.first() {
                None => Ok(()),
                Some(first) => Err(only_malformed(folder, first, ", so nothing was added")),
            };
        };
        let message = format!("{}, so nothing was added", only_of_another_store(folder, door.id(), other));
        return Err(Failure::damage(message, "each store has a folder of its own: name another one"));
    };
    if door.compare(&newest.checkpoint, &[])?.differences.is_empty() {
        return Ok(());
    }
    let message = format!(
        "the store does not have the history that {} covers, so nothing was added: a newer checkpoint would cover that \
         up",
        newest.path.display()
    );
    Err(Failure::damage(message, "`annals verify --against DIR` shows where they differ"))
}

fn prove(global: &GlobalArgs, args: &ProveArgs, out: &mut CliOutput) -> CliResult<()> {
    let address = RunAddress::parse(&args.target)?;
    let key = args.sign.as_deref().map(private_key).transpose()?;
    let since = match &args.since {
        Some(path) => Some(
            store_access::parse_checkpoint(&input::read_small(path, SMALL_BYTES_MAX)?)
                .map_err(|f| f.with_place(path.display()))?,
        ),
        None => None,
    };
    let proof = super::open_to_read(global)?.prove(&address.run, address.seq, since.as_ref())?;
    let json =
        proof.to_json(signature(key.as_ref(), &proof.checkpoint).as_ref()).map_err(internal_failure)?;
    // A proof that `annals-proof` does not accept is not handed out.
    let verdict = annals_proof::check(json.as_bytes(), None, None)?;
    let Some(path) = args.output.as_deref().filter(|path| path.as_os_str() != "-") else {
        return out.json_line(&json);
    };
    let line = format!("{json}\n");
    let written = atomic_file::write(path, FileAccess::Owner, |file| {
        file.write_all(line.as_bytes()).map_err(output_failure)
    });
    written?.map_err(|error| {
        let message = format!("cannot write {}: {error}", path.display());
        Failure::failed(message, "name a writable file, or leave out -o")
    })?;
    if out.json {
        return out.object(&verdict_json(&verdict, args.sign.is_some()));
    }
    out.line(format_args!("wrote the proof of {} to {}", claim_name(&verdict), path.display()))?;
    print_checkpoint(&verdict, out)
}

fn check(args: &LedgerCheckArgs, out: &mut CliOutput) -> CliResult<()> {
    let key = args.key.as_deref().map(public_key).transpose()?;
    let kept = args.checkpoint.as_deref().map(|path| read_checkpoint(path, None)).transpose()?;
    let json = input::read_small(&args.proof, annals_proof::JSON_BYTES_MAX)?;
    let verdict = annals_proof::check(&json, key.as_ref(), kept.as_ref().map(|(kept, _)| kept))
        .map_err(|error| Failure::from(error).with_place(args.proof.display()))?;
    let vouched = key.is_some() || verdict.kept.is_some();
    let result = if vouched || args.structure_only { Ok(()) } else { Err(unvouched_failure()) };
    if out.json {
        out.object(&verdict_json(&verdict, key.is_some()))?;
        return result;
    }
    let last = count(verdict.checkpoint.leaves);
    let place = format!("record {}, in leaf {} of {last}", count(verdict.seqno), count(verdict.leaf));
    let word = if vouched { "holds" } else { "agrees with itself" };
    out.marked_line(vouched, word, format_args!(": {} is {place}", claim_name(&verdict)))?;
    for (name, value) in claim_fields(&verdict.about) {
        out.line(format_args!("  {name:<12}{}", printable(&value)))?;
    }
    print_checkpoint(&verdict, out)?;
    match verdict.kept {
        Some(CheckpointAgreement::SameLedger) => {
            out.line("the checkpoint that you kept has the same ledger")?
        }
        Some(CheckpointAgreement::CoversRecord) => out.line("the checkpoint that you kept covers it")?,
        Some(CheckpointAgreement::GrownFrom) => {
            out.line("it is newer than the checkpoint that you kept; what that covers was not rewritten")?;
        }
        None => {}
    }
    result
}

/// The failure of a proof that is whole, and that nothing ties to a known ledger.
fn unvouched_failure() -> Failure {
    let message =
        "the ledger of this proof is not authenticated: anybody can make a proof that agrees with itself";
    let hint = "--key PUBLIC.pem checks who signed it; --checkpoint CHECKPOINT compares it with one that you kept; \
                --structure-only accepts it";
    Failure::failed(message, hint)
}

fn print_gaps(global: &GlobalArgs, out: &mut CliOutput) -> CliResult<()> {
    let door = super::open_to_read(global)?;
    let mut found = 0u64;
    let erasures = door.gaps(&mut |gap| {
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
        let frames = gap.frames.map(|frames| plural(u64::from(frames), "frame"));
        let frames = frames.unwrap_or_else(|| "no record left".to_owned());
        // Of such a run only the time of its erasure is known.
        let before = if gap.frames.is_none() { "before " } else { "" };
        let when = format!("{before}{}", time(gap.time_ns));
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
    let problems = erasures.problems();
    // What nothing explains is named below.
    if erasures.content > 0 && problems.is_empty() {
        print_erased(&erasures, out)?;
    }
    for what in &problems {
        match out.json {
            true => out.object(&json!({ "what": "unexplained", "why": what }))?,
            false => out.marked_line(false, "unexplained", format_args!(": {}", printable(what)))?,
        }
    }
    for note in erasures.notes() {
        match out.json {
            true => out.object(&json!({ "what": "unchecked", "why": note }))?,
            false => out.line(format_args!("note: {}", printable(&note)))?,
        }
    }
    match problems.is_empty() {
        false => Err(Failure::Silent(FailureCode::Damage)),
        true if out.json || found > 0 => Ok(()),
        true if erasures.content > 0 => out.line("no gaps among runs"),
        true => out.line("no gaps"),
    }
}

/// Says how much compactions erased: the values of forgotten keys are among it.
fn print_erased(erasures: &ErasureReport, out: &mut CliOutput) -> CliResult<()> {
    let ErasureReport { content, compactions, compacted_ns, .. } = *erasures;
    if out.json {
        return out.object(&json!({
            "what": "erased", "records": content, "compactions": compactions, "compacted_ns": compacted_ns,
        }));
    }
    let when = match compactions {
        0 => String::new(),
        1 => format!(", by a compaction on {}", time(compacted_ns)),
        some => format!(", by {} compactions, the last one on {}", count(some), time(compacted_ns)),
    };
    out.line(format_args!(
        "erased: {} of superseded, deleted or forgotten keys, or of runs that are gone{when}",
        plural(content, "record")
    ))
}

/// A checkpoint in a folder.
pub(super) struct Witness {
    pub(super) path: PathBuf,
    pub(super) checkpoint: Checkpoint,
}

/// The witnesses of one store.
pub(super) struct StoreWitnesses {
    pub(super) newest: Option<Witness>,
    pub(super) older: Vec<Witness>,
}

/// The readable witnesses of a folder, and a sentence for each file that is not readable.
pub(super) struct Witnesses {
    all: Vec<Witness>,
    pub(super) malformed: Vec<String>,
}

impl Witnesses {
    /// Reads every witness of a folder. With a key, that key must have signed them.
    pub(super) fn read(folder: &Path, key: Option<&PublicKey>) -> CliResult<Self> {
        let files = list_witnesses(folder).map_err(|error| {
            let message = format!("cannot read {}: {error}", folder.display());
            match error.kind() {
                std::io::ErrorKind::NotFound => Failure::missing(message, "name a folder that exists"),
                _ => Failure::failed(message, "name a folder that can be read"),
            }
        })?;
        let (mut all, mut malformed) = (Vec::new(), Vec::new());
        for path in files {
            // Reading a FIFO would wait for a writer.
            if !path.is_file() {
                malformed.push(format!("{}: not a regular file", path.display()));
                continue;
            }
            match read_checkpoint(&path, key) {
                Ok((_, checkpoint)) => all.push(Witness { path, checkpoint }),
                Err(Failure::Message { message, .. }) => malformed.push(message),
                Err(other) => return Err(other),
            }
        }
        Ok(Self { all, malformed })
    }

    /// Number of checkpoints of other stores.
    pub(super) fn count_others(&self, store: StoreId) -> u64 {
        self.all.iter().filter(|witness| witness.checkpoint.store != store).count() as u64
    }

    /// The checkpoints of this store.
    pub(super) fn of_store(self, store: StoreId) -> StoreWitnesses {
        let mut older: Vec<_> =
            self.all.into_iter().filter(|witness| witness.checkpoint.store == store).collect();
        older.sort_by_key(|witness| (witness.checkpoint.leaves, witness.checkpoint.time_ns));
        let newest = older.pop();
        StoreWitnesses { newest, older }
    }

    /// As [`Witnesses::of_store`]. If there are only checkpoints of other stores, the newest of those: the store may
    /// have been exchanged.
    ///
    /// # Errors
    /// If there is no checkpoint.
    pub(super) fn newest_of(self, store: StoreId, folder: &Path) -> CliResult<(Witness, Vec<Witness>)> {
        let named = self.all.iter().any(|witness| witness.checkpoint.store == store);
        let age = |witness: &&Witness| (witness.checkpoint.leaves, witness.checkpoint.time_ns);
        let other = self.all.iter().max_by_key(age).map(|witness| witness.checkpoint.store);
        let chosen = if named { store } else { other.unwrap_or(store) };
        let malformed = self.malformed.first().cloned();
        let StoreWitnesses { newest, older } = self.of_store(chosen);
        let newest = newest.ok_or_else(|| match malformed {
            Some(first) => only_malformed(folder, &first, ""),
            None => {
                let message = format!("{} holds no checkpoint", folder.display());
                Failure::missing(message, "make one with `annals ledger checkpoint --to DIR`")
            }
        })?;
        Ok((newest, older))
    }
}

/// Reads a checkpoint file with both parsers. With a key, that key must have signed the checkpoint.
pub(super) fn read_checkpoint(
    path: &Path,
    key: Option<&PublicKey>,
) -> CliResult<(annals_proof::CheckedCheckpoint, Checkpoint)> {
    let json = input::read_small(path, SMALL_BYTES_MAX)?;
    let at = |failure: Failure| failure.with_place(path.display());
    let read = annals_proof::CheckedCheckpoint::parse(&json).map_err(|error| at(error.into()))?;
    if let Some(key) = key {
        read.require_signed_by(key).map_err(|error| at(error.into()))?;
    }
    Ok((read, store_access::parse_checkpoint(&json).map_err(at)?))
}

pub(super) fn public_key(path: &Path) -> CliResult<PublicKey> {
    PublicKey::from_pem(&read_pem(path)?).map_err(|error| Failure::from(error).with_place(path.display()))
}

fn private_key(path: &Path) -> CliResult<PrivateKey> {
    PrivateKey::from_pem(&read_pem(path)?).map_err(|error| Failure::from(error).with_place(path.display()))
}

fn read_pem(path: &Path) -> CliResult<String> {
    Ok(String::from_utf8_lossy(&input::read_small(path, SMALL_BYTES_MAX)?).into_owned())
}

fn signature(key: Option<&PrivateKey>, checkpoint: &Checkpoint) -> Option<Signature> {
    let key = key?;
    Some(Signature { public_key: key.public_key().0, bytes: key.sign(&checkpoint.statement()) })
}

fn internal_failure(error: annals::Error) -> Failure {
    Failure::failed(error, "this is a bug in annals: please report it")
}

/// Names the run or frame that a proof is about.
fn claim_name(verdict: &ProofVerdict) -> String {
    match &verdict.about {
        ProofClaim::Frame(frame) => format!("frame {} of run {}", frame.seq, printable(&frame.run)),
        ProofClaim::Run(run) => format!("run {}", printable(&run.run)),
    }
}

/// Prints the checkpoint of a proof.
fn print_checkpoint(verdict: &ProofVerdict, out: &mut CliOutput) -> CliResult<()> {
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

fn claim_fields(about: &ProofClaim) -> Vec<(&'static str, String)> {
    let body = |body: &BodyClaim| format!("{} bytes, BLAKE3 {}", count(body.bytes), body.blake3);
    match about {
        ProofClaim::Frame(frame) => {
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
        ProofClaim::Run(run) => vec![
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
fn verdict_json(verdict: &ProofVerdict, key_named: bool) -> Map<String, Value> {
    let checkpoint = &verdict.checkpoint;
    let kept = verdict.kept.map(|kept| match kept {
        CheckpointAgreement::SameLedger => "same",
        CheckpointAgreement::CoversRecord => "covers",
        CheckpointAgreement::GrownFrom => "grown_from",
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
