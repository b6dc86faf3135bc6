"""The store from Python. Needs only the standard library: `python3 -m unittest discover server/python/tests`."""

from __future__ import annotations

import array
import asyncio
import importlib.util
import json
import multiprocessing
import os
import random
import struct
import subprocess
import sys
import tempfile
import threading
import unittest
import zlib
from pathlib import Path

import annals
import annals.aio

WRITER = """
import sys, annals
with annals.open(sys.argv[1]) as store:
    space = store.namespace()
    for number in range(int(sys.argv[3])):
        space.put("notes", f"{sys.argv[2]}-{number:04}", b"value of " + sys.argv[2].encode())
"""


RECORDER = """
import sys, annals
with annals.open(sys.argv[1]) as store:
    print("held", store.held)
    space = store.namespace()
    abandoned = space.begin_run("abandoned")
    abandoned.record("llm", "in", "out")
    with space.begin_run("beside") as run:
        seqs = [run.record("llm", "in", "out"), run.record("tool", "in two", "out", parent=1)]
        print("frames", *seqs, end=", ")
        print("state at", run.snapshot('{"a":1}'))
    info = space.run("beside").info
    print("ended", info.status, info.frames)
    frame = next(iter(space.run("beside")))
    print("read", frame.input.decode(), frame.output.decode())
"""


RESUMER = """
import sys, annals
with annals.open(sys.argv[1]) as store:
    print("held", store.held)
    space = store.namespace()
    with space.fork("ended", 2, "fork") as fork:
        print("fork", fork.record("tool", "third", "out"), end=", ")
    with space.fork("ended", 2, "edited", edit=True) as edited:
        print("edited", edited.record("tool", "second anew", "out"))
    resumed = space.resume_run("left")
    print("resumed", resumed.record("tool", "second", "out"), resumed.snapshot("state"), resumed.end("failed").status)
    for wrong in (
        lambda: space.fork("none", 1, "other"),
        lambda: space.fork("ended", 9, "other"),
        lambda: space.fork("ended", 1, "fork"),
        lambda: space.resume_run("none"),
        lambda: space.resume_run("ended"),
        lambda: space.resume_run("recorded here"),
    ):
        try:
            wrong()
            print("done", end=" ")
        except annals.Error as error:
            print(type(error).__name__, end=" ")
"""

# Goes on with a run through one holder, and through the next one.
PERSISTENT = """
import sys, annals
store = annals.open(sys.argv[1])
run = store.namespace().resume_run("left")
print(run.record("tool", "second", "out"), flush=True)
sys.stdin.readline()
print(run.record("tool", "third", "out"), run.end().status, store.held)
store.close()
"""


REMEMBERER = """
import sys, annals
with annals.open(sys.argv[1]) as store:
    print("held", store.held)
    space = store.namespace()
    entry = '{"id":"d1","value":{"query":"Why was application #42 rejected?","answer":"credit below floor"}}'
    print(space.remember(entry, tenant="bank"), "at bank")
    for number in range(10):
        space.put_embedded("notes", f"n{number}", "text", {"words": [1.0, number / 10]})
    space.drop_run("unwanted", "no longer needed")
    space.pin("pinned", "evidence")
    space.flag("flagged", "look at it", escalate=True)
    print(space.unpin("loose"), space.unflag("loose"))
    for wrong in (lambda: space.put_embedded("notes", "n", "t", {"words": [1.0]}), lambda: space.drop_run("none")):
        try:
            wrong()
        except annals.Error as error:
            print(type(error).__name__, end=" " if type(error) is annals.Invalid else "\\n")
"""


def read_in_child(path, answers):
    with annals.open(path) as store:
        answers.put(store.namespace().get("notes", "a"))


