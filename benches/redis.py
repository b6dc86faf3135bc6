#!/usr/bin/env python3
"""`annals serve` beside Redis on one machine, both with a sync for every write, by redis-benchmark: medians of interleaved rounds.

    cargo build --profile dist
    python3 benches/redis.py [--rounds 7] [--seconds 3] [--only 'SET,GET'] [--over tcp,unix] [--binary FILE]... [--dir DIR]

50 clients, values of 512 bytes, over loopback TCP without passwords and over Unix sockets. Both stores lie in fresh directories below DIR
(the system's place for temporary files), which should be on a disk. Needs redis-server, redis-benchmark and redis-cli on the PATH.
Prints a table in Markdown for each binary of annals, all of which take turns with the same Redis: requests a second, 99th percentile and
microseconds of processor a request (of the server alone, all its threads), their ratios, and the goals. A missed goal is bold. The ratio of
processor time is the steadiest figure on a machine where other work runs; the load before and after is printed.
"""

import argparse
import csv
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
VALUE_BYTES = 512
CLIENTS = 50

# name, words of the command ("" where redis-benchmark has a test of that name), pipeline, goal: times Redis' requests a second
WORK = [
    ("SET", [], 1, 1.3),
    ("SET", [], 16, 1.0),
    ("GET", [], 1, 1.0),
    ("GET", [], 16, 1.0),
    ("XADD", ["XADD", "bench", "*", "field", "v" * VALUE_BYTES], 1, 1.3),
    ("XADD", ["XADD", "bench", "*", "field", "v" * VALUE_BYTES], 16, 1.0),
]
# Goal: at most this many times Redis' 99th percentile.
P99_GOAL = 1.2


class Server:
    """One server in a directory of its own."""

    def __init__(self, name, directory, port, command):
        self.name, self.port, self.socket = name, port, str(directory / "s.sock")
        directory.mkdir()
        log = open(directory / "log", "w")
        self.child = subprocess.Popen(command(directory, self.socket), stdout=log, stderr=log, cwd=directory)
        for _ in range(200):
            if self.says("PING") == "PONG":
                return
            time.sleep(0.05)
        sys.exit(f"{name} does not answer: {(directory / 'log').read_text()}")

    def says(self, *words):
        asked = subprocess.run(["redis-cli", "-s", self.socket, *words], capture_output=True, text=True)
        return asked.stdout.strip()

    def measure(self, over, name, words, pipeline, requests):
        """Requests a second, the 99th percentile in ms, and microseconds of processor a request."""
        at = ["-s", self.socket] if over == "unix" else ["-h", "127.0.0.1", "-p", str(self.port)]
        command = ["redis-benchmark", *at, "-c", str(CLIENTS), "-n", str(requests), "-P", str(pipeline), "--csv"]
        command += words if words else ["-d", str(VALUE_BYTES), "-r", "100000", "-t", name.lower()]
        before = self.processor_seconds()
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        used = self.processor_seconds() - before
        last = list(csv.DictReader(line for line in said.splitlines() if line.startswith('"')))[-1]
        return float(last["rps"]), float(last["p99_latency_ms"]), used * 1e6 / requests

    def processor_seconds(self):
        """Processor time of all threads of the server so far."""
        fields = pathlib.Path(f"/proc/{self.child.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self):
        self.child.terminate()
        self.child.wait()


def redis(directory, socket):
    return [
        "redis-server", "--port", "7431", "--bind", "127.0.0.1", "--unixsocket", socket, "--dir", str(directory),
        "--appendonly", "yes", "--appendfsync", "always", "--save", "", "--no-appendfsync-on-rewrite", "no",
        "--auto-aof-rewrite-percentage", "0",
    ]


def annals(binary, port):
    serve = ["--tcp", f"127.0.0.1:{port}", "--no-auth"]
    return lambda directory, socket: [binary, "--store", str(directory / "store"), "serve", "--socket", socket, *serve]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=3, help="about how long one measurement takes")
    parser.add_argument("--only", default="", help="names of commands, with commas: SET, GET, XADD")
    parser.add_argument("--over", default="tcp,unix")
    parser.add_argument("--binary", action="append", help="an annals to measure (default: target/dist/annals); can be repeated")
    parser.add_argument("--dir", default=None)
    options = parser.parse_args()
    unknown = set(filter(None, options.only.split(","))) - {name for name, *_ in WORK}
    if unknown:
        parser.error(f"--only has unknown names: {', '.join(sorted(unknown))}; there are {', '.join(dict.fromkeys(name for name, *_ in WORK))}")
    binaries = options.binary or [str(ROOT / "target" / "dist" / "annals")]
    place = pathlib.Path(tempfile.mkdtemp(dir=options.dir))
    servers = []
    try:
        servers.append(Server("redis", place / "redis", 7431, redis))
        for at, binary in enumerate(binaries):
            port = 7440 + at
            servers.append(Server(binary, place / f"annals-{at}", port, annals(str(pathlib.Path(binary).resolve()), port)))
        print(f"load before: {os.getloadavg()[0]:.1f}; medians of {options.rounds}\n")
        print("| annals | over | command | annals /s | Redis /s | ratio | goal | p99 ms: annals, Redis | ratio | processor us: annals, Redis | ratio |")
        print("|---" * 11 + "|")
        for over in options.over.split(","):
            for name, words, pipeline, goal in WORK:
                if options.only and name not in options.only.split(","):
                    continue
                compare(servers, over, name, words, pipeline, goal, options)
        print(f"\nload after: {os.getloadavg()[0]:.1f}")
    finally:
        for server in servers:
            server.stop()
        shutil.rmtree(place)


def compare(servers, over, name, words, pipeline, goal, options):
    # What a round takes is found by a short one, which also warms up.
    counts = [int(max(2000, server.measure(over, name, words, pipeline, 4000)[0] * options.seconds)) for server in servers]
    seen = [[] for _ in servers]
    for turn in range(options.rounds):
        order = range(len(servers)) if turn % 2 == 0 else reversed(range(len(servers)))
        for at in order:
            seen[at].append(servers[at].measure(over, name, words, pipeline, counts[at]))
    theirs, *all_ours = [[statistics.median(column) for column in zip(*one)] for one in seen]
    for server, ours in zip(servers[1:], all_ours):
        rate, p99, processor = (our / their for our, their in zip(ours, theirs))
        rate = f"{rate:.2f}" if rate >= goal else f"**{rate:.2f}**"
        p99 = f"{p99:.2f}" if p99 <= P99_GOAL else f"**{p99:.2f}**"
        print(
            f"| {pathlib.Path(server.name).name} | {over} | {name} -P {pipeline} | {ours[0]:,.0f} | {theirs[0]:,.0f} | {rate} | {goal} "
            f"| {ours[1]:.2f}, {theirs[1]:.2f} | {p99} | {ours[2]:.1f}, {theirs[2]:.1f} | {processor:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
