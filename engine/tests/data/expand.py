#!/usr/bin/env python3
"""Expands recorded chats into user, LLM and tool frames, independently of the importer.

The importer's tests compare the content of a store with the SHA-256 sums printed here. So this script shares no
code with the importer: it is in another language, uses the standard library only, and finds each message's
exact source text with its own scanner. Messages are never re-serialised: the hashed bytes are cut from the file.

Input: a JSON array of runs, or JSON Lines, UTF-8, plain or .xz. A run has its messages (OpenAI chat shape) under
`messages`, `traj` or `history`. Its id is `{task_id}-{trial}`.

Frames of a run, in message order, seq from 1:
  user message -> component `user`; with `--expand calls` no frame
      input   empty
      output  the message's exact source text
  assistant message -> component `llm`
      input   {"model":M,"messages":[m1,m2,...]}   every message before it, exact source texts, joined by `,`;
              M is the run's `model` as a JSON string, else "unknown"; no spaces outside the messages
      output  the message's exact source text
  tool message -> component `tool`
      input   the exact source text of the `tool_calls` element with this message's `tool_call_id`, in the
              nearest earlier assistant message that has one
      output  the message's exact source text

Output, one line for each frame:  sha256(input) sha256(output) component run seq
With --runs, one line for each run:  sha256(that run's frame lines, newlines included) run frames
Totals go to standard error.
"""

import argparse
import hashlib
import json
import lzma
import re
import sys

MESSAGE_KEYS = ("messages", "traj", "history")
SPACE = re.compile(rb"[ \t\r\n]*")
STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
# The tokens that change the depth inside a container; strings match as a whole, so that their brackets do not count.
NESTING = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
ATOM = re.compile(rb"[^ \t\r\n,\]}]+")


def fail(buf, pos, what):
    line = buf.count(b"\n", 0, pos) + 1
    raise SystemExit(f"expand.py: line {line} (byte {pos}): {what}")


def space(buf, pos):
    """The first position at or after `pos` that is not white space."""
    return SPACE.match(buf, pos).end()


def value_end(buf, pos):
    """The end of the value that starts at `pos`."""
    first = buf[pos : pos + 1]
    if first == b'"':
        found = STRING.match(buf, pos)
    elif first in (b"{", b"["):
        depth = 0
        for token in NESTING.finditer(buf, pos):
            mark = token.group()[:1]
            if mark in (b"{", b"["):
                depth += 1
            elif mark in (b"}", b"]"):
                depth -= 1
                if depth == 0:
                    return token.end()
        found = None
    else:
        found = ATOM.match(buf, pos)
    if not found:
        fail(buf, pos, "no whole value here")
    return found.end()


def elements(buf, start):
    """Spans (start, end) of the elements of the array at `start`."""
    if buf[start : start + 1] != b"[":
        fail(buf, start, "expected an array")
    pos = space(buf, start + 1)
    if buf[pos : pos + 1] == b"]":
        return
    while True:
        end = value_end(buf, pos)
        yield pos, end
        pos = space(buf, end)
        mark = buf[pos : pos + 1]
        if mark == b"]":
            return
        if mark != b",":
            fail(buf, pos, "expected `,` or `]`")
        pos = space(buf, pos + 1)


def members(buf, start):
    """The object at `start` as {key: (start, end) of its value}."""
    if buf[start : start + 1] != b"{":
        fail(buf, start, "expected an object")
    out = {}
    pos = space(buf, start + 1)
    while buf[pos : pos + 1] != b"}":
        key_end = value_end(buf, pos)
        key = json.loads(buf[pos:key_end])
        if key in out:
            fail(buf, pos, f"the key {key!r} appears twice in one object")
        pos = space(buf, key_end)
        if buf[pos : pos + 1] != b":":
            fail(buf, pos, "expected `:`")
        pos = space(buf, pos + 1)
        end = value_end(buf, pos)
        out[key] = (pos, end)
        pos = space(buf, end)
        if buf[pos : pos + 1] == b",":
            pos = space(buf, pos + 1)
        elif buf[pos : pos + 1] != b"}":
            fail(buf, pos, "expected `,` or `}`")
    return out


