#!/usr/bin/env python3
"""A table of real clients under annals: calls made, recorded, missed and said; exact on replays; connections during replays.

Usage: .ci/clients/matrix.py [--annals PATH] [--cache DIR] [--work DIR] [--client TEXT]... [--replays 5] [--jobs 2] [--list]
Each client is installed by name from PyPI or npm into DIR of --cache, and runs unchanged against a scripted provider on this
machine (matrix/provider.py), which numbers its calls. Variables that the client reads name the provider; some programs have an
address in their text. Then, for each client:
1. The program runs alone: these are its calls.
2. `annals record` runs it. The provider's numbers in the frames say which calls are recorded; the others are missed. annals
   has to say that, in its closing lines and in the run's metadata (NETWORK_LINE and NETWORK_KEY), and has to end with 1.
3. `annals replay` runs it five times, without a key and with a provider that counts each connection and answers none.
Ends with 1 if a call was missed in silence, if a replay reached the provider, if `replay` called a replay exact whose output is
not the recorded one, or if a client that was asked for could not be run.
"""
import argparse
import concurrent.futures
import dataclasses
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE / "matrix"))
import agent_clients  # noqa: E402
import node_clients  # noqa: E402
import python_clients  # noqa: E402
import shell_clients  # noqa: E402
from install import Installer  # noqa: E402
from provider import Provider  # noqa: E402

# How annals says that calls were missed: words of a closing line of `record`, and a key of the metadata of the run or its program.
NETWORK_LINE = re.compile("did not go through annals", re.I)
NETWORK_KEY = "network"
# How a replay says that a connection was refused, and that the program's output is not the recorded one.
IS_REFUSED = re.compile("REFUSED: ")
IS_UNLIKE = re.compile("output is (not|another)|output differs", re.I)
KEY = "sk-a-key-that-must-not-be-kept"
SECONDS_MAX = 180
COLUMNS = ["client", "version", "calls", "recorded", "missed", "said", "exact replays", "connections during replays", "doctor", "note"]


@dataclasses.dataclass
class Ended:
    """How a program ended."""
    code: int
    out: str
    err: str

    def last_line(self):
        lines = [line for line in self.err.splitlines() if line.strip()]
        return lines[-1][:300] if lines else ""


def run(command, environment, folder):
    """Runs a program with an empty home, so that it finds nothing of its run before."""
    shutil.rmtree(environment["HOME"], ignore_errors=True)
    os.makedirs(environment["HOME"])
    child = subprocess.Popen(command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, start_new_session=True)
    try:
        out, err = child.communicate(timeout=SECONDS_MAX)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        out, err = child.communicate()
        err += f"\nmatrix: killed after {SECONDS_MAX} s".encode()
    return Ended(child.returncode, out.decode(errors="replace"), err.decode(errors="replace"))


def shape(text):
    """What a program printed, but for numbers and the order of its lines: the provider's numbers differ between two runs."""
    return sorted(re.sub(r"\d+", "N", line) for line in text.splitlines())


