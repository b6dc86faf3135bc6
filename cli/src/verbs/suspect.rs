//! `annals suspect`: ranks the steps of a run by how likely they caused its failure, from the record alone.

use annals::RunUid;
use annals_server::JudgeModel;
use annals_server::suspect::{self, JudgeVerdict, RankedStep, Transcript, Weights};
use serde_json::{Value, json};

use crate::args::{GlobalArgs, SuspectArgs};
use crate::failure::{CliResult, Failure};
use crate::output::{CliOutput, plural, print_note, printable};
use crate::profiles;
use crate::store_access::{RunRow, StoreAccess};

/// Steps that are shown by default.
const TOP: usize = 3;
/// Signals of a step that are shown; `--json` has all.
const SIGNALS_SHOWN: usize = 5;
/// Damaged frames that a message names.
const DAMAGED_NAMED: usize = 5;

/// What a model said about a run.
struct JudgeOpinion {
    model: String,
    /// The verdict, or why there is none.
    verdict: Result<JudgeVerdict, String>,
}

pub(super) fn run(global: &GlobalArgs, args: &SuspectArgs, out: &mut CliOutput) -> CliResult<()> {
    let judge = args.judge.as_deref().map(judge_model).transpose()?;
    let redactor = profiles::redactor(global, &args.reader)?;
    let door = super::open_to_read(global)?;
    let run = door.run(&args.run)?;
    let (uid, transcript) = door.transcript(&run.id, redactor.as_ref())?;
    let weights = Weights::built_in().map_err(|error| Failure::failed(error, "install annals again"))?;
    let ranking = suspect::rank(&transcript, &weights).steps;
    if ranking.is_empty() {
        check_damage(&run, &transcript)?;
        let message = format!(
            "run `{}` has no step to rank: none of {} is a model's answer or an agent's message",
            run.id,
            plural(run.frames, "frame")
        );
        return Err(Failure::failed(message, format!("`annals show {}` lists its frames", run.id)));
    }
    let opinion = judge.map(|judge| ask(&judge, global, door, uid, &transcript)).transpose()?;
    if out.json {
        profiles::print_redaction_note(redactor.as_ref());
        print_notes(&run, opinion.as_ref());
        let top = args.top.filter(|top| *top > 0).unwrap_or(usize::MAX);
        out.object(&ranking_json(&ranking, top, opinion.as_ref()))?;
    } else {
        print_ranking(&run, args, &transcript, &ranking, opinion.as_ref(), redactor.is_some(), out)?;
        profiles::print_redaction_note(redactor.as_ref());
        print_notes(&run, opinion.as_ref());
    }
    out.flush()?;
    check_damage(&run, &transcript)?;
    match opinion {
        Some(JudgeOpinion { verdict: Err(why), .. }) => {
            let hint = "the ranking above is the heuristic alone; repeat the command to ask the model again";
            Err(Failure::failed(format!("the judge gives no verdict: {why}"), hint))
        }
        _ => Ok(()),
    }
}

/// Says on standard error what a reader of the ranking has to know.
fn print_notes(run: &RunRow, opinion: Option<&JudgeOpinion>) {
    match run.status {
        "ok" => print_note("the run ended with status ok: the ranking assumes that its result is wrong"),
        "open" => print_note("the run is still being recorded: the ranking covers its frames so far"),
        _ => {}
    }
    if opinion.is_some_and(|opinion| opinion.verdict.is_ok()) {
        print_note("the judge is a model that reads the record: its opinion changes no score");
    }
}

/// Fails if frames could not be read; the others are ranked.
fn check_damage(run: &RunRow, transcript: &Transcript) -> CliResult<()> {
    let Some(first) = transcript.unread.first() else { return Ok(()) };
    let frames: Vec<String> =
        transcript.unread.iter().take(DAMAGED_NAMED).map(|frame| frame.seq.to_string()).collect();
    let more = transcript.unread.len() - frames.len();
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let message = format!(
        "{} of run `{}` cannot be read and {} not ranked ({}{more}): {}",
        plural(transcript.unread.len() as u64, "frame"),
        run.id,
        if transcript.unread.len() == 1 { "is" } else { "are" },
        frames.join(", "),
        first.why
    );
    Err(Failure::damage(message, "`annals verify` checks the whole store, `annals repair` saves the rest"))
}

