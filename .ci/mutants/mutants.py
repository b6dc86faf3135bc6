#!/usr/bin/env python3
"""Do the tests notice when the engine's code is changed? Mutants of folders of the engine's crates, many in one build.

    mutants.py OUT --seed N [--count N] [--besides FILE...]     a random sample, without the mutants of other results
    mutants.py OUT --again FILE                                 those that survived there, against the tests of now
    --folders vector memory                                     of these folders; of log, blob, io and kv unless told

cargo-mutants says which changes there are. One build holds the whole sample: each change stands beside the code it replaces,
behind `crate::mutant::is(N)`, which compares with the variable MUTANT (mutant schemata: Untch, Offutt, Harrold, 1993). Each test is
run once without a mutant, and which mutants it comes by is noted; a mutant is then given the tests that come by it, the quick ones
first, and is caught when one fails twice or takes ten times as long ("hangs"). One JSON line for each is written to OUT as it is known.

Left out: fuzz.rs and testing.rs (only tests have them), Debug texts, and of the unsafe kernel the choice of one and those of single processors: this one has
some of them, each of which a test holds against the portable one, and one that reads past its end proves nothing. Not tried: what a constant
needs, a link of a let chain, what is for a build without graphs (they are on, as in the program). What does not build is found by the
compiler's errors and taken out. Works on what is committed, in a worktree below target/mutants, and builds where
cargo does. Needs cargo-mutants, and from PyPI: pip install tree-sitter tree-sitter-rust
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import random
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import time

import tree_sitter
import tree_sitter_rust

ROOT = pathlib.Path(__file__).resolve().parents[2]
PLACE = ROOT / "target" / "mutants"
TREE = PLACE / "tree"
FOLDERS = ["log", "blob", "io", "kv"]
# The crate that a folder belongs to; any other folder is the engine's own. Of these crates the whole is one folder.
CRATES = {one: "engine/store" for one in FOLDERS} | {"vector": "engine/vector", "memory": "engine/memory"}
WHOLE = ["vector", "memory"]
PACKAGES = {"engine": "annals", "engine/store": "annals-store", "engine/vector": "annals-vector", "engine/memory": "annals-memory"}
BINARIES = [["--lib"], ["--test", "engine"], ["--test", "memory"]]
QUICK_SECONDS = 9
SECONDS_MIN = 10
MEMORY_MAX = 8 << 30
LEFT_OUT = re.compile(r"/(fuzz|testing)\.rs:|Debug for|\bx86::|vector/src/kernel\.rs:.* kernels\b")

SWITCH = """
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};

const UNREAD: u32 = u32::MAX;
const NOTING: u32 = u32::MAX - 1;
static ON: AtomicU32 = AtomicU32::new(UNREAD);
static SEEN: [AtomicBool; COUNT] = [const { AtomicBool::new(false) }; COUNT];

/// Whether mutant n is on.
#[inline]
pub(crate) fn is(n: u32) -> bool {
    let on = ON.load(Relaxed);
    on == n || (on >= NOTING && is_slow(n))
}

