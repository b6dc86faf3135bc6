#!/usr/bin/env python3
"""Measures `annals blame` as a user runs it: forks, time, and bytes on disk for each fork.

    python3 -B .ci/blame/measure.py ANNALS [--steps 20] [--k 10] [--jobs N]

ANNALS is the program. A scripted model answers on the loopback, without delay, and errs once, in the middle step. The
agent is cli/tests/agents/steps.py, which uses Python's standard library only: each fork also pays for the start of
Python. The script prints one row of the table in docs/blame.md. It ends with 1 if the planted step does not come first.
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

AGENT = pathlib.Path(__file__).resolve().parents[2] / "cli/tests/agents/steps.py"


def model(faulty):
    """A model that errs when it is first asked for the faulty step; its address."""
    erred = threading.Event()

    class Answer(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            step = 1 + sum(message["role"] == "assistant" for message in request["messages"])
            text = f"value {step}"
            if step == faulty and not erred.is_set():
                erred.set()
                text = "value WRONG"
            message = {"role": "assistant", "content": text}
            body = json.dumps({"id": "x", "model": request["model"], "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                               "usage": {"prompt_tokens": 10, "completion_tokens": 5}}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("annals")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--k", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args()
    faulty = (args.steps + 1) // 2
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("ANNALS_", "OPENAI_"))}
    with tempfile.TemporaryDirectory() as folder:
        def annals(*words, fails=False):
            done = subprocess.run([os.path.abspath(args.annals), "--store", f"{folder}/store", *words], cwd=folder, text=True,
                                  env=environment, stdin=subprocess.DEVNULL, capture_output=True)
            if done.returncode != (1 if fails else 0):
                sys.exit(f"annals {words[0]} ended with {done.returncode}: {done.stderr}")
            return done
        annals("record", "--run", "r", "--upstream", model(faulty), "--", sys.executable, "-B", str(AGENT), str(args.steps), fails=True)
        began = time.monotonic()
        blamed = annals("blame", "r", "--k", str(args.k), "--no-early-stop", "--jobs", str(args.jobs), "--json")
        seconds = time.monotonic() - began
        grown = re.search(r"the store grew by (.*) a fork", blamed.stderr)
    result = json.loads(blamed.stdout)
    first = result["steps"][0]["step"]
    print(f"| {result['spent']['forks']} forks of a run of {args.steps} steps, {args.jobs} at once, agent in Python; "
          f"{grown[1]} on disk a fork | {result['spent']['forks']} | {seconds:.1f} s |")
    return 0 if first == faulty else f"step {faulty} was planted, and step {first} came first"


if __name__ == "__main__":
    sys.exit(main())
