#!/usr/bin/env python3
"""Real faults on a real system, against the built program: kills and errors at system calls, full disks, power cuts.

    faults.py syscalls [--sample N]              a kill and an error at every system call of a fixed import (strace)
    faults.py full [--rounds N]                  imports into file systems too small for them (tmpfs, loop-mounted ext4)
    faults.py room [--rounds N]                  a daemon on a full disk that gets room again; runs dropped and a store compacted there
    faults.py power --filesystem ext4|xfs [--rounds N]   imports cut off by the file system's shutdown ioctl

Each import says on its standard output which runs are on disk. After the fault the store must open, verify clean, hold every run
that was said and at most one more, each with just the bytes that were handed in; then it must take one more run. Anything
else is a failure: it is printed with the command that repeats it, and the exit status is 1.

--binary PATH (default target/release/annals), --seed N (default fixed). Needs strace, or root and loop mounts; what is
missing is said in a line that begins with 'skipped', and the exit status is 0.
"""

import argparse
import collections
import fcntl
import json
import os
import pathlib
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time

# XFS_IOC_GOINGDOWN, EXT4_IOC_SHUTDOWN: _IOR('X', 125, __u32). 2: at once, without writing the journal out.
SHUTDOWN, SHUTDOWN_NOLOGFLUSH = 0x8004587D, 2
RUNS, FRAMES = 12, 4
# Calls that an error cannot be put into without ending the program before it is one: the loader's and the kernel's own.
# A kernel wakes a sleeping thread or the whole machine is lost: the language's runtime takes that for granted.
NOT_FAILED = {"execve", "exit", "exit_group", "rt_sigreturn", "restart_syscall", "arch_prctl", "futex"}


# Where Rust's own runtime gives up: no memory for a signal stack, no randomness for its hash maps.
RUNTIME = re.compile(r"/library/std/src/(sys/pal/unix/stack_overflow|sys/random/linux|sys/thread|thread)")


class Fault(Exception):
    """What a store must never be."""


def text(rng, words):
    return " ".join(f"word{rng.randrange(1_000_000)}" for _ in range(words))