#[cold]
fn is_slow(n: u32) -> bool {
    if ON.load(Relaxed) == UNREAD {
        let on = std::env::var("MUTANT").ok().and_then(|on| on.parse().ok());
        ON.store(on.unwrap_or(NOTING), Relaxed);
    }
    if ON.load(Relaxed) != NOTING {
        return is(n);
    }
    if !SEEN[n as usize].load(Relaxed) && !SEEN[n as usize].swap(true, Relaxed) {
        if let Some(notes) = std::env::var_os("MUTANT_NOTES") {
            let mut notes = std::fs::OpenOptions::new().append(true).create(true).open(notes).unwrap();
            notes.write_all(format!("{n}\\n").as_bytes()).unwrap();
        }
    }
    false
}
"""


def listed(folders):
    """The mutants of the tree: name, file, genre, replacement, span."""
    command = ["cargo", "mutants", "--list", "--json"]
    for package in PACKAGES.values():
        command += ["-p", package]
    for folder in folders:
        crate = CRATES.get(folder, "engine")
        command += ["-f", f"{crate}/src/**" if folder in WHOLE else f"{crate}/src/{folder}/**"]
    found = json.loads(subprocess.run(command, cwd=TREE, check=True, capture_output=True).stdout)
    kept = [one for one in found if not LEFT_OUT.search(one["name"])]
    print(f"{len(found)} mutants, {len(found) - len(kept)} of them left out")
    return kept


class Source:
    """One file, and the places where its mutants go."""

    def __init__(self, path):
        self.text = path.read_bytes()
        self.lines = [line.decode() for line in self.text.split(b"\n")]
        self.root = tree_sitter.Parser(tree_sitter.Language(tree_sitter_rust.language())).parse(self.text).root_node

    def offset(self, at):
        line = at["line"] - 1
        before = sum(len(one.encode()) + 1 for one in self.lines[:line])
        return before + len(self.lines[line][: at["column"] - 1].encode())

    def placed(self, mutant):
        """The node to be wrapped and the text that takes its place; (None, why) where there is none."""
        start, end = (self.offset(mutant["span"][side]) for side in ("start", "end"))
        node = self.root.descendant_for_byte_range(start, end)
        new, genre = mutant["replacement"].encode(), mutant["genre"]
        if not can_run(node):
            return None, "in a constant"
        if is_for_no_graphs(node):
            return None, "for a build without graphs"
        if genre == "FnValue":
            while node.parent.type != "function_item" or node.type != "block":
                node = node.parent
            return node, new
        if genre == "MatchArmGuard":
            return node, new
        if genre == "BinaryOperator":
            node = node.parent
            left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
            if node.type == "binary_expression":
                return node, b"(" + left.text + b") " + new + b" (" + right.text + b")"
            if node.type == "compound_assignment_expr":
                return node, left.text + b" " + new + b" " + right.text
            return None, "in a let chain"
        node = self.root.descendant_for_byte_range(start, start)
        within = {"UnaryOperator": ["unary_expression"], "MatchArm": ["match_arm"]}
        within["StructField"] = ["field_initializer", "shorthand_field_initializer"]
        while node.type not in within[genre]:
            node = node.parent
        if genre == "UnaryOperator":
            return node, node.children[1].text
        comma = node.next_sibling is not None and node.next_sibling.type == ","
        outer = node.parent.parent
        end = node.next_sibling.end_byte if comma else node.end_byte
        return outer, self.text[outer.start_byte : node.start_byte] + self.text[end : outer.end_byte]

    def mutated(self, placed):
        """The text with all of `placed`, [(number, node, text)], in it. Where one stands within another, the inner is in the outer's old code."""
        by_node = collections.defaultdict(list)
        for number, node, text in placed:
            by_node[node.start_byte, -node.end_byte, node.type == "block"].append((number, node, text))
        out, at, open_nodes = [], 0, []
        for start, end, _ in sorted(by_node):
            while open_nodes and open_nodes[-1][0] <= start:
                closes, closing = open_nodes.pop()
                out += [self.text[at:closes], closing]
                at = closes
            out.append(self.text[at:start])
            at = start
            group = by_node[start, end, _]
            node = group[0][1]
            if node.type == "block":
                out.append(b"{")
                at += 1
                for number, _node, text in group:
                    out.append(mark(number, b"if crate::mutant::is(%d) { return %s; }" % (number, text)))
                continue
            braced = node.type == "match_expression" and node.parent.type in ("expression_statement", "block", "match_arm")
            out.append(b"{" if braced else b"(")
            for number, _node, text in group:
                out.append(mark(number, b"if crate::mutant::is(%d) { %s } else " % (number, text)))
            # In parentheses, too: the old code may begin with an `if` of its own.
            out.append(b"{ (")
            open_nodes.append((-end, b") }}" if braced else b") })"))
        while open_nodes:
            closes, closing = open_nodes.pop()
            out += [self.text[at:closes], closing]
            at = closes
        return b"".join([*out, self.text[at:]])


