"""Lists of channels as they were serialised last: a list that grows is serialised from its first new item on.

LangGraph's serializer writes a list item by item, so the bytes of an item do not depend on the others.
`SerialisedList` finds out which items are unchanged. The bytes are those that the serializer makes of the whole list.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import langchain_core.messages as messages
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from annals._annals import SerialisedList
from annals._langgraph_format import CHUNK_BYTES, HEAD_BYTES, STORE_COMPRESSES_BYTES

# Shorter lists are serialised each time. A longer one has at least one chunk.
LIST_BYTES_MIN = HEAD_BYTES + CHUNK_BYTES + STORE_COMPRESSES_BYTES
# All lists of a saver together: the least recently used one is forgotten.
BYTES_MAX = 32 << 20

Dumps = Callable[[Any], tuple[str, bytes]]


def _plain_messages() -> list[type]:
    """The classes of messages that pydantic serialises field by field, with no code of their own."""
    found = []
    for name in messages.__all__:
        kind = getattr(messages, name)
        if isinstance(kind, type) and issubclass(kind, messages.BaseMessage):
            own = kind.__pydantic_decorators__
            if not (own.field_serializers or own.model_serializers or own.computed_fields):
                found.append(kind)
    return found


PLAIN_MESSAGES = _plain_messages()


class ChannelList:
    """The list of a channel."""

    def __init__(self) -> None:
        self.serialised = SerialisedList(PLAIN_MESSAGES, HEAD_BYTES, CHUNK_BYTES)
        # The checkpoint that saved it last, and what was stored: it names the chunks that the store has.
        self.saved_by: str | None = None
        self.stored = b""

    def dumps(self, value: list[Any], dumps: Dumps) -> bool:
        """Serialises the items of `value` that are not here. `False`: the serializer makes no msgpack of them."""
        rest = value[self.serialised.keep_unchanged(value) :]
        kind, packed = dumps(rest)
        if kind == "msgpack":
            self.serialised.extend(value, packed)
        return kind == "msgpack"

    def size(self) -> int:
        return self.serialised.memory_bytes() + len(self.stored)


class ChannelLists:
    """The lists of a saver's channels. One put at a time has a list: it takes it out and gives it back."""

    def __init__(self) -> None:
        self._lists: OrderedDict[tuple[str, str, str], ChannelList] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def take(self, channel: tuple[str, str, str]) -> ChannelList | None:
        with self._lock:
            return self._pop(channel)

    def give(self, channel: tuple[str, str, str], of: ChannelList) -> None:
        with self._lock:
            self._pop(channel)
            self._lists[channel] = of
            self._bytes += of.size()
            while self._bytes > BYTES_MAX:
                self._pop(next(iter(self._lists)))

    def _pop(self, channel: tuple[str, str, str]) -> ChannelList | None:
        found = self._lists.pop(channel, None)
        if found is not None:
            self._bytes -= found.size()
        return found


def may_grow(value: Any, serde: Any) -> bool:
    """Whether a value is a list whose items are serialised one by one."""
    return type(value) is list and type(serde) is JsonPlusSerializer
