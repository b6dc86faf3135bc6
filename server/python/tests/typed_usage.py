"""A program whose types a checker must agree with: mypy reads it, nothing runs it."""

from collections.abc import Awaitable
from pathlib import Path
from typing import assert_type

import annals


@annals.tool
def search(city: str, most: int = 3) -> list[str]:
    return [city] * most


@annals.tool
async def book(city: str) -> int:
    return len(city)


def keys(store: annals.Store) -> None:
    space = store.namespace()
    assert_type(store.path, Path)
    assert_type(space.get("notes", "a"), bytes | None)
    space.put("notes", b"a", memoryview(b"1"))
    assert_type(space.keys("notes"), list[bytes])
    space.put_embedded("notes", "a", "text", {"words": [1.0, 0.5]})
    assert_type([hit.key for hit in space.nearest("words", [1.0, 0.5])], list[bytes | None])
    assert_type([hit.score for hit in space.recall("why?")], list[float])


def runs(space: annals.Namespace) -> None:
    with space.begin_run("r", tags=[("team", "red")]) as run:
        assert_type(run.record("llm", "in", "out"), int)
    reader = space.run("r")
    assert_type(reader.info.status, str)
    assert_type([frame.output for frame in reader], list[bytes])
    assert_type(reader.snapshot_at(1), tuple[int, bytes] | None)


def tools() -> None:
    assert_type(search("Oslo", most=1), list[str])
    booked: Awaitable[int] = book("Oslo")
    del booked


def failures(space: annals.Namespace) -> None:
    try:
        space.run("none")
    except annals.NotFound as error:
        assert_type(error, annals.NotFound)


with annals.open("store") as opened:
    assert_type(opened, annals.Store)
    keys(opened)
    runs(opened.namespace())

with annals.record("r", store="store") as recorded:
    assert_type(recorded.snapshot({"step": 1}), int)
    assert_type(annals.merge_recorded([(1, "a")]), list[str])

with annals.replay("r", store="store") as replayed:
    pass
assert_type(replayed.receipt, annals.Receipt | None)


@annals.record("r")
def agent(question: str) -> str:
    return question


assert_type(agent("Oslo?"), str)