def mark(number, text):
    return b"/*<%d*/%s/*%d>*/" % (number, text, number)


def can_run(node):
    """Whether code there runs when a program does, and not when it is compiled."""
    while node is not None:
        if node.type in ("const_item", "static_item", "array_type", "const_block", "attribute_item"):
            return False
        if node.type == "function_item":
            modifiers = [one.text for one in node.children if one.type == "function_modifiers"]
            return not any(b"const" in one or b"async" in one for one in modifiers)
        node = node.parent
    return True


def is_for_no_graphs(node):
    while node is not None:
        before = node.prev_sibling
        if before is not None and before.type == "attribute_item" and b'not(feature = "graphs")' in before.text:
            return True
        node = node.parent
    return False


def write_tree(sample):
    """Puts the mutants of the sample into the tree. Those that cannot be get an outcome."""
    files = collections.defaultdict(list)
    for number, mutant in enumerate(sample):
        if "outcome" not in mutant:
            files[mutant["file"]].append((number, mutant))
    for file in {mutant["file"] for mutant in sample}:
        subprocess.run(["git", "checkout", "--quiet", "--", file], cwd=TREE, check=True)
        source, placed = Source(TREE / file), []
        for number, mutant in files[file]:
            node, text = source.placed(mutant)
            if node is None:
                mutant["outcome"] = f"not tried: {text}"
            else:
                placed.append((number, node, text))
        (TREE / file).write_bytes(source.mutated(placed))


def build(sample):
    """Builds the tests with as many mutants as compile; the binaries."""
    allow = ["warnings", "arithmetic_overflow", "unconditional_panic"]
    lints = "[lints.rust]\n" + "".join(f'{one} = "allow"\n' for one in allow)
    for crate in PACKAGES:
        # Not in src: a test looks there for who reaches for atomics.
        (TREE / crate / "mutant.rs").write_text(SWITCH.replace("COUNT", str(len(sample))))
        lib = TREE / crate / "src/lib.rs"
        module = "\n#[allow(warnings)]\n#[path = \"../mutant.rs\"]\nmod mutant;\n"
        # Before the attributes of the first module: an attribute must not pass to this one.
        lib.write_text(re.sub(r"\n(?=(#\[.*\]\n)*(pub )?mod \w+;)", module, lib.read_text(), count=1))
        toml = TREE / crate / "Cargo.toml"
        toml.write_text(toml.read_text().replace("[lints]\nworkspace = true\n", lints))
    command = ["cargo", "test", *sum((["-p", one] for one in PACKAGES.values()), []), "--features", "annals/graphs"]
    command += ["--no-run", "--message-format=json", *sum(BINARIES, [])]
    while True:
        write_tree(sample)
        began = time.monotonic()
        done = subprocess.run(command, cwd=TREE, capture_output=True, text=True)
        messages = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        print(f"built in {time.monotonic() - began:.0f} s", flush=True)
        if done.returncode == 0:
            made = [one["executable"] for one in messages if one.get("executable") and one["profile"]["test"]]
            # Copies: whoever builds in the same target folder meanwhile puts others in their place.
            return [shutil.copy2(one, PLACE) for one in made]
        blamed = {}
        for message in messages:
            if message["reason"] == "compiler-message" and message["message"]["level"] == "error":
                for number in blame(message["message"]):
                    blamed[number] = message["message"]["message"]
        if not blamed:
            raise SystemExit(done.stderr + "\n".join(one["message"]["rendered"] for one in messages if "message" in one))
        for number, why in blamed.items():
            sample[number]["outcome"] = "does not build"
            sample[number]["why"] = why
        print(f"{len(blamed)} do not build", flush=True)


