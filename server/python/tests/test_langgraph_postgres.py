"""Migration from a PostgresSaver's database in a real server. Skipped without PostgreSQL or its packages.

The server runs in a directory of its own, with a Unix socket and no network. It refuses to run as root, so root runs it
as another user.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import datetime
import decimal
import glob
import importlib
import operator
import os
import pwd
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest
import uuid
from pathlib import Path
from typing import Annotated, Any, TypedDict

import annals

try:
    import psycopg
    from langgraph.channels import DeltaChannel
    from langgraph.checkpoint.base import empty_checkpoint
    from langgraph.checkpoint.base.id import uuid6
    from langgraph.checkpoint.postgres import PostgresSaver
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
    from langgraph.graph import END, START, StateGraph
    from langgraph.types import Command, Send, interrupt
except ImportError as error:
    raise unittest.SkipTest(
        f"langgraph-checkpoint-postgres is not installed: the migration from PostgreSQL is NOT tested ({error})"
    ) from None

from annals._langgraph_format import CHECKPOINTS, CHUNKS, VALUES, WRITES, checkpoint_key
from annals.langgraph import AnnalsSaver


def programs() -> Path | None:
    """The folder of the newest PostgreSQL's programs."""
    found = [Path(path).parent for path in glob.glob("/usr/lib/postgresql/*/bin/initdb")]
    found += [Path(path).parent for path in [shutil.which("initdb")] if path]
    return max(found, key=lambda path: [int(part) for part in path.parts if part.isdigit()], default=None)


class Server:
    """A PostgreSQL server of its own."""

    def __init__(self, programs: Path) -> None:
        # The path of a socket has room for 107 bytes.
        self.directory = tempfile.mkdtemp(prefix="annals-pg-", dir="/tmp")
        self.user: dict[str, Any] = {}
        if os.geteuid() == 0:
            names = {entry.pw_name: entry for entry in pwd.getpwall()}
            entry = names.get("postgres") or names["nobody"]
            self.user = {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}
            os.chown(self.directory, entry.pw_uid, entry.pw_gid)
        data = f"{self.directory}/data"
        initialise = [programs / "initdb", "-D", data, "-U", "annals", "-A", "trust", "-E", "UTF8", "--locale=C"]
        subprocess.run([*initialise, "--no-sync"], check=True, capture_output=True, cwd="/", **self.user)
        options = ["-c", "listen_addresses=", "-c", "fsync=off", "-c", "log_min_messages=log"]
        command = [programs / "postgres", "-D", data, "-k", self.directory, *options]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd="/", **self.user)
        said = []
        for line in self.process.stderr:
            said.append(line)
            if "ready to accept connections" in line:
                break
        else:
            raise RuntimeError("PostgreSQL does not start: " + "".join(said))
        # It would block if nobody read what it logs.
        self.reader = threading.Thread(target=collections.deque, args=(self.process.stderr, 0), daemon=True)
        self.reader.start()
        self.count = 0

    def database(self) -> str:
        """The connection string of a new, empty database."""
        self.count += 1
        name = f"test{self.count}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def url(self, name: str) -> str:
        return f"postgresql://annals@/{name}?host={self.directory}"

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait()
        self.reader.join()
        self.process.stderr.close()
        shutil.rmtree(self.directory)


def setUpModule() -> None:
    global SERVER
    found = programs()
    if found is None:
        raise unittest.SkipTest("PostgreSQL is not installed: the migration from PostgreSQL is NOT tested")
    SERVER = Server(found)


def tearDownModule() -> None:
    SERVER.stop()


@dataclasses.dataclass
class Plan:
    """A value of a class."""

    step: int
    due: datetime.datetime
    price: decimal.Decimal


def appended(state: list[str], writes: list[Any]) -> list[str]:
    return [*state, *(text for write in writes for text in write)]


