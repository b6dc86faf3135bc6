"""Values as JSON that keeps their types: states, and arguments and results of tools.

Taken: None, bool, int, float, str, bytes, list, tuple, dict, set, frozenset, dates, times, UUID, Decimal, Path, Enum,
dataclasses, named tuples, pydantic models (so messages of the SDKs and of LangChain), numpy arrays and numbers.
Anything else is refused with the path to it, such as `$.tools[2].client: an open socket`. Nothing is pickled.

A type that JSON lacks is an object with one key that begins with `$`. Objects of classes are built again only if
their module is imported already.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import enum
import io
import json
import math
import pathlib
import socket
import sys
import threading
import types
import uuid
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeVar

from annals._annals import encode_state
from annals.errors import Invalid, NotSerializable

DEPTH_MAX = 200

_SCALARS = {
    datetime.datetime: ("$datetime", datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    datetime.date: ("$date", datetime.date.isoformat, datetime.date.fromisoformat),
    datetime.time: ("$time", datetime.time.isoformat, datetime.time.fromisoformat),
    uuid.UUID: ("$uuid", str, uuid.UUID),
    decimal.Decimal: ("$decimal", str, decimal.Decimal),
}


def encode_bytes(value: Any) -> bytes:
    """The value as bytes: equal values give equal bytes. A copy: later changes of the value do not reach it."""
    return encode_state(value, encode_other)


def encode_other(value: Any, path: str, above: dict[int, str]) -> bytes:
    """For `encode_state`, which writes plain data: a value that is none, or that it refuses."""
    return _json_bytes(_encode(value, path, above))


def _json_bytes(encoded: Any) -> bytes:
    return json.dumps(encoded, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def decode_bytes(data: bytes) -> Any:
    """The value of `encode_bytes`."""
    return decode(json.loads(data.decode("utf-8", "surrogatepass")))


def encode(value: Any) -> Any:
    """The value as plain JSON. Raises `annals.NotSerializable` with the path to what cannot be stored."""
    return _encode(value, "$", {})


def _encode(value: Any, path: str, above: dict[int, str]) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if kind in (bytes, bytearray, memoryview):
        return {"$bytes": base64.b64encode(bytes(value)).decode()}
    if kind in _SCALARS:
        name, write, _ = _SCALARS[kind]
        return {name: write(value)}
    if id(value) in above:
        raise NotSerializable(path, f"a cycle: it contains {above[id(value)]} again")
    if len(above) >= DEPTH_MAX:
        raise NotSerializable(path, f"it is nested more than {DEPTH_MAX} deep")
    above[id(value)] = path
    try:
        return _encode_container(value, kind, path, above)
    finally:
        del above[id(value)]


def _encode_container(value: Any, kind: type, path: str, above: dict[int, str]) -> Any:
    if kind is list:
        return [_encode(item, f"{path}[{place}]", above) for place, item in enumerate(value)]
    if kind is tuple:
        return {"$tuple": [_encode(item, f"{path}[{place}]", above) for place, item in enumerate(value)]}
    if kind in (set, frozenset):
        items = [_encode(item, f"{path}{{…}}", above) for item in value]
        return {f"${kind.__name__}": sorted(items, key=lambda item: json.dumps(item, sort_keys=True))}
    if isinstance(value, enum.Enum):
        return {"$enum": [_name(kind), value.name]}
    if isinstance(value, pathlib.PurePath):
        return {"$path": str(value)}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        fields = {name: _encode(getattr(value, name), f"{path}.{name}", above) for name in value._fields}
        return {"$namedtuple": [_name(kind), fields]}
    if dataclasses.is_dataclass(value):
        fields = {
            field.name: _encode(getattr(value, field.name), f"{path}.{field.name}", above)
            for field in dataclasses.fields(value)
        }
        return {"$dataclass": [_name(kind), fields]}
    if hasattr(kind, "model_fields") and hasattr(value, "model_dump"):
        fields = {name: _encode(getattr(value, name), f"{path}.{name}", above) for name in kind.model_fields}
        for name, item in (getattr(value, "model_extra", None) or {}).items():
            fields[name] = _encode(item, f"{path}.{name}", above)
        return {"$pydantic": [_name(kind), fields]}
    if isinstance(value, Mapping):
        return _encode_mapping(value, kind, path, above)
    if kind.__module__.partition(".")[0] == "numpy":
        return _encode_numpy(value, path)
    if isinstance(value, (str, int, float)):  # a subclass adds nothing that a replay can build
        return _encode(value.__str__() if isinstance(value, str) else _plain(value), path, above)
    if isinstance(value, (list, set, frozenset)):
        return _encode(list(value) if isinstance(value, list) else set(value), path, above)
    raise NotSerializable(path, _what(value))


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, int) else float(value)


def _encode_mapping(value: Any, kind: type, path: str, above: dict[int, str]) -> Any:
    if kind not in (dict, types.MappingProxyType) and not isinstance(value, dict):
        raise NotSerializable(path, _what(value))
    if all(type(key) is str and not key.startswith("$") for key in value):
        return {key: _encode(item, f"{path}.{key}", above) for key, item in value.items()}
    items = [
        [_encode(key, f"{path} (a key)", above), _encode(item, f"{path}[{key!r}]", above)]
        for key, item in value.items()
    ]
    return {"$dict": items}


def _encode_numpy(value: Any, path: str) -> Any:
    if not hasattr(value, "dtype") or value.dtype.hasobject:
        raise NotSerializable(path, _what(value))
    shape = list(getattr(value, "shape", ()))
    return {"$numpy": [value.dtype.str, shape, base64.b64encode(value.tobytes()).decode()]}


def _name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _what(value: Any) -> str:
    """What a value is, for a person."""
    for kind, what in (
        (socket.socket, "an open socket"),
        (io.IOBase, "an open file"),
        (types.GeneratorType, "a generator"),
        (types.CoroutineType, "a coroutine"),
        (threading.Thread, "a thread"),
        (types.ModuleType, "a module"),
        (type, "a class"),
    ):
        if isinstance(value, kind):
            return what
    if isinstance(value, types.FunctionType):
        return "a lambda" if value.__name__ == "<lambda>" else f"the function {value.__qualname__}"
    if callable(value) and not hasattr(value, "__dict__"):
        return "a function"
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name.startswith("_thread.") and "lock" in name.lower():
        return "a lock"
    if isinstance(value, Iterator):
        return f"an iterator ({name})"
    return f"an object of {name}: give plain data instead"


def decode(value: Any) -> Any:
    """The value of `encode`. A class that is not imported gives a dictionary of its fields."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) != 1 or not next(iter(value)).startswith("$"):
        return {key: decode(item) for key, item in value.items()}
    ((name, of),) = value.items()
    for kind, (tag, _, read) in _SCALARS.items():
        if tag == name:
            return read(of)
    if name == "$float":
        return float(of)
    if name == "$bytes":
        return base64.b64decode(of)
    if name == "$tuple":
        return tuple(decode(item) for item in of)
    if name in ("$set", "$frozenset"):
        return (set if name == "$set" else frozenset)(decode(item) for item in of)
    if name == "$dict":
        return {decode(key): decode(item) for key, item in of}
    if name == "$path":
        return pathlib.Path(of)
    if name == "$numpy":
        return _decode_numpy(*of)
    if name in ("$enum", "$namedtuple", "$dataclass", "$pydantic"):
        return _decode_object(name, *of)
    raise Invalid(f"{name!r} is a type of a newer version of annals")