def blame(message):
    """The mutants at whose code an error points: the innermost, else those of the lines, else the one before."""
    found = set()
    for span in message["spans"]:
        if not span["is_primary"] or not (TREE / span["file_name"]).is_file():
            continue
        text = (TREE / span["file_name"]).read_bytes()
        marked = [
            (text.index(b"/*%s>*/" % begin[1], begin.end()) - begin.start(), begin.start(), int(begin[1]))
            for begin in re.finditer(rb"/\*<(\d+)\*/", text)
        ]
        around = [one for one in marked if one[1] <= span["byte_start"] and span["byte_end"] <= one[1] + one[0]]
        if around:
            found.add(min(around)[2])
            continue
        first = text.rfind(b"\n", 0, span["byte_start"])
        last = text.find(b"\n", span["byte_end"])
        beside = {number for length, start, number in marked if start < last and first < start + length}
        before = [number for _, start, number in marked if start < first]
        found |= beside or set(before[-1:])
    return found


class Tests:
    """The tests of both binaries: how long each takes, and which mutants it comes by."""

    def __init__(self, binaries, jobs):
        self.jobs = jobs
        self.seconds, self.reached = {}, collections.defaultdict(list)
        every = []
        for binary in binaries:
            names = subprocess.run([binary, "--list", "--format=terse"], cwd=TREE / "engine", capture_output=True, text=True, check=True)
            ignored = subprocess.run(
                [binary, "--list", "--ignored", "--format=terse"], cwd=TREE / "engine", capture_output=True, text=True, check=True
            ).stdout.splitlines()
            every += [(binary, line[:-6]) for line in names.stdout.splitlines() if line.endswith(": test") and line not in ignored]
        with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
            for test, (seconds, failed, seen) in zip(every, pool.map(self.note, every)):
                if failed:
                    print(f"left out, since it fails twice without any mutant: {failed}", flush=True)
                    continue
                self.seconds[test] = seconds
                for number in seen:
                    self.reached[number].append(test)
        print(f"{len(self.seconds)} tests, {sum(self.seconds.values()):.0f} s one after another", flush=True)

    def note(self, test):
        with tempfile.TemporaryDirectory() as place:
            notes = pathlib.Path(place) / "notes"
            failed, seconds = run(test[0], [test[1]], {"MUTANT_NOTES": str(notes)}, 3600)
            if failed:
                failed, seconds = run(test[0], [test[1]], {"MUTANT_NOTES": str(notes)}, 3600)
            seen = sorted({int(line) for line in notes.read_text().split()}) if notes.exists() else []
            return seconds, failed, seen

    def judge(self, number, passed=0):
        """The outcome by the quick tests that come by, or by the others where it `passed` so many: (outcome, why, how many
        it passed where there are more)."""
        tests = sorted(self.reached[number], key=lambda test: self.seconds[test])
        count, tests = len(tests), tests[passed:]
        stage_seconds = 1 if passed == 0 else 3 * QUICK_SECONDS
        while tests and (passed or stage_seconds <= QUICK_SECONDS):
            stage, taken = [], 0
            while tests and (not stage or taken + self.seconds[tests[0]] <= stage_seconds):
                taken += self.seconds[tests[0]]
                stage.append(tests.pop(0))
            stage_seconds *= 3
            for binary in dict.fromkeys(test[0] for test in stage):
                names = [test[1] for test in stage if test[0] == binary]
                limit = max(SECONDS_MIN, 10 * sum(self.seconds[binary, name] for name in names))
                failed, _ = run(binary, names, {"MUTANT": str(number)}, limit)
                if failed.startswith("out of time"):
                    return "hangs", failed, 0
                # Twice: a busy machine may fail a test as well.
                if failed and run(binary, names, {"MUTANT": str(number)}, limit)[0]:
                    return "caught", failed, 0
        return "survived", f"{count} tests come by", count - len(tests) if tests else 0