class StoreCase(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.path = Path(directory.name) / "store"

    def open(self, **options):
        store = annals.open(self.path, **options)
        self.addCleanup(store.close)
        return store


class Keys(StoreCase):
    def test_value_kinds_read_back_as_bytes(self):
        space = self.open().namespace()
        kinds = [b"bytes", "text é", bytearray(b"array"), memoryview(b"every second one")[::2], array.array("H", [1, 2])]
        for value in kinds:
            space.put("notes", "key", value)
            expected = value.encode() if isinstance(value, str) else bytes(value)
            self.assertEqual(space.get("notes", b"key"), expected)
        with self.assertRaisesRegex(TypeError, "bytes, str or a buffer"):
            space.put("notes", "key", 7)

    def test_value_is_compared_without_reading_it(self):
        space = self.open().namespace()
        for value in (b"short", bytes(10_000), random.Random(1).randbytes(5_000)):
            space.put("notes", "a", value)
            self.assertTrue(space.has_value("notes", b"a", value))
            self.assertFalse(space.has_value("notes", b"a", value[:-1]))
            self.assertFalse(space.has_value("notes", b"a", value[:-1] + b"x"))
            space.delete("notes", "a")
            self.assertFalse(space.has_value("notes", b"a", value))
        self.assertFalse(space.has_value("none", b"a", b""))

    def test_scan_gives_pages_in_both_directions(self):
        space = self.open().namespace()
        space.write([("put", "notes", f"{number:03}", str(number)) for number in range(100)])
        page, more = space.scan_page("notes", "010", "020", count=4)
        self.assertEqual(([key for key, _ in page], more), ([b"010", b"011", b"012", b"013"], True))
        page, _ = space.scan_page("notes", "010", "020", count=2, reverse=True, keys_only=True)
        self.assertEqual(page, [(b"019", None), (b"018", None)])
        self.assertEqual(space.scan_page("none", "")[0], [])

    def test_batch_with_a_bad_change_writes_nothing(self):
        space = self.open().namespace()
        with self.assertRaises(annals.Invalid):
            space.write([("put", "notes", "a", "1"), ("put", "db3", "b", "2")])
        with self.assertRaises(TypeError):
            space.write([("put", "notes", "a", "1"), ("erase", "notes", "b")])
        self.assertIsNone(space.get("notes", "a"))

    def test_deleted_key_is_gone(self):
        space = self.open().namespace()
        space.put("notes", "a", "1")
        space.delete("notes", "a")
        self.assertIsNone(space.get("notes", "a"))


class Runs(StoreCase):
    def test_run_reads_back_bit_exactly(self):
        space = self.open().namespace("lending")
        with space.begin_run("loan-42", agent="lending", tags=[("case", "42")]) as run:
            call = run.record("llm", b"\x00request", "answer é", metadata='{"model":"m"}')
            run.record("tool", "{}", b"", parent=call, error=True)
            run.snapshot(b"state")
        reader = space.run("loan-42")
        frames = list(reader)
        self.assertEqual([(frame.seq, frame.component, frame.parent) for frame in frames], [(1, "llm", None), (2, "tool", 1)])
        self.assertEqual((frames[0].input, frames[0].output), (b"\x00request", "answer é".encode()))
        self.assertEqual(reader.snapshot_at(2), (2, b"state"))
        self.assertEqual((reader.info.status, reader.info.frames, reader.info.agent), ("ok", 2, "lending"))
        self.assertEqual(frames[1].link, reader.info.fingerprint)

    def test_exception_ends_a_run_as_failed(self):
        space = self.open().namespace()
        with self.assertRaises(KeyError), space.begin_run("r"):
            raise KeyError("x")
        self.assertEqual(space.run("r").info.status, "failed")

    def test_fork_shares_frames(self):
        space = self.open().namespace()
        with space.begin_run("r") as run:
            run.record("llm", "1", "one")
            run.record("llm", "2", "two")
        with space.fork("r", 1, "what-if") as fork:
            fork.record("llm", "2b", "other")
        self.assertEqual([frame.input for frame in space.run("what-if")], [b"1", b"2b"])
        self.assertEqual(space.run("what-if").info.parent, ("r", 1))

    def test_errors_have_classes(self):
        space = self.open().namespace()
        with self.assertRaises(annals.NotFound):
            space.run("none")
        space.begin_run("r").end()
        with self.assertRaises(annals.Conflict):
            space.begin_run("r")
        space.drop_run("r")
        with self.assertRaises(annals.Error):
            space.run("r")
        with self.assertRaises(annals.Invalid):
            space.begin_run("")


class Tables(StoreCase):
    def setUp(self):
        super().setUp()
        self.space = self.open().namespace()
        for name, answer in (("a", b"<one>"), ("b", b"two")):
            with self.space.begin_run(name) as run:
                run.record("llm", "same", answer)
                if name == "b":
                    run.record("tool", "more", "x" * 1000)

    def test_run_shows_as_html_without_markup_of_its_bodies(self):
        shown = self.space.run("a")._repr_html_()
        self.assertIn("&lt;one&gt;", shown)
        self.assertIn("(1000 bytes)", self.space.run("b")._repr_html_())
        self.assertIn("&lt;one&gt;", self.space.run("a").frame(1)._repr_html_())

    def test_difference_names_frames_and_parts(self):
        found = annals.difference(self.space.run("a"), self.space.run("b"))
        self.assertEqual([row[:2] for row in found.rows], [(1, "output"), (2, "missing")])
        self.assertIn("differs in", found._repr_html_())

    def test_run_becomes_a_table_of_arrow_and_pandas(self):
        run = self.space.run("b")
        for name, module in (("to_arrow", "pyarrow"), ("to_pandas", "pandas")):
            if importlib.util.find_spec(module) is None:
                self.skipTest(f"{module} is not installed")
            table = getattr(run, name)()
            self.assertEqual((len(table), list(table["seq"])[0]), (2, 1) if name == "to_pandas" else (2, table["seq"][0]))


class Package(unittest.TestCase):
    def test_import_brings_in_no_framework(self):
        program = "import annals, annals.aio, annals.sessions, sys; print(*sys.modules)"
        shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
        heavy = {"langgraph", "langchain_core", "pandas", "pyarrow", "agents", "claude_agent_sdk", "httpx", "pydantic"}
        self.assertEqual(heavy & set(shown.split()), set())

    def test_bracketed_installs_are_quoted(self):
        # zsh reads brackets as a pattern: an install command that does not quote them fails there.
        documentation = Path(__file__).resolve().parents[3] / "docs" / "python.md"
        installs = [line for line in documentation.read_text().splitlines() if "pip install" in line and "[" in line]
        self.assertTrue(installs)
        for line in installs:
            self.assertRegex(line, r"pip install '[^']*\[[^']*\]'")


class Asyncio(StoreCase):
    def test_async_forms_read_what_they_wrote(self):
        async def work():
            async with annals.aio.open(self.path) as store:
                space = await store.namespace()
                await space.put("notes", "a", "1")
                async with await space.begin_run("r") as run:
                    await run.record("llm", "in", "out")
                frames = [frame.output async for frame in (await space.run("r")).frames()]
                return await space.get("notes", "a"), frames

        self.assertEqual(asyncio.run(work()), (b"1", [b"out"]))


class Search(StoreCase):
    def test_memory_is_recalled_by_a_question(self):
        space = self.open().namespace()
        self.assertEqual(space.recall("Why was application #42 rejected?"), [])
        entry = '{"id":"d1","value":{"query":"Why was application #42 rejected?","answer":"credit below floor"}}'
        other = '{"id":"d2","value":{"query":"Why was application #43 approved?","answer":"good credit"}}'
        self.assertEqual([space.remember(entry), space.remember(other)], ["d1", "d2"])
        space.remember(entry, tenant="bank")
        (hit,) = space.recall("why was #42 rejected?", k=5)
        self.assertEqual(json.loads(hit.entry)["value"]["answer"], "credit below floor")
        self.assertEqual((hit.identity, hit.score > 0.5), ("_/_/_", True))
        self.assertEqual([hit.identity for hit in space.recall("rejected #42", tenant="bank")], ["bank/_/_"])
        self.assertEqual(space.recall("the weather in Oslo"), [])
        with self.assertRaises(annals.Invalid):
            space.remember("no JSON")

    def test_nearest_keys_are_found_by_vectors(self):
        space = self.open().namespace()
        with self.assertRaises(annals.NotFound):
            space.nearest("words", [1.0, 0.0])
        for number in range(10):
            space.put_embedded("notes", f"n{number}", "text", {"words": [1.0, number / 10]})
        hits = space.nearest("words", [1.0, 0.31], k=2)
        self.assertEqual([(hit.keyspace, hit.key) for hit in hits], [("notes", b"n3"), ("notes", b"n4")])
        self.assertGreater(hits[0].score, 0.999)
        space.put("notes", "n3", "no vector")
        self.assertEqual([hit.key for hit in space.nearest("words", [1.0, 0.31], k=1)], [b"n4"])
        for wrong in ([1.0], [float("nan"), 1.0], [0.0, 0.0]):
            with self.assertRaises(annals.Invalid):
                space.nearest("words", wrong)


class Handles(StoreCase):
    def test_closed_store_is_refused(self):
        store = self.open()
        space = store.namespace()
        run = space.begin_run("r")
        store.close()
        store.close()
        for call in (lambda: space.get("notes", "a"), lambda: run.record("llm", "", ""), store.namespaces):
            with self.assertRaisesRegex(annals.Invalid, "is closed"):
                call()

    def test_missing_namespace_of_read_only_store_is_not_found(self):
        with self.assertRaises(annals.NotFound):
            annals.open(self.path, read_only=True)
        self.open().close()
        with self.assertRaises(annals.NotFound):
            self.open(read_only=True).namespace("none")

    def test_store_of_a_newer_format_is_unsupported(self):
        self.open().close()
        (manifest,) = self.path.glob("MANIFEST*")
        data = bytearray(manifest.read_bytes())
        # Each edit: crc u32, bytes u32, format u16. The crc covers the store's id and the edit's position.
        at = 28
        while at + 8 < len(data):
            (length,) = struct.unpack_from("<I", data, at + 4)
            data[at + 8] += 1
            crc = zlib.crc32(data[at + 4 : at + 8 + length], zlib.crc32(struct.pack("<Q", at), zlib.crc32(data[8:24])))
            struct.pack_into("<I", data, at, crc)
            at += 8 + length
        manifest.write_bytes(data)
        with self.assertRaisesRegex(annals.Unsupported, "newer annals"):
            annals.open(self.path)

    def test_environment_names_the_store(self):
        os.environ["ANNALS_STORE"] = str(self.path)
        self.addCleanup(os.environ.pop, "ANNALS_STORE")
        with annals.open() as store:
            self.assertEqual(Path(store.path), self.path)

    def test_threads_share_a_store(self):
        space = self.open().namespace()
        failures = []

        def work(worker):
            try:
                for number in range(20):
                    space.put("notes", f"{worker}-{number}", "v")
            except annals.Error as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(worker,)) for worker in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])
        self.assertEqual(len(space.keys("notes", 1000)), 160)


