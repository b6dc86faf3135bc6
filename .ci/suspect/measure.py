#!/usr/bin/env python3
"""Measures `annals suspect` on one half of annotated logs, as a user runs it, beside trivial answers.

    python3 -B .ci/suspect/measure.py ANNALS LOGS development|test

ANNALS is the program, LOGS is Who&When's file of algorithm-generated logs (JSON Lines, plain or `.xz`). Only the
task and the messages of a log are imported; annotations are read here alone. The answers that are compared are
chosen on the development half: `always step K`, the agent of message K, and the most frequent agent. `--check`
fails if the result is not above every one of them.
"""

import collections
import json
import math
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import split  # noqa: E402

STEPS = 10


def ranked(program, logs):
    """The steps (from 0) and agents of each log, best first, from `suspect RUN --json`."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        def annals(*words, given=None):
            return subprocess.run([program, "--store", f"{folder}/store", *words], input=given, text=True, check=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
        lines = [json.dumps({"id": f"log-{at}", "question": log["question"], "history": log["history"]})
                 for at, log in enumerate(logs)]
        annals("import", "--format", "chat", "-", given="\n".join(lines))
        for at in range(len(logs)):
            steps = json.loads(annals("suspect", f"log-{at}", "--json"))
            found.append(([step["seq"] - 1 for step in steps], [step["agent"] for step in steps]))
    return found


def interval(hits, total):
    """Wilson's 95% interval of a share."""
    z, share = 1.959964, hits / total
    middle = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z / (1 + z * z / total) * math.sqrt(share * (1 - share) / total + z * z / (4 * total * total))
    return middle - half, middle + half


def mcnemar(ours, theirs):
    """The exact two-sided p of McNemar's test, and the numbers of logs that only one side gets right."""
    only_ours = sum(a and not b for a, b in zip(ours, theirs))
    only_theirs = sum(b and not a for a, b in zip(ours, theirs))
    total = only_ours + only_theirs
    tail = sum(math.comb(total, k) for k in range(min(only_ours, only_theirs) + 1)) / 2 ** total
    return min(1.0, 2 * tail), only_ours, only_theirs


def step_of(log):
    return int(log["mistake_step"])


def step_answers():
    """Answers that look at no message: name, and a function from a log to an order of steps."""
    answers = {f"always step {k}": (lambda log, k=k: [k]) for k in range(STEPS)}
    answers["always the last step"] = lambda log: [len(log["history"]) - 1]
    return answers


def agent_answers(development):
    answers = {f"the agent of message {k}": (lambda log, k=k: [log["history"][k]["name"]] if k < len(log["history"]) else [])
               for k in range(STEPS)}
    counts = collections.Counter(log["mistake_agent"] for log in development).most_common(3)
    answers[f"always {counts[0][0]}"] = lambda log: [counts[0][0]]
    answers["the agent of the last message"] = lambda log: [log["history"][-1]["name"]]
    answers["the agent with the most messages"] = lambda log: [
        collections.Counter(m["name"] for m in log["history"]).most_common(1)[0][0]]
    return answers


def best_three(logs, candidates, truth):
    """The three fixed answers that together hold the truth most often."""
    import itertools
    return max(itertools.combinations(candidates, 3), key=lambda three: sum(truth(log) in three for log in logs))


def row(name, hits, three=None):
    low, high = interval(sum(hits), len(hits))
    text = f"| {name} | {sum(hits)}/{len(hits)} = {100 * sum(hits) / len(hits):.1f}% | {100 * low:.1f} to {100 * high:.1f} |"
    return f"{text} {'' if three is None else f'{100 * sum(three) / len(three):.1f}%'} |"


def main():
    program, path, half = sys.argv[1:4]
    development, logs = split.read(path, "development"), split.read(path, half)
    found = ranked(program, logs)
    fails = 0
    for level in ("step", "agent"):
        if level == "step":
            truth, answers = step_of, step_answers()
            orders = [steps for steps, _ in found]
            random = [1 / len(log["history"]) for log in logs]
            threes = best_three(development, range(STEPS), truth)
            three_name, three_hits = f"steps {threes}", [truth(log) in threes for log in logs]
        else:
            truth, answers = (lambda log: log["mistake_agent"]), agent_answers(development)
            orders = [list(dict.fromkeys(agents)) for _, agents in found]
            random = [1 / len({m["name"] for m in log["history"]}) for log in logs]
            three_name = three_hits = None
        ours = [truth(log) in order[:1] for log, order in zip(logs, orders)]
        three = [truth(log) in order[:3] for log, order in zip(logs, orders)]
        best = max(answers, key=lambda name: sum(truth(log) in answers[name](log)[:1] for log in development))
        print(f"\n{level} level, {half} half, {len(logs)} logs\n")
        print("| answer | top-1 | 95% interval | top-3 |\n|---|---|---|---|")
        print(row("annals suspect", ours, three))
        for name, answer in answers.items():
            hits = [truth(log) in answer(log)[:1] for log in logs]
            fails += sum(hits) >= sum(ours)
            print(row(name + (" (best on the development half)" if name == best else ""), hits))
        if three_name:
            print(f"| {three_name}, best three on the development half | | | {100 * sum(three_hits) / len(logs):.1f}% |")
        print(f"| random | {100 * sum(random) / len(logs):.1f}% | | |")
        theirs = [truth(log) in answers[best](log)[:1] for log in logs]
        p, more, less = mcnemar(ours, theirs)
        print(f"\nagainst `{best}`: {more} logs only by annals, {less} only by it; McNemar exact p = {p:.4f}")
    print(f"\nfixed answers that are at least as good: {fails}")
    if "--check" in sys.argv[4:] and fails:
        sys.exit(3)


if __name__ == "__main__":
    main()
