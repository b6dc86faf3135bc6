#!/usr/bin/env python3
"""Many recordings into one store while the process that holds the store is killed again and again.

    recorders.py [--recordings 1000] [--processes 10] [--kills 100] [--calls 6] [--seed N] [--binary target/release/annals] [--lie]

Processes run `annals record` one after another, all into one store. Each records a small client that asks a scripted upstream of this script,
plain and streamed. At random moments the process that holds the store is killed (SIGKILL); one of the others has to take over. Beside them
`annals compact`, `retain`, `pin`, `unpin` and `put` run all the time. Afterwards:

- every recorder that was not killed ended with 0, and said that it recorded every request of its program;
- its run is ok, has each exchange once and in order, with the bytes that the upstream sent, and the program's own output;
- the run of a killed recorder is abandoned, and holds the first exchanges of its program, each once; every answer that the program had before
  its next request is there;
- no other run is there, no upkeep was refused, and `annals verify` finds nothing.

--lie expects an exchange that never was: the check must fail. A failure prints what it saw, the seed, and the command that repeats it (the
moments of the kills repeat, what recorders came to by then does not), and ends with 1.
"""

import argparse
import collections
import http.server
import itertools
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]

# The recorded program: one connection, raw HTTP, so that starting it costs little. It prints each answer's length.
CLIENT = r"""
import os, socket, sys
name, calls = sys.argv[1], int(sys.argv[2])
host, rest = os.environ["OPENAI_BASE_URL"].split("://")[1].split(":")
port, path = rest.split("/", 1)
for number in range(calls):
    stream = "true" if number % 2 else "false"
    body = ('{"model":"m","stream":%s,"messages":[{"role":"user","content":"%s/%d %s"}]}' % (stream, name, number, "word " * (number * 40))).encode()
    with socket.create_connection((host, int(port))) as wire:
        wire.sendall(b"POST /%s/chat/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\n"
                     b"content-length: %d\r\n\r\n%b" % (path.encode(), len(body), body))
        answer = b"".join(iter(lambda: wire.recv(65536), b""))
    print(number, answer.split(b" ", 2)[1].decode(), flush=True)
"""


class Wrong(Exception):
    """The store is not what it has to be."""


class Upstream(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Answers)
        # {(run, number): the body that was sent}
        self.sent = {}
        self.count = itertools.count(1)

    def handle_error(self, *_):
        """The client was a recorder that has been killed."""


class Answers(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        run, number = asked["messages"][0]["content"].split(" ")[0].split("/")
        text = f"answer {next(self.server.count)} " + "and more " * (int(number) * 90)
        if not asked["stream"]:
            message = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
            body = json.dumps({"id": "c", "object": "chat.completion", "model": "m", "choices": [message]}).encode()
            self.server.sent[run, int(number)] = body
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        parts = [text[at : at + 100] for at in range(0, len(text), 100)]
        events = [json.dumps({"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": {"content": part}}]}) for part in parts]
        events = [f"data: {event}\n\n".encode() for event in [*events, "[DONE]"]]
        self.server.sent[run, int(number)] = b"".join(events)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for event in events:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))
            time.sleep(0.004)
        self.wfile.write(b"0\r\n\r\n")


class Recording:
    def __init__(self, name):
        self.name, self.is_killed = name, False

    def begin(self, bench):
        command = [bench.binary, "--store", bench.store, "record", "--run", self.name, "--linger", "0s"]
        command += ["--upstream", bench.url, "--", sys.executable, "-I", "-S", bench.client, self.name, str(bench.calls)]
        self.child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def wait(self):
        self.told, self.said = self.child.communicate()
        self.code = self.child.returncode


