#!/usr/bin/env python3
"""`annals serve` killed again and again while agents record thoughts, decisions and sessions: nothing acknowledged is lost or applied twice.

    decisions.py [--kills 30] [--clients 8] [--seed N] [--binary target/debug/annals] [--lie]

Each client has a session of its own. It records thoughts (DELIB.THOUGHT), now and then a decision that takes them (DELIB.RECORD), and reports
sessions that changed a weight (DIAG.RECORD). At a random moment the process is killed (SIGKILL) and started again on the same store. At the end each client records
a last decision. Then:

- each acknowledged thought is an input of exactly one decision; one that was under way at a kill, of at most one;
- each acknowledged decision is there once; one that was under way, at most once;
- each acknowledged session is in the history of its weight once; one that was under way, at most once.

--lie makes the checker expect a thought that nobody recorded: it must fail. A failure prints what it saw and the command that repeats it
(the moments of the kills repeat, what clients came to by then does not), and ends with 1.
"""

import argparse
import collections
import json
import pathlib
import random
import signal
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from serve import Connection, Daemon, Hung, Wrong  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parents[2]
# A query returns at most 1,000 decisions.
DECISIONS_MAX = 900


class Agent:
    def __init__(self, number, seed):
        self.name = f"c{number}"
        self.random = random.Random(f"{seed}/{number}")
        self.count = 0
        # {kind: names}: acknowledged, and under way at a kill.
        self.done, self.doubt = collections.defaultdict(set), collections.defaultdict(set)

    def begin(self, address):
        self.address, self.failed = address, None
        self.thread = threading.Thread(target=self.work, daemon=True)
        self.thread.start()

    def work(self):
        try:
            connection = Connection(self.address)
            while True:
                kinds, weights = ["thought", "decision", "session"], [16, 1, 3]
                if len(self.done["decision"]) + len(self.doubt["decision"]) >= DECISIONS_MAX:
                    weights[1] = 0
                self.write(connection, self.random.choices(kinds, weights)[0])
        except Hung:
            pass
        except Exception as error:  # An error for a reply, or of this script: either is told.
            self.failed = f"{self.name}: {type(error).__name__}: {error}"

    def write(self, connection, kind):
        self.count += 1
        name = f"{self.name} {kind} {self.count}"
        self.doubt[kind].add(name)
        scope = ("SESSION", self.name)
        if kind == "thought":
            connection.ask("DELIB.THOUGHT", json.dumps({"text": name, "agentId": self.name}), *scope)
        elif kind == "decision":
            connection.ask("DELIB.RECORD", json.dumps({"decision": name, "confidence": 0.5, "agentId": self.name}), *scope)
        else:
            report = {"sessionId": name, "outcome": "accepted", "injectedObservationIds": [f"o-{self.name}"], "helpfulObservationIds": [f"o-{self.name}"]}
            connection.ask("DIAG.RECORD", json.dumps(report), "STRICT")
        self.doubt[kind].remove(name)
        self.done[kind].add(name)

    def check(self, connection):
        found = json.loads(connection.ask("DELIB.QUERY", json.dumps({"limit": 1000, "includeDeliberation": True, "filters": {"agentId": self.name}}), "SESSION", "checker"))
        if found["total"] > 1000:
            raise Wrong(f"{self.name} has {found['total']} decisions: more than a query returns")
        decisions = collections.Counter(decision["summary"] for decision in found["decisions"])
        thoughts = collections.Counter(
            given["text"] for decision in found["decisions"] for given in (decision.get("deliberation") or {}).get("inputs", [])
        )
        changes = [json.loads(change) for change in connection.ask("DIAG.HISTORY", "OBSERVATION", f"o-{self.name}")]
        sessions = collections.Counter(change["sessionId"] for change in changes)
        for kind, seen in (("decision", decisions), ("thought", thoughts), ("session", sessions)):
            lost = [name for name in self.done[kind] if seen[name] == 0]
            twice = [name for name, times in seen.items() if times > 1]
            invented = [name for name in seen if name not in self.done[kind] and name not in self.doubt[kind]]
            if lost or twice or invented:
                raise Wrong(f"{self.name}, {kind}s: lost {lost[:3]}, twice {twice[:3]}, never written {invented[:3]}")
        return {kind: len(names) for kind, names in self.done.items()}


def run(options, store):
    chance = random.Random(options.seed)
    agents = [Agent(number, options.seed) for number in range(options.clients)]
    for _ in range(options.kills):
        daemon = Daemon(options.binary, store)
        for agent in agents:
            agent.begin(daemon.tcp)
        time.sleep(chance.uniform(0.05, 0.6))
        daemon.end(signal.SIGKILL)
        for agent in agents:
            agent.thread.join()
            if agent.failed:
                raise Wrong(agent.failed)
    daemon = Daemon(options.binary, store)
    try:
        connection = Connection(daemon.tcp)
        total = collections.Counter()
        for agent in agents:
            agent.write(connection, "decision")
        if options.lie:
            agents[0].done["thought"].add("nobody recorded this")
        for agent in agents:
            total.update(agent.check(connection))
        under_way = sum(len(names) for agent in agents for names in agent.doubt.values())
    finally:
        daemon.end(signal.SIGTERM)
    return total, under_way


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--binary", default=str(ROOT / "target" / "debug" / "annals"))
    parser.add_argument("--lie", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        try:
            total, under_way = run(options, directory + "/store")
        except Wrong as wrong:
            print(f"WRONG: {wrong}\nrepeat with: .ci/kills/decisions.py --seed {options.seed} --kills {options.kills} --clients {options.clients}")
            return 1
    print(f"{options.kills} kills, seed {options.seed}: {dict(total)} acknowledged, {under_way} under way at a kill: none lost, none twice")
    return 0


if __name__ == "__main__":
    sys.exit(main())