def run(binary, names, env, limit):
    """Which of the tests failed, '' where none did; seconds."""
    def alone():
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX, MEMORY_MAX))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    command = [binary, "-Zunstable-options", "--fail-fast", "--test-threads=1", "--exact", *names]
    with tempfile.TemporaryDirectory(prefix="mutant-", ignore_cleanup_errors=True) as place:
        env = {**os.environ, **env, "RUSTC_BOOTSTRAP": "1", "TMPDIR": place, "RUST_BACKTRACE": "0"}
        with open(pathlib.Path(place) / "said", "w+", errors="replace") as said:
            child = subprocess.Popen(
                command, cwd=TREE / "engine", env=env, stdin=subprocess.DEVNULL, stdout=said,
                stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=alone,
            )
            code, seconds = None, 0
            while code is None and seconds < limit:
                began = time.monotonic()
                try:
                    code = child.wait(1)
                except subprocess.TimeoutExpired:
                    pass
                # What stops this process stops the tests, too: that time does not count.
                seconds += min(time.monotonic() - began, 2)
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            child.wait()
            said.seek(0)
            said = said.read()
    if code == 0:
        return "", seconds
    failed = re.findall(r"^test (\S+) .*FAILED$", said, re.M) or re.findall(r"^test (\S+)", said, re.M)[-1:]
    panics = [line for line in said.splitlines() if "panicked" not in line and line.strip()]
    why = " ".join(failed) if failed else f"exit {code}: {panics[-3:]}"
    return (f"out of time: {why}" if code is None else why), seconds


def drawn(options):
    every = listed(options.folders)
    if options.again:
        # The last line of each counts.
        known = {one["name"]: one["outcome"] for one in map(json.loads, open(options.again))}
        again = {one["name"]: one for one in every if known.get(one["name"], "").startswith("survived")}
        return [again[name] for name in known if name in again]
    known = {json.loads(line)["name"] for file in options.besides for line in open(file)}
    pool = [one for one in every if one["name"] not in known]
    random.Random(options.seed).shuffle(pool)
    return pool[: options.count]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--besides", nargs="*", default=[])
    parser.add_argument("--again")
    parser.add_argument("--folders", nargs="+", default=FOLDERS)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    if (options.seed is None) == (options.again is None):
        parser.error("either --seed or --again")

    subprocess.run(["git", "worktree", "remove", "--force", TREE], cwd=ROOT, stderr=subprocess.DEVNULL)
    shutil.rmtree(TREE, ignore_errors=True)
    subprocess.run(["git", "worktree", "prune"], cwd=ROOT, check=True)
    subprocess.run(["git", "worktree", "add", "--quiet", "--detach", TREE, "HEAD"], cwd=ROOT, check=True)
    os.environ.setdefault("CARGO_TARGET_DIR", str(ROOT / "target"))
    sample = drawn(options)
    print(f"seed {options.seed}: {len(sample)} mutants", flush=True)
    tests = Tests(build(sample), options.jobs)

    with open(options.out, "w") as out, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:

        def say(mutant):
            said = {key: mutant[key] for key in ("name", "outcome", "why") if key in mutant}
            out.write(json.dumps(said) + "\n")
            out.flush()
            if mutant["outcome"] in ("survived", "survived so far", "hangs"):
                print(mutant["outcome"], mutant["name"], "|", mutant["why"], flush=True)

        def judged(number, passed):
            mutant = sample[number]
            mutant["outcome"], mutant["why"], passed = tests.judge(number, passed)
            if passed:
                mutant["outcome"] = "survived so far"
            say(mutant)
            return number, passed

        # All by the quick tests first, so that much is known early.
        left = []
        for number, mutant in enumerate(sample):
            if "outcome" in mutant:
                say(mutant)
            else:
                left.append((number, 0))
        while left:
            left = [one for one in pool.map(judged, *zip(*left)) if one[1] > 0]
    outcomes = collections.Counter(mutant["outcome"] for mutant in sample)
    caught = outcomes["caught"] + outcomes["hangs"]
    print(dict(outcomes))
    print(f"caught {caught} of {caught + outcomes['survived']}")


if __name__ == "__main__":
    main()
