#!/usr/bin/env python3
"""Measures `annals blame` as a user runs it: forks, time, and bytes on disk for each fork. Prints the table of docs/blame.md.

    python3 -B .ci/blame/measure.py ANNALS [--steps 20] [--k 10] [--jobs N] [--all] [--tracefork PROGRAM]

ANNALS is the program. A scripted model answers on the loopback, without delay, and errs once, in the middle step. The
first row has an agent that is compiled, `annals scripted-agent`; the second has cli/tests/agents/steps.py, which uses
Python's standard library only: each fork also pays for the start of Python. The third asks whether one fork of that run
still fails. `--all` adds `annals validate`, and `--tracefork` the benchmark of tracefork beside it. The script ends with 1
if a planted step does not come first, if the one fork still fails or takes more than WHAT_IF_SECONDS_MAX, or if
`validate` or `validate --competing` at their defaults take more than VALIDATE_SECONDS_MAX. No program gets a key.
"""

import argparse
import http.server
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time

# `validate` must stay a matter of seconds. The limit holds for the shipped build on a machine with nothing else to do.
VALIDATE_SECONDS_MAX = 15
# A question about one fork is answered while a person waits.
WHAT_IF_SECONDS_MAX = 5
AGENT = pathlib.Path(__file__).resolve().parents[2] / "cli/tests/agents/steps.py"


def model(faulty, right, wrong):
    """A model that errs when it is first asked for the faulty step; its address."""
    erred = threading.Event()

    class Answer(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            step = 1 + sum(message["role"] == "assistant" for message in request["messages"])
            text = f"value {step}"
            if step == faulty:
                text = right if erred.is_set() else wrong
                erred.set()
            message = {"role": "assistant", "content": text}
            body = json.dumps({"id": "x", "model": request["model"], "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                               "usage": {"prompt_tokens": 10, "completion_tokens": 5}}).encode()
            head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            # One write: two would wait for the peer's delayed acknowledgement.
            self.wfile.write(head + body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def environment():
    return {key: value for key, value in os.environ.items() if not key.startswith(("ANNALS_", "OPENAI_", "ANTHROPIC_"))}


def timed(words, folder, code=0):
    """Runs a program; what it printed, and its seconds."""
    began = time.monotonic()
    done = subprocess.run(words, cwd=folder, text=True, env=environment(), stdin=subprocess.DEVNULL, capture_output=True)
    if done.returncode != code:
        sys.exit(f"{' '.join(words)} ended with {done.returncode}: {done.stderr}{done.stdout}")
    return done, time.monotonic() - began


def forks(args, what, agent, right, wrong):
    """Blames a run of this agent; prints its row. Returns what is wrong with the ranking."""
    faulty = (args.steps + 1) // 2
    with tempfile.TemporaryDirectory() as folder:
        annals = [args.annals, "--store", f"{folder}/store"]
        timed([*annals, "record", "--run", "r", "--upstream", model(faulty, right, wrong), "--", *agent], folder, code=1)
        blame = [*annals, "blame", "r", "--k", str(args.k), "--no-early-stop", "--jobs", str(args.jobs), "--json"]
        blamed, seconds = timed(blame, folder)
        grown = re.search(r"the store grew by (.*) a fork", blamed.stderr)
    result = json.loads(blamed.stdout)
    steps, number = result["steps"], result["spent"]["forks"]
    print(f"| {number} forks of a run of {args.steps} steps, {args.jobs} at once, {what}; {grown[1]} on disk a fork | {number} | {seconds:.1f} s |")
    flips = [row["step"] for row in steps if row["flips"] > 0]
    return [] if flips == [faulty] and steps[0]["valid"] == args.k else [f"step {faulty} was planted, and steps {flips} flipped"]


def what_if(args, agent):
    """Asks whether a run still fails without its fault; prints the row. Returns what is wrong."""
    faulty = (args.steps + 1) // 2
    with tempfile.TemporaryDirectory() as folder:
        annals = [args.annals, "--store", f"{folder}/store"]
        timed([*annals, "record", "--run", "r", "--upstream", model(faulty, "value right", "value WRONG"), "--", *agent], folder, code=1)
        asked, seconds = timed([*annals, "fork", f"r@{faulty - 1}", "--oracle", "exit"], folder)
    print(f"| `fork RUN@{faulty - 1} --oracle exit` of the run of {args.steps} steps, agent in Python | 1 | {seconds:.1f} s |")
    wrong = [] if "no longer fails" in asked.stderr else [f"the fork without the fault: {asked.stderr}"]
    return wrong + ([f"a what-if took {seconds:.1f} s, more than {WHAT_IF_SECONDS_MAX} s"] if seconds > WHAT_IF_SECONDS_MAX else [])


def validations(args):
    """Validates; prints the rows. Returns what took too long."""
    slow = []
    with tempfile.TemporaryDirectory() as folder:
        done, seconds = timed([args.annals, "validate", "--json"], folder)
        report = json.loads(done.stdout)
        print(f"| `validate`: {len(report['classes'])} classes at {report['classes'][0]['runs']} steps each, k = {report['forks_per_step']}: "
              f"top-1 {report['overall']:.2f} ({report['interval']['low']:.2f} to {report['interval']['high']:.2f}), "
              f"negative control {report['negative_max']:.2f} | {report['forks']} | {seconds:.1f} s |")
        for verb in (["validate"], ["validate", "--competing"]):
            _, took = timed([args.annals, *verb], folder)
            if took > VALIDATE_SECONDS_MAX:
                slow.append(f"annals {' '.join(verb)} took {took:.1f} s, more than {VALIDATE_SECONDS_MAX} s")
        done, seconds = timed([args.annals, "validate", "--competing", "--seeds", "20", "--json"], folder)
        report = json.loads(done.stdout)
        right, planted = (sum(cause[place] for cause in report["causes"].values()) for place in (0, 1))
        print(f"| `validate --competing --seeds 20`: {right} of {planted} right | {report['forks']} | {seconds:.1f} s |")
    return slow


def tracefork(args):
    with tempfile.TemporaryDirectory() as folder:
        version, _ = timed([args.tracefork, "--version"], folder)
        for verb, line in (("validate", r"overall top-1 precision: .*"), ("bench", r"\d+/\d+ planted cases resolve correctly")):
            done, seconds = timed([args.tracefork, verb], folder)
            print(f"| {version.stdout.strip().split()[-1]} `tracefork {verb}`: {re.search(line, done.stdout)[0]} | | {seconds:.1f} s |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("annals", type=os.path.abspath)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--tracefork")
    args = parser.parse_args()
    script = json.dumps({"steps": args.steps, "succeeds_if": [{"value": "good"}]})
    wrong = forks(args, "compiled agent", [args.annals, "scripted-agent", script], "NOTE value=good", "NOTE value=bad")
    python = [sys.executable, "-B", str(AGENT), str(args.steps)]
    wrong += forks(args, "agent in Python", python, "value right", "value WRONG")
    wrong += what_if(args, python)
    if args.all:
        wrong += validations(args)
    if args.tracefork:
        tracefork(args)
    return "; ".join(wrong) or 0


if __name__ == "__main__":
    sys.exit(main())