def workload(seed, runs=RUNS, frames=FRAMES, words=120):
    """Frames of runs whose requests grow: {run: [(input, output)]}, and the lines to import."""
    rng = random.Random(seed)
    expected, lines = {}, []
    for number in range(runs):
        name, messages = f"run-{number:04}", ""
        expected[name] = []
        for seq in range(1, frames + 1):
            messages += text(rng, words) + "\n"
            answer = text(rng, words // 2)
            expected[name].append((messages, answer))
            lines.append(json.dumps({"run": name, "seq": seq, "component": "llm", "input": messages, "output": answer}))
            messages += answer + "\n"
    return expected, "\n".join(lines) + "\n"


def said(output):
    """The runs that an import said are on disk."""
    names = []
    for line in output.splitlines():
        try:
            named = json.loads(line)
        except ValueError:
            continue  # a line that the kill cut short
        if "run" in named:
            names.append(named["run"])
    return names


class Checker:
    """Holds a store against what was handed in."""

    def __init__(self, binary, expected):
        self.binary, self.expected = binary, expected
        self.order = list(expected)

    def annals(self, store, *arguments):
        return subprocess.run([self.binary, "--store", store, *arguments], capture_output=True, text=True, timeout=120)

    def check(self, store, acknowledged, complete=False):
        """Raises Fault unless the store is what it should be. Gives the number of runs found."""
        if acknowledged != self.order[: len(acknowledged)]:
            raise Fault(f"said out of order: {acknowledged}")
        verified = self.annals(store, "verify", "--json")
        if verified.returncode == 4 and not acknowledged:
            return 0
        if verified.returncode != 0:
            raise Fault(f"verify: exit {verified.returncode}: {verified.stdout}{verified.stderr}")
        found = collections.defaultdict(list)
        replayed = self.annals(store, "replay", "--all", "--json")
        if replayed.returncode == 4 and not acknowledged:
            return 0
        if replayed.returncode != 0:
            raise Fault(f"replay: exit {replayed.returncode}: {replayed.stderr}")
        for line in replayed.stdout.splitlines():
            frame = json.loads(line)
            if "seq" in frame:
                found[frame["run"]].append((frame["input"], frame["output"]))
        names = sorted(found)
        if names != self.order[: len(names)]:
            raise Fault(f"these runs are there: {names}")
        if not len(acknowledged) <= len(names) <= len(acknowledged) + 1:
            raise Fault(f"{len(acknowledged)} runs were said to be on disk, {len(names)} are there")
        if complete and len(names) != len(self.order):
            raise Fault(f"{len(names)} of {len(self.order)} runs are there")
        for name in names:
            if found[name] != self.expected[name]:
                raise Fault(f"{name} has other bytes or frames than were handed in")
        more = self.annals(store, "put", "still", "writing")
        if more.returncode != 0:
            raise Fault(f"no further write: {more.stderr}")
        if self.annals(store, "get", "still", "--raw").stdout != "writing":
            raise Fault("the further write is not there")
        return len(names)


def importing(binary, store, lines):
    return [binary, "--store", str(store), "--json", "import", "--format", "frames", str(lines)]


def syscalls(args):
    if not shutil.which("strace"):
        return print("skipped: strace is not installed")
    expected, lines = workload(args.seed, runs=3, frames=2)
    check = Checker(args.binary, expected)
    tried = collections.Counter()
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        folder = pathlib.Path(folder)
        source, trace, store = folder / "frames.jsonl", folder / "trace", folder / "store"
        source.write_text(lines)
        subprocess.run(["strace", "-f", "-o", trace, *importing(args.binary, store, source)], check=True, stdout=subprocess.DEVNULL)
        calls = collections.Counter(re.findall(r"^\d+ +(\w+)\(", trace.read_text(), re.M))
        check.check(str(store), list(expected), complete=True)
        faults = []
        for call, count in sorted(calls.items()):
            for nth in range(1, count + 1):
                faults.append((call, nth, "signal=SIGKILL"))
                if call not in NOT_FAILED:
                    faults += [(call, nth, f"error={error}") for error in ("EIO", "ENOSPC", "EINTR")]
        if args.sample:
            faults = random.Random(args.seed).sample(faults, min(args.sample, len(faults)))
        for call, nth, fault in faults:
            shutil.rmtree(store, ignore_errors=True)
            inject = ["strace", "-f", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:{fault}:when={nth}"]
            command = inject + importing(args.binary, store, source)
            try:
                ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
                names = said(ran.stdout)
                # An error that is said is an error that is exited with; a success is whole.
                if ran.returncode == 0 and names != check.order:
                    raise Fault(f"exit 0 and only {names} said")
                panics = re.findall(r"panicked at (\S+)", ran.stderr)
                if any(not RUNTIME.search(place) for place in panics):
                    raise Fault(f"a panic: {ran.stderr}")
                outcome = {0: "done all the same", -9: "killed", 137: "killed"}.get(ran.returncode, "typed error")
                if panics or ("error" in fault and ran.returncode not in (0, 1, 2, 3, 4)):
                    # The loader or the language's runtime gave up before our code began, or beside it.
                    outcome = "the runtime gave up"
                check.check(str(store), names)
                tried[(fault.split("=")[1], outcome)] += 1
            except (Fault, subprocess.TimeoutExpired) as found:
                print(f"FAILED: {found}\nrepeat with: {' '.join(command)}", file=sys.stderr)
                args.failed += 1
                tried[(fault.split("=")[1], "FAILED")] += 1
    print(f"system calls: {sum(calls.values())} calls of {len(calls)} kinds in a fixed import")
    print("| fault | what came of it | times |\n|---|---|---|")
    for (fault, outcome), count in sorted(tried.items()):
        print(f"| {fault} | {outcome} | {count} |")


class Mount:
    """A file system of its own on a loop device or in memory."""

    def __init__(self, folder, kind, megabytes):
        self.image, self.at, self.kind = pathlib.Path(folder) / f"{kind}.img", pathlib.Path(folder) / f"{kind}.mnt", kind
        self.at.mkdir()
        self.size = megabytes
        if kind != "tmpfs":
            with open(self.image, "wb") as file:
                file.truncate(int(megabytes * 1024 * 1024))
            make = {"ext4": ["mkfs.ext4", "-q", "-F", "-O", "^has_journal" if megabytes < 4 else "has_journal"], "xfs": ["mkfs.xfs", "-q", "-f"]}[kind]
            subprocess.run([*make, self.image], check=True, capture_output=True)

    def __enter__(self):
        self.mount()
        return self

    def mount(self):
        if self.kind == "tmpfs":
            command = ["mount", "-t", "tmpfs", "-o", f"size={int(self.size * 1024)}k", "tmpfs", self.at]
        else:
            command = ["mount", "-t", self.kind, "-o", "loop", self.image, self.at]
        subprocess.run(command, check=True, capture_output=True)

    def unmount(self):
        for _ in range(100):
            if subprocess.run(["umount", self.at], capture_output=True).returncode == 0:
                return
            time.sleep(0.05)
        subprocess.run(["umount", "-l", self.at], check=True)

    def __exit__(self, *_):
        self.unmount()


def can_mount(kind, folder):
    tool = {"ext4": "mkfs.ext4", "xfs": "mkfs.xfs", "tmpfs": "mount"}[kind]
    if os.geteuid() != 0 or not shutil.which(tool):
        print(f"skipped: {kind} needs root and {tool}")
        return False
    try:
        with tempfile.TemporaryDirectory(dir=folder) as trial, Mount(trial, kind, 512 if kind == "xfs" else 16):
            return True
    except subprocess.CalledProcessError as refused:
        print(f"skipped: {kind} cannot be mounted here: {refused.stderr.decode(errors='replace').strip()}")
        return False


def full(args):
    expected, lines = workload(args.seed, runs=150)
    check = Checker(args.binary, expected)
    rng = random.Random(args.seed)
    for kind, least, most in (("tmpfs", 0.05, 1.2), ("ext4", 0.3, 2.0)):
        if not can_mount(kind, args.dir):
            continue
        outcomes, held = collections.Counter(), 0
        for number in range(args.rounds):
            size = least + (most - least) * number / max(1, args.rounds - 1)
            with tempfile.TemporaryDirectory(dir=args.dir) as folder:
                source = pathlib.Path(folder) / "frames.jsonl"
                source.write_text(lines)
                with Mount(folder, kind, size) as disk:
                    # Something else has a share of it, which goes when somebody makes room.
                    ballast = disk.at / "ballast"
                    ballast.write_bytes(b"x" * rng.randrange(1, int(size * 200_000)))
                    store = disk.at / "store"
                    ran = subprocess.run(importing(args.binary, store, source), capture_output=True, text=True, timeout=120)
                    names = said(ran.stdout)
                    try:
                        if ran.returncode == 0 and names != check.order:
                            raise Fault("exit 0 and not all said")
                        if ran.returncode not in (0, 1) or "panicked" in ran.stderr:
                            raise Fault(f"exit {ran.returncode}: {ran.stderr}")
                        if ran.returncode == 1 and not re.search(r"space|full", ran.stderr):
                            raise Fault(f"the cause is not named: {ran.stderr}")
                        ballast.unlink()
                        copy = pathlib.Path(folder) / "copy"
                        if store.exists():
                            # Checked where there is room; the bytes are those of the full disk.
                            shutil.copytree(store, copy)
                        held += check.check(str(copy), names)
                        outcomes["all fitted" if ran.returncode == 0 else "typed error, all that was said is there"] += 1
                    except Fault as found:
                        args.failed += 1
                        outcomes["FAILED"] += 1
                        print(f"FAILED: {kind} of {size:.3f} MiB: {found}", file=sys.stderr)
        print(f"full {kind}: " + ", ".join(f"{count} {what}" for what, count in outcomes.items()) + f"; {held} runs kept")


def fill_up(ballast):
    """Writes until the file system is full."""
    with open(ballast, "ab", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1 << 9):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


def room(args):
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "kills"))
    import serve

    rng = random.Random(args.seed)
    for kind, size in (("tmpfs", 6), ("ext4", 20)):
        if not can_mount(kind, args.dir):
            continue
        try:
            with tempfile.TemporaryDirectory(dir=args.dir) as folder, Mount(folder, kind, size) as disk:
                held, refused, gained = {}, {}, 0
                ballast = disk.at / "ballast"
                free = os.statvfs(disk.at).f_bavail * os.statvfs(disk.at).f_frsize
                ballast.write_bytes(b"x" * max(0, free - (5 << 19)))
                daemon = serve.Daemon(args.binary, str(disk.at / "store"))
                connection = serve.Connection(daemon.tcp)
                for number in range(args.rounds):
                    while True:
                        key, value = f"k{len(held)}", rng.randbytes(20_000)
                        try:
                            connection.ask("SET", key, value)
                            held[key] = value
                        except serve.Refused as why:
                            if "full" not in str(why):
                                raise Fault(f"the cause is not named: {why}") from None
                            refused[key] = value
                            break
                    for name, value in held.items():
                        if connection.ask("GET", name) != value:
                            raise Fault(f"round {number}: {name} is not what was acknowledged")
                    if connection.ask("EXISTS", *refused) != sum(name in held for name in refused):
                        raise Fault(f"round {number}: a refused write is there")
                    # Somebody makes room: the same process takes writes again.
                    before = len(held)
                    os.truncate(ballast, max(0, ballast.stat().st_size - 150_000))
                    key, value = f"k{len(held)}", rng.randbytes(20_000)
                    connection.ask("SET", key, value)
                    held[key] = value
                    gained += len(held) - before
                connection.close()
                daemon.end(15)
                daemon = serve.Daemon(args.binary, str(disk.at / "store"))
                connection = serve.Connection(daemon.tcp)
                for name, value in held.items():
                    if connection.ask("GET", name) != value:
                        raise Fault(f"after a restart: {name} is not what was acknowledged")
                connection.close()
                daemon.end(15)
                print(f"full {kind}: a daemon refused and took writes again {args.rounds} times; {len(held)} writes, all there")
            with tempfile.TemporaryDirectory(dir=args.dir) as folder, Mount(folder, kind, size) as disk:
                store, source, policy = str(disk.at / "store"), pathlib.Path(folder) / "frames.jsonl", pathlib.Path(folder) / "policy.toml"
                runs = [f"run-{number:04}" for number in range(60)]
                source.write_text("".join(json.dumps({"run": run, "seq": 1, "component": "tool", "input": rng.randbytes(12_000).hex(), "output": run}) + "\n" for run in runs))
                policy.write_text("[[rule]]\nname = \"few\"\nkeep_newest = 3\n")

                def annals(*arguments, code=0):
                    ran = subprocess.run([args.binary, "--store", store, *arguments], capture_output=True, text=True, timeout=120)
                    if ran.returncode != code:
                        raise Fault(f"annals {' '.join(arguments)}: exit {ran.returncode}: {ran.stdout}{ran.stderr}")
                    return ran.stdout

                annals("import", "--format", "frames", str(source))
                fill_up(disk.at / "ballast")
                full = os.statvfs(disk.at)
                if "full" not in subprocess.run([args.binary, "--store", store, "put", "k", "v" * 2000], capture_output=True, text=True).stderr:
                    raise Fault("a write to the full disk was not refused as such")
                annals("retain", "--policy", str(policy))
                annals("compact")
                # What root may use is free, too.
                freed = (os.statvfs(disk.at).f_bfree - full.f_bfree) * full.f_frsize
                if freed < 300_000:
                    raise Fault(f"only {freed} bytes were freed")
                annals("put", "k", "v")
                annals("verify", "--all")
                print(f"full {kind}: 57 of 60 runs dropped and compacted with {full.f_bfree * full.f_frsize} bytes free; {freed} bytes freed")
        except (Fault, serve.Wrong, serve.Hung, serve.Refused) as found:
            args.failed += 1
            print(f"FAILED: {kind}: {type(found).__name__} {found}", file=sys.stderr)


