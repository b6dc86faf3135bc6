//! `annals ledger` and `verify --against`: commands of a user, and their exit codes.

#![expect(clippy::disallowed_methods, reason = "files that a user would have, moved as a user would")]

use serde_json::Value;

use crate::CliBench;

/// A key pair from RFC 8410, sections 10.3 and 10.1.
const PRIVATE: &str = "-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEINTuctv5E1hK1bbY8fdp+K06/nwoy/HU++CXqI9EdVhC
-----END PRIVATE KEY-----
";
const PUBLIC: &str = "-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=
-----END PUBLIC KEY-----
";

const FRAMES: &str = r#"{"run":"loan-42","component":"llm","input":"approve?","output":"call score"}
{"run":"loan-42","component":"tool","parent":1,"input":"{\"id\":42}","output":"{\"score\":580}"}
{"run":"loan-42","status":"failed","end":true}
"#;

fn bench() -> CliBench {
    let bench = CliBench::new();
    bench.write("frames.jsonl", FRAMES);
    bench.write("key.pem", PRIVATE);
    bench.write("public.pem", PUBLIC);
    bench.run("import --format frames frames.jsonl").ok();
    bench
}

fn keep(bench: &CliBench, name: &str, line: &str) -> Value {
    let json = bench.run(line).ok();
    bench.write(name, &json);
    serde_json::from_slice(&json).unwrap()
}

#[test]
fn proof_is_checked_without_the_store() {
    let bench = bench();
    let signed = keep(&bench, "kept.json", "ledger checkpoint --sign key.pem");
    assert!(signed["signature"]["public_key"].as_str().unwrap().starts_with("19bf4409"), "{signed}");
    let said = bench.run("ledger prove loan-42@2 -o frame.json --sign key.pem").text();
    assert!(said.starts_with("wrote the proof of frame 2 of run loan-42 to frame.json\n"), "{said}");
    bench.run("ledger prove loan-42 --output run.json").ok();
    let from_stdout = bench.run("ledger prove loan-42 -o -").json();
    assert_eq!(from_stdout[0]["about"]["status"], "failed");
    // The next checks run without the store.
    std::fs::rename(bench.path(".annals"), bench.path("elsewhere")).unwrap();
    let told = bench.run("ledger check frame.json --key public.pem --checkpoint kept.json").text();
    for part in
        ["holds: frame 2 of run loan-42 is record", "component   tool", "same ledger", "signed by   19bf4409"]
    {
        assert!(told.contains(part), "{part}: {told}");
    }
    // Regression: a proof that nothing vouches for ended with 0, so a script took it for evidence.
    assert!(bench.run("ledger check run.json").failed(1).contains("is not authenticated"));
    let told = bench.run("ledger check run.json --structure-only").text();
    assert!(told.starts_with("agrees with itself: run loan-42 is record"), "{told}");
    assert_eq!(bench.run("ledger check run.json --structure-only --key public.pem").code, 2);
    let said = &bench.run("ledger check run.json --checkpoint kept.json --json").json()[0];
    assert_eq!(
        (&said["kept"], &said["vouched"], &said["about"]["frames"]),
        (&"same".into(), &true.into(), &2.into())
    );
    assert_eq!(bench.run("ledger check run.json --structure-only --json").json()[0]["vouched"], false);
    let unvouched = bench.run("ledger check run.json --json");
    let said: Value = serde_json::from_slice(&unvouched.stdout).unwrap();
    assert_eq!((unvouched.code, &said["vouched"]), (1, &false.into()));
    // A proof that does not hold, a file that is not a proof, and a missing file.
    assert!(bench.run("ledger check run.json --key public.pem").failed(3).contains("not signed"));
    let proof = String::from_utf8(std::fs::read(bench.path("frame.json")).unwrap()).unwrap();
    bench.write("lie.json", proof.replace("loan-42", "loan-43"));
    assert!(bench.run("ledger check lie.json").failed(3).contains("does not agree with its records"));
    bench.write("cut.json", &proof[..proof.len() / 2]);
    bench.run("ledger check cut.json").failed(1);
    bench.run("ledger check kept.json").failed(1);
    bench.run("ledger check none.json").failed(4);
    bench.run("ledger check run.json --key key.pem").failed(1);
    bench.run("ledger prove loan-42").failed(4);
}

