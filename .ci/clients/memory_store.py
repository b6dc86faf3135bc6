#!/usr/bin/env python3
"""docs/clients/annals-memory-store.ts: type-checked strictly, then asked for each rule of agentfootprint's MemoryStore against a daemon.

Usage: .ci/clients/memory_store.py [--work DIR]
The compiler is kept in DIR/typescript (default target/clients), installed by npm where it is not there; without node or npm, or without a registry the first
time, it is skipped and said. ANNALS names the binary (default: target/debug/annals). Ends with 1 if something is not as it should be.
"""
import argparse
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLIENT = ROOT / "docs" / "clients" / "annals-memory-store.ts"
RULES = ROOT / ".ci" / "clients" / "memory_store_rules.ts"
TYPESCRIPT = "5.9.3"
INSTALL_SECONDS_MAX = 120
# No types of a platform: the file brings those that it needs.
CONFIG = {
    "compilerOptions": {
        "strict": True, "noUncheckedIndexedAccess": True, "exactOptionalPropertyTypes": True, "noPropertyAccessFromIndexSignature": True, "noUnusedLocals": True,
        "noUnusedParameters": True, "noImplicitReturns": True, "noImplicitOverride": True, "target": "es2022", "lib": ["es2022"], "module": "nodenext",
        "moduleResolution": "nodenext", "types": [], "outDir": "built",
    },
    "files": [CLIENT.name, RULES.name],
}


class Skipped(Exception):
    """It cannot be done here."""


def compiler(work):
    """The compiler's script, installed once."""
    for command in ["node", "npm"]:
        if shutil.which(command) is None:
            raise Skipped(f"{command} is not installed")
    folder = work / "typescript"
    script = folder / "node_modules" / "typescript" / "bin" / "tsc"
    kept = folder / "node_modules" / "typescript" / "package.json"
    if script.exists() and f'"{TYPESCRIPT}"' in kept.read_text():
        return script
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "package.json").write_text("{}")
    command = ["npm", "install", "--loglevel=error", "--fetch-retries=1", "--no-audit", "--no-fund", f"typescript@{TYPESCRIPT}"]
    try:
        done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        raise Skipped(f"its registry took over {INSTALL_SECONDS_MAX} s") from None
    if done.returncode:
        raise Skipped((done.stderr + done.stdout).strip()[-200:] or "npm failed")
    return script


def serve(folder):
    """A daemon on a store of its own; with its address and token."""
    binary = os.environ.get("ANNALS", str(ROOT / "target" / "debug" / "annals"))
    child = subprocess.Popen([binary, "--store", folder / "store", "serve", "--http", "127.0.0.1:0"], stderr=subprocess.PIPE, text=True)
    said = ""
    while "annals: ready" not in said:
        line = child.stderr.readline()
        if not line:
            sys.exit(f"the daemon does not start: {said}")
        said += line
    token = re.search(r"shown only once: (\w+)", said)[1]
    address = re.search(r"127\.0\.0\.1:\d+", said)[0]
    return child, {"ANNALS_HTTP": f"http://{address}/", "ANNALS_TOKEN": token}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "target" / "clients")
    work = parser.parse_args().work
    began = time.monotonic()
    try:
        script = compiler(work)
    except Skipped as why:
        print(f"SKIPPED: {CLIENT.name} could not be checked: {why}")
        return 0
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for source in [CLIENT, RULES]:
            shutil.copy(source, folder)
        (folder / "package.json").write_text('{ "type": "module" }')
        (folder / "tsconfig.json").write_text(json.dumps(CONFIG))
        checked = subprocess.run(["node", script, "-p", "."], cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if checked.returncode:
            print(f"FAILED: {CLIENT.name} does not type-check:\n{checked.stdout}{checked.stderr}")
            return 1
        (folder / "built" / "package.json").write_text('{ "type": "module" }')
        daemon, environment = serve(folder)
        try:
            done = subprocess.run(["node", folder / "built" / RULES.with_suffix(".js").name], stdin=subprocess.DEVNULL, env=os.environ | environment, capture_output=True, text=True)
        finally:
            daemon.terminate()
            daemon.wait()
        print(f"{CLIENT.name}: type-checked with TypeScript {TYPESCRIPT}; {(done.stdout + done.stderr).strip()} ({time.monotonic() - began:.0f} s)")
        return 1 if done.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