class Trial:
    """One client under annals."""

    def __init__(self, client, options, installer):
        self.client, self.options = client, options
        self.folder = options.work / f"{client.runtime}-{re.sub('[^a-z0-9]+', '-', client.name.lower()).strip('-')}"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.provider = Provider([options.address, options.address])
        self.named, fixed = self.provider.urls
        client = dataclasses.replace(client, script=client.script.lstrip().replace("FIXED", fixed))
        self.command = installer.command(client, self.folder)
        self.path = os.pathsep.join([*map(str, installer.path()), os.environ["PATH"]])
        self.faults, self.notes = [], [client.note] if client.note else []

    def environment(self, with_keys, is_alone=False):
        values = {"PATH": self.path, "HOME": str(self.folder / "home"), "LANG": "C.UTF-8", **self.client.settings}
        if is_alone or not self.client.upstreams:
            values |= {name: self.named + path for name, path in self.client.reads.items()}
        return values | (dict.fromkeys(self.client.keys, KEY) if with_keys else {})

    def options_of(self, option):
        return [word for host in self.client.expected for word in (option, host)]

    def annals(self, *words, with_keys=True):
        command = [self.options.annals, "--store", self.folder / "store", *words]
        return run(command, self.environment(with_keys), self.folder)

    def keep(self, name, ended):
        (self.folder / f"{name}.out").write_text(ended.out)
        (self.folder / f"{name}.err").write_text(f"{ended.err}\nexit code {ended.code}\n")

    def row(self):
        alone = run(self.command, self.environment(True, is_alone=True), self.folder)
        self.keep("alone", alone)
        self.alone_calls = calls = self.provider.since(0)
        if alone.code != 0 or not calls:
            self.faults.append(f"alone, the program ends with {alone.code} after {len(calls)} calls: {alone.last_line()}")
        doctor = self.annals("doctor", "--agent", "--", *self.command)
        self.keep("doctor", doctor)
        recorded, said, counts = self.record(alone, len(calls))
        exact, connections = self.replay(alone.code, recorded.out, counts["missed"])
        verdict = "not covered" if doctor.code else "cannot tell" if "likely captured: cannot be told" in doctor.out else "covered"
        if counts["missed"] and verdict == "covered":
            verdict += " (WRONG)"
        if self.client.expected:
            self.notes.append("recorded and replayed with " + " ".join([*self.options_of("--expect-host"), *self.options_of("--refuse-quietly")]))
        if self.provider.odd:
            self.notes.append("the provider did not understand: " + "; ".join(sorted(set(self.provider.odd)))[:120])
        notes = "; ".join([*self.notes, *(f"**{fault}**" for fault in self.faults)])
        return [counts["calls"], counts["recorded"], counts["missed"], said, exact, connections, verdict, notes]

    def record(self, alone, before):
        upstreams = [word for provider in self.client.upstreams for word in ("--upstream", f"{provider}={self.named}")]
        recorded = self.annals("record", "--run", "r", *upstreams, *self.options_of("--expect-host"), "--", *self.command)
        self.keep("record", recorded)
        calls = self.provider.since(before)
        frames = self.objects(self.annals("--json", "replay", "r"))
        numbers = [number for frame in frames for number in self.numbers(frame)]
        missed = {number: call for number, call in calls.items() if number not in numbers}
        kept = self.kept([*self.objects(self.annals("--json", "show", "r")), *frames])
        # 1 is annals' own, for what it missed.
        codes = {alone.code} if not NETWORK_LINE.search(recorded.err) else {alone.code, 1}
        if shape(recorded.out) != shape(alone.out) or recorded.code not in codes:
            self.faults.append(f"`record` breaks it: it ends with {recorded.code} and prints something else than alone: {self.reason(recorded)}")
        # A client that is refused a WebSocket by annals asks the provider once less.
        alone_count, count = (sum(call["is_model"] for call in of.values()) for of in (self.alone_calls, calls))
        if alone_count != count:
            self.faults.append(f"{alone_count} model calls alone, {count} under `record`")
        silent = [where for where, is_said in (("in the closing lines", NETWORK_LINE.search(recorded.err)), ("in the run's metadata", kept)) if not is_said]
        said = "" if not missed else "**NO**" if silent else "yes"
        if missed and silent:
            where = "the variable's address" if all(call["listener"] == self.named for call in missed.values()) else "the fixed address"
            self.faults.append(f"{len(missed)} calls to {where} missed in silence: not said {' and not '.join(silent)}")
        if missed and recorded.code == 0:
            self.faults.append("`record` ends with 0 with calls missed")
        if not missed and NETWORK_LINE.search(recorded.err):
            self.notes += [f"`record` says: {line[:200]}" for line in recorded.err.splitlines() if NETWORK_LINE.search(line)]
        if len(missed) + len(set(numbers) & set(calls)) != len(calls) or len(numbers) != len(set(numbers)):
            self.faults.append(f"frames {numbers} do not fit calls {sorted(calls)}")
        return recorded, said, {"calls": len(calls), "recorded": len(calls) - len(missed), "missed": len(missed)}

    @staticmethod
    def objects(ended):
        return [json.loads(line) for line in ended.out.splitlines() if line.startswith("{")]

    @staticmethod
    def kept(objects):
        """Whether a run or its program's frame keeps connections that annals did not record."""
        all_metadata = [value.get("metadata") or {} for value in objects]
        places = [place for metadata in all_metadata for place in (metadata, metadata.get("volatile") or {})]
        return any((place.get(NETWORK_KEY) or {}).get("connections") for place in places)

    @staticmethod
    def numbers(frame):
        """The provider's number of the call that a frame has recorded."""
        headers = ((frame.get("metadata") or {}).get("volatile") or {}).get("response_headers") or []
        return [int(value) for name, value in headers if name == "x-call"]

    @staticmethod
    def reason(ended):
        """A line that names annals, or the last one."""
        lines = [line.strip() for line in ended.err.splitlines() if "annals: " in line and not line.startswith("annals: ")]
        return (lines[-1] if lines else ended.last_line())[:200]

    def replay(self, code, printed, missed):
        good, why = 0, {}
        with self.provider.closed() as connections:
            for number in range(self.options.replays):
                replayed = self.annals("replay", "r", *self.options_of("--refuse-quietly"), with_keys=False)
                self.keep(f"replay-{number + 1}", replayed)
                called_exact = "annals: replayed r: exact" in replayed.err
                same = replayed.out == printed
                if replayed.code == code and called_exact and same:
                    good += 1
                    continue
                if replayed.code == code and not same and called_exact and not IS_UNLIKE.search(replayed.err):
                    self.faults.append("false exact: `replay` says exact, its output is another")
                reason = f"exit code {replayed.code}, output {'equal' if same else 'other'}: {replayed.last_line()}"
                reason = re.sub(r"\(\d.*|fingerprint \w+", "", reason)
                why[reason] = why.get(reason, 0) + 1
            if missed:
                # A client without a key ends before it connects: with one, annals has to refuse the connection and say so.
                tempted = self.annals("replay", "r", with_keys=True)
                self.keep("replay-with-keys", tempted)
                if tempted.code == 0:
                    self.faults.append("a replay of a run with missed calls ends with 0")
                if IS_REFUSED.search(tempted.err) is None:
                    self.notes.append("the replay with a key does not say that a connection was refused")
            count = connections()
        if count:
            self.faults.append(f"{count} connections to the provider during replays")
        self.notes += [f"{count} replays: {reason}" for reason, count in why.items()]
        self.faults = list(dict.fromkeys(self.faults))
        return f"{good} of {self.options.replays}", count