def power(args):
    kind = args.filesystem
    if not can_mount(kind, args.dir):
        return
    expected, lines = workload(args.seed, runs=400, frames=3, words=60)
    check = Checker(args.binary, expected)
    rng = random.Random(args.seed)
    cut = acknowledged = kept = 0
    moments = collections.Counter()
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        source = pathlib.Path(folder) / "frames.jsonl"
        source.write_text(lines)
        with Mount(folder, kind, 512 if kind == "xfs" else 64) as disk:
            for number in range(args.rounds):
                store = disk.at / f"store-{number}"
                # Unbuffered: what a buffer of ours held would be lost to `communicate`.
                child = subprocess.Popen(importing(args.binary, store, source), bufsize=0, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
                # After so many runs were said, and a moment that may fall anywhere into the next commits.
                wait_for, output = rng.randrange(0, 60), b""
                for _ in range(wait_for):
                    line = child.stdout.readline()
                    if not line:
                        break
                    output += line
                time.sleep(rng.random() * 0.02)
                handle = os.open(disk.at, os.O_RDONLY)
                fcntl.ioctl(handle, SHUTDOWN, struct.pack("I", SHUTDOWN_NOLOGFLUSH))
                os.close(handle)
                rest, errors = child.communicate(timeout=60)
                output += rest
                disk.unmount()
                disk.mount()
                names = said(output.decode(errors="replace"))
                try:
                    if "panicked" in errors.decode(errors="replace"):
                        raise Fault(f"a panic: {errors.decode()}")
                    found = check.check(str(store), names) if store.exists() or names else 0
                    cut += 1
                    acknowledged += len(names)
                    kept += found
                    moments["in the middle" if 0 < len(names) < len(expected) else "before or after"] += 1
                except Fault as fault:
                    args.failed += 1
                    print(f"FAILED: round {number} on {kind}, {len(names)} said: {fault}", file=sys.stderr)
                shutil.rmtree(store, ignore_errors=True)
    print(f"power cuts on {kind}: {cut} of {args.rounds} recovered, {moments['in the middle']} in the middle of an import; "
          f"{acknowledged} runs were said to be on disk, {kept} were there")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["syscalls", "full", "room", "power"])
    parser.add_argument("--binary", default=str(pathlib.Path(__file__).resolve().parents[2] / "target/release/annals"))
    parser.add_argument("--seed", type=int, default=int(os.environ.get("ANNALS_SEED", "1")))
    parser.add_argument("--dir", default=None, help="where temporary folders are made")
    parser.add_argument("--sample", type=int, default=0, help="so many of the faults, by the seed; 0: all")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--filesystem", choices=["ext4", "xfs"], default="ext4")
    args = parser.parse_args()
    args.failed = 0
    {"syscalls": syscalls, "full": full, "room": room, "power": power}[args.what](args)
    sys.exit(1 if args.failed else 0)


if __name__ == "__main__":
    main()
