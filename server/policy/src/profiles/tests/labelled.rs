//! Precision and recall on two labelled sets of synthetic values. The detectors were developed with `tuned`.
//! `held_out` was written before any detector, with other sentences and other generated values; nobody looks
//! at its misses. `held_out` decides.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde::Deserialize;

use super::super::search::{RedactionSearch, normalise};
use super::{KEY, safe};
use crate::detect::Detector;
use crate::profiles::Profile;

#[derive(Debug, Deserialize)]
struct LabelledLine {
    text: String,
    labels: Vec<Label>,
    /// The kind of line in the sets of forms.
    #[serde(default)]
    group: String,
}

#[derive(Debug, Deserialize)]
struct Label {
    kind: String,
    value: String,
}

/// A detector's result: labels found with exact value and kind, labels missed, and other placeholders.
#[derive(Debug, Default, Clone, Copy)]
struct DetectorTally {
    found: u32,
    missed: u32,
    wrong: u32,
}

impl DetectorTally {
    fn recall(self) -> f64 {
        f64::from(self.found) / f64::from((self.found + self.missed).max(1))
    }

    fn precision(self) -> f64 {
        f64::from(self.found) / f64::from((self.found + self.wrong).max(1))
    }
}

fn lines(set: &str) -> Vec<LabelledLine> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/redaction/{set}.jsonl"));
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The tally of each detector, and how many lines without a label were changed.
fn measure(set: &str, tell: bool) -> (BTreeMap<String, DetectorTally>, u32, u32) {
    let (profile, redactor) = (Profile::safe(), safe());
    let search = RedactionSearch::new(profile.rules.as_ref().unwrap(), &KEY);
    let placeholder = |label: &Label| {
        let detector = Detector::ALL.into_iter().find(|detector| detector.name() == label.kind).unwrap();
        let tag = search.tag(&label.kind, &normalise(detector, label.value.as_bytes()));
        let tag: String = tag.iter().map(|byte| format!("{byte:02x}")).collect();
        (label.kind.clone(), tag)
    };
    let there = regex::Regex::new(r"\[([a-z-]+):([0-9a-f]{12})\]").unwrap();
    let (mut tallies, mut negatives, mut touched) = (BTreeMap::<String, DetectorTally>::new(), 0, 0);
    for line in lines(set) {
        let body = redactor.body(line.text.as_bytes(), None);
        let shown = String::from_utf8_lossy(&body.bytes).into_owned();
        let wanted: BTreeSet<_> = line.labels.iter().map(placeholder).collect();
        let found: BTreeSet<_> =
            there.captures_iter(&shown).map(|found| (found[1].to_owned(), found[2].to_owned())).collect();
        for (kind, tag) in &wanted {
            let tally = tallies.entry(kind.clone()).or_default();
            match found.contains(&(kind.clone(), tag.clone())) {
                true => tally.found += 1,
                false => tally.missed += 1,
            }
        }
        for (kind, _) in found.difference(&wanted) {
            tallies.entry(kind.clone()).or_default().wrong += 1;
        }
        negatives += u32::from(wanted.is_empty());
        touched += u32::from(wanted.is_empty() && body.replaced > 0);
        if tell && found != wanted {
            eprintln!("{}\n  -> {shown}\n  {:?}", line.text, line.labels);
        }
    }
    (tallies, negatives, touched)
}

