//! Memory entries as training lines.

use annals::io::sim::SimIo;
use annals_memory::{Identity, Memory, TrainingFormat};
use serde_json::{Value, json};

use crate::memory::{MONDAY, identity, memory};

fn lines(memory: &Memory, who: &Identity, across: bool, form: TrainingFormat) -> Vec<String> {
    let mut lines = Vec::new();
    let count = memory
        .training_lines(who, across, form, &mut |line| {
            lines.push(String::from_utf8(line.to_vec()).unwrap());
            Ok(())
        })
        .unwrap();
    assert_eq!(count, lines.len() as u64);
    lines
}

fn remember_snapshot(memory: &Memory, conversation: &str, query: &str, answer: &str, more: &str) {
    let value = json!({ "query": query, "finalContent": answer, "decisions": [{ "stageId": "s", "chosen": answer }] });
    memory.put(&identity("t", conversation), &format!("{{\"id\":\"a\",\"value\":{value}{more}}}")).unwrap();
}

/// Regression: entries that nobody had judged, and the answers of forks, were exported as positive examples.
#[test]
fn sft_lines_hold_answers_judged_good() {
    let memory = memory(&SimIo::new(1));
    let who = identity("t", "c");
    let good = "\"metadata\":{\"status\":\"ok\"}";
    memory.put(&who, &format!("{{\"id\":\"snap-1\",\"value\":{MONDAY},{good}}}")).unwrap();
    for (id, metadata) in [
        ("unjudged", "{}"),
        ("escalated", r#"{"status":"ok","severity":"escalated"}"#),
        ("flagged", r#"{"status":"ok","severity":"flagged"}"#),
        ("overridden", r#"{"status":"ok","outcome":"overridden"}"#),
        ("rejected", r#"{"status":"ok","outcome":"rejected"}"#),
        ("to-blame", r#"{"status":"ok","blame":0.7}"#),
        ("what-if", r#"{"status":"ok","whatIf":true}"#),
    ] {
        let entry = format!("{{\"id\":\"{id}\",\"value\":{MONDAY},\"metadata\":{metadata}}}");
        memory.put(&who, &entry).unwrap();
    }
    memory.put(&who, r#"{"id":"fact","value":{"query":"a fact"}}"#).unwrap();
    memory.put(&who, r#"{"id":"odd","value":{"query":7,"finalContent":"x"}}"#).unwrap();
    let escaped =
        "{\"id\":\"z\",\"value\":{\"query\":\"caf\\u00e9 \\ud800\",\n  \"finalContent\":\"two\\nlines\"},";
    memory.put(&who, &format!("{escaped}{good}}}")).unwrap();
    let told = lines(&memory, &who, false, TrainingFormat::Sft);
    assert_eq!(
        told,
        [
            r#"{"prompt":"Should we approve loan #42? Credit: 580. Income: 95k. Amount: 50k.","completion":"Application #42: REJECTED. Credit (580) below floor (600). Suggest manual review."}"#,
            r#"{"prompt":"caf\u00e9 \ud800","completion":"two\nlines"}"#,
        ],
        "the raw JSON is kept"
    );
    // A negative rating marks an answer that must not be learned.
    memory.rate(&who, "snap-1", -1.0).unwrap();
    assert_eq!(lines(&memory, &who, false, TrainingFormat::Sft).len(), 1);
    assert!(lines(&memory, &identity("u", "c"), true, TrainingFormat::Sft).is_empty(), "another tenant");
    assert!(
        lines(&memory, &identity("t", "d"), false, TrainingFormat::Sft).is_empty(),
        "another conversation"
    );
    assert_eq!(lines(&memory, &identity("t", "d"), true, TrainingFormat::Sft).len(), 1);
}

#[test]
fn process_rl_lines_hold_each_decision_with_reward() {
    let memory = memory(&SimIo::new(2));
    let who = identity("t", "c");
    memory.put(&who, &format!("{{\"id\":\"snap-1\",\"value\":{MONDAY}}}")).unwrap();
    let steps = |memory: &Memory| -> Vec<Value> {
        let lines = lines(memory, &who, false, TrainingFormat::ProcessRl);
        lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let [first, second] = steps(&memory).try_into().unwrap();
    assert_eq!(
        first,
        json!({
            "prompt": "Should we approve loan #42? Credit: 580. Income: 95k. Amount: 50k.", "step": 1, "steps": 2,
            "stageId": "classify-risk", "chosen": "rejected", "rule": "Marginal credit",
            "evidence": { "creditScore": 580, "threshold": 600 },
            "completion": "Application #42: REJECTED. Credit (580) below floor (600). Suggest manual review.", "reward": null,
        })
    );
    assert_eq!((&second["step"], &second["chosen"]), (&json!(2), &json!("credit-too-low")));
    // The reward comes from the run's status, a score, or before both the feedback.
    let reward = |more: &str| {
        remember_snapshot(&memory, "c", "q", "f", more);
        let of = steps(&memory).into_iter().find(|step| step["prompt"] == "q").unwrap();
        of["reward"].clone()
    };
    assert_eq!(reward(",\"metadata\":{\"status\":\"ok\"}"), json!(1.0));
    assert_eq!(reward(",\"metadata\":{\"status\":\"failed\"}"), json!(-1.0));
    assert_eq!(reward(",\"metadata\":{\"status\":\"abandoned\"}"), Value::Null);
    let scored = r#"{"id":"a","value":{"query":"q","finalContent":"f","decisions":[{}, 7],"evalScore":0.75},"metadata":{"status":"failed"}}"#;
    memory.put(&who, scored).unwrap();
    let last = steps(&memory).remove(0);
    assert_eq!((&last["reward"], &last["steps"], &last["evidence"]), (&json!(0.5), &json!(1), &Value::Null));
    memory.rate(&who, "a", -0.25).unwrap();
    assert_eq!(steps(&memory)[0]["reward"], json!(-0.25));
}

#[test]
fn dpo_lines_pair_best_answer_with_each_worse_one() {
    let memory = memory(&SimIo::new(3));
    let status = |status: &str| format!(",\"metadata\":{{\"status\":\"{status}\"}}");
    remember_snapshot(&memory, "c1", "Refund?", "Yes.", &status("ok"));
    remember_snapshot(&memory, "c2", "Refund?", "No.", &status("failed"));
    remember_snapshot(&memory, "c3", "Refund?", "Perhaps.", "");
    remember_snapshot(&memory, "c4", "Refund?", "Yes.", &status("failed"));
    remember_snapshot(&memory, "c5", "Refunds?", "No.", &status("failed"));
    remember_snapshot(&memory, "c6", "Refund?", "Yes, gladly.", &status("ok"));
    memory.rate(&identity("t", "c6"), "a", 0.5).unwrap();
    let pairs: Vec<Value> = lines(&memory, &identity("t", "x"), true, TrainingFormat::Dpo)
        .iter()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let pair = |rejected: &str| {
        let decisions = |answer: &str| json!([{ "stageId": "s", "chosen": answer }]);
        json!({
            "prompt": "Refund?", "chosen": "Yes.", "rejected": rejected,
            "chosen_decisions": decisions("Yes."), "rejected_decisions": decisions(rejected),
        })
    };
    assert_eq!(
        pairs,
        [pair("No."), pair("Yes, gladly.")],
        "no pair with equal answers, without reward, or of another question"
    );
    assert!(lines(&memory, &identity("t", "c2"), false, TrainingFormat::Dpo).is_empty());
}