def asked_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--annals", type=pathlib.Path, default=ROOT / "target" / "debug" / "annals", help="the binary [default: target/debug/annals]")
    parser.add_argument("--cache", type=pathlib.Path, default=ROOT / "target" / "matrix", help="where packages are installed [default: target/matrix]")
    parser.add_argument("--work", type=pathlib.Path, default=None, help="programs, stores and outputs of this run [default: work in the cache]")
    parser.add_argument("--client", action="append", help="only clients whose name contains this text; may be repeated")
    parser.add_argument("--replays", type=int, default=5, help="replays of each client [default: 5]")
    parser.add_argument("--jobs", type=int, default=2, help="clients at once [default: 2]")
    parser.add_argument("--address", default="127.0.0.1", help="the address of this machine that the provider listens on [default: 127.0.0.1]")
    parser.add_argument("--agents", action="store_true", help="also coding agents, which are large")
    parser.add_argument("--list", action="store_true", help="print the clients and end")
    options = parser.parse_args()
    options.annals, options.cache = options.annals.resolve(), options.cache.resolve()
    options.work = (options.work or options.cache / "work").resolve()
    return options


def main():
    options = asked_options()
    clients = [*python_clients.CLIENTS, *node_clients.CLIENTS, *shell_clients.CLIENTS, *(agent_clients.CLIENTS if options.agents else [])]
    if options.client:
        clients = [client for client in clients if any(text.lower() in client.name.lower() for text in options.client)]
    if options.list:
        return print(*(f"{client.runtime:7} {client.name}: {' '.join(client.packages)}" for client in clients), sep="\n")
    if not clients:
        sys.exit("no client has such a name; --list prints them")
    installer = Installer(options.cache)
    absent = installer.prepare(clients)

    def one(client):
        if client.name in absent:
            return ["", "", "", "", "", "", "", "", f"**SKIPPED: {absent[client.name]}**"], [f"skipped: {absent[client.name]}"]
        trial = Trial(client, options, installer)
        return [installer.version(client), *trial.row()], trial.faults

    faults, sums = [], [0] * 4
    print("| " + " | ".join(COLUMNS) + " |\n|" + "---|" * len(COLUMNS), flush=True)
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for client, (row, wrong) in zip(clients, pool.map(one, clients)):
            print(f"| {client.name} | " + " | ".join(str(cell).replace("|", "\\|").replace("\n", " ") for cell in row) + " |", flush=True)
            faults += [f"{client.name}: {fault}" for fault in wrong]
            sums = [have + (more or 0) for have, more in zip(sums, [*row[1:4], row[6]])]
    print(f"\n{len(clients)} clients: {sums[0]} calls, {sums[1]} recorded, {sums[2]} missed; {sums[3]} connections during replays.")
    for fault in faults:
        print(f"FAULT {fault}", file=sys.stderr)
    sys.exit(1 if faults else 0)


main()
