#!/usr/bin/env python3
"""Drives `annals tui` and `annals open` through a real pseudo-terminal.

Opens, moves, searches, resizes, quits, ends by signals, and compares the terminal's settings before and after. The
recording that is shown has escape sequences in it; none may reach the terminal.

    python3 -B .ci/terminal/view.py target/debug/annals
"""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

ANNALS = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "target/debug/annals")
# A whole minute: the time after which a screen that never comes is a failure, not a measure.
PATIENCE_S = 60
LEAVE, SHOW_CURSOR = b"\x1b[?1049l", b"\x1b[?25h"
SEQUENCE = re.compile(rb"\x1b(?:\[([?>]?[0-9;]*)([A-Za-z])|[()][A-Z0-9]|([=>78]))")


class Screen:
    """The cells of a terminal, as far as the view uses sequences. An unknown sequence is an error."""

    def __init__(self, columns, rows):
        self.columns, self.rows = columns, rows
        self.clear()
        self.x = self.y = 0

    def clear(self):
        self.cells = [[" "] * self.columns for _ in range(self.rows)]

    def feed(self, data):
        """Takes bytes; returns those that are not whole yet."""
        at = 0
        while at < len(data):
            if data[at] == 0x1B:
                found = SEQUENCE.match(data, at)
                if not found:
                    if len(data) - at < 20:
                        return data[at:]
                    raise AssertionError(f"unexpected sequence {data[at:at + 20]!r}")
                self.obey(found)
                at = found.end()
                continue
            byte = data[at]
            size = 1 if byte < 0x80 else 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            if at + size > len(data):
                return data[at:]
            text = data[at:at + size].decode()
            at += size
            if text == "\r":
                self.x = 0
            elif text == "\n":
                self.y = min(self.y + 1, self.rows - 1)
            else:
                assert ord(text) >= 0x20 and not 0x7F <= ord(text) < 0xA0, f"control character {text!r}"
                assert text not in "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069", "bidirectional mark"
                if self.x < self.columns and self.y < self.rows:
                    self.cells[self.y][self.x] = text
                self.x += 1
        return b""

    def obey(self, found):
        numbers, kind = (found[1] or b"").decode(), (found[2] or b"").decode()
        if kind == "H":
            row, column = (numbers.split(";") + [""])[:2] if numbers else ("1", "1")
            self.y, self.x = int(row or 1) - 1, int(column or 1) - 1
        elif kind == "J" or (kind == "h" and numbers == "?1049"):
            self.clear()
        elif kind == "K":
            self.cells[self.y][self.x:] = [" "] * (self.columns - self.x)
        elif kind == "C":
            self.x += int(numbers or 1)
        else:
            assert kind in ("m", "h", "l", "q", "", "r"), f"unexpected sequence {found[0]!r}"

    def text(self):
        return "\n".join("".join(row).rstrip() for row in self.cells)


class Session:
    def __init__(self, arguments, directory, columns=80, rows=24, **environment):
        self.control, self.terminal = pty.openpty()
        self.screen = Screen(columns, rows)
        self.set_size(columns, rows)
        self.before = termios.tcgetattr(self.terminal)
        everything = {**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8", **environment}
        for name in ("LC_ALL", "NO_COLOR", "ANNALS_STORE"):
            if name not in environment:
                everything.pop(name, None)
        self.process = subprocess.Popen(
            [ANNALS, *arguments], cwd=directory, env=everything, start_new_session=True,
            stdin=self.terminal, stdout=self.terminal, stderr=self.terminal,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        self.output, self.rest = b"", b""

    def set_size(self, columns, rows):
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, columns, rows):
        self.screen = Screen(columns, rows)
        self.set_size(columns, rows)
        os.kill(self.process.pid, signal.SIGWINCH)

    def read(self):
        if select.select([self.control], [], [], 0.05)[0]:
            data = os.read(self.control, 1 << 16)
            self.output += data
            self.rest = self.screen.feed(self.rest + data)

    def until(self, *wanted):
        """Reads until the screen has all these texts."""
        ends = time.monotonic() + PATIENCE_S
        while any(text not in self.screen.text() for text in wanted):
            assert time.monotonic() < ends and self.process.poll() is None, (
                f"{wanted} did not come; ended with {self.process.poll()}:\n{self.screen.text()}")
            self.read()
        return self.screen.text()

    def keys(self, text):
        os.write(self.control, text.encode())

    def ended(self, code):
        """Waits for the end, and compares the terminal with how it was."""
        ends = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < ends, f"did not end:\n{self.screen.text()}"
            self.read()
        while select.select([self.control], [], [], 0)[0]:
            self.read()
        assert self.process.returncode == code, f"ended with {self.process.returncode}, not {code}: {self.output[-400:]!r}"
        after = termios.tcgetattr(self.terminal)
        assert after == self.before, f"the terminal's settings differ: {self.before} {after}"
        assert LEAVE in self.output and SHOW_CURSOR in self.output, "the terminal was not put back"
        assert self.output.rindex(LEAVE) > self.output.rindex(b"\x1b[?1049h")
        os.close(self.control)
        os.close(self.terminal)


    def hung_up(self):
        """Closes the terminal, as a window that is closed or a lost connection does, and waits for the end."""
        os.close(self.control)
        os.close(self.terminal)
        try:
            code = self.process.wait(PATIENCE_S)
        finally:
            self.process.kill()
        assert code == 129, f"ended with {code}"


def run(arguments, directory, **kwargs):
    return subprocess.run([ANNALS, *arguments], cwd=directory, stdin=subprocess.DEVNULL, capture_output=True, text=True, **kwargs)


def store(directory):
    hostile = "\x1b[31mred\x1b]0;title\x07\x9b2J\u202e <script>alert(1)</script>"
    conversation = [
        {"role": "user", "content": "Where is order 1187?"},
        {"role": "assistant", "content": None, "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": '{"order": 1187}'}}]},
        {"role": "tool", "tool_call_id": "call_1", "name": "find", "content": hostile},
        {"role": "assistant", "content": "It is on its way."},
    ]
    other = conversation[:-1] + [{"role": "assistant", "content": "It is lost."}]
    with open(os.path.join(directory, "runs.json"), "w") as file:
        json.dump([{"task_id": 1, "trial": 0, "reward": 1.0, "traj": conversation},
                   {"task_id": 2, "trial": 0, "reward": 0.0, "traj": other}], file)
    chat = ["--format", "chat", "--status-from", "reward"]
    done = run(["import", *chat, "runs.json", "--id", "{task_id}-{trial}"], directory)
    assert done.returncode == 0, done.stderr
    listed = run(["runs", "--json"], directory)
    return [json.loads(line) for line in listed.stdout.splitlines()]


