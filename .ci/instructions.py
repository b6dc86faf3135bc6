#!/usr/bin/env python3
"""Counts the instructions of the engine's hot paths and holds them against the committed counts.

Timings on a shared machine say little; how many instructions a path takes hardly varies. Valgrind's callgrind runs
benches/src/bin/hot.rs and counts what happens in the calling thread between a path's first and last instruction, in
the program's own code (a C library's differ from system to system).

    .ci/instructions.py            fails where a path takes over 3% more than benches/instructions.json says
    .ci/instructions.py --write    writes that file anew

The counts belong to one compiler and architecture, named in the file: under another one they are shown, not judged.
"""

import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
COMMITTED = ROOT / "benches" / "instructions.json"
TOLERANCE = 0.03
# Path, and how much of it: enough to be past the beginning, little enough for an emulated processor.
PATHS = {"plain": 100, "marker": 100, "head": 100, "kv": 100, "frames": 2000, "get": 5000, "scan": 1, "single": 20}


def toolchain():
    version = subprocess.run(["rustc", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    return f"{version}, {platform.machine()}"


def count(program, path, times):
    """Instructions of one path, a unit, in the program's own code."""
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "out"
        command = ["valgrind", "--tool=callgrind", "--toggle-collect=*hot::measured*", f"--callgrind-out-file={out}"]
        ran = subprocess.run(command + [program, path, str(times)], capture_output=True, text=True)
        if ran.returncode:
            sys.exit(f"{path}: callgrind failed\n{ran.stderr}")
        return own(out.read_text(), pathlib.Path(program).name) // times


def own(text, program):
    """The cost of lines that belong to the program; those after `calls=` are the callee's, and counted there."""
    names, mine, called, total = {}, False, False, 0
    for line in text.splitlines():
        if found := re.match(r"(c?)ob=\((\d+)\)(?: (.*))?", line):
            callee, number, name = found.groups()
            if name:
                names[number] = pathlib.Path(name).name
            if not callee:
                mine = names[number] == program
        elif line.startswith("calls="):
            called = True
        elif re.match(r"[+\-*\d]", line):
            if mine and not called:
                total += int(line.split()[1])
            called = False
    return total


def main():
    subprocess.run(
        ["cargo", "build", "--profile", "dist", "-p", "annals-benches", "--bin", "hot"],
        cwd=ROOT,
        check=True,
        # Counts are told by source file.
        env={**os.environ, "CARGO_PROFILE_DIST_DEBUG": "line-tables-only", "CARGO_PROFILE_DIST_STRIP": "false"},
    )
    program = str(ROOT / "target" / "dist" / "hot")
    found = {path: count(program, path, times) for path, times in PATHS.items()}
    if "--write" in sys.argv:
        COMMITTED.write_text(json.dumps({"toolchain": toolchain(), "instructions": found}, indent=2) + "\n")
    committed = json.loads(COMMITTED.read_text())
    judged = committed["toolchain"] == toolchain()
    failed = []
    for path, now in found.items():
        before = committed["instructions"].get(path)
        change = now / before - 1 if before else float("inf")
        print(f"{path:8} {now:12,} instructions each, {change:+.1%}")
        if change > TOLERANCE:
            failed.append(path)
    if not judged:
        print(f"not judged: the committed counts are of {committed['toolchain']}, this is {toolchain()}")
    elif failed:
        sys.exit(f"{', '.join(failed)}: more instructions than committed; mend it, or say why and run with --write")


main()