#[test]
fn prove_reports_wrong_arguments() {
    let bench = bench();
    bench.run("ledger prove nobody").failed(4);
    bench.run("ledger prove loan-42@3").failed(4);
    bench.run("ledger checkpoint --sign public.pem").failed(1);
    bench.run("ledger checkpoint --sign none.pem").failed(4);
    bench.run("ledger prove loan-42 -o none/proof.json").failed(1);
    assert_eq!(bench.run("ledger").code, 2);
    // `-o` replaces an existing file, as openssl and git archive do. A proof that cannot be made leaves the
    // file unchanged.
    bench.write("proof.json", "mine");
    bench.run("ledger prove nobody -o proof.json").failed(4);
    assert_eq!(std::fs::read(bench.path("proof.json")).unwrap(), b"mine");
    bench.run("ledger prove loan-42 -o proof.json").ok();
    bench.run("ledger check proof.json --structure-only").ok();
    assert_eq!(mode(&bench, "proof.json"), 0o600);
}

/// Who may read a file.
pub(crate) fn mode(bench: &CliBench, name: &str) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(bench.path(name)).unwrap().permissions().mode() & 0o777
}

#[test]
fn newer_record_is_proved_from_an_older_checkpoint() {
    let bench = bench();
    keep(&bench, "old.json", "ledger checkpoint");
    bench.run("fork loan-42@1 again").ok();
    bench.run("ledger prove again -o short.json").ok();
    assert!(
        bench
            .run("ledger check short.json --checkpoint old.json")
            .failed(1)
            .contains("newer than the checkpoint")
    );
    bench.run("ledger prove again -o long.json --since old.json").ok();
    let told = bench.run("ledger check long.json --checkpoint old.json").text();
    assert!(told.contains("was not rewritten"), "{told}");
}

#[test]
fn verify_against_checkpoint_locates_the_difference() {
    let bench = bench();
    keep(&bench, "old.json", "ledger checkpoint --sign key.pem");
    bench.run("put key value").ok();
    let told = bench.run("verify --against old.json --key public.pem").text();
    assert!(told.starts_with("unchanged: all ") && told.contains("whole: 1 runs"), "{told}");
    let new = keep(&bench, "new.json", "ledger checkpoint");
    // Restores the whole earlier state of the store, as a rollback would.
    std::fs::rename(bench.path(".annals"), bench.path("grown")).unwrap();
    bench.run("import --format frames frames.jsonl").ok();
    let done = bench.run("verify --against old.json");
    assert_eq!(done.code, 3, "{done:?}");
    assert!(String::from_utf8(done.stdout).unwrap().starts_with("another store: "));
    let done = bench.run("verify --against new.json --json");
    let said: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!((done.code, &said["against"]["differences"][0]["what"]), (3, &"another_store".into()));
    assert_eq!(said["damaged"], Value::Array(Vec::new()));
    // An unsigned checkpoint, a changed checkpoint, and a file that is not a checkpoint.
    bench.run("verify --against new.json --key public.pem").failed(3);
    let mut changed = new.clone();
    changed["seqno"] = 1.into();
    bench.write("changed.json", changed.to_string());
    bench.run("verify --against changed.json").failed(3);
    bench.run("verify --against frames.jsonl").failed(1);
    bench.run("verify --against none.json").failed(4);
    assert_eq!(bench.run("verify --key public.pem").code, 2);
}

