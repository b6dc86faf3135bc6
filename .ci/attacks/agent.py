"""A model provider that answers anything, and a program to record that asks it."""

import http.server
import json
import re
import subprocess
import sys
import threading

import lib

# Asks so many times with bodies that do not compress, prints a line for each answer, and waits for the file GATE after the first.
PROGRAM = """
import json, os, random, sys, time, urllib.request
many, gate, rng = int(sys.argv[1]), sys.argv[2], random.Random(sys.argv[3])
for number in range(many):
    asked = {"model": "m-1", "messages": [{"role": "user", "content": f"{number} " + rng.randbytes(12_000).hex()}]}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(asked).encode(),
                                     {"content-type": "application/json", "authorization": "Bearer none"})
    try:
        urllib.request.urlopen(request).read()
        print("answered", number, flush=True)
    except OSError as error:
        print("refused", number, error, flush=True)
    while number == 0 and gate != "-" and not os.path.exists(gate):
        time.sleep(0.02)
"""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length", 0)))
        body = json.dumps({"id": "c-1", "object": "chat.completion", "created": 1, "model": "m-1", "usage": {"prompt_tokens": 1, "completion_tokens": 1},
                           "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "yes"}}]}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Upstream:
    def __enter__(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        return self

    def __exit__(self, *_):
        self.server.shutdown()

    def command(self, store, run, many, gate="-", seed=0):
        return [lib.BINARY, "--store", store, "record", "--run", run, "--no-memory", "--no-stdin", "--upstream", self.url, "--",
                sys.executable, "-c", PROGRAM, str(many), str(gate), str(seed)]

    def start(self, store, run, many, gate, before=None):
        """A recorder whose program has made its first request and waits for the gate."""
        command = self.command(store, run, many, gate)
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=lib.ENVIRONMENT, start_new_session=True, preexec_fn=before)
        first = child.stdout.readline()
        if not first.startswith(b"answered"):
            raise SystemExit(f"the program cannot be recorded: {first} {child.stderr.read().decode()}")
        return child, command


def said_frames(outcome):
    """The number of requests that the closing line says are recorded; None without such a line."""
    said = re.search(r"recorded ([\d,]+) requests? into", outcome.err)
    return int(said[1].replace(",", "")) if said else None


def stored_frames(store, run):
    """The number of whole model calls of a run that the store has."""
    return sum(line.get("component") == "llm" and not line.get("incomplete") for line in lib.lines(lib.annals(store, "replay", run, "--json")))