fn ranking_json(ranking: &[RankedStep], top: usize, opinion: Option<&JudgeOpinion>) -> Value {
    let verdict = opinion.and_then(|opinion| opinion.verdict.as_ref().ok().map(|verdict| (opinion, verdict)));
    let is_judged = |step: &RankedStep| verdict.is_some_and(|(_, verdict)| verdict.seq == step.seq);
    let shown = ranking.iter().enumerate().filter(|(place, step)| *place < top || is_judged(step));
    let steps = shown.map(|(_, step)| {
        let mut signals: Vec<Value> = step
            .signals
            .iter()
            .map(|seen| json!({ "name": seen.signal.name(), "seq": seen.seq, "why": seen.why }))
            .collect();
        if let Some((opinion, verdict)) = verdict.filter(|_| is_judged(step)) {
            let why = format!("{}: {}", opinion.model, verdict.why);
            signals.push(json!({ "name": "judge", "seq": verdict.seq, "why": why }));
        }
        json!({
            "seq": step.seq, "agent": step.agent, "component": step.component, "score": step.score,
            "signals": signals,
        })
    });
    steps.collect()
}

fn print_ranking(
    run: &RunRow,
    args: &SuspectArgs,
    transcript: &Transcript,
    ranking: &[RankedStep],
    opinion: Option<&JudgeOpinion>,
    is_redacted: bool,
    out: &mut CliOutput,
) -> CliResult<()> {
    let agents: std::collections::BTreeSet<&str> = ranking.iter().map(|step| step.agent.as_str()).collect();
    let (steps, agents) = (plural(ranking.len() as u64, "step"), plural(agents.len() as u64, "agent"));
    out.line(format_args!("{}: {}, {steps} of {agents} ranked", printable(&run.id), run.status))?;
    if transcript.other_frames > 0 {
        let others = plural(u64::from(transcript.other_frames), "frame");
        out.line(format_args!("{others} without a message left out"))?;
    }
    out.line("a heuristic from the record alone: it says where to read first and proves nothing")?;
    let top = match args.top {
        Some(0) => usize::MAX,
        top => top.unwrap_or(TOP),
    };
    for (place, step) in ranking.iter().take(top).enumerate() {
        let name = format!("{}@{}", run.id, step.seq);
        let (agent, component) = (printable(&step.agent), printable(&step.component));
        out.line(format_args!(
            "\n{}. {}  {agent} ({component}), score {:.2}",
            place + 1,
            printable(&name),
            step.score
        ))?;
        for seen in step.signals.iter().take(SIGNALS_SHOWN) {
            let at = if seen.seq == step.seq { String::new() } else { format!(" (frame {})", seen.seq) };
            out.line(format_args!("   {}: {}{at}", seen.signal.name(), printable(&seen.why)))?;
        }
        if step.signals.is_empty() {
            out.line("   no signal: the step only has its share of what is left")?;
        }
    }
    if let Some(JudgeOpinion { model, verdict: Ok(verdict) }) = opinion {
        let place = ranking.iter().position(|step| step.seq == verdict.seq).map_or(0, |place| place + 1);
        out.line(format_args!(
            "\n{} names {}@{} (place {place}): {}",
            printable(model),
            printable(&run.id),
            verdict.seq,
            printable(&verdict.why)
        ))?;
    }
    let with = match (&args.reader.profile, is_redacted) {
        (Some(profile), true) => format!(" --as {profile}"),
        _ => String::new(),
    };
    let first = ranking.first().map_or(1, |step| step.seq);
    out.line(format_args!("\nnext: annals show {}@{first}{with}", printable(&run.id)))
}

fn judge_model(address: &str) -> CliResult<JudgeModel> {
    let variable = |name: &str| std::env::var(name).ok();
    JudgeModel::new(address, &variable).map_err(|why| {
        Failure::usage(format!("--judge: {why}"), "name a base address, for example http://127.0.0.1:8080/v1")
    })
}

/// The model's opinion: the kept one, else a new one, which is kept. The store is not open while the model thinks.
fn ask(
    judge: &JudgeModel,
    global: &GlobalArgs,
    door: StoreAccess,
    uid: RunUid,
    transcript: &Transcript,
) -> CliResult<JudgeOpinion> {
    let model = judge.name().to_owned();
    let request = suspect::judge_request(transcript, &model);
    let question = judge.question(&request);
    let parse = |answer: &[u8]| suspect::parse_verdict(answer, transcript).map_err(|error| error.to_string());
    if let Some(kept) = door.kept_verdict(question)?
        && let Ok(verdict) = parse(&kept)
    {
        return Ok(JudgeOpinion { model, verdict: Ok(verdict) });
    }
    drop(door);
    let answer = judge.ask(request);
    let verdict = answer.and_then(|answer| parse(&answer).map(|verdict| (verdict, answer)));
    let verdict = verdict.map(|(verdict, answer)| {
        let kept = super::open_existing_to_write(global).and_then(|door| {
            let kept = door.keep_verdict(uid, question, answer);
            kept.and(door.close())
        });
        if let Err(Failure::Message { message, .. }) = kept {
            print_note(format_args!("the verdict is not kept: {}", printable(&message)));
        }
        verdict
    });
    Ok(JudgeOpinion { model, verdict })
}
