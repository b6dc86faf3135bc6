#!/usr/bin/env python3
"""`annals serve` beside Redis on one machine, both with a sync for every write, by redis-benchmark: medians of interleaved rounds.

    cargo build --profile dist
    python3 benches/redis.py [--rounds 5] [--seconds 3] [--only 'SET,GET'] [--dir DIR]

50 clients, values of 512 bytes, over loopback TCP without passwords and over Unix sockets. Both stores lie in fresh directories below DIR
(the system's place for temporary files), which should be on a disk. Needs redis-server, redis-benchmark and redis-cli on the PATH.
Prints a table in Markdown: requests a second and 99th percentile of each, and the ratios.
"""

import argparse
import csv
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

# name, words of the command ("" where redis-benchmark has a test of that name), pipeline
WORK = [
    ("SET", [], 1),
    ("SET", [], 16),
    ("GET", [], 1),
    ("GET", [], 16),
    ("XADD", ["XADD", "bench", "*", "field", "v" * VALUE_BYTES], 1),
    ("XADD", ["XADD", "bench", "*", "field", "v" * VALUE_BYTES], 16),
]


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
        """Requests a second and the 99th percentile in ms."""
        at = ["-s", self.socket] if over == "unix" else ["-h", "127.0.0.1", "-p", str(self.port)]
        command = ["redis-benchmark", *at, "-c", str(CLIENTS), "-n", str(requests), "-P", str(pipeline), "--csv"]
        command += words if words else ["-d", str(VALUE_BYTES), "-r", "100000", "-t", name.lower()]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        last = list(csv.DictReader(line for line in said.splitlines() if line.startswith('"')))[-1]
        return float(last["rps"]), float(last["p99_latency_ms"])

    def stop(self):
        self.child.terminate()
        self.child.wait()


def redis(directory, socket):
    return [
        "redis-server", "--port", "7431", "--bind", "127.0.0.1", "--unixsocket", socket, "--dir", str(directory),
        "--appendonly", "yes", "--appendfsync", "always", "--save", "", "--no-appendfsync-on-rewrite", "no",
        "--auto-aof-rewrite-percentage", "0",
    ]


def annals(directory, socket):
    built = str(ROOT / "target" / "dist" / "annals")
    return [built, "--store", str(directory / "store"), "serve", "--socket", socket, "--tcp", "127.0.0.1:7430", "--no-auth"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3, help="about how long one measurement takes")
    parser.add_argument("--only", default="", help="names of the table's first column, with commas")
    parser.add_argument("--over", default="tcp,unix")
    parser.add_argument("--dir", default=None)
    options = parser.parse_args()
    place = pathlib.Path(tempfile.mkdtemp(dir=options.dir))
    servers = []
    try:
        servers.append(Server("annals", place / "annals", 7430, annals))
        servers.append(Server("redis", place / "redis", 7431, redis))
        print(f"| over | command | annals /s | Redis /s | ratio | annals p99 ms | Redis p99 ms | ratio |\n|{'---|' * 8}")
        for over in options.over.split(","):
            for name, words, pipeline in WORK:
                if options.only and name not in options.only.split(","):
                    continue
                compare(servers, over, name, words, pipeline, options)
    finally:
        for server in servers:
            server.stop()
        shutil.rmtree(place)


def compare(servers, over, name, words, pipeline, options):
    # What a round takes is found by a short one, which also warms up.
    counts = [int(max(2000, server.measure(over, name, words, pipeline, 4000)[0] * options.seconds)) for server in servers]
    seen = [[], []]
    for turn in range(options.rounds):
        for at in (0, 1) if turn % 2 == 0 else (1, 0):
            seen[at].append(servers[at].measure(over, name, words, pipeline, counts[at]))
    (ours, our_p99), (theirs, their_p99) = ([statistics.median(column) for column in zip(*one)] for one in seen)
    print(
        f"| {over} | {name} -P {pipeline} | {ours:,.0f} | {theirs:,.0f} | {ours / theirs:.2f} "
        f"| {our_p99:.2f} | {their_p99:.2f} | {our_p99 / their_p99:.2f} |",
        flush=True,
    )


if __name__ == "__main__":
    main()
