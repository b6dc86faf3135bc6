#!/usr/bin/env python3
"""Checks docs/checklist.md: exactly the ids of docs/checklist.ids, each once and in order, each row filled in.

A row is `| id | what | status | code | test |`. A status is `done`, `part`, `open` (each with an optional remark in
brackets) or `nothing to test`. `done` needs code and a test, and every `path` that a row names in backquotes must exist
(the part before `::` or `#`), and have in it the name after `::`.
"""

import pathlib
import re
import sys

root = pathlib.Path(__file__).resolve().parent.parent
wanted = (root / "docs/checklist.ids").read_text().split()
row = re.compile(r"\| ((?:S\d|X)\.\d+) \|(.*)\|\s*$")
status_form = re.compile(r"(done|part|open)( \(.+\))?|nothing to test")



def is_in(path, named):
    """Whether a file, or any file below a directory, has this name as a word."""
    word = re.compile(rf"\b{re.escape(named)}\b")
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    return any(word.search(one.read_text(errors="replace")) for one in files)


faults, found = [], []
for number, line in enumerate((root / "docs/checklist.md").read_text().splitlines(), 1):
    match = row.match(line)
    if not match:
        if line.startswith(("| S", "| X")):
            faults.append(f"line {number}: not a row of five cells")
        continue
    found.append(match[1])
    cells = [cell.strip() for cell in match[2].split("|")]
    if len(cells) != 4:
        faults.append(f"line {number}: {match[1]}: {len(cells) + 1} cells instead of 5")
        continue
    what, status, code, test = cells
    form = status_form.fullmatch(status)
    if not what:
        faults.append(f"line {number}: {match[1]}: says nothing")
    if not form:
        faults.append(f"line {number}: {match[1]}: unknown status {status!r}")
    elif form[1] == "done" and not (code and test):
        faults.append(f"line {number}: {match[1]}: done without code or without a test")
    for name in re.findall(r"`([^`]+)`", f"{code} {test}"):
        path = re.split(r"::|#", name)[0]
        if "/" in path and not (root / path).exists():
            faults.append(f"line {number}: {match[1]}: there is no {path}")
            continue
        # A test that was renamed or removed shows nothing.
        named = name.split("::")[-1] if "::" in name else None
        if named and "/" in path and not is_in(root / path, named):
            faults.append(f"line {number}: {match[1]}: {path} has no {named}")

for name in sorted(set(wanted) - set(found)):
    faults.append(f"{name} is missing")
for name in sorted(set(found) - set(wanted)):
    faults.append(f"{name} is not a known id")
for name in sorted({name for name in found if found.count(name) > 1}):
    faults.append(f"{name} stands {found.count(name)} times")
if not faults and found != wanted:
    faults.append("the rows are not in the order of docs/checklist.ids")

for fault in faults:
    print(f"docs/checklist.md: {fault}", file=sys.stderr)
if faults:
    sys.exit(1)
print(f"docs/checklist.md: {len(found)} ids, all there")