/// The tally of each group of a set of forms (generate.py): a label is found if nothing of its value is
/// shown, under whatever placeholder; more placeholders than labels are wrong.
fn measure_forms(set: &str, tell: bool) -> (BTreeMap<String, DetectorTally>, u32, u32) {
    let redactor = safe();
    let there = regex::Regex::new(r"\[[a-z-]+:[0-9a-f]{12}\]").unwrap();
    let (mut tallies, mut negatives, mut touched) = (BTreeMap::<String, DetectorTally>::new(), 0, 0);
    for line in lines(set) {
        let body = redactor.body(line.text.as_bytes(), None);
        let shown = String::from_utf8_lossy(&body.bytes).into_owned();
        let rest = there.replace_all(&shown, "\u{1}").into_owned();
        let tally = tallies.entry(line.group.clone()).or_default();
        let expected = line.labels.iter().fold(line.text.clone(), |text, label| {
            // In JSON, a value stands as JSON writes it.
            let quoted = serde_json::to_string(&label.value).unwrap();
            let quoted = quoted.trim_matches('"');
            let stands = if text.contains(&label.value) { label.value.as_str() } else { quoted };
            text.replacen(stands, "\u{1}", 1)
        });
        let replaced = u32::try_from(rest.matches('\u{1}').count()).unwrap();
        let labels = u32::try_from(line.labels.len()).unwrap();
        // What stands around a value stays, up to a sign that the value may have taken along.
        let is_found = labels > 0
            && rest.len() <= expected.len()
            && replaced >= labels
            && !line.labels.iter().any(|label| shown.contains(&label.value));
        tally.found += u32::from(is_found);
        tally.missed += u32::from(labels > 0 && !is_found);
        tally.wrong += replaced.saturating_sub(labels);
        negatives += u32::from(labels == 0);
        touched += u32::from(labels == 0 && body.replaced > 0);
        if tell && rest != expected {
            eprintln!("{:?}\n  -> {shown:?}\n  {:?}", line.text, line.labels);
        }
    }
    (tallies, negatives, touched)
}

fn table(set: &str, of: &(BTreeMap<String, DetectorTally>, u32, u32)) -> DetectorTally {
    let mut all = DetectorTally::default();
    eprintln!("{set}: {} lines without a label, {} of them changed", of.1, of.2);
    eprintln!(
        "  {:12} {:>6} {:>6} {:>6} {:>9} {:>9}",
        "detector", "found", "missed", "wrong", "precision", "recall"
    );
    let row = |name: &str, tally: DetectorTally| {
        let DetectorTally { found, missed, wrong } = tally;
        let (precision, recall) = (tally.precision(), tally.recall());
        eprintln!("  {name:12} {found:>6} {missed:>6} {wrong:>6} {precision:>9.3} {recall:>9.3}");
    };
    for (name, tally) in &of.0 {
        all.found += tally.found;
        all.missed += tally.missed;
        all.wrong += tally.wrong;
        row(name, *tally);
    }
    row("all", all);
    all
}

/// Forms that were missed once, made from the documentation of providers and authorities.
#[test]
fn forms_meet_precision_and_recall() {
    // `forms_held_out` decides. It was written before the detectors were changed; nobody looks at its misses.
    for set in ["forms_tuned", "forms_held_out"] {
        let found = measure_forms(set, std::env::var_os("ANNALS_MISSES").is_some() && set == "forms_tuned");
        let all = table(set, &found);
        assert!(all.found + all.missed >= 150 && found.1 >= 500, "{all:?}");
        assert!(all.recall() >= 0.95 && all.precision() >= 0.98, "{all:?}");
    }
}

#[test]
fn detectors_meet_precision_and_recall() {
    let tuned = measure("tuned", std::env::var_os("ANNALS_MISSES").is_some());
    table("tuned", &tuned);
    // Looking at the misses of this set would mean tuning on it.
    let held_out = measure("held_out", false);
    let all = table("held out", &held_out);
    assert!(held_out.1 >= 200, "{} hard negatives", held_out.1);
    // Slightly below the measured values (docs/redaction.md).
    assert!(all.precision() >= 0.97 && all.recall() >= 0.98, "{all:?}");
    assert!(held_out.2 <= 3, "{} lines without a label were changed", held_out.2);
    for (name, tally) in &held_out.0 {
        assert!(tally.precision() >= 0.94 && tally.recall() >= 0.95, "{name}: {tally:?}");
    }
    let measured_as_forms = [Detector::Password, Detector::Person, Detector::SeedPhrase];
    assert_eq!(held_out.0.len(), Detector::ALL.len() - measured_as_forms.len());
}