#[test]
fn newest_witness_of_the_store_is_compared() {
    let bench = bench();
    bench.run("ledger checkpoint --to kept").failed(4);
    std::fs::create_dir(bench.path("kept")).unwrap();
    assert!(bench.run("verify --against kept").failed(4).contains("holds no checkpoint"));
    let told = bench.run("ledger checkpoint --to kept --sign key.pem").text();
    assert!(told.starts_with("kept a checkpoint of "), "{told}");
    let told = bench.run("verify --against kept --key public.pem").text();
    assert!(told.contains("\nunchanged: all "), "{told}");
    bench.run("put key value").ok();
    let said = &bench.run("ledger checkpoint --to kept --json").json()[0];
    let newest = said["file"].as_str().unwrap().to_owned();
    let told = bench.run("verify --against kept").text();
    assert!(
        told.starts_with(&format!(
            "compared with the newest checkpoint: {newest}, and 1 older one\nunchanged: all "
        )),
        "{told}"
    );
    // A checkpoint that the key did not sign is named, and so is a file that is none.
    let done = bench.run("verify --against kept --key public.pem");
    let told = String::from_utf8(done.stdout).unwrap();
    assert!(
        done.code == 3 && told.contains("the checkpoint is not signed") && told.contains(&newest),
        "{told}"
    );
    bench.write("kept/checkpoint-broken.json", "{}");
    bench.write("kept/notes.txt", "not a checkpoint");
    let done = bench.run("verify --against kept --json");
    let said: Value = serde_json::from_slice(&done.stdout).unwrap();
    let malformed = said["against"]["malformed"].as_array().unwrap();
    assert!(done.code == 3 && malformed.len() == 1, "{said}");
    assert!(malformed[0].as_str().unwrap().contains("kept/checkpoint-broken.json: "), "{said}");
    assert_eq!((&said["against"]["file"], &said["against"]["erased_since"]), (&newest.into(), &0.into()));
    assert_eq!(said["against"]["differences"], Value::Array(Vec::new()));
    // Another store in the place of this one.
    std::fs::remove_file(bench.path("kept/checkpoint-broken.json")).unwrap();
    std::fs::rename(bench.path(".annals"), bench.path("elsewhere")).unwrap();
    bench.run("import --format frames frames.jsonl").ok();
    let done = bench.run("verify --against kept");
    let told = String::from_utf8(done.stdout).unwrap();
    assert!(done.code == 3 && told.contains("\nanother store: "), "{told}");
    // Regression: the next checkpoint was added, and then the store that had been put in its place was called unchanged.
    let refused = bench.run("ledger checkpoint --to kept").failed(3);
    assert!(
        refused.contains("has only checkpoints of another store") && refused.contains("nothing was added")
    );
    assert_eq!(bench.run("verify --against kept").code, 3);
    // An older annals, or somebody else, adds it all the same.
    std::fs::create_dir(bench.path("made")).unwrap();
    bench.run("ledger checkpoint --to made").ok();
    let made = std::fs::read_dir(bench.path("made")).unwrap().next().unwrap().unwrap();
    std::fs::copy(made.path(), bench.path("kept").join(made.file_name())).unwrap();
    let told = bench.run("verify --against kept").text();
    assert!(
        told.contains("\nnote: not compared, because they are of other stores: 2 checkpoints\n"),
        "{told}"
    );
    assert_eq!(bench.run("verify --against kept --json").json()[0]["against"]["others"], 2);
}