class State(TypedDict, total=False):
    step: int
    last: int
    messages: Annotated[list[str], operator.add]
    log: Annotated[list[str], DeltaChannel(appended, snapshot_frequency=7)]
    document: str
    table: dict[str, Any]
    plan: Plan
    raw: bytes
    nothing: None
    answer: str
    inner: str


class Inner(TypedDict, total=False):
    inner: str
    count: Annotated[list[int], operator.add]


def inner_graph(**options: Any) -> Any:
    builder = StateGraph(Inner)
    builder.add_node("first", lambda state: {"inner": state.get("inner", "") + "a", "count": [1]})
    builder.add_node("second", lambda state: {"inner": state["inner"] + "b", "count": [2]})
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    builder.add_edge("second", END)
    return builder.compile(**options)


def graph(saver: Any) -> Any:
    """A loop over channels of every size and kind, with two subgraphs, then parallel tasks, one of which asks."""
    noise = random.Random(30).randbytes(150_000).hex()

    def work(state: State) -> Any:
        step = state.get("step", 0) + 1
        # A long text of which a few bytes change, a long table of which one row does.
        document = noise[: 1000 * step] + f"step {step}" + noise[1000 * step :]
        return {
            "step": step,
            "messages": [f"message {step} " + "é" * (step % 5) * 100],
            "log": [f"line {step}"],
            "document": document,
            "table": {f"row {row}": [row, row / 3, step if row == step else None] for row in range(500)},
            "plan": Plan(step, datetime.datetime(2026, 11, 1, step % 24, tzinfo=datetime.timezone.utc), decimal.Decimal("1.10")),
            "raw": bytes(range(256)) * (step % 3),
            "nothing": None,
        }

    def after_work(state: State) -> Any:
        if state["step"] < state["last"]:
            return "work" if state["step"] % 5 else "kept_inner"
        return [Send("parallel", {"step": 1}), Send("parallel", {"step": 2}), "ask"]

    def ask(state: State) -> Any:
        return {"answer": interrupt({"question": "go on?", "plan": state["plan"]})}

    builder = StateGraph(State)
    builder.add_node("work", work)
    builder.add_node("kept_inner", inner_graph(checkpointer=True))
    builder.add_node("inner", inner_graph())
    builder.add_node("parallel", lambda state: {"messages": [f"parallel {state['step']}"]})
    builder.add_node("ask", ask)
    builder.add_edge(START, "work")
    builder.add_conditional_edges("work", after_work, ["work", "kept_inner", "parallel", "ask"])
    builder.add_edge("kept_inner", "inner")
    builder.add_edge("inner", "work")
    builder.add_edge("ask", END)
    return builder.compile(checkpointer=saver)


def thread(name: str, ns: str | None = None, checkpoint_id: str | None = None) -> Any:
    found = {"thread_id": name, "checkpoint_ns": ns, "checkpoint_id": checkpoint_id}
    return {"recursion_limit": 1000, "configurable": {key: value for key, value in found.items() if value is not None}}


def key_of(found: Any) -> tuple[str, str, str]:
    at = found.config["configurable"]
    return at["thread_id"], at["checkpoint_ns"], at["checkpoint_id"]


