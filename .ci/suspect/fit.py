#!/usr/bin/env python3
"""Fits the weights of `annals suspect` to the development half of annotated logs, and writes weights.json.

    python3 -B .ci/suspect/fit.py LOGS [--write]

LOGS is Who&When's file of algorithm-generated logs, as JSON Lines, plain or `.xz`. Without --write the script
only prints the weights and their cross-validated accuracy.

The model is a conditional logistic regression: in a run, the annotated step is chosen among all steps with a
probability proportional to exp(weights . signals). A normal prior regularises it. Its mean is 0 for signals
that may raise or lower suspicion, and PRIOR for signals that name a fault: most of these are too rare in the
logs to be fitted, and keep about that weight (their prior is FAULT_FACTOR times as strong). The strength of
the prior is the greatest whose cross-validated log-likelihood is within one standard error of the best.
"""

import json
import math
import pathlib
import random
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import split  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
WEIGHTS = ROOT / "server/review/src/suspect/weights.json"
FEATURES = ["cargo", "run", "-q", "-p", "annals-review", "--example", "suspect_features"]

# Signals that name a fault, from `first_error` on in `Signal::ALL`.
FAULTS = ["first_error", "repeated_action", "contradiction", "unkept_promise", "unserved_instruction",
          "unoffered_tool", "stale_source", "ignored_failure", "lost_in_handover", "cut_short"]
PRIOR = 0.4
FAULT_FACTOR = 4.0
FOLDS = 10
REPEATS = 5
CANDIDATES = [1.0, 2.0, 4.0, 8.0, 16.0]


def runs_of(logs):
    """Of each log: the signals' values of each step, the steps' numbers from 0, the agents, the annotation."""
    lines = [json.dumps({"task": log["question"], "messages": log["history"]}) for log in logs]
    done = subprocess.run(FEATURES, input="\n".join(lines) + "\n", text=True, check=True, stdout=subprocess.PIPE,
                          cwd=ROOT)
    runs, names = [], None
    for log, line in zip(logs, done.stdout.splitlines(), strict=True):
        found = json.loads(line)
        names = found["signals"]
        steps = [step["seq"] - 1 for step in found["steps"]]
        runs.append({
            "values": [step["values"] for step in found["steps"]], "steps": steps,
            "agents": [step["agent"] for step in found["steps"]],
            "step": int(log["mistake_step"]), "agent": log["mistake_agent"],
        })
    return names, runs


def probabilities(run, weights):
    sums = [sum(w * v for w, v in zip(weights, values)) for values in run["values"]]
    most = max(sums)
    parts = [math.exp(total - most) for total in sums]
    return [part / sum(parts) for part in parts]


def solve(matrix, vector):
    """Gaussian elimination with pivots."""
    size = len(vector)
    rows = [row[:] + [value] for row, value in zip(matrix, vector)]
    for at in range(size):
        pivot = max(range(at, size), key=lambda row: abs(rows[row][at]))
        rows[at], rows[pivot] = rows[pivot], rows[at]
        for row in range(at + 1, size):
            factor = rows[row][at] / rows[at][at]
            if factor:
                rows[row] = [a - factor * b for a, b in zip(rows[row], rows[at])]
    solution = [0.0] * size
    for at in reversed(range(size)):
        known = sum(rows[at][col] * solution[col] for col in range(at + 1, size))
        solution[at] = (rows[at][size] - known) / rows[at][at]
    return solution