/// Regression: only the newest checkpoint of a folder was compared, and `ledger checkpoint --to` added one to a store that
/// had been put back to an older state. From then on nothing showed that.
#[test]
fn checkpoint_of_a_store_that_was_put_back_covers_nothing_up() {
    let bench = bench();
    std::fs::create_dir(bench.path("kept")).unwrap();
    let copy = |from: &str, to: &str| {
        let copied =
            std::process::Command::new("cp").arg("-a").args([bench.path(from), bench.path(to)]).status();
        assert!(copied.unwrap().success());
    };
    copy(".annals", "old");
    bench.run("put key secret").ok();
    let said = &bench.run("ledger checkpoint --to kept --json").json()[0];
    // Regression: a file of another name than `--to` gives was passed over in silence.
    let first = "kept/2026-11.json".to_owned();
    std::fs::rename(bench.path(said["file"].as_str().unwrap()), bench.path(&first)).unwrap();
    std::fs::rename(bench.path(".annals"), bench.path("true")).unwrap();
    copy("old", ".annals");
    for number in 0..3 {
        bench.run(&format!("put other-{number} value")).ok();
    }
    let refused = bench.run("ledger checkpoint --to kept").failed(3);
    assert!(refused.contains("nothing was added") && refused.contains(&first), "{refused}");
    // An older annals, or somebody else, adds it all the same.
    std::fs::create_dir(bench.path("made")).unwrap();
    bench.run("ledger checkpoint --to made").ok();
    let made = std::fs::read_dir(bench.path("made")).unwrap().next().unwrap().unwrap();
    std::fs::copy(made.path(), bench.path("kept").join(made.file_name())).unwrap();
    let done = bench.run("verify --against kept");
    let told = String::from_utf8(done.stdout).unwrap();
    assert!(
        done.code == 3
            && told
                .contains(&format!("\nolder checkpoint: the store does not have the history that {first} ")),
        "{told}"
    );
    // A daemon keeps thousands of them in a year: they take one line.
    std::fs::copy(bench.path(&first), bench.path("kept/2026-12.json")).unwrap();
    let told = String::from_utf8(bench.run("verify --against kept").stdout).unwrap();
    let all = format!("history that {first} and 1 younger one (--json names all) cover;");
    assert!(told.matches("older checkpoint: ").count() == 1 && told.contains(&all), "{told}");
    std::fs::remove_file(bench.path("kept/2026-12.json")).unwrap();
    let done = bench.run("verify --against kept --json");
    let said: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(said["against"]["differences"][0]["what"], "older_checkpoint", "{said}");
    assert_eq!(said["against"]["differences"][0]["file"], first, "{said}");
    // The true store has the history of the first, and not that of the forged one.
    std::fs::rename(bench.path(".annals"), bench.path("false")).unwrap();
    std::fs::rename(bench.path("true"), bench.path(".annals")).unwrap();
    assert_eq!(bench.run("verify --against kept").code, 3);
    std::fs::remove_file(bench.path("kept").join(made.file_name())).unwrap();
    bench.run("forget loan-42 --why test").ok();
    bench.run("compact --now").ok();
    bench.run("ledger checkpoint --to kept").ok();
    let told = bench.run("verify --against kept").text();
    assert!(told.contains(", and 1 older one\nunchanged: all "), "{told}");
    assert!(told.contains("\nerased since the oldest checkpoint: "), "{told}");
    assert!(!bench.run(&format!("verify --against {first}")).text().contains("oldest"));
}

/// Regression: `verify --against DIR` waited for ever at a FIFO with the name of a checkpoint.
#[cfg(target_os = "linux")]
#[test]
fn file_that_is_no_regular_one_is_a_malformed_witness() {
    let bench = bench();
    std::fs::create_dir(bench.path("kept")).unwrap();
    bench.run("ledger checkpoint --to kept").ok();
    let made = std::process::Command::new("mkfifo").arg(bench.path("kept/checkpoint-x.json")).status();
    assert!(made.unwrap().success());
    let done = bench.run("verify --against kept");
    let told = String::from_utf8(done.stdout).unwrap();
    assert!(done.code == 3 && told.contains("checkpoint-x.json: not a regular file"), "{told}");
}