class Migrating(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.saver = AnnalsSaver(self.directory / "store")
        self.addCleanup(self.saver.close)
        self.url = SERVER.database()
        with PostgresSaver.from_conn_string(self.url) as old:
            old.setup()

    def sql(self, query: str, *values: Any) -> list[Any]:
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(query, values)
            return cursor.fetchall() if cursor.description else [cursor.rowcount]

    def fill(self, steps: int = 4, names: tuple[str, ...] = ("t",)) -> None:
        with PostgresSaver.from_conn_string(self.url) as old:
            for name in names:
                graph(old).invoke({"last": steps}, thread(name))

    def put(self, values: dict[str, Any], serde: Any = None) -> Any:
        """Saves one checkpoint in the database."""
        point = empty_checkpoint()
        point["id"] = str(uuid6(clock_seq=0))
        point["channel_values"], point["channel_versions"] = values, dict.fromkeys(values, "1")
        with PostgresSaver.from_conn_string(self.url) as old:
            old.serde = serde or old.serde
            return old.put(thread("t", ""), point, {"source": "input", "step": -1}, dict.fromkeys(values, "1"))

    def keys(self) -> list[int]:
        space = self.saver.store.namespace()
        return [len(space.keys(name, 100_000)) for name in (CHECKPOINTS, VALUES, CHUNKS, WRITES)]

    def assert_copied(self) -> int:
        """Each checkpoint and each write is the same through both savers; returns the number of checkpoints."""
        with PostgresSaver.from_conn_string(self.url) as old:
            expected = {key_of(found): found for found in old.list(None)}
        found = {key_of(found): found for found in self.saver.list(None)}
        self.assertEqual(sorted(found), sorted(expected))
        for at, theirs in expected.items():
            ours = found[at]
            for name in ("config", "parent_config", "metadata", "checkpoint", "pending_writes"):
                self.assertEqual(getattr(ours, name), getattr(theirs, name), (at, name))
            self.assertEqual(self.saver.get_tuple(theirs.config), ours)
        columns = "task_id, idx, channel, task_path, type, blob"
        rows = self.sql(f"SELECT thread_id, checkpoint_ns, checkpoint_id, {columns} FROM checkpoint_writes")
        wanted = sorted((*row[:8], bytes(row[8])) for row in rows)
        copied = sorted((*at, *write[:4], *write[4]) for at in found for write in self.saver._writes(*at))
        self.assertEqual(copied, wanted)
        blobs = self.sql(
            "SELECT DISTINCT thread_id, checkpoint_ns, channel, type, blob FROM checkpoint_blobs WHERE type <> 'empty'"
        )
        stored = set()
        for at in found:
            data = self.saver._space.get(CHECKPOINTS, checkpoint_key(*at))
            for channel, _, saved_by in type(self)._record(data).refs:
                typed = self.saver._value(at[0], at[1], channel, saved_by, at[2])
                if typed is not None:
                    stored.add((at[0], at[1], channel, *typed))
        missing = {(*row[:4], bytes(row[4] or b"")) for row in blobs} - stored
        self.assertEqual({row[:4] for row in missing}, set())
        return len(found)

    @staticmethod
    def _record(data: bytes) -> Any:
        from annals._langgraph_format import Record

        return Record.decode(data)

    def test_real_runs_are_copied_and_compared(self):
        self.fill(40, ("a", "b \N{BULLET} c"))
        with PostgresSaver.from_conn_string(self.url) as old:
            # A thread that failed in one of its parallel tasks keeps the writes of the others, and the error.
            with self.assertRaises(ZeroDivisionError):
                broken(old).invoke({"last": 1}, thread("broken"))
            # A thread that a person changed has two branches.
            app = graph(old)
            past = list(app.get_state_history(thread("a")))[20]
            app.update_state(past.config, {"step": 38, "messages": ["changed"]})

        async def run() -> None:
            async with AsyncPostgresSaver.from_conn_string(self.url) as old:
                await graph(old).ainvoke({"last": 6}, thread("async"))

        asyncio.run(run())
        before = self.sql("SELECT sum(n_tup_ins + n_tup_upd + n_tup_del) FROM pg_stat_user_tables")
        count = self.saver.migrate_from_postgres(self.url)
        self.assertEqual(self.sql("SELECT sum(n_tup_ins + n_tup_upd + n_tup_del) FROM pg_stat_user_tables"), before)
        self.assertEqual(self.assert_copied(), count)
        self.assertGreater(count, 200)
        namespaces = {at[1] for at in map(key_of, self.saver.list(None))}
        self.assertIn("kept_inner", namespaces)
        self.assertTrue(any(ns.startswith("inner:") for ns in namespaces), namespaces)
        channels = {write[1] for found in self.saver.list(None) for write in found.pending_writes}
        self.assertLessEqual({"__interrupt__", "__error__", "messages"}, channels)
        self.assertEqual(sorted(self.saver.threads()), ["a", "async", "b \N{BULLET} c", "broken"])
        runs = {name: len(list(self.saver.store.namespace().run(name))) for name in ("thread/a", "thread/broken")}
        self.assertEqual(runs["thread/a"], sum(key_of(found)[0] == "a" for found in self.saver.list(None)))

    def test_migrated_thread_resumes_as_in_the_database(self):
        self.fill(9)
        self.saver.migrate_from_postgres(self.url)
        ours = graph(self.saver)
        self.assertEqual(ours.get_state(thread("t")).interrupts[0].value["question"], "go on?")
        with PostgresSaver.from_conn_string(self.url) as old:
            theirs = graph(old).invoke(Command(resume="yes"), thread("t"))
        resumed = ours.invoke(Command(resume="yes"), thread("t"))
        self.assertEqual(resumed, theirs)
        self.assertEqual(resumed["answer"], "yes")
        # The delta channel is rebuilt from its ancestors' writes.
        self.assertEqual(resumed["log"], [f"line {step}" for step in range(1, 10)])

    def test_second_migration_adds_only_what_is_new(self):
        self.fill(12)
        count = self.saver.migrate_from_postgres(self.url)
        before, frames = self.keys(), len(list(self.saver.store.namespace().run("thread/t")))
        self.assertEqual(self.saver.migrate_from_postgres(self.url), 0)
        self.assertEqual(self.keys(), before)
        self.assertEqual(len(list(self.saver.store.namespace().run("thread/t"))), frames)
        with PostgresSaver.from_conn_string(self.url) as old:
            graph(old).invoke(Command(resume="yes"), thread("t"))
        self.assertGreater(self.saver.migrate_from_postgres(self.url), 0)
        self.assertGreater(self.assert_copied(), count)

    def test_migration_that_stopped_goes_on(self):
        self.fill(3, ("a", "b"))
        select = "SELECT channel, version, blob FROM checkpoint_blobs WHERE thread_id = 'b' AND channel = 'plan'"
        damaged = self.sql(select)[0]
        where = "WHERE thread_id = 'b' AND channel = %s AND version = %s"
        self.sql(f"UPDATE checkpoint_blobs SET blob = %s {where}", b"\xc1", *damaged[:2])
        with self.assertRaises(annals.Damaged):
            self.saver.migrate_from_postgres(self.url)
        there = self.keys()[0]
        self.assertGreater(there, 0)
        self.sql(f"UPDATE checkpoint_blobs SET blob = %s {where}", damaged[2], *damaged[:2])
        copied = self.saver.migrate_from_postgres(self.url)
        self.assertEqual(self.assert_copied(), there + copied)

    def test_value_that_cannot_be_read_names_its_checkpoint(self):
        self.fill()
        newest = max(self.sql("SELECT checkpoint_id FROM checkpoints WHERE checkpoint_ns = ''"))[0]
        cases = [
            ("UPDATE checkpoint_writes SET blob = %s WHERE checkpoint_id = %s", newest),
            ("UPDATE checkpoint_blobs SET blob = %s WHERE channel = %s", "plan"),
        ]
        for query, name in cases:
            self.assertGreater(self.sql(query, b"\xc1", name)[0], 0)
            with self.assertRaisesRegex(annals.Damaged, r"checkpoint [0-9a-f-]{36} of thread 't' cannot be read"):
                self.saver.migrate_from_postgres(self.url)
        with self.assertRaisesRegex(annals.Damaged, "of thread 't' cannot be read"):
            self.sql("UPDATE checkpoints SET checkpoint = '{}'")
            self.saver.migrate_from_postgres(self.url)

    def test_row_that_changed_after_the_copy_is_a_conflict(self):
        self.fill()
        self.saver.migrate_from_postgres(self.url)
        before = self.keys()
        step = "'{channel_values,step}'"
        changes = [
            ("metadata", "UPDATE checkpoints SET metadata = metadata || '{\"a\": 7}' WHERE metadata ->> 'step' = '1'"),
            ("channel 'plan'", "UPDATE checkpoint_blobs SET blob = 'x', type = 'bytes' WHERE channel = 'plan'"),
            (
                "channel 'step'",
                f"UPDATE checkpoints SET checkpoint = jsonb_set(checkpoint, {step}, '9') WHERE checkpoint #> {step} = '2'",
            ),
            ("write", "UPDATE checkpoint_writes SET blob = 'x', type = 'bytes' WHERE channel = '__interrupt__'"),
        ]
        tables = ("checkpoints", "checkpoint_blobs", "checkpoint_writes")
        for table in tables:
            self.sql(f"CREATE TABLE kept_{table} AS TABLE {table}")
        for named, change in changes:
            self.assertGreater(self.sql(change)[0], 0)
            with self.assertRaisesRegex(annals.Conflict, f"^checkpoint .* of thread 't'.*: {named}"):
                self.saver.migrate_from_postgres(self.url)
            for table in tables:
                self.sql(f"DELETE FROM {table}")
                self.sql(f"INSERT INTO {table} SELECT * FROM kept_{table}")
        self.assertEqual(self.saver.migrate_from_postgres(self.url), 0)
        self.assertEqual(self.keys(), before)

    def test_copy_that_differs_from_its_source_is_damaged(self):
        self.put({"value": ["a"]})
        real = self.saver._value
        self.saver._value = lambda *at: real(*at) and ("msgpack", b"\x91\xa1b")
        with self.assertRaisesRegex(annals.Damaged, "channel 'value' differs"):
            self.saver.migrate_from_postgres(self.url)

    def test_object_of_a_class_that_is_not_installed_stays_one(self):
        # The serializer gives plain data for it, with a warning; a copy of that would have lost the class.
        (self.directory / "elsewhere.py").write_text(
            "import dataclasses\n@dataclasses.dataclass\nclass Ticket:\n    number: int\n"
        )
        sys.path.insert(0, str(self.directory))
        importlib.invalidate_caches()
        ticket = importlib.import_module("elsewhere").Ticket(7)
        at = self.put({"ticket": {"inside": [ticket]}})
        with PostgresSaver.from_conn_string(self.url) as old:
            old.put_writes(at, [("ticket", ticket)], "task")
        sys.path.remove(str(self.directory))
        del sys.modules["elsewhere"]
        self.saver.migrate_from_postgres(self.url)
        self.assertEqual(self.saver.get_tuple(at).checkpoint["channel_values"]["ticket"], {"inside": [{"number": 7}]})
        sys.path.insert(0, str(self.directory))
        self.addCleanup(sys.path.remove, str(self.directory))
        self.addCleanup(sys.modules.pop, "elsewhere", None)
        found = self.saver.get_tuple(at)
        self.assertEqual(type(found.checkpoint["channel_values"]["ticket"]["inside"][0]).__name__, "Ticket")
        self.assertEqual(type(found.pending_writes[0][2]).__name__, "Ticket")

    def test_value_of_another_serializer_is_not_left_out(self):
        self.put({"value": collections.OrderedDict, "kept": [1]}, JsonPlusSerializer(pickle_fallback=True))
        with self.assertRaisesRegex(annals.Invalid, "Unknown serialization type: pickle.*`serde`"):
            self.saver.migrate_from_postgres(self.url)
        with AnnalsSaver(self.directory / "other", serde=JsonPlusSerializer(pickle_fallback=True)) as other:
            self.assertEqual(other.migrate_from_postgres(self.url), 1)
            values = next(other.list(None)).checkpoint["channel_values"]
            self.assertEqual(values, {"value": collections.OrderedDict, "kept": [1]})

    def test_values_of_every_kind_are_kept(self):
        values = {
            "none": None, "text": "é\N{GRINNING FACE}", "empty": "", "truth": True, "real": 0.1, "big": 2**63,
            "bytes": b"\0\1", "no_bytes": b"", "array": bytearray(b"x"), "list": [], "set": {1, 2}, "keys": {1: {2: 3}},
            "uuid": uuid.UUID(int=7), "error": ValueError("gone"), "long": list(range(100_000)),
        }  # fmt: skip
        self.put(values)
        self.saver.migrate_from_postgres(self.url)
        self.assertEqual(self.assert_copied(), 1)

    def test_refusals_say_what_to_do(self):
        empty = SERVER.database()
        old_tables = SERVER.database()
        with psycopg.connect(old_tables, autocommit=True) as connection:
            # The tables before the last column was added, and those of ShallowPostgresSaver, which keeps no ids.
            for statement in PostgresSaver.MIGRATIONS[:-1]:
                connection.execute(statement)
            insert = "INSERT INTO checkpoints (thread_id, checkpoint_id, checkpoint) VALUES ('t', 'a', '{\"v\": 4}')"
            connection.execute(insert)
        shallow = SERVER.database()
        with psycopg.connect(shallow, autocommit=True) as connection:
            connection.execute("CREATE TABLE checkpoints (thread_id TEXT, checkpoint_ns TEXT, checkpoint JSONB)")
        cases = [
            (empty, annals.NotFound, "no tables of a PostgresSaver"),
            (old_tables, annals.Unsupported, "setup"),
            (shallow, annals.Unsupported, "ShallowPostgresSaver"),
            (SERVER.url("nothing"), annals.Unavailable, "does not exist"),
            (self.url.replace("annals@", "nobody-known:hunter2@"), annals.Unavailable, "nobody-known"),
            (f"postgresql://annals@/x?host={self.directory}", annals.Unavailable, "No such file"),
            ("postgresql://annals@127.0.0.1:1/x", annals.Unavailable, "refused"),
            ("no connection string", annals.Invalid, "connection string"),
            ("postgresql://annals@/x?nonsense=1", annals.Invalid, "connection string"),
        ]
        for url, kind, said in cases:
            with self.subTest(url), self.assertRaisesRegex(kind, said) as raised:
                self.saver.migrate_from_postgres(url)
            self.assertNotIn("hunter2", str(raised.exception))
        self.assertEqual(self.keys(), [0, 0, 0, 0])

    def test_database_without_checkpoints_gives_none(self):
        self.assertEqual(self.saver.migrate_from_postgres(self.url), 0)

    def test_other_programs_may_change_the_database_meanwhile(self):
        # All is read as it was at the beginning, although another program adds checkpoints, and deletes them at last.
        self.fill(3)
        with PostgresSaver.from_conn_string(self.url) as old:
            app, real, added = graph(old), self.saver._checkpoint_changes, []

            def changes(*arguments: Any) -> Any:
                added.append(app.update_state(thread("t"), {"messages": ["meanwhile"]}))
                if len(added) == 4:
                    old.delete_thread("t")
                return real(*arguments)

            expected = [key_of(found) for found in old.list(None)]
            self.saver._checkpoint_changes = changes
            self.assertEqual(self.saver.migrate_from_postgres(self.url), len(expected))
            self.assertEqual(sorted(map(key_of, self.saver.list(None))), sorted(expected))
            self.assertGreater(len(added), 4)


def broken(saver: Any) -> Any:
    """Two parallel tasks, of which one fails."""
    builder = StateGraph(State)
    builder.add_node("good", lambda state: {"messages": ["good"]})
    builder.add_node("bad", lambda state: {"step": 1 // 0})
    builder.add_edge(START, "good")
    builder.add_edge(START, "bad")
    return builder.compile(checkpointer=saver)


if __name__ == "__main__":
    unittest.main()
