"""LangGraph's long-term store over a keyspace: `annals.langgraph.AnnalsStore`."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timezone
from typing import Any

from langgraph.store.base import (
    BaseStore,
    GetOp,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    ensure_embeddings,
    get_text_at_path,
)

import annals

ITEMS = "langgraph.store"
# Between the parts of a namespace; a key follows two of them.
SEPARATOR = b"\0\1"


def _part(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass").replace(b"\0", b"\0\xff") + SEPARATOR


def _place(namespace: Sequence[str]) -> bytes:
    return b"".join(map(_part, namespace))


def _item_key(namespace: Sequence[str], key: str) -> bytes:
    # No part begins with the byte 0 and 0, so a key is no part of a longer namespace.
    return _place(namespace) + b"\0\0" + _part(key)


def _split(key: bytes) -> tuple[tuple[str, ...], str]:
    namespace, _, name = key.rpartition(b"\0\0")

    def texts(of: bytes) -> list[str]:
        return [part.replace(b"\0\xff", b"\0").decode("utf-8", "surrogatepass") for part in of.split(SEPARATOR)[:-1]]

    return tuple(texts(namespace)), texts(name)[0]


_OPERATORS = {
    "$eq": lambda have, want: have == want,
    "$ne": lambda have, want: have != want,
    "$gt": lambda have, want: have is not None and have > want,
    "$gte": lambda have, want: have is not None and have >= want,
    "$lt": lambda have, want: have is not None and have < want,
    "$lte": lambda have, want: have is not None and have <= want,
}


def _fits(have: Any, want: Any) -> bool:
    if isinstance(want, dict):
        if any(name.startswith("$") for name in want):
            unknown = [name for name in want if name not in _OPERATORS]
            if unknown:
                raise annals.Invalid(f"there is no operator {unknown[0]!r}: use {', '.join(_OPERATORS)}")
            return all(_OPERATORS[name](have, value) for name, value in want.items())
        return isinstance(have, dict) and all(_fits(have.get(name), value) for name, value in want.items())
    return bool(have == want)


def _matches(condition: MatchCondition, namespace: tuple[str, ...]) -> bool:
    path = condition.path
    if len(namespace) < len(path):
        return False
    part = namespace[: len(path)] if condition.match_type == "prefix" else namespace[-len(path) :]
    return all(want in ("*", have) for want, have in zip(path, part, strict=True))


def _similarity(one: Sequence[float], other: Sequence[float]) -> float:
    norm = math.sqrt(sum(x * x for x in one)) * math.sqrt(sum(x * x for x in other))
    return sum(x * y for x, y in zip(one, other, strict=True)) / norm if norm else 0.0


class AnnalsStore(BaseStore):
    """Keeps LangGraph's long-term memory in an annals store. Sync and async.

    Values are JSON objects. With `index` (`{"embed": …, "fields": ["$"]}`, as other LangGraph stores take it), a search
    with `query` ranks all items of the searched namespaces by the cosine of their vectors. Without it, `query` raises
    `annals.Invalid`. Times to live are not supported.
    """

    def __init__(self, store: Any = None, *, namespace: str = "default", index: dict[str, Any] | None = None) -> None:
        self._owns = not isinstance(store, annals.Store)
        self.store: annals.Store = annals.open(store) if self._owns else store
        self._space = self.store.namespace(namespace)
        self._embeddings = ensure_embeddings(index["embed"]) if index else None
        self._fields = (index or {}).get("fields") or ["$"]

    def close(self) -> None:
        """Closes the store if it was opened here."""
        if self._owns:
            self.store.close()

    def __enter__(self) -> AnnalsStore:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def setup(self) -> None:
        """Nothing to do: for code that calls it on other stores."""

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Reads see the state before the batch. All puts are on disk together when this returns; of several puts of one
        key the last counts."""
        ops = list(ops)
        results: list[Result] = []
        puts: dict[tuple[tuple[str, ...], str], PutOp] = {}
        for op in ops:
            if isinstance(op, GetOp):
                results.append(self._get(op))
            elif isinstance(op, SearchOp):
                results.append(self._search(op))
            elif isinstance(op, ListNamespacesOp):
                results.append(self._list(op))
            elif isinstance(op, PutOp):
                puts[op.namespace, op.key] = op
                results.append(None)
            else:
                raise annals.Invalid(f"there is no operation {type(op).__name__}")
        changes = [self._change(op) for op in puts.values()]
        if changes:
            self._space.write(changes)
        return results

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        return await asyncio.to_thread(self.batch, list(ops))

    def _change(self, op: PutOp) -> tuple[Any, ...]:
        key = _item_key(op.namespace, op.key)
        if op.value is None:
            return ("delete", ITEMS, key)
        now = datetime.now(timezone.utc).isoformat()
        before = self._space.get(ITEMS, key)
        created = json.loads(before)["created_at"] if before else now
        record = {"created_at": created, "updated_at": now, "value": op.value, "vectors": self._vectors(op)}
        try:
            return ("put", ITEMS, key, json.dumps(record, ensure_ascii=False, separators=(",", ":")))
        except (TypeError, ValueError) as error:
            raise annals.Invalid(f"the value of {op.key!r} cannot be stored: it is no JSON ({error})") from error

    def _vectors(self, op: PutOp) -> list[list[float]]:
        if self._embeddings is None or op.index is False or op.value is None:
            return []
        paths = self._fields if op.index is None else op.index
        texts = [text for path in paths for text in get_text_at_path(op.value, path)]
        return self._embeddings.embed_documents(texts) if texts else []

    def _get(self, op: GetOp) -> Item | None:
        data = self._space.get(ITEMS, _item_key(op.namespace, op.key))
        if data is None:
            return None
        record = json.loads(data)
        return Item(
            value=record["value"],
            key=op.key,
            namespace=op.namespace,
            created_at=record["created_at"],
            updated_at=record["updated_at"],
        )

    def _scan(self, prefix: bytes, *, keys_only: bool = False) -> Iterator[tuple[bytes, bytes | None]]:
        start, end = prefix, prefix[:-1] + b"\2" if prefix else None
        while True:
            page, more = self._space.scan_page(ITEMS, start, end, count=10_000, keys_only=keys_only)
            yield from page
            if not more or not page:
                return
            start = page[-1][0] + b"\0"

    def _search(self, op: SearchOp) -> list[SearchItem]:
        query = None
        if op.query:
            if self._embeddings is None:
                raise annals.Invalid("a search with a query needs AnnalsStore(index={'embed': …})")
            query = self._embeddings.embed_query(op.query)
        found = []
        for key, data in self._scan(_place(op.namespace_prefix)):
            record = json.loads(data or b"")
            wanted = (op.filter or {}).items()
            if not all(_fits(record["value"].get(name), value) for name, value in wanted):
                continue
            score = None
            if query is not None:
                score = max((_similarity(query, vector) for vector in record["vectors"]), default=None)
            found.append((score, key, record))
        if query is not None:
            # Items without a vector come last.
            found.sort(key=lambda hit: (hit[0] is None, -(hit[0] or 0.0)))
        hits = found[op.offset : op.offset + op.limit]
        return [self._hit(score, key, record) for score, key, record in hits]

    def _hit(self, score: float | None, key: bytes, record: dict[str, Any]) -> SearchItem:
        namespace, name = _split(key)
        return SearchItem(
            namespace=namespace,
            key=name,
            value=record["value"],
            created_at=record["created_at"],
            updated_at=record["updated_at"],
            score=score,
        )

    def _list(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        found: dict[tuple[str, ...], None] = {}
        for key, _ in self._scan(b"", keys_only=True):
            namespace = _split(key)[0]
            if all(_matches(condition, namespace) for condition in op.match_conditions or ()):
                found[namespace if op.max_depth is None else namespace[: op.max_depth]] = None
        return sorted(found)[op.offset : op.offset + op.limit]