/// Checkpoints of version 1 count nothing, so a forged statement of an erasure was called unchanged without a word.
#[test]
fn older_checkpoint_says_what_it_cannot_show() {
    let bench = bench();
    let json = bench.run("ledger checkpoint").ok();
    let mut checkpoint = annals::ledger::Checkpoint::from_json(&json).unwrap();
    assert!(checkpoint.parts.take().is_some_and(|parts| parts.runs.len() == 1));
    bench.write("second.json", checkpoint.to_json(None).unwrap());
    let told = bench.run("verify --against second.json").text();
    assert!(told.contains("does not count records by run (version 2)"), "{told}");
    assert_eq!(bench.run("verify --against second.json --json").json()[0]["against"]["in_parts"], false);
    assert!(checkpoint.counts.take().is_some_and(|counts| counts.living > 3 && counts.erased == 0));
    bench.write("old.json", checkpoint.to_json(None).unwrap());
    let told = bench.run("verify --against old.json").text();
    assert!(told.starts_with("unchanged: all ") && told.contains("counts no records (version 1)"), "{told}");
    let said = &bench.run("verify --against old.json --json").json()[0];
    assert_eq!((&said["against"]["erased_since"], &said["notes"]), (&Value::Null, &Value::Array(Vec::new())));
    // What was erased since is told, if the checkpoint counts.
    keep(&bench, "new.json", "ledger checkpoint");
    bench.run("forget loan-42 --why asked").ok();
    let told = bench.run("verify --against new.json").text();
    assert!(told.contains("erased since the checkpoint: "), "{told}");
    bench.run("verify --against old.json").ok();
    assert!(bench.run("ledger gaps").text().contains("dropped"));
}

#[test]
fn rolled_back_store_is_reported() {
    let bench = bench();
    copy(&bench.path(".annals"), &bench.path("before"));
    bench.run("put key value").ok();
    keep(&bench, "kept.json", "ledger checkpoint");
    let done = bench.run("--store before verify --against kept.json");
    let told = String::from_utf8(done.stdout).unwrap();
    assert!(done.code == 3 && told.starts_with("rolled back: the store ends before leaves "), "{told}");
    assert!(told.contains("\nwhole: 1 runs"), "{told}");
    let done = bench.run("--store before verify --against kept.json --json");
    let said: Value = serde_json::from_slice(&done.stdout).unwrap();
    let difference = &said["against"]["differences"][0];
    assert_eq!(difference["what"], "rolled_back");
    assert_eq!(difference["leaves"][0], said["against"]["read"]);
}

fn copy(from: &std::path::Path, to: &std::path::Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &to),
            false => drop(std::fs::copy(entry.path(), to).unwrap()),
        }
    }
}

#[test]
fn gaps_are_listed_with_their_rule() {
    let bench = bench();
    assert_eq!(bench.run("ledger gaps").text(), "no gaps\n");
    assert_eq!(bench.run("ledger gaps --json").text(), "");
    bench.run("import --format frames frames.jsonl --replace").ok();
    let told = bench.run("ledger gaps").text();
    assert!(
        told.starts_with("replaced ")
            && told.contains("run loan-42 of namespace default (number 1, 2 frames)"),
        "{told}"
    );
    let gaps = bench.run("ledger gaps --json").json();
    assert_eq!(gaps.len(), 1);
    assert_eq!(
        (&gaps[0]["what"], &gaps[0]["run"], &gaps[0]["uid"]),
        (&"replaced".into(), &"loan-42".into(), &1.into())
    );
    assert!(
        gaps[0]["rule"].as_str().unwrap().contains("replace") && gaps[0]["time_ns"].as_u64().unwrap() > 0
    );
}

/// Regression: a folder in which every checkpoint was spoiled ended with 4, named none of them, and told its owner to make
/// a new one. One spoiled file among good ones ended with 3.
#[test]
fn spoiled_witness_folder_is_an_alarm() {
    let bench = bench();
    let folder = bench.path("witness");
    std::fs::create_dir(&folder).unwrap();
    assert!(bench.run("verify --against witness").failed(4).contains("holds no checkpoint"));
    bench.run("ledger checkpoint --to witness").ok();
    let file = std::fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
    std::fs::write(&file, b"{}").unwrap();
    let name = file.file_name().unwrap().to_str().unwrap();
    for line in ["verify --against witness", "ledger checkpoint --to witness"] {
        let done = bench.run(line);
        let told = format!("{}{}", String::from_utf8_lossy(&done.stdout), done.stderr);
        assert!(done.code == 3 && told.contains("is readable") && told.contains(name), "{told}");
    }
    // The owner of the store can change a folder in it.
    let inside = bench.run("ledger checkpoint --to .annals/segments");
    assert!(inside.failed(2).contains("is in the store"));
    assert!(bench.run("serve --witness .annals/segments").failed(2).contains("is in the store"));
}
