"""The LangGraph saver. Needs langgraph; without it the tests are skipped."""

from __future__ import annotations

import asyncio
import importlib
import operator
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import threading
import unittest
import unittest.mock
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, TypedDict

import annals

try:
    from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
    from langgraph.checkpoint.base import empty_checkpoint
    from langgraph.checkpoint.base.id import uuid6
    from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
    from langgraph.graph import END, START, StateGraph
except ModuleNotFoundError as error:
    raise unittest.SkipTest(f"langgraph is not installed: {error}") from None

# Outside of the `try`: a name that annals lacks is a failure, not a reason to skip.
from annals._annals import SerialisedList
from annals._langgraph_format import (
    CHECKPOINTS,
    CHUNK_BYTES,
    CHUNKS,
    HEAD_BYTES,
    THREADS,
    VALUES,
    WRITES,
    Record,
    checkpoint_key,
)
from annals.langgraph import AnnalsSaver, AnnalsStore

# Too long to stand in a checkpoint's record, as the numbers do.
KEPT = "always " * 20

SAVE = """
import sys
from langgraph.checkpoint.base import empty_checkpoint
from annals.langgraph import AnnalsSaver
with AnnalsSaver(sys.argv[1]) as saver:
    config = {"configurable": {"thread_id": sys.argv[2], "checkpoint_ns": ""}}
    for step in range(30):
        point = empty_checkpoint()
        point["channel_values"], point["channel_versions"] = {"n": step}, {"n": step + 1}
        config = saver.put(config, point, {"source": "loop", "step": step}, {"n": step + 1})
        saver.put_writes(config, [("n", step)], f"task-{step}")
"""


def checkpoint(values: dict[str, Any], versions: dict[str, Any]) -> Any:
    made = empty_checkpoint()
    made["id"] = str(uuid6(clock_seq=0))
    made["channel_values"], made["channel_versions"] = values, versions
    return made


def config(thread: str, ns: str = "", checkpoint_id: str | None = None) -> Any:
    found = {"thread_id": thread, "checkpoint_ns": ns}
    return {"configurable": found | ({"checkpoint_id": checkpoint_id} if checkpoint_id else {})}


class State(TypedDict):
    messages: Annotated[list[str], operator.add]
    choice: str


def graph(saver: Any) -> Any:
    def plan(state: State) -> Any:
        return {"messages": [f"plan {len(state['messages'])}"], "choice": state.get("choice") or "tool_A"}

    def act(state: State) -> Any:
        return {"messages": [f"used {state['choice']}"]}

    builder = StateGraph(State)
    builder.add_node("plan", plan)
    builder.add_node("act", act)
    builder.add_edge(START, "plan")
    builder.add_edge("plan", "act")
    builder.add_edge("act", END)
    return builder.compile(checkpointer=saver)