class Bench:
    def __init__(self, options, folder):
        self.binary, self.store, self.calls = options.binary, f"{folder}/store", options.calls
        self.client = f"{folder}/client.py"
        pathlib.Path(self.client).write_text(CLIENT)
        self.upstream = Upstream()
        self.url = f"http://127.0.0.1:{self.upstream.server_port}"
        threading.Thread(target=self.upstream.serve_forever, daemon=True).start()
        self.names = iter([f"r-{number}" for number in range(options.recordings)])
        self.lock = threading.Lock()
        self.under_way, self.done = {}, []
        self.is_over = threading.Event()
        self.upkeep = collections.Counter()
        self.refused = []

    def annals(self, *words):
        return subprocess.run([self.binary, "--store", self.store, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True)

    def record(self):
        """Records until no recording is left."""
        while True:
            with self.lock:
                name = next(self.names, None)
                if name is None:
                    return
                recording = Recording(name)
                recording.begin(self)
                self.under_way[recording.child.pid] = recording
            recording.wait()
            with self.lock:
                del self.under_way[recording.child.pid]
                self.done.append(recording)

    def kill_holder(self):
        """Kills the recorder that holds the store; False if there is none at this moment."""
        try:
            pid = int(pathlib.Path(self.store, "LOCK").read_text().split()[0])
        except (OSError, ValueError, IndexError):
            return False
        with self.lock:
            recording = self.under_way.get(pid)
            if recording is None or recording.is_killed or recording.child.poll() is not None:
                return False
            recording.is_killed = True
            os.kill(pid, signal.SIGKILL)
            return True

    def keep_up(self):
        """Upkeep beside the recorders, one after another."""
        for number in itertools.count():
            if self.is_over.is_set():
                return
            with self.lock:
                run = next((recording.name for recording in reversed(self.done) if not recording.is_killed), None)
            verbs = [("compact",), ("retain",), ("put", f"k{number % 7}", str(number))]
            if run:
                verbs += [("pin", run, "--why", "a test"), ("unpin", run)]
            for words in verbs:
                done = self.annals(*words)
                self.upkeep[words[0]] += 1
                if done.returncode:
                    self.refused.append(f"{' '.join(words)}: {done.stderr}")


def check(bench, recordings):
    listed = [json.loads(line) for line in bench.annals("runs", "--json").stdout.splitlines()]
    runs = {run["id"]: run for run in listed}
    if len(runs) != len(listed) or not set(runs) <= {recording.name for recording in recordings}:
        raise Wrong(f"{len(listed)} runs are listed, {len(runs)} names")
    exchanges = 0
    for recording in recordings:
        run = runs.get(recording.name)
        # It may have been killed between its run's end and its own.
        if recording.is_killed and (run is None or run["status"] != "ok"):
            if run and run["status"] != "abandoned" or "annals: recorded" in recording.said:
                raise Wrong(f"{recording.name} was killed, and its run is {run}: {recording.said}")
            is_whole = False
        else:
            said = f"recorded {bench.calls} requests into {recording.name}" in recording.said
            if not recording.is_killed and (recording.code != 0 or not said):
                raise Wrong(f"{recording.name} ended with {recording.code}: {recording.said}")
            if run is None or run["status"] != "ok":
                raise Wrong(f"{recording.name} said that all is recorded, and its run is {run}")
            is_whole = True
        if run is None:
            continue
        read = bench.annals("replay", recording.name, "--json")
        if read.returncode:
            raise Wrong(f"{recording.name} cannot be read: {read.stderr}")
        frames = [json.loads(line) for line in read.stdout.splitlines()]
        calls = [frame for frame in frames if frame["component"] == "llm"]
        for number, frame in enumerate(calls):
            sent = bench.upstream.sent.get((recording.name, number))
            asked = json.loads(frame["input"])["messages"][0]["content"].split(" ")[0]
            if asked != f"{recording.name}/{number}":
                raise Wrong(f"frame {frame['seq']} of {recording.name} is call {asked}, expected {number}")
            if frame.get("incomplete"):
                if is_whole or not sent.startswith(frame["output"].encode()):
                    raise Wrong(f"call {number} of {recording.name} is incomplete")
            elif sent is None or frame["output"].encode() != sent:
                raise Wrong(f"call {number} of {recording.name} has {len(frame['output'])} bytes, not what was sent")
        told = recording.told.splitlines()
        if not is_whole:
            # An answer is written when the next request has begun, so only the last one may be missing.
            whole = [frame for frame in calls if not frame.get("incomplete")]
            if len(whole) + 1 < len(told):
                raise Wrong(f"{recording.name} was told {len(told)} answers, and {len(whole)} are there")
        else:
            program = [frame for frame in frames if frame["component"] == "program"]
            if len(calls) != bench.calls or len(program) != 1 or not program[0]["output"].startswith(recording.told):
                raise Wrong(f"{recording.name} has {len(calls)} exchanges and {len(program)} ends")
        exchanges += len(calls)
    return exchanges


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--calls", type=int, default=6)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**32))
    parser.add_argument("--binary", default=str(ROOT / "target" / "release" / "annals"))
    parser.add_argument("--lie", action="store_true")
    options = parser.parse_args()
    again = (
        f"{sys.argv[0]} --recordings {options.recordings} --processes {options.processes} --kills {options.kills} "
        f"--calls {options.calls} --seed {options.seed} --binary {options.binary}"
    )
    print(f"seed {options.seed}: {again}", flush=True)
    moments, began, kills = random.Random(options.seed), time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, folder)
        workers = [threading.Thread(target=bench.record, daemon=True) for _ in range(options.processes)]
        upkeep = threading.Thread(target=bench.keep_up, daemon=True)
        if bench.annals("init").returncode:
            sys.exit("annals init failed")
        for thread in [*workers, upkeep]:
            thread.start()
        # Spread over the recordings: kill k comes at a random moment after its share of them is done.
        while kills < options.kills and any(worker.is_alive() for worker in workers):
            due = kills * max(options.recordings - options.processes, 1) / options.kills
            if len(bench.done) < due:
                time.sleep(0.005)
                continue
            time.sleep(moments.randrange(0, 150) / 1000)
            while any(worker.is_alive() for worker in workers) and not bench.kill_holder():
                time.sleep(0.002)
            kills += 1
        for worker in workers:
            worker.join()
        bench.is_over.set()
        upkeep.join()
        killed = sum(recording.is_killed for recording in bench.done)
        try:
            if options.lie:
                bench.done[0].said = bench.done[0].said.replace("recorded", "recorded more than")
                bench.done[0].is_killed = False
            if bench.refused:
                raise Wrong(f"{len(bench.refused)} of {sum(bench.upkeep.values())} upkeep commands were refused: {bench.refused[0]}")
            # An opening for writing abandons what killed recorders left open.
            bench.annals("put", "last", "x")
            exchanges = check(bench, bench.done)
            verified = bench.annals("verify")
            if verified.returncode:
                raise Wrong(f"verify: {verified.stdout}{verified.stderr}")
        except Wrong as wrong:
            print(f"FAILED after {killed} kills: {wrong}\n{again}")
            sys.exit(1)
    kept = ", ".join(f"{name} {count}" for name, count in sorted(bench.upkeep.items()))
    print(
        f"{len(bench.done)} recordings by {options.processes} processes, {killed} holders killed, {exchanges:,} exchanges, all there once; "
        f"beside them {kept}; {time.monotonic() - began:.0f} s"
    )


if __name__ == "__main__":
    main()
