#!/usr/bin/env python3
"""Real clients, unchanged: each doing is recorded once, replayed several times with the upstream stopped, and a changed request must be caught.

Usage: .ci/clients/run.py [--replays 20] [--client NAME]... [--work DIR]
Makes a virtual environment and a node_modules in DIR (default target/clients), with pip and npm; a client that cannot be installed is skipped and said.
Prints a table for docs/measurements/clients.md. ANNALS names the binary (default: target/debug/annals, built if it is not there).
"""
import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
DOINGS = ["plain", "stream", "concurrent", "errors", "tools", "binary"]


def installed(work):
    """Commands of the clients that are there."""
    clients = {}
    python = work / "venv" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", work / "venv"], check=True)
    packages = {"openai": ["openai"], "anthropic": ["anthropic"], "langgraph": ["langgraph", "langchain-openai"]}
    for package, needed in packages.items():
        asked = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
        version = subprocess.run([python, "-c", asked, *needed], capture_output=True, text=True)
        if version.returncode != 0:
            subprocess.run([python, "-m", "pip", "install", "-q", *needed], check=False)
            version = subprocess.run([python, "-c", asked, *needed], capture_output=True, text=True)
        if version.returncode == 0:
            clients[f"Python {package} {version.stdout.split()[0]}"] = [str(python), "-B", str(HERE / f"python_{package}.py")]
        else:
            print(f"skipped: Python {package} is not installed", file=sys.stderr)
    node = shutil.which("node")
    if node and shutil.which("npm"):
        modules = work / "node"
        modules.mkdir(parents=True, exist_ok=True)
        if not (modules / "node_modules" / "openai").exists():
            subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund", "openai"], cwd=modules, check=False)
        if (modules / "node_modules" / "openai").exists():
            shutil.copy(HERE / "node_openai.mjs", modules)
            import json
            version = json.loads((modules / "node_modules" / "openai" / "package.json").read_text())["version"]
            clients[f"Node openai {version}"] = [node, str(modules / "node_openai.mjs")]
    if not any(name.startswith("Node") for name in clients):
        print("skipped: Node openai is not installed", file=sys.stderr)
    if shutil.which("curl"):
        clients["bash and curl"] = ["bash", str(HERE / "curl.sh")]
    return clients


def knows(command, doing):
    return doing in pathlib.Path(next(part for part in command if str(HERE) in part or part.endswith(".mjs"))).read_text().split("Usage:")[1].splitlines()[0]


class Bench:
    def __init__(self, annals, work):
        self.annals, self.work = annals, work
        shutil.rmtree(work / "store", ignore_errors=True)

    def annals_run(self, *args, key):
        names = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")
        environment = {name: value for name, value in os.environ.items() if name not in names}
        if key:
            environment |= dict.fromkeys(names, "sk-a-key-that-must-not-be-kept")
        return subprocess.run([self.annals, "--store", self.work / "store", *args], env=environment, capture_output=True, timeout=120)

    def upstream(self):
        port_file = self.work / "port"
        port_file.unlink(missing_ok=True)
        server = subprocess.Popen([sys.executable, "-B", HERE / "upstream.py", port_file])
        while not port_file.exists():
            time.sleep(0.02)
        return server, f"http://127.0.0.1:{port_file.read_text()}"

    def one(self, command, doing, name, replays):
        server, url = self.upstream()
        recorded = self.annals_run("record", "--run", name, "--upstream", url, "--", *command, doing, key=True)
        server.kill()
        server.wait()
        if recorded.returncode != 0:
            return f"record ended with {recorded.returncode}: {recorded.stderr.decode()[-600:]}"
        wanted = recorded.stdout
        for number in range(replays):
            replayed = self.annals_run("replay", name, key=False)
            # Of two answers that came within a millisecond the client may have taken the later one first, which no proxy sees:
            # every branch has to get its own answer, and every replay the order of the first.
            if doing == "concurrent" and number == 0 and sorted(replayed.stdout.splitlines()) == sorted(wanted.splitlines()):
                wanted = replayed.stdout
            if replayed.returncode != 0 or b"unused 0" not in replayed.stderr or replayed.stdout != wanted:
                return f"replay {number + 1} ended with {replayed.returncode}: {replayed.stderr.decode()[-600:]}"
        return None

    def changed(self, command, name):
        replayed = self.annals_run("replay", name, "--", *command, "plain", "onf", key=False)
        if replayed.returncode == 3 and b"content" in replayed.stderr and b'"onf" was asked' in replayed.stderr:
            return None
        return f"a changed request ended with {replayed.returncode}: {replayed.stderr.decode()[-600:]}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--replays", type=int, default=20)
    parser.add_argument("--client", action="append")
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "target" / "clients")
    options = parser.parse_args()
    options.work = options.work.resolve()
    options.work.mkdir(parents=True, exist_ok=True)
    annals = os.environ.get("ANNALS") or ROOT / "target" / "debug" / "annals"
    if not pathlib.Path(annals).exists():
        subprocess.run(["cargo", "build", "-p", "annals-cli"], cwd=ROOT, check=True)
    bench, failed = Bench(annals, options.work), []
    print("| client | " + " | ".join(DOINGS) + " | one byte changed |")
    print("|" + "---|" * (len(DOINGS) + 2))
    for client, command in installed(options.work).items():
        if options.client and not any(name.lower() in client.lower() for name in options.client):
            continue
        row = []
        for doing in DOINGS:
            if not knows(command, doing):
                row.append("")
                continue
            wrong = bench.one(command, doing, f"{client} {doing}", options.replays)
            row.append(f"{options.replays} of {options.replays}" if wrong is None else "FAILED")
            if wrong:
                failed.append(f"{client}, {doing}: {wrong}")
        wrong = bench.changed(command, f"{client} plain")
        row.append("caught, field named" if wrong is None else "FAILED")
        if wrong:
            failed.append(f"{client}: {wrong}")
        print(f"| {client} | " + " | ".join(row) + " |", flush=True)
    for what in failed:
        print(what, file=sys.stderr)
    sys.exit(1 if failed else 0)


main()
