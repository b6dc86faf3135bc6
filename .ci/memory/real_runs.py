#!/usr/bin/env python3
"""Measures what annals remembers of 200 real runs, and what a follow-up question costs.

Usage: real_runs.py ANNALS DATA

ANNALS is the program. DATA is `historical_trajectories/gpt-4o-airline.json` of GitHub sierra-research/tau-bench (MIT),
plain or compressed with xz: 50 tasks of an airline's customers, four runs each.

Prints the tables of docs/memory.md. Exits with 1 if a bound below is not kept.
"""

import json
import lzma
import pathlib
import random
import re
import statistics
import subprocess
import sys
import tempfile
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
PRICES = ROOT / "server/policy/src/providers/prices.toml"
MONDAY = ROOT / "engine/memory/tests/memory/memory.rs"
RENDERED = ROOT / "engine/memory/tests/data/rendered_projections.json"

# The models of the source's example.
DERIVES, READS = "claude-sonnet-4", "claude-haiku-4"
QUESTIONS_MAX = 1000

# Bounds; the figures of docs/memory.md keep them with room.
RIGHT_MIN, WRONG_MAX, UNKNOWN_ANSWERED_MAX = 0.95, 0.02, 0.01

CUSTOMER = re.compile(r"\b[a-z]+_[a-z]+_\d{4}\b")
RESERVATION = re.compile(r"\b(?=[A-Z0-9]*\d)(?=[A-Z0-9]*[A-Z])[A-Z0-9]{6}\b")
FLIGHT = re.compile(r"HAT\d{3}")
PLEASANTRY = re.compile(
    r"welcome|have a (great|wonderful|safe|nice|good|pleasant)|safe travels|take care|goodbye|glad (i|to|we)", re.I
)
ASKS_BACK = re.compile(r"(could|can|would) you|please (provide|confirm|let me know|share|specify)|may i have|i('ll| will) need", re.I)