def fit(runs, prior, strength):
    """Newton's method on the log-likelihood with the prior."""
    size = len(prior)
    weights = prior[:]
    strengths = [strength * (FAULT_FACTOR if mean else 1.0) for mean in prior]
    for _ in range(30):
        gradient = [s * (p - w) for s, p, w in zip(strengths, prior, weights)]
        curve = [[strengths[a] if a == b else 0.0 for b in range(size)] for a in range(size)]
        for run in runs:
            if run["step"] not in run["steps"]:
                continue
            chosen = run["values"][run["steps"].index(run["step"])]
            shares = probabilities(run, weights)
            mean = [sum(p * values[k] for p, values in zip(shares, run["values"])) for k in range(size)]
            for k in range(size):
                gradient[k] += chosen[k] - mean[k]
            for p, values in zip(shares, run["values"]):
                off = [value - m for value, m in zip(values, mean)]
                for a in range(size):
                    if off[a]:
                        row, factor = curve[a], p * off[a]
                        for b in range(size):
                            row[b] += factor * off[b]
        change = solve(curve, gradient)
        weights = [w + c for w, c in zip(weights, change)]
        if max(map(abs, change)) < 1e-7:
            break
    return weights


def order(run, weights):
    """The places of the steps, best first, as `ranking.rs` orders them."""
    shares = probabilities(run, weights)
    agents = {}
    for agent, share in zip(run["agents"], shares):
        agents[agent] = agents.get(agent, 0.0) + share
    scores = [share * agents[agent] for agent, share in zip(run["agents"], shares)]
    return sorted(range(len(scores)), key=lambda at: (-scores[at], at))


def accuracy(runs, weights):
    """Step and agent accuracy, top-1 and top-3, and the log-likelihood of the annotated steps."""
    found = [0.0] * 5
    for run in runs:
        best = order(run, weights)
        steps = [run["steps"][at] for at in best]
        agents = list(dict.fromkeys(run["agents"][at] for at in best))
        found[0] += steps[0] == run["step"]
        found[1] += run["step"] in steps[:3]
        found[2] += agents[0] == run["agent"]
        found[3] += run["agent"] in agents[:3]
        if run["step"] in run["steps"]:
            found[4] += math.log(probabilities(run, weights)[run["steps"].index(run["step"])])
    return found


def cross_validated(runs, prior, strength):
    """The mean accuracy of runs that the weights are not fitted to, and the standard error of the last."""
    total = [0.0] * 5
    likelihoods = [0.0] * len(runs)
    for repeat in range(REPEATS):
        places = list(range(len(runs)))
        random.Random(repeat).shuffle(places)
        for fold in range(FOLDS):
            held = set(places[fold::FOLDS])
            weights = fit([run for at, run in enumerate(runs) if at not in held], prior, strength)
            for at in held:
                part = accuracy([runs[at]], weights)
                likelihoods[at] += part[4] / REPEATS
                total = [a + b for a, b in zip(total, part)]
    mean = sum(likelihoods) / len(runs)
    variance = sum((value - mean) ** 2 for value in likelihoods) / (len(runs) - 1)
    return [value / REPEATS / len(runs) for value in total], math.sqrt(variance / len(runs))


def main():
    path = sys.argv[1]
    logs = split.read(path, "development")
    names, runs = runs_of(logs)
    prior = [PRIOR if name in FAULTS else 0.0 for name in names]
    results = []
    for strength in CANDIDATES:
        result, error = cross_validated(runs, prior, strength)
        results.append((strength, result[4], error))
        print(f"strength {strength:4}: step {result[0]:.3f}, in 3 {result[1]:.3f}; agent {result[2]:.3f}, "
              f"in 3 {result[3]:.3f}; log-likelihood {result[4]:.3f} +- {error:.3f}")
    _, most, error = max(results, key=lambda result: result[1])
    chosen = max(strength for strength, likelihood, _ in results if likelihood >= most - error)
    weights = fit(runs, prior, chosen)
    seen = [sum(any(values[k] for values in run["values"]) for run in runs) for k in range(len(names))]
    for name, weight, count in zip(names, weights, seen):
        print(f"{name:24} {weight:7.3f}   seen in {count} of {len(runs)} runs")
    document = {
        "made_by": ".ci/suspect/fit.py", "logs": len(runs), "prior_strength": chosen,
        "weights": {name: round(weight, 3) for name, weight in zip(names, weights)},
    }
    if "--write" in sys.argv[2:]:
        WEIGHTS.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