class Processes(StoreCase):
    def test_forked_child_must_not_use_the_parents_store(self):
        # The child has neither the writer's thread nor its locks: a call would wait forever, and closing the store at
        # the child's end would cut off what the parent is writing.
        store = self.open()
        space = store.namespace()
        space.put("notes", "a", "1")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                space.get("notes", "a")
            except annals.Invalid as error:
                code = 0 if "a fork of it" in str(error) else 2
            del space, store
            os._exit(code)
        self.assertEqual(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), 0)
        space.put("notes", "b", "2")
        self.assertEqual(space.get("notes", "a"), b"1")

    def test_child_that_opens_the_store_goes_through_the_parent(self):
        store = self.open()
        store.namespace().put("notes", "a", "1")
        for method in ("fork", "spawn"):
            context = multiprocessing.get_context(method)
            answers = context.Queue()
            child = context.Process(target=read_in_child, args=(self.path, answers))
            child.start()
            self.assertEqual(answers.get(), b"1", method)
            child.join()
            self.assertEqual(child.exitcode, 0, method)

    def test_run_beside_another_holder_goes_through_it(self):
        # A run of `begin_run` was refused with Locked where another process held the store.
        store = self.open()
        store.namespace().put("notes", "a", "1")
        recorder = subprocess.run([sys.executable, "-c", RECORDER, str(self.path)], capture_output=True, text=True)
        self.assertEqual((recorder.returncode, recorder.stderr), (0, ""))
        self.assertEqual(recorder.stdout, "held False\nframes 1 2, state at 2\nended ok 2\nread in out\n")
        reader = store.namespace().run("beside")
        self.assertEqual([(frame.seq, frame.input) for frame in reader], [(1, b"in"), (2, b"in two")])
        self.assertEqual(reader.snapshot_at(2), (2, b'{"a":1}'))
        # This process learns from the socket that the recorder has ended.
        while store.namespace().run("abandoned").info.status == "open":
            os.sched_yield()
        self.assertEqual(store.namespace().run("abandoned").info.status, "abandoned")

    def begin_left_run(self, space):
        """A run that its recorder has left."""
        left = space.begin_run("left")
        left.record("llm", "first", "out")
        del left

    def test_fork_and_resumed_run_beside_another_holder_go_through_it(self):
        # `fork` and `resume_run` were refused with Locked where another process held the store.
        space = self.open().namespace()
        with space.begin_run("ended") as run:
            run.record("llm", "first", "out")
            run.record("tool", "second", "out")
        self.begin_left_run(space)
        recorded = space.begin_run("recorded here")
        program = subprocess.run([sys.executable, "-c", RESUMER, str(self.path)], capture_output=True, text=True)
        self.assertEqual((program.returncode, program.stderr), (0, ""))
        refusals = "NotFound NotFound Conflict NotFound Conflict Conflict "
        self.assertEqual(
            program.stdout, f"held False\nfork 3, edited 2\nresumed 2 2 failed\n{refusals}"
        )
        inputs = lambda name: [frame.input for frame in space.run(name)]
        self.assertEqual(inputs("fork"), [b"first", b"second", b"third"])
        self.assertEqual(inputs("edited"), [b"first", b"second anew"])
        self.assertEqual(inputs("left"), [b"first", b"second"])
        self.assertEqual(space.run("left").snapshot_at(2), (2, b"state"))
        self.assertEqual(
            [(space.run(name).info.status, space.run(name).info.parent) for name in ("fork", "edited", "left")],
            [("ok", ("ended", 2)), ("ok", ("ended", 1)), ("failed", None)],
        )
        recorded.end()

    def test_resumed_run_goes_on_after_its_holder_has_gone(self):
        # The run has no token of the program that resumed it: the next holder must take it up without one.
        store = self.open()
        self.begin_left_run(store.namespace())
        program = subprocess.Popen(
            [sys.executable, "-c", PERSISTENT, str(self.path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        self.assertEqual(program.stdout.readline(), "2\n")
        store.close()
        said, complaint = program.communicate("\n", timeout=60)
        self.assertEqual((program.returncode, complaint, said), (0, "", "3 ok True\n"))
        run = self.open().namespace().run("left")
        self.assertEqual([(frame.seq, frame.input) for frame in run], [(1, b"first"), (2, b"second"), (3, b"third")])

    def test_memory_vectors_and_drops_beside_another_holder_go_through_it(self):
        # These were refused with Locked where another process held the store.
        store = self.open()
        space = store.namespace()
        space.put("notes", "a", "1")
        for name in ("unwanted", "pinned", "flagged", "loose"):
            with space.begin_run(name) as run:
                run.record("llm", "in", "out")
        program = subprocess.run([sys.executable, "-c", REMEMBERER, str(self.path)], capture_output=True, text=True)
        self.assertEqual((program.returncode, program.stderr), (0, ""))
        self.assertEqual(program.stdout, "held False\nd1 at bank\nFalse False\nInvalid NotFound\n")
        (hit,) = space.recall("why was #42 rejected?", tenant="bank")
        self.assertEqual(json.loads(hit.entry)["value"]["answer"], "credit below floor")
        hits = space.nearest("words", [1.0, 0.31], k=2)
        self.assertEqual([(hit.keyspace, hit.key) for hit in hits], [("notes", b"n3"), ("notes", b"n4")])
        self.assertEqual(space.get("notes", "n3"), b"text")
        with self.assertRaisesRegex(annals.Gone, "no longer needed"):
            space.run("unwanted")
        with self.assertRaisesRegex(annals.Conflict, "pinned"):
            space.drop_run("pinned")
        self.assertEqual((space.unpin("pinned"), space.unpin("pinned")), (True, False))
        space.drop_run("pinned")
        self.assertEqual((space.unflag("flagged"), space.unflag("flagged")), (True, False))
        space.pin("loose", "here, too")
        space.flag("loose", "here, too")
        self.assertEqual((space.unpin("loose"), space.unflag("loose")), (True, True))
        for wrong in (lambda: space.pin("loose", ""), lambda: space.flag("none", "why")):
            with self.assertRaises(annals.Error):
                wrong()

    def test_four_processes_write_at_once(self):
        command = [sys.executable, "-c", WRITER, str(self.path)]
        writers = [subprocess.Popen([*command, name, "50"], stderr=subprocess.PIPE) for name in "abcd"]
        for writer in writers:
            _, complaint = writer.communicate()
            self.assertEqual((writer.returncode, complaint), (0, b""))
        keys = self.open().namespace().keys("notes", 1000)
        self.assertEqual(len(keys), 200)

    def test_another_process_takes_the_store_over(self):
        # The holder ends while the other one goes on: no write of either is lost.
        command = [sys.executable, "-c", WRITER, str(self.path)]
        holder = self.open()
        holder.namespace().put("notes", "h", "1")
        other = subprocess.Popen([*command, "o", "200"], stderr=subprocess.PIPE)
        space = holder.namespace()
        while space.get("notes", "o-0010") is None and other.poll() is None:
            pass
        holder.close()
        _, complaint = other.communicate()
        self.assertEqual((other.returncode, complaint), (0, b""))
        self.assertEqual(len(self.open().namespace().keys("notes", 1000)), 201)


if __name__ == "__main__":
    unittest.main()