class SaverCase(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = Path(directory.name)
        self.saver = AnnalsSaver(self.directory / "store")
        self.addCleanup(self.saver.close)

    def steps(self, thread: str, count: int, **metadata: Any) -> list[Any]:
        at, made = config(thread), []
        for step in range(count):
            values, versions = {"n": step, "kept": KEPT}, {"n": f"{step + 1}.0", "kept": "1.0"}
            new = versions if step == 0 else {"n": versions["n"]}
            at = self.saver.put(at, checkpoint(values, versions), {"source": "loop", "step": step, **metadata}, new)
            made.append(at)
        return made

    def keys(self, keyspace: str) -> int:
        return len(self.saver.store.namespace().keys(keyspace, 100_000))


class Saving(SaverCase):
    def test_unchanged_channel_is_saved_once_and_read_everywhere(self):
        made = self.steps("t", 5)
        self.assertEqual(self.keys(VALUES), 1)
        for step, at in enumerate(made):
            values = self.saver.get_tuple(at).checkpoint["channel_values"]
            self.assertEqual(values, {"n": step, "kept": KEPT})

    def test_channel_without_a_value_does_not_reappear(self):
        first = self.saver.put(config("t"), checkpoint({"a": 1}, {"a": "1"}), {}, {"a": "1"})
        second = self.saver.put(first, checkpoint({}, {"a": "2"}), {}, {"a": "2"})
        third = self.saver.put(second, checkpoint({}, {"a": "2"}), {}, {})
        fourth = self.saver.put(third, checkpoint({}, {}), {}, {})
        for at in (second, third, fourth):
            self.assertEqual(self.saver.get_tuple(at).checkpoint["channel_values"], {})

    def test_checkpoint_saved_twice_does_not_change_its_children(self):
        # The child names the value that the first form of its parent saved. The second form has another value of the
        # same version.
        first, second = "first " * 20, "second " * 20
        point = checkpoint({"a": first}, {"a": 1})
        parent = self.saver.put(config("t"), point, {}, {"a": 1})
        child = self.saver.put(parent, checkpoint({"a": first}, {"a": 1}), {}, {})
        self.saver.put(config("t"), {**point, "channel_values": {"a": second}}, {}, {"a": 1})
        self.assertEqual(self.saver.get_tuple(parent).checkpoint["channel_values"], {"a": second})
        self.assertEqual(self.saver.get_tuple(child).checkpoint["channel_values"], {"a": first})

    def test_checkpoint_whose_parent_is_itself_does_not_loop(self):
        point = checkpoint({"a": 1}, {"a": 1})
        at = self.saver.put(config("t"), point, {}, {"a": 1})
        metadata = {"counters_since_delta_snapshot": {"d": [1, 1]}}
        self.saver.put(at, point, metadata, {"a": 1})
        self.saver.prune(["t"])
        self.assertEqual(len(list(self.saver.list(config("t")))), 1)

    def test_bytearray_of_any_length_is_saved(self):
        # A long one was a TypeError: only bytes have chunks.
        for number, length in enumerate((0, 10, 1_000, 100_000)):
            values, versions = {"data": bytearray(length)}, {"data": number}
            at = self.saver.put(config("t"), checkpoint(values, versions), {"step": number}, versions)
            self.saver.put_writes(at, [("data", bytearray(length))], "task")
            found = self.saver.get_tuple(at)
            self.assertEqual(found.checkpoint["channel_values"], values)
            self.assertEqual(found.pending_writes, [("task", "data", bytearray(length))])

    def test_write_may_arrive_before_its_checkpoint(self):
        point = checkpoint({}, {})
        at = config("t", "", point["id"])
        self.saver.put_writes(at, [("b", 2), ("c", 3)], "task-2", "~2")
        self.saver.put_writes(at, [("a", 1)], "task-9", "~1")
        self.saver.put_writes(at, [("b", "ignored")], "task-2", "~2")
        self.saver.put_writes(at, [("__error__", "one")], "task-2", "~2")
        self.saver.put_writes(at, [("__error__", "two")], "task-2", "~2")
        self.saver.put(config("t"), point, {}, {})
        found = self.saver.get_tuple(at).pending_writes
        expected = [("task-9", "a", 1), ("task-2", "__error__", "two"), ("task-2", "b", 2), ("task-2", "c", 3)]
        self.assertEqual(found, expected)

    def test_put_inside_a_list_loop_does_not_block(self):
        # SqliteSaver holds its lock while it lists, and waits for itself here.
        self.steps("t", 3)
        for found in self.saver.list(config("t")):
            self.saver.put(found.config, checkpoint({}, {}), {"source": "loop"}, {})
        self.assertEqual(len(list(self.saver.list(config("t")))), 6)

    def test_state_that_cannot_be_serialised_is_named(self):
        cyclic: dict[str, Any] = {"list": []}
        cyclic["list"].append(cyclic)
        cases = [
            ({"tools": [{}, {"client": threading.Lock()}]}, r"\$\.a\.tools\[1\]\.client: _thread\.lock"),
            ({"call": lambda: None}, r"\$\.a\.call: builtins\.function"),
            ({"file": open(os.devnull)}, r"\$\.a\.file: _io\.TextIOWrapper"),  # noqa: SIM115
            (cyclic, r"\$\.a\.list\[0\]: a reference to a value that contains it"),
        ]
        for value, named in cases:
            with self.assertRaisesRegex(annals.Invalid, named):
                self.saver.put(config("t"), checkpoint({"a": value}, {"a": 1}), {}, {"a": 1})
        cases[2][0]["file"].close()
        self.assertEqual((self.keys(CHECKPOINTS), self.keys(VALUES)), (0, 0))

    def test_thread_ids_of_any_text_are_kept_apart(self):
        names = ["a", "a\0", "a\0\1b", "ab", "", "é", "x" * 2000, "a/b", "a\nb"]
        for name in names:
            self.steps(name, 1)
        self.assertEqual(sorted(self.saver.threads()), sorted(names))
        self.saver.delete_thread("a")
        self.assertEqual(len(list(self.saver.list(config("a\0")))), 1)
        self.assertEqual(list(self.saver.list(config("a"))), [])

    def test_ids_of_any_form_are_listed_in_the_order_of_their_texts(self):
        # A UUID takes 16 bytes of a key and sorts before all other ids there. As texts, "0" is before it, "z" behind.
        uuids = [str(uuid6(clock_seq=step)) for step in range(3)]
        names = ["z", uuids[1], "0", uuids[0].upper(), uuids[2], uuids[0], "A\0b", "1f"]
        for name in names:
            self.saver.put(config("t"), {**checkpoint({}, {}), "id": name}, {}, {})
        wanted = sorted(names, reverse=True)
        listed = [found.config["configurable"]["checkpoint_id"] for found in self.saver.list(config("t"))]
        self.assertEqual(listed, wanted)
        self.assertEqual(self.saver.get_tuple(config("t")).checkpoint["id"], "z")
        for place, name in enumerate(wanted):
            before = self.saver.list(config("t"), before=config("t", "", name))
            self.assertEqual([found.checkpoint["id"] for found in before], wanted[place + 1 :])
            self.assertEqual(self.saver.get_tuple(config("t", "", name)).checkpoint["id"], name)

    def test_record_of_another_format_is_refused(self):
        self.steps("t", 1)
        space = self.saver.store.namespace()
        ((key, record),) = space.scan_page(CHECKPOINTS, b"")[0]
        space.put(CHECKPOINTS, key, b"\x01" + record[1:])
        with self.assertRaises(annals.Unsupported):
            self.saver.get_tuple(config("t"))

    def test_two_branches_with_one_version_number_keep_their_values(self):
        root = self.saver.put(config("t"), checkpoint({"a": 0}, {"a": 1}), {}, {"a": 1})
        branches = [self.saver.put(root, checkpoint({"a": x * 30}, {"a": 2}), {}, {"a": 2}) for x in ("left", "right")]
        read = [self.saver.get_tuple(at).checkpoint["channel_values"]["a"] for at in branches]
        self.assertEqual(read, [text * 30 for text in ("left", "right")])


class Listing(SaverCase):
    def test_hundred_thousand_threads_are_listed(self):
        space = self.saver.store.namespace()
        names = [f"thread-{number:06}" for number in range(100_000)]
        space.write([("put", THREADS, name.encode() + b"\0\1", "") for name in names])
        self.assertEqual(list(self.saver.threads()), names)


class GrowingLists(SaverCase):
    def assert_serializers_bytes(self, at: Any, value: Any) -> None:
        """The stored bytes of channel `messages` are those that the serializer makes of the whole value."""
        place = at["configurable"]
        key = checkpoint_key(place["thread_id"], place["checkpoint_ns"], place["checkpoint_id"])
        ((_, _, saved_by),) = Record.decode(self.saver.store.namespace().get(CHECKPOINTS, key)).refs
        stored = self.saver._value(place["thread_id"], "", "messages", saved_by, place["checkpoint_id"])
        self.assertEqual(stored, JsonPlusSerializer().dumps_typed(value))

    def put_list(self, at: Any, messages: list[Any]) -> Any:
        """Saves the list and checks what is stored."""
        self.lists_put = getattr(self, "lists_put", 0) + 1
        versions = {"messages": self.lists_put}
        at = self.saver.put(at, checkpoint({"messages": messages}, versions), {"step": self.lists_put}, versions)
        self.assert_serializers_bytes(at, messages)
        return at

    def test_item_that_was_changed_in_place_is_stored_as_it_is(self):
        # Only the new items of a list are serialised. A message that was changed in place is the same object, and
        # the bytes of its form before must not come back.
        changes: list[tuple[int, Any]] = [
            (0, lambda item: setattr(item, "content", "new")),
            (0, lambda item: setattr(item, "another", "an extra field")),
            (0, lambda item: item.additional_kwargs.update(key="value")),
            (0, lambda item: item.own.append("more")),
            (0, lambda item: item.own.clear()),
            (1, lambda item: item.content[0].update(text="new")),
            (1, lambda item: item.content[0].pop("type")),
            (1, lambda item: item.tool_calls[0]["args"].update(query="new")),
            (1, lambda item: item.tool_calls[0]["args"].update(more="new")),
            (1, lambda item: item.tool_calls[0]["args"]["limits"].append(3)),
            (1, lambda item: item.tool_calls[0]["args"]["limits"].pop()),
            (1, lambda item: item.response_metadata.update(count=True)),
            (1, lambda item: item.response_metadata.update(count=1.0)),
            (2, lambda item: item.artifact["rows"].append((3, "c"))),
            (2, lambda item: item.artifact["rows"].__setitem__(1, (2, "B"))),
            (3, lambda item: item["deep"][1].append(3)),
            (3, lambda item: item.update(deep=[1, [2]])),
            (3, lambda item: item.pop("deep")),
            (3, lambda item: item.update(more=1)),
            (4, lambda item: item.append("more")),
            (4, lambda item: item.clear()),
            (5, lambda item: setattr(item, "name", "new")),
        ]
        words = "a text of some length " * 100

        def items() -> list[Any]:
            call = {"name": "search", "args": {"query": words, "limits": [1, 2.5, None]}, "id": "c", "type": "tool_call"}
            return [
                HumanMessage("text", own=["an extra field"]),
                AIMessage([{"type": "text", "text": "text"}], tool_calls=[call], response_metadata={"count": 1}),
                ToolMessage("text", tool_call_id="c", artifact={"rows": [(1, "a"), (2, "b")]}),
                {"plain": ["text"], "deep": (1, [2])},
                ["text"],
                AIMessage("text"),
                HumanMessage("text"),
            ]

        for number, (index, change) in enumerate(changes):
            # The last item of the list, and one before others.
            for count in (index + 1, 7):
                with self.subTest(change=number, items=count):
                    at, messages = config(f"{number} {count}"), [words] * 12
                    for item in [words, words, *items()[:count]]:
                        messages = [*messages, item]
                        at = self.put_list(at, messages)
                    change(messages[14 + index])
                    at = self.put_list(at, messages)
                    self.put_list(at, [*messages, "one more"])

    def test_list_whose_items_were_moved_is_stored_as_it_is(self):
        words = "a text of some length " * 100
        messages: list[Any] = [*(AIMessage(words, id=str(number)) for number in range(12))]
        at = config("t")
        for count in range(8, 13):
            at = self.put_list(at, messages[:count])
        changes = [
            lambda: messages.__setitem__(8, HumanMessage(words, id="8")),
            lambda: messages.__setitem__(8, messages[8].model_copy()),
            lambda: messages.__setitem__(9, messages[10]),
            messages.reverse,
            lambda: messages.insert(5, None),
            lambda: messages.pop(0),
            lambda: messages.append(frozenset([1])),
            lambda: messages.extend([words, AIMessage(words)]),
            lambda: messages.__setitem__(-1, AIMessage(words, name="other")),
            messages.pop,
            messages.clear,
            lambda: messages.append("short"),
        ]
        for change in changes:
            change()
            for new in ([], [AIMessage("one more")]):
                messages += new
                at = self.put_list(at, messages)

    def test_growing_list_reads_back_at_every_step(self):
        # Its header grows at 16 and at 65,536 items, which moves all chunks.
        rng, at, messages = random.Random(3), config("t"), []
        for step in range(40):
            messages = [*messages, AIMessage(rng.randbytes(2_000).hex(), id=str(step))]
            at = self.put_list(at, messages)
        messages = messages + [""] * (65_534 - len(messages))
        for _ in range(4):
            at = self.put_list(at, messages)
            messages = [*messages, "one more"]
        found = [one.checkpoint["channel_values"]["messages"] for one in self.saver.list(config("t"))]
        self.assertEqual(found[0], messages[:-1])
        self.assertEqual(found[10], messages[: 44 - 10])

    def test_only_new_items_of_a_list_are_serialised(self):
        messages, at, sizes = [AIMessage("word " * 800, id=str(step)) for step in range(50)], config("t"), []
        original = JsonPlusSerializer.dumps_typed

        def dumps_typed(serializer: Any, value: Any) -> tuple[str, bytes]:
            kind, data = original(serializer, value)
            sizes.append(len(data))
            return kind, data

        at = self.put_list(at, messages[:40])
        at = self.put_list(at, messages[:40])
        with unittest.mock.patch.object(JsonPlusSerializer, "dumps_typed", dumps_typed):
            for count in range(41, 51):
                # As after a step of a graph: another list with the same messages.
                versions = {"messages": 100 + count}
                point = checkpoint({"messages": messages[:count]}, versions)
                at = self.saver.put(at, point, {"step": count}, versions)
        self.assertLess(max(sizes), 5_000)
        self.assert_serializers_bytes(at, messages)

    def test_what_is_kept_of_small_items_counts(self):
        # The limit counted only the serialised bytes. Of many numbers, what is kept takes many times that.
        value = list(range(100_000))
        kept = SerialisedList([], 0, 1 << 16)
        self.assertEqual(kept.keep_unchanged(value), 0)
        kept.extend(value, JsonPlusSerializer().dumps_typed(value)[1])
        self.assertGreater(kept.memory_bytes(), 4 * len(kept))

    def test_item_of_a_long_list_that_cannot_be_serialised_is_named(self):
        messages, at = ["word " * 2_000] * 10, config("t")
        for _ in range(3):
            at = self.put_list(at, messages)
        versions = {"messages": 99}
        point = checkpoint({"messages": [*messages, threading.Lock()]}, versions)
        with self.assertRaisesRegex(annals.Invalid, r"\$\.messages\[10\]: _thread\.lock"):
            self.saver.put(at, point, {"step": 9}, versions)
        self.put_list(at, [*messages, "one more"])

    def test_list_that_another_saver_deleted_and_wrote_again_is_whole(self):
        # The saver knows which chunks the value of the checkpoint before names. Another saver has deleted the thread
        # and saved another value under the same id: those chunks are gone.
        rng = random.Random(5)
        texts = [rng.randbytes(2_000).hex() for _ in range(30)]
        at = config("t")
        for count in (10, 20, 29):
            at = self.put_list(at, texts[:count])
        with AnnalsSaver(self.saver.store) as other:
            other.delete_thread("t")
            again = checkpoint({"messages": ["other"] * 10_000}, {"messages": 1})
            again["id"] = at["configurable"]["checkpoint_id"]
            other.put(config("t"), again, {"step": 1}, {"messages": 1})
        at = self.put_list(at, texts)
        self.assertEqual(self.saver.get_tuple(at).checkpoint["channel_values"]["messages"], texts)

    def test_parent_that_another_saver_saved_again_is_read(self):
        # The saver keeps the references of the checkpoint that it saved last. Its record may have changed since.
        versions = {"n": 1}
        first = checkpoint({"n": "of this saver"}, versions)
        at = self.saver.put(config("t"), first, {"step": 1}, versions)
        with AnnalsSaver(self.saver.store) as other:
            other.put(config("t"), {**first, "channel_values": {"n": "of the other"}}, {"step": 1}, versions)
        at = self.saver.put(at, checkpoint({"n": "unused"}, versions), {"step": 2}, {})
        self.assertEqual(self.saver.get_tuple(at).checkpoint["channel_values"], {"n": "of the other"})


class Deleting(SaverCase):
    def test_prune_keeps_what_a_delta_channel_is_rebuilt_from(self):
        # The newest checkpoint has no value of the delta channel: it is the third one's value and the writes since.
        made, at = [], config("t")
        for step in range(6):
            values = {"d": f"snapshot {step}"} if step == 2 else {}
            versions = {"d": f"{step + 1}.0"}
            counters = {} if step == 2 else {"counters_since_delta_snapshot": {"d": [1, 1]}}
            at = self.saver.put(at, checkpoint(values, versions), {"step": step, **counters}, versions)
            self.saver.put_writes(at, [("d", f"write {step}")], f"task-{step}")
            made.append(at)
        before = self.saver.get_delta_channel_history(config=made[-1], channels=["d"])["d"]
        self.assertEqual(before["seed"], "snapshot 2")
        self.assertEqual([write[2] for write in before["writes"]], ["write 2", "write 3", "write 4"])
        self.saver.prune(["t"])
        self.assertEqual(self.saver.get_delta_channel_history(config=made[-1], channels=["d"])["d"], before)
        self.assertEqual(len(list(self.saver.list(config("t")))), 4)
        self.saver.copy_thread("t", "copy")
        copied = {"configurable": {**made[-1]["configurable"], "thread_id": "copy"}}
        self.assertEqual(self.saver.get_delta_channel_history(config=copied, channels=["d"])["d"], before)

    def test_prune_deletes_values_that_no_checkpoint_names(self):
        made = self.steps("t", 10)
        self.saver.prune(["t"])
        self.assertEqual((self.keys(CHECKPOINTS), self.keys(VALUES)), (1, 1))
        self.assertEqual(self.saver.get_tuple(made[-1]).checkpoint["channel_values"], {"n": 9, "kept": KEPT})

    def test_long_value_reads_back_after_growth_copies_and_pruning(self):
        # Lengths at and beside the borders of chunks; each value is the one before and more.
        rng, at, made = random.Random(7), config("t"), []
        text = rng.randbytes(4 * CHUNK_BYTES).hex()[: 4 * CHUNK_BYTES]
        lengths = [0, HEAD_BYTES - 10, *(HEAD_BYTES + n * CHUNK_BYTES + d for n in (1, 2, 3) for d in (-9, -5, -1, 0, 1))]
        for step, length in enumerate(lengths):
            at = self.saver.put(at, checkpoint({"a": text[:length]}, {"a": step}), {"step": step}, {"a": step})
            made.append((at, length))
        self.saver.copy_thread("t", "copy")
        for thread in ("t", "copy"):
            for place, length in made:
                found = self.saver.get_tuple({"configurable": {**place["configurable"], "thread_id": thread}})
                self.assertEqual(found.checkpoint["channel_values"]["a"], text[:length])
        before = self.keys(CHUNKS)
        self.saver.prune(["t"])
        self.assertEqual(self.saver.get_tuple(at).checkpoint["channel_values"]["a"], text[: lengths[-1]])
        self.saver.delete_thread("copy")
        self.assertLess(self.keys(CHUNKS), before)
        self.assertLessEqual(self.keys(CHUNKS), 3)
        self.saver.delete_thread("t")
        self.assertEqual((self.keys(CHUNKS), self.keys(VALUES)), (0, 0))

    def test_retain_leaves_every_thread_resumable(self):
        self.steps("t", 5)
        self.steps("u", 1)
        self.assertEqual(self.saver.retain(older_than=timedelta(0), keep=2), 3)
        self.assertEqual(self.saver.retain(older_than=timedelta(days=1)), 0)
        self.assertEqual([len(list(self.saver.list(config(thread)))) for thread in ("t", "u")], [2, 1])

    def test_deleted_thread_leaves_no_key_and_no_run(self):
        self.steps("t", 3)
        self.saver.put_writes(config("t", "", "early"), [("a", 1)], "task")
        self.saver.delete_thread("t")
        self.assertEqual([self.keys(space) for space in (CHECKPOINTS, VALUES, WRITES)], [0, 0, 0])
        self.assertEqual(list(self.saver.threads()), [])
        with self.assertRaises(annals.Error):
            self.saver.store.namespace().run("thread/t")
        self.steps("t", 1)
        self.assertEqual(len(list(self.saver.list(config("t")))), 1)


class Graphs(SaverCase):
    def test_fork_into_another_thread_goes_on_with_changed_state(self):
        # The article's wish: take thread run-42 at a step, change the planner's choice, go on as run-42-fork-1.
        app = graph(self.saver)
        app.invoke({"messages": ["hello"]}, config("run-42"))
        self.assertEqual(app.get_state(config("run-42")).values["messages"][-1], "used tool_A")
        at = self.saver.at("run-42", step=1)
        self.assertEqual(at.checkpoint["channel_values"]["choice"], "tool_A")
        forked = self.saver.fork("run-42", step=1, into="run-42-fork-1", update={"choice": "tool_B"})
        result = app.invoke(None, forked)
        self.assertEqual(result["messages"], ["hello", "plan 1", "used tool_B"])
        self.assertEqual(app.get_state(config("run-42")).values["messages"][-1], "used tool_A")
        info = self.saver.store.namespace().run("thread/run-42-fork-1").info
        self.assertEqual(info.parent[0], "thread/run-42")
        with self.assertRaises(annals.Conflict):
            self.saver.fork("run-42", step=1, into="run-42-fork-1")
        with self.assertRaises(annals.NotFound):
            self.saver.fork("run-42", step=99, into="other")

    def test_fork_runs_the_next_step_again(self):
        # What the tasks after the forked checkpoint wrote is stored with it. Copied, it would stand for their run.
        calls = []

        def act(state: State) -> Any:
            calls.append(state["choice"])
            return {"messages": [f"call {len(calls)}"]}

        builder = StateGraph(State)
        builder.add_node("act", act)
        builder.add_edge(START, "act")
        builder.add_edge("act", END)
        app = builder.compile(checkpointer=self.saver)
        app.invoke({"messages": ["hello"], "choice": "a"}, config("t"))
        forked = self.saver.fork("t", step=0, into="u")
        self.assertEqual(self.saver.get_tuple(forked).pending_writes, [])
        self.assertEqual(app.invoke(None, forked)["messages"], ["hello", "call 2"])

    def test_update_state_goes_on_in_the_same_thread(self):
        app = graph(self.saver)
        app.invoke({"messages": ["hello"]}, config("t"))
        past = next(state for state in app.get_state_history(config("t")) if state.next == ("act",))
        changed = app.update_state(past.config, {"choice": "tool_C"})
        self.assertEqual(app.invoke(None, changed)["messages"][-1], "used tool_C")

    def test_async_graph_saves_the_same(self):
        async def run() -> list[str]:
            app = graph(self.saver)
            await app.ainvoke({"messages": ["hello"]}, config("t"))
            return [state.next async for state in app.aget_state_history(config("t"))]

        self.assertEqual(asyncio.run(run()), [(), ("act",), ("plan",), ("__start__",)])

    def test_each_checkpoint_is_a_frame_of_the_threads_run(self):
        app = graph(self.saver)
        app.invoke({"messages": ["hello"]}, config("t"))
        frames = list(self.saver.store.namespace().run("thread/t"))
        self.assertEqual(len(frames), len(list(self.saver.list(config("t")))))
        self.assertEqual({frame.component for frame in frames}, {"checkpoint"})


class Sharing(SaverCase):
    def test_eight_threads_save_at_once(self):
        failures = []

        def work(name: str) -> None:
            try:
                self.steps(name, 10)
            except Exception as error:  # noqa: BLE001 - the test reports each
                failures.append(error)

        workers = [threading.Thread(target=work, args=(f"t{number}",)) for number in range(8)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        self.assertEqual(failures, [])
        self.assertEqual(len(list(self.saver.list(None))), 80)

    def test_four_processes_save_at_once(self):
        command = [sys.executable, "-c", SAVE, str(self.directory / "store")]
        savers = [subprocess.Popen([*command, name], stderr=subprocess.PIPE) for name in "abcd"]
        for saver in savers:
            _, complaint = saver.communicate()
            self.assertEqual((saver.returncode, complaint), (0, b""))
        for name in "abcd":
            found = list(self.saver.list(config(name)))
            self.assertEqual([point.metadata["step"] for point in found], list(range(29, -1, -1)))
            self.assertEqual([len(point.pending_writes) for point in found], [1] * 30)


class Migrating(SaverCase):
    def test_sqlite_database_is_copied_and_compared(self):
        from langgraph.checkpoint.sqlite import SqliteSaver

        database = self.directory / "old.sqlite"
        with SqliteSaver.from_conn_string(str(database)) as old:
            app = graph(old)
            for thread in ("a", "b"):
                app.invoke({"messages": ["hello"]}, config(thread))
            expected = list(old.list(None))
        self.assertEqual(self.saver.migrate_from_sqlite(database), len(expected))
        found = list(self.saver.list(None))
        self.assertEqual(len(found), len(expected))
        for ours, theirs in zip(found, expected, strict=True):
            self.assertEqual(ours.config, theirs.config)
            self.assertEqual(ours.checkpoint["channel_values"], theirs.checkpoint["channel_values"])
            self.assertEqual(ours.metadata, theirs.metadata)
            self.assertEqual(ours.pending_writes, theirs.pending_writes)
        app = graph(self.saver)
        self.assertEqual(app.get_state(config("a")).values["messages"][-1], "used tool_A")

    def test_copy_that_differs_is_an_error(self):
        from langgraph.checkpoint.sqlite import SqliteSaver

        database = self.directory / "old.sqlite"
        with SqliteSaver.from_conn_string(str(database)) as old:
            graph(old).invoke({"messages": ["hello"]}, config("a"))
        real = self.saver.get_tuple
        self.saver.get_tuple = lambda at: real(at)._replace(metadata={"step": 99})
        with self.assertRaisesRegex(annals.Damaged, "^the copy of checkpoint .* of thread 'a' .*: metadata differs"):
            self.saver.migrate_from_sqlite(database)
        with sqlite3.connect(database) as connection:
            self.assertGreater(connection.execute("SELECT count(*) FROM checkpoints").fetchone()[0], 0)

    def test_second_migration_adds_only_what_is_new(self):
        from langgraph.checkpoint.sqlite import SqliteSaver

        database = self.directory / "old.sqlite"
        with SqliteSaver.from_conn_string(str(database)) as old:
            app = graph(old)
            app.invoke({"messages": ["hello"]}, config("a"))
            self.saver.migrate_from_sqlite(database)
            before = [self.keys(keyspace) for keyspace in (CHECKPOINTS, VALUES, CHUNKS, WRITES)]
            self.assertEqual(self.saver.migrate_from_sqlite(database), 0)
            self.assertEqual([self.keys(keyspace) for keyspace in (CHECKPOINTS, VALUES, CHUNKS, WRITES)], before)
            app.invoke({"messages": ["again"]}, config("a"))
            self.assertEqual(self.saver.migrate_from_sqlite(database), 4)
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("UPDATE checkpoints SET metadata = ?", (b'{"step": 99}',))
        with self.assertRaisesRegex(annals.Conflict, "^checkpoint .* of thread 'a' .*: metadata differs"):
            self.saver.migrate_from_sqlite(database)

    def test_object_of_a_class_that_is_not_installed_stays_one(self):
        # The serializer gives plain data for it, with a warning; a copy of that would have lost the class.
        from langgraph.checkpoint.sqlite import SqliteSaver

        (self.directory / "nowhere.py").write_text(
            "import dataclasses\n@dataclasses.dataclass\nclass Ticket:\n    number: int\n"
        )
        database = self.directory / "old.sqlite"
        sys.path.insert(0, str(self.directory))
        self.addCleanup(sys.modules.pop, "nowhere", None)
        ticket = importlib.import_module("nowhere").Ticket(7)
        values = {"ticket": {"inside": [ticket]}, "bytes": b"\0", "nothing": None, "numbers": {1: 2}}
        with SqliteSaver.from_conn_string(str(database)) as old:
            at = old.put(config("t"), checkpoint(values, dict.fromkeys(values, "1")), {}, dict.fromkeys(values, "1"))
        sys.path.remove(str(self.directory))
        del sys.modules["nowhere"]
        self.saver.migrate_from_sqlite(database)
        self.assertEqual(self.saver.get_tuple(at).checkpoint["channel_values"]["ticket"], {"inside": [{"number": 7}]})
        sys.path.insert(0, str(self.directory))
        self.addCleanup(sys.path.remove, str(self.directory))
        found = self.saver.get_tuple(at).checkpoint["channel_values"]
        self.assertEqual(type(found["ticket"]["inside"][0]).__name__, "Ticket")
        self.assertEqual({**found, "ticket": 0}, {**values, "ticket": 0})

    def test_sqlite_database_is_not_made_and_not_changed(self):
        from langgraph.checkpoint.sqlite import SqliteSaver

        missing, empty, other = (self.directory / name for name in ("missing", "empty.sqlite", "text.sqlite"))
        sqlite3.connect(empty).close()
        other.write_text("no database " * 1000)
        for path, kind in ((missing, annals.NotFound), (empty, annals.NotFound), (other, annals.Damaged)):
            with self.assertRaises(kind):
                self.saver.migrate_from_sqlite(path)
        self.assertFalse(missing.exists())
        self.assertEqual(empty.read_bytes(), b"")
        # A database of before the column of paths, with a value that cannot be read.
        database = self.directory / "old.sqlite"
        with SqliteSaver.from_conn_string(str(database)) as old:
            graph(old).invoke({"messages": ["hello"]}, config("a"))
        with closing(sqlite3.connect(database)) as connection:
            connection.execute("ALTER TABLE writes DROP COLUMN task_path")
            connection.commit()
            before = connection.execute("SELECT sql FROM sqlite_master").fetchall()
            self.assertEqual(self.saver.migrate_from_sqlite(database), 4)
            self.assertEqual(connection.execute("SELECT sql FROM sqlite_master").fetchall(), before)
            connection.execute("UPDATE checkpoints SET checkpoint = ? WHERE rowid = 3", (b"\xc1",))
            connection.commit()
        with self.assertRaisesRegex(annals.Damaged, "^checkpoint .* of thread 'a' cannot be read"):
            self.saver.migrate_from_sqlite(database)


class LongTerm(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)

        def embed(texts: list[str]) -> list[list[float]]:
            return [[float(text.count(letter)) for letter in "abcdef"] for text in texts]

        self.store = AnnalsStore(Path(directory.name) / "store", index={"embed": embed, "fields": ["text"]})
        self.addCleanup(self.store.close)

    def test_items_are_put_read_and_deleted(self):
        self.store.put(("users", "7"), "name", {"text": "abc"})
        first = self.store.get(("users", "7"), "name")
        self.store.put(("users", "7"), "name", {"text": "abd"})
        item = self.store.get(("users", "7"), "name")
        self.assertEqual((item.value, item.created_at), ({"text": "abd"}, first.created_at))
        self.store.delete(("users", "7"), "name")
        self.assertIsNone(self.store.get(("users", "7"), "name"))
        with self.assertRaises(annals.Invalid):
            self.store.put(("users",), "lock", {"lock": threading.Lock()})

    def test_search_filters_and_ranks(self):
        for key, text, age in (("x", "aaa", 1), ("y", "bbb", 2), ("z", "aab", 3)):
            self.store.put(("docs",), key, {"text": text, "age": age})
        self.store.put(("docs", "deep"), "w", {"text": "fff", "age": 9})
        self.store.put(("docs2",), "v", {"text": "aaa", "age": 9})
        self.assertEqual([hit.key for hit in self.store.search(("docs",), query="a", limit=2)], ["x", "z"])
        found = self.store.search(("docs",), filter={"age": {"$gt": 1}})
        self.assertEqual(sorted(hit.key for hit in found), ["w", "y", "z"])
        self.assertEqual(self.store.list_namespaces(), [("docs",), ("docs", "deep"), ("docs2",)])
        self.assertEqual(self.store.list_namespaces(prefix=["docs"], max_depth=1), [("docs",)])

    def test_async_forms_do_the_same(self):
        async def run() -> Any:
            await self.store.aput(("a",), "k", {"text": "b"})
            return (await self.store.aget(("a",), "k")).value

        self.assertEqual(asyncio.run(run()), {"text": "b"})


if __name__ == "__main__":
    unittest.main()