def _decode_numpy(dtype: str, shape: list[int], data: str) -> Any:
    import numpy

    array = numpy.frombuffer(base64.b64decode(data), dtype=dtype).reshape(shape).copy()
    return array[()] if shape == [] else array


def class_of(name: str) -> type | None:
    """A class of a module that is imported already."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None


def _decode_object(name: str, of: str, fields: Any) -> Any:
    kind = class_of(of)
    if name == "$enum":
        return kind[fields] if kind is not None and issubclass(kind, enum.Enum) else fields
    values = {key: decode(item) for key, item in fields.items()}
    if kind is None:
        return values
    if name == "$namedtuple":
        return kind(**values)
    if name == "$pydantic" and hasattr(kind, "model_construct"):
        return kind.model_construct(**values)
    if name == "$dataclass" and dataclasses.is_dataclass(kind):
        made = object.__new__(kind)
        for key, item in values.items():
            object.__setattr__(made, key, item)
        return made
    return values


def first_difference(recorded: bytes, now: bytes) -> str:
    """The path of the first difference of two encoded values, with both."""
    return _difference(json.loads(recorded), json.loads(now), "$") or "$"


def _difference(left: Any, right: Any, path: str) -> str | None:
    if type(left) is type(right) is dict:
        for key in {**left, **right}:
            if key not in left or key not in right:
                return f"{path}.{key}: {'added' if key in right else 'missing'}"
            if found := _difference(left[key], right[key], f"{path}.{key}"):
                return found
        return None
    if type(left) is type(right) is list:
        for place, (one, other) in enumerate(zip(left, right, strict=False)):
            if found := _difference(one, other, f"{path}[{place}]"):
                return found
        if len(left) != len(right):
            return f"{path}: {len(left)} items were recorded, and now there are {len(right)}"
        return None
    if left == right and type(left) is type(right):
        return None
    return f"{path}: {_short(left)} was recorded, and now it is {_short(right)}"


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def frozen(value: Any) -> Any:
    """The same value that cannot be changed: tuples, frozen sets and read-only mappings all the way down."""
    if isinstance(value, Mapping):
        return types.MappingProxyType({key: frozen(item) for key, item in value.items()})
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return tuple(frozen(item) for item in value)
    if isinstance(value, (set, frozenset)):
        return frozenset(frozen(item) for item in value)
    if isinstance(value, bytearray):
        return bytes(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if not type(value).__dataclass_params__.frozen:
            raise NotSerializable("$", f"{type(value).__name__} can be changed: declare it with frozen=True")
        return value
    encode(value)
    return value


_Result = TypeVar("_Result")


def merge_recorded(results: Iterable[tuple[Any, _Result]]) -> list[_Result]:
    """The results of parallel work in one order, whatever order they came in.

    `results` are pairs of a key and a result. A recording notes the order of the keys as they come; a replay
    returns the results in the recorded order, and diverges if the keys differ.
    """
    from annals import lanes
    from annals.tools import call_value

    pairs = list(results)
    keys = [encode(key) for key, _ in pairs]
    if lanes.current() is None:
        return [result for _, result in pairs]
    texts = [json.dumps(key, sort_keys=True) for key in keys]
    if len(set(texts)) != len(texts):
        raise Invalid("the keys of parallel results must differ")
    order = call_value("merge", "merge", json.dumps(sorted(texts)).encode(), lambda: texts)
    by_key = dict(zip(texts, (result for _, result in pairs), strict=True))
    return [by_key[text] for text in order]