def tokens(text):
    """Four UTF-16 units a token, as annals counts where a recording has no count."""
    return -(-len(text.encode("utf-16-le")) // 8)


def dollars(model, read, written):
    price = tomllib.loads(PRICES.read_text())["models"][model]
    return (read * price["input"] + written * price["output"]) / 1e6


class Store:
    def __init__(self, annals, data):
        self.annals = annals
        self.directory = tempfile.TemporaryDirectory()
        self.data = pathlib.Path(self.directory.name) / "runs.json"
        self.data.write_bytes(data)
        print(self.run(
            "import", "--format", "chat", "--id", "{task_id}-{trial}", "--model", "gpt-4o",
            "--remember", "--tenant", "airline", str(self.data),
        ).strip())

    def run(self, verb, *args):
        store = str(pathlib.Path(self.directory.name) / "store")
        done = subprocess.run([self.annals, verb, "--store", store, *args], capture_output=True, text=True)
        if done.returncode not in (0, 1):
            sys.exit(f"{verb}: {done.stderr}")
        return done.stdout

    def recall(self, question, *args):
        found = self.run("recall", "--tenant", "airline", "--across-conversations", "--json", *args, question)
        return [json.loads(line) for line in found.splitlines()]


def run_of(hit):
    return re.match(r"run-(\d+-\d+)", hit["id"]).group(1)


def ids_in(text):
    return set(CUSTOMER.findall(text)) | {id for id in RESERVATION.findall(text) if not FLIGHT.match(id)}


def last_sentence(text):
    parts = [part for part in re.split(r"(?<=[.!?])\s+", text.strip()) if part]
    return parts[-1] if parts else ""


def entries_table(store, runs):
    entries = store.recall("reservation", "--top-k", str(QUESTIONS_MAX), "--threshold", "-1")
    if len(entries) == QUESTIONS_MAX:
        sys.exit(f"there may be more than {QUESTIONS_MAX} entries")
    answers = [entry["snapshot"]["finalContent"] for entry in entries]
    plain = [entry for entry in entries if not re.search(r"\d", entry["snapshot"]["finalContent"])]
    without_tools = [entry for entry in plain if not entry["snapshot"]["toolCalls"]]
    asking = [entry for entry in without_tools if ASKS_BACK.search(entry["snapshot"]["finalContent"])]
    rows = [
        ("runs", len(runs)),
        ("runs without an entry", len(runs) - len({run_of(entry) for entry in entries})),
        ("entries", len(entries)),
        ("answers that are a pleasantry alone", sum(bool(PLEASANTRY.match(answer)) for answer in answers)),
        ("answers whose last sentence is one", sum(bool(PLEASANTRY.search(last_sentence(a))) for a in answers)),
        ("answers without a digit", len(plain)),
        ("of these, with tool calls as evidence", len(plain) - len(without_tools)),
        ("of these, without, that ask the user back", len(asking)),
        ("runs with a digit in no answer", len(runs) - len({run_of(e) for e in entries if e not in plain})),
    ]
    print("\n| what is remembered | number |\n|---|---|")
    for name, count in rows:
        print(f"| {name} | {count} |")
    return entries


def identifiers_table(store, runs):
    """Questions from identifiers in the tool calls of the runs: the best hit must hold the identifier."""
    held = {}
    for name, run in runs.items():
        text = json.dumps([message.get("tool_calls") for message in run["traj"]])
        for id in ids_in(text):
            held.setdefault(id, set()).add(name)
    everything = json.dumps(list(runs.values()))
    random.seed(26)
    counts = {}
    for kind in ("customer", "reservation", "unknown"):
        counts[kind] = {"right": 0, "wrong": 0, "nothing": 0}
    wrong = []
    for id in sorted(held):
        altered = id
        while altered in everything:
            at = random.randrange(len(id))
            same = "0123456789" if id[at].isdigit() else "abcdefghijklmnopqrstuvwxyz" if id[at].islower() else "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
            altered = id[:at] + random.choice(same) + id[at + 1:] if id[at] != "_" else id
        for asked, kind in ((id, "customer" if CUSTOMER.match(id) else "reservation"), (altered, "unknown")):
            hits = store.recall(f"What was done about {asked}?")
            is_right = hits and (asked in json.dumps(hits[0]["snapshot"]) or run_of(hits[0]) in held.get(asked, ()))
            outcome = "nothing" if not hits else "right" if is_right else "wrong"
            counts[kind][outcome] += 1
            if outcome == "wrong" or kind != "unknown" and outcome == "nothing":
                wrong.append((asked, outcome))
    print("\n| \"What was done about X?\" | right | wrong | nothing | of |\n|---|---|---|---|---|")
    for kind, of in counts.items():
        print(f"| {kind} | {of['right']} | {of['wrong']} | {of['nothing']} | {sum(of.values())} |")
    print("missed:", ", ".join(f"{id} ({outcome})" for id, outcome in wrong) or "none", file=sys.stderr)
    return counts


def costs_table(runs, entries):
    """A follow-up about each task's first run, whose answer is as long as the recorded one."""
    largest = {}
    for entry in entries:
        name = run_of(entry)
        if len(entry["text"]) > len(largest.get(name, entry)["text"]) or name not in largest:
            largest[name] = entry
    rows = []
    firsts = {}
    for name, run in sorted(runs.items(), key=lambda named: named[1]["trial"]):
        firsts.setdefault(run["task_id"], name)
    for name in firsts.values():
        trajectory, entry = runs[name]["traj"], largest[name]
        sizes = [tokens(json.dumps(message, ensure_ascii=False)) for message in trajectory]
        answers = [at for at, message in enumerate(trajectory) if message["role"] == "assistant"]
        again = sum(sum(sizes[:at]) for at in answers), sum(sizes[at] for at in answers)
        written = tokens(entry["snapshot"]["finalContent"])
        read = tokens(entry["text"])
        rows.append(follow_up(again, sum(sizes), read, written))
    print("\n| a follow-up | tokens: the run again, its history, its evidence | the run again, large model "
          "| history, large | evidence, large | evidence, small | again : evidence, small | history : evidence, small |")
    print("|---|---|---|---|---|---|---|---|")
    print_costs("the source's example", source_example())
    print_costs(f"{len(rows)} real runs, median", tuple(statistics.median(column) for column in zip(*rows)))
    print_costs(f"{len(rows)} real runs, sum", tuple(sum(column) for column in zip(*rows)))
    for name, cost in (("again", 3), ("history", 4)):
        ratios = sorted(row[cost] / row[6] for row in rows)
        print(f"{name} : evidence, small: from {ratios[0]:.1f} to {ratios[-1]:.1f}, median {statistics.median(ratios):.1f}")
    dearer = sum(row[4] <= row[6] for row in rows)
    print(f"runs whose evidence costs as much as their history: {dearer}")


def follow_up(again, history, evidence, written):
    """Tokens, and dollars of the four ways."""
    return (
        again[0] + again[1], history, evidence,
        dollars(DERIVES, *again), dollars(DERIVES, history, written),
        dollars(DERIVES, evidence, written), dollars(READS, evidence, written),
    )


def print_costs(name, row):
    again, history, evidence, *costs = row
    shown = " | ".join(f"${cost:.4f}" for cost in costs)
    print(f"| {name} | {again:,.0f}, {history:,.0f}, {evidence:,.0f} | {shown} "
          f"| {costs[0] / costs[3]:.1f} | {costs[1] / costs[3]:.1f} |")


def source_example():
    """Monday's run of the source with the tokens that its snapshot recorded, in one call. The evidence is what `decisions` puts into Friday's prompt."""
    monday = re.search(r'MONDAY: &str = r#"(.*?)"#', MONDAY.read_text(), re.S).group(1)
    usage = json.loads(monday)["tokenUsage"]
    evidence = tokens(json.loads(RENDERED.read_text())["doc"]["decisions"][0]["content"])
    written = tokens(json.loads(monday)["finalContent"])
    return follow_up((usage["input"], usage["output"]), usage["input"], evidence, written)


def main():
    annals, path = sys.argv[1:3]
    data = pathlib.Path(path).read_bytes()
    data = lzma.decompress(data) if data.startswith(b"\xfd7zXZ") else data
    runs = {f"{run['task_id']}-{run['trial']}": run for run in json.loads(data)}
    store = Store(annals, data)
    entries = entries_table(store, runs)
    counts = identifiers_table(store, runs)
    costs_table(runs, entries)
    known = [counts["customer"], counts["reservation"]]
    asked = sum(sum(of.values()) for of in known)
    right, wrong = (sum(of[outcome] for of in known) / asked for outcome in ("right", "wrong"))
    unknown = counts["unknown"]
    answered = 1 - unknown["nothing"] / sum(unknown.values())
    if right < RIGHT_MIN or wrong > WRONG_MAX or answered > UNKNOWN_ANSWERED_MAX:
        sys.exit(f"right {right:.3f}, wrong {wrong:.3f}, unknown ids answered {answered:.3f}: outside of the bounds")


if __name__ == "__main__":
    main()