def damage(directory, name):
    """Flips a bit in the store, where it costs frames of this run and leaves the list of runs whole."""
    segments = os.path.join(directory, ".annals", "segments")
    path = os.path.join(segments, sorted(os.listdir(segments))[0])
    with open(path, "rb") as file:
        whole = file.read()
    for at in range(64, len(whole), 16):
        with open(path, "wb") as file:
            file.write(whole[:at] + bytes([whole[at] ^ 0x40]) + whole[at + 1:])
        if run(["show", name], directory).returncode == 3 and run(["runs"], directory).returncode == 0:
            return
    raise AssertionError("no flip costs a frame alone")


def main():
    with tempfile.TemporaryDirectory() as directory:
        runs = store(directory)
        names = [row.get("name") or row.get("run") or row.get("id") for row in runs]
        assert len(names) == 2, runs
        first = names[0]

        # Open, move, read, search, jump, help, quit.
        session = Session(["tui"], directory)
        session.until(first, "2 runs", "q quit")
        session.keys("\r")
        session.until("FRAME", "j/k frame")
        session.keys("/order 1187\r")
        session.until("in frame")
        session.keys("g1\r")
        session.until("FRAME 1")
        session.keys("\r")
        session.until("j/k scroll")
        session.keys("?")
        session.until("compare with another run")
        session.keys("?")
        # Resizing draws the screen anew, in its new size.
        session.resize(200, 60)
        text = session.until("FRAME 1", "began", "j/k scroll")
        assert len(text.splitlines()) == 60
        session.resize(60, 20)
        session.until("FRAME 1")
        session.keys("q")
        session.ended(0)
        print("open, move, search, resize, quit: passed")

        # Signals and Ctrl-C leave the terminal as it was.
        for number, code in [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, 130)]:
            session = Session(["tui", first], directory)
            session.until("FRAME")
            os.kill(session.process.pid, number)
            session.ended(code)
        session = Session(["tui", first], directory)
        session.until("FRAME")
        session.keys("\x03")
        session.ended(0)
        print("SIGTERM, SIGHUP, SIGINT, Ctrl-C: passed")

        # Regression: it never ended, and kept a processor busy.
        session = Session(["tui", first], directory)
        session.until("FRAME")
        session.hung_up()
        print("a closed terminal: passed")

        # Every screen of the hostile run: the emulator refuses sequences and characters that are not the view's own.
        session = Session(["open", first], directory)
        session.until("FRAME")
        session.keys("gg1\r")
        for keys, wanted in [("\r", "j/k scroll"), ("r", "as recorded"), ("r", "as recorded"), ("r", "as recorded"),
                             ("d", "what changed"), ("d", "FRAME"), ("a", "FRAME"), ("\x1b", "j/k frame")]:
            session.keys(keys)
            session.until(wanted)
        for seq in ("2", "3"):
            session.keys(f"g{seq}\r")
            session.until("FRAME " + seq) if int(seq) <= runs[0]["frames"] else session.until("there is no frame")
        session.keys("c" + names[1] + "\r")
        session.until("beside")
        session.keys("q")
        session.ended(0)
        assert b"\x1b[31mred" not in session.output and b"\x1b]0;" not in session.output
        print("hostile recording: passed")

        # No colour, no UTF-8.
        session = Session(["tui", first], directory, NO_COLOR="1", LC_ALL="C")
        session.until("FRAME")
        session.keys("q")
        session.ended(0)
        assert all(byte < 0x80 for byte in session.output), "bytes beyond ASCII"
        assert not re.search(rb"\x1b\[[0-9;]*(3[0-7]|38|9[0-7])[;m]", session.output), "a colour"
        print("no colour, no UTF-8: passed")

        # Where there is nothing to show on.
        for arguments in (["tui"], ["open", first, "--tui"]):
            refused = run(arguments, directory)
            assert refused.returncode == 2 and "must be a terminal" in refused.stderr, refused
        text = run(["open", first], directory)
        assert text.returncode == 0 and f"{first}: " in text.stdout, text
        print("without a terminal: passed")

        # A damaged frame is named as such, and the view goes on.
        damage(directory, first)
        session = Session(["tui"], directory)
        session.until(first, "2 runs")
        session.keys("\r")
        session.until("FRAME", "damaged:", "checksum does not match")
        # Regression: a body that could not be read was shown as one of 0 bytes.
        assert "0 B in" not in session.screen.text(), session.screen.text()
        for seq in range(1, runs[0]["frames"] + 1):
            session.keys(f"g{seq}\r")
            session.until(f"FRAME {seq}")
        session.keys("q")
        session.ended(0)
        print("damaged frame: passed")


if __name__ == "__main__":
    main()