def leaf(buf, fields, key):
    """The decoded value of a member; None if it is missing."""
    if key not in fields:
        return None
    start, end = fields[key]
    return json.loads(buf[start:end])


def runs(buf):
    """Spans of the runs: elements of one array, or values one after another (JSON Lines)."""
    pos = space(buf, 0)
    if buf[pos : pos + 1] == b"[":
        yield from elements(buf, pos)
        return
    while pos < len(buf):
        end = value_end(buf, pos)
        yield pos, end
        pos = space(buf, end)


def run_id(buf, fields):
    return f"{leaf(buf, fields, 'task_id')}-{leaf(buf, fields, 'trial')}"


def frames(buf, start, turns):
    """Yields the run's id, then (component, input, output) of each frame; user frames only with `turns`."""
    fields = members(buf, start)
    yield run_id(buf, fields)
    model = leaf(buf, fields, "model")
    head = b'{"model":' + json.dumps("unknown" if model is None else model, ensure_ascii=False).encode()
    key = next((k for k in MESSAGE_KEYS if k in fields), None)
    if key is None:
        fail(buf, start, "a run without messages")
    before = []
    calls = {}  # tool call id -> span; a later assistant message's call replaces an earlier one of the same id
    for begin, end in elements(buf, fields[key][0]):
        text = buf[begin:end]
        message = members(buf, begin)
        role = leaf(buf, message, "role")
        if role == "user" and turns:
            yield "user", b"", text
        elif role == "assistant":
            yield "llm", head + b',"messages":[' + b",".join(before) + b"]}", text
            if leaf(buf, message, "tool_calls") is not None:
                for call in elements(buf, message["tool_calls"][0]):
                    calls[leaf(buf, members(buf, call[0]), "id")] = call
        elif role == "tool":
            call = calls.get(leaf(buf, message, "tool_call_id"))
            if call is None:
                fail(buf, begin, "a tool message without a matching call")
            yield "tool", buf[call[0] : call[1]], text
        before.append(text)


def read(path):
    with (lzma.open if path.endswith(".xz") else open)(path, "rb") as file:
        return file.read()


def main():
    args = argparse.ArgumentParser(description="Sums of the frames of recorded chats")
    args.add_argument("file")
    args.add_argument("--runs", action="store_true", help="one sum for each run, not for each frame")
    args.add_argument("--expand", choices=("turns", "calls"), default="turns", help="as in annals import")
    args = args.parse_args()
    buf = read(args.file)
    count = {"user": 0, "llm": 0, "tool": 0}
    size = dict.fromkeys(("user_in", "user_out", "llm_in", "llm_out", "tool_in", "tool_out", "largest"), 0)
    total_runs = 0
    for start, _ in runs(buf):
        parts = frames(buf, start, args.expand == "turns")
        run = next(parts)
        total_runs += 1
        lines = []
        for seq, (component, given, got) in enumerate(parts, 1):
            count[component] += 1
            size[component + "_in"] += len(given)
            size[component + "_out"] += len(got)
            if component == "llm":
                size["largest"] = max(size["largest"], len(given))
            sums = hashlib.sha256(given).hexdigest(), hashlib.sha256(got).hexdigest()
            lines.append(f"{sums[0]} {sums[1]} {component} {run} {seq}\n")
        text = "".join(lines)
        if args.runs:
            text = f"{hashlib.sha256(text.encode()).hexdigest()} {run} {len(lines)}\n"
        sys.stdout.write(text)
    print(
        f"runs {total_runs}\n"
        f"user frames {count['user']}: output bytes {size['user_out']}\n"
        f"llm frames {count['llm']}: request bytes {size['llm_in']} (largest {size['largest']}), "
        f"output bytes {size['llm_out']}\n"
        f"tool frames {count['tool']}: input bytes {size['tool_in']}, output bytes {size['tool_out']}\n"
        f"frames {sum(count.values())}, raw bytes {sum(size.values()) - size['largest']}",
        file=sys.stderr,
    )


if __name__ == "__main__":
    main()
