#!/usr/bin/env python3
"""The programs of docs/clients.md, as they stand there, against a daemon: each must print what the document shows below it.

Usage: .ci/clients/snippets.py [--all]     (redis-py and ioredis; --all: redis-rs, too, which is compiled)
Clients are installed into a temporary folder with venv and pip, npm, cargo. Where a registry cannot be reached that client is 'skipped'.
ANNALS names the binary (default: target/debug/annals). Ends with 1 if a program printed anything else.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "clients.md"
# What each is tested with, which the document says.
CLIENTS = {"python": ("redis-py", "8.1.0"), "javascript": ("ioredis", "6.0.0"), "rust": ("redis-rs", "1.8.1")}
INSTALL_SECONDS_MAX = 60


class Skipped(Exception):
    """A client cannot be had here."""


def programs():
    """{language: (program, what it prints)}, in the order of the document."""
    blocks = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    pairs = zip(blocks, blocks[1:], strict=False)
    return {language: (program, shown) for (language, program), (after, shown) in pairs if after == "text"}


class Daemon:
    """`annals serve` on a store of its own, with a login over TCP."""

    def __init__(self, folder):
        binary = os.environ.get("ANNALS", str(ROOT / "target" / "debug" / "annals"))
        command = [binary, "--store", folder / "store", "serve", "--tcp", "127.0.0.1:0"]
        self.child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        said = ""
        while "annals: ready" not in said:
            line = self.child.stderr.readline()
            if not line:
                sys.exit(f"the daemon does not start: {said}")
            said += line
        token = re.search(r"shown only once: (\w+)", said)[1]
        address = re.search(r"listening at (127\.0\.0\.1:\d+)", said)[1]
        socket = re.search(r"listening at (/.*)", said)[1]
        self.environment = {"ANNALS_SOCKET": socket, "ANNALS_URL": f"redis://default:{token}@{address}"}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.terminate()
        self.child.wait()


def install(command, folder):
    if shutil.which(str(command[0])) is None:
        raise Skipped(f"{command[0]} is not installed")
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        raise Skipped(f"its registry took over {INSTALL_SECONDS_MAX} s") from None
    if done.returncode:
        raise Skipped((done.stderr + done.stdout).strip()[-200:] or f"{command[0]} failed")


def python(folder, program, version):
    (folder / "program.py").write_text(program)
    install([sys.executable, "-m", "venv", "venv"], folder)
    install([folder / "venv/bin/python", "-m", "pip", "install", "-q", "--retries", "1", "--disable-pip-version-check", f"redis=={version}"], folder)
    return [folder / "venv/bin/python", "program.py"]


def javascript(folder, program, version):
    (folder / "program.mjs").write_text(program)
    (folder / "package.json").write_text("{}")
    install(["npm", "install", "--loglevel=error", "--fetch-retries=1", "--no-audit", "--no-fund", f"ioredis@{version}"], folder)
    return ["node", "program.mjs"]


def rust(folder, program, version):
    (folder / "src").mkdir()
    (folder / "src/main.rs").write_text(program)
    (folder / "Cargo.toml").write_text(
        f'[package]\nname = "program"\nedition = "2024"\n[dependencies]\nredis = {{ version = "={version}", default-features = false }}\n[workspace]\n'
    )
    install(["cargo", "fetch", "-q"], folder)
    # A program that does not compile is no registry's fault.
    return ["cargo", "run", "-q", "--target-dir", "built"]


def main():
    languages = list(CLIENTS) if sys.argv[1:] == ["--all"] else ["python", "javascript"]
    if sys.argv[1:] not in ([], ["--all"]):
        sys.exit(__doc__)
    all_programs = programs()
    if set(all_programs) != set(CLIENTS):
        sys.exit(f"{PAGE.name} has programs in {sorted(all_programs)}, expected {sorted(CLIENTS)}")
    failed = False
    with tempfile.TemporaryDirectory() as folder, Daemon(pathlib.Path(folder)) as daemon:
        for language in languages:
            began = time.monotonic()
            (client, version), (program, shown) = CLIENTS[language], all_programs[language]
            if f"(tested with {version})" not in PAGE.read_text():
                sys.exit(f"{PAGE.name} does not say that {client} was tested with {version}")
            own = pathlib.Path(folder) / language
            own.mkdir()
            try:
                command = globals()[language](own, program, version)
            except Skipped as why:
                print(f"SKIPPED: {client} {version} could not be installed: {why}")
                continue
            done = subprocess.run(command, cwd=own, env=os.environ | daemon.environment, capture_output=True, text=True)
            right = (done.returncode, done.stdout) == (0, shown)
            failed |= not right
            print(f"{client} {version}: {'prints what the document shows' if right else 'FAILED'} ({time.monotonic() - began:.0f} s)")
            if not right:
                print(f"shown:\n{shown}printed:\n{done.stdout}{done.stderr}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
