"""Bytes on disk and puts a second of AnnalsSaver beside LangGraph's SqliteSaver.

Usage: python benches/python/saver.py [--steps 200] [--rounds 5] [--runs tau-airline.json.xz] [--json OUT]

Two measures:
- growing: threads of `steps` checkpoints. Each adds a message of 4 KB to the channel `messages`. The savers take turns,
  a thread each, `rounds` times; the rate is the median of the rounds.
- runs: the real runs of a file (engine/tests/data/PROVENANCE.md), one thread a run, one checkpoint a message.

Both savers sync every put to the disk: SqliteSaver with its own settings (WAL, `PRAGMA synchronous` as SQLite defaults,
which is printed), AnnalsSaver always. Bytes are those of all files after closing.
"""

from __future__ import annotations

import argparse
import json
import lzma
import platform
import random
import sqlite3
import statistics
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6
from langgraph.checkpoint.sqlite import SqliteSaver

import annals
from annals.langgraph import AnnalsSaver

TEXT_BYTES = 4096
SEED = 20_261_126


def text(rng: random.Random) -> str:
    """New text: words of a vocabulary of 4,000, which compresses as prose does."""
    vocabulary = ["".join(rng.choices("etaoinshrdlucmfw", k=rng.randint(2, 9))) for _ in range(4000)]
    words, length = [], 0
    while length < TEXT_BYTES:
        words.append(rng.choice(vocabulary))
        length += len(words[-1]) + 1
    return " ".join(words)[:TEXT_BYTES]


def save(saver: Any, thread: str, messages: list[Any]) -> float:
    """Saves a thread, one checkpoint a message; returns the seconds of its puts."""
    config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}
    versions: dict[str, Any] = {}
    spent = 0.0
    for step in range(len(messages)):
        point: Any = empty_checkpoint()
        point["id"] = str(uuid6(clock_seq=step))
        new = {
            name: saver.get_next_version(versions.get(name), None)
            for name in ("messages", "branch:to:agent", "__start__")
        }
        if step:
            del new["__start__"]
        versions = {**versions, **new}
        point["channel_versions"] = versions
        point["channel_values"] = {"messages": messages[: step + 1], "branch:to:agent": None}
        point["versions_seen"] = {"__input__": {}, "agent": {"branch:to:agent": new["branch:to:agent"]}}
        metadata = {"source": "loop", "step": step, "parents": {}, "run_id": f"run-{thread}"}
        began = time.perf_counter()
        config = saver.put(config, point, metadata, new)
        spent += time.perf_counter() - began
    return spent


def disk_bytes(path: Path) -> int:
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return sum(file.stat().st_size for file in path.parent.glob(path.name + "*"))


def growing(steps: int, rounds: int) -> dict[str, Any]:
    rng = random.Random(SEED)
    seconds: dict[str, list[float]] = {"annals": [], "sqlite": []}
    size: dict[str, list[int]] = {"annals": [], "sqlite": []}
    for round_ in range(rounds):
        messages = [AIMessage(content=text(rng), id=f"m{step}") for step in range(steps)]
        for name in ("annals", "sqlite") if round_ % 2 else ("sqlite", "annals"):
            with tempfile.TemporaryDirectory() as directory:
                path = Path(directory) / name
                if name == "annals":
                    with AnnalsSaver(path) as saver:
                        seconds[name].append(save(saver, "t", messages))
                else:
                    with SqliteSaver.from_conn_string(str(path)) as saver:
                        saver.setup()
                        seconds[name].append(save(saver, "t", messages))
                size[name].append(disk_bytes(path))
    rates = {name: statistics.median(steps / one for one in spent) for name, spent in seconds.items()}
    return {
        "steps": steps,
        "rounds": rounds,
        "new_text_bytes": steps * TEXT_BYTES,
        "bytes": {name: statistics.median(sizes) for name, sizes in size.items()},
        "puts_per_second": {name: round(rate, 1) for name, rate in rates.items()},
        "rate_ratio": round(rates["annals"] / rates["sqlite"], 2),
    }


def real_runs(file: Path) -> dict[str, Any]:
    runs = json.loads(lzma.open(file).read())
    size = {}
    with tempfile.TemporaryDirectory() as directory:
        annals_path, sqlite_path = Path(directory) / "annals", Path(directory) / "sqlite"
        with AnnalsSaver(annals_path) as ours, SqliteSaver.from_conn_string(str(sqlite_path)) as theirs:
            for number, run in enumerate(runs):
                kinds = {"assistant": AIMessage}
                messages = [
                    kinds.get(message["role"], HumanMessage)(
                        content=message.get("content") or "",
                        additional_kwargs={key: value for key, value in message.items() if key not in ("role", "content")},
                    )
                    for message in run["traj"]
                ]
                for saver in (ours, theirs):
                    save(saver, f"run-{number}", messages)
        size = {"annals": disk_bytes(annals_path), "sqlite": disk_bytes(sqlite_path)}
    return {"runs": len(runs), "bytes": size, "size_ratio": round(size["sqlite"] / size["annals"], 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory, sqlite3.connect(Path(directory) / "s") as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        synchronous = connection.execute("PRAGMA synchronous").fetchone()[0]
    packages = ("langgraph", "langgraph-checkpoint", "langgraph-checkpoint-sqlite")
    report = {
        "versions": {
            "annals": annals.__version__,
            "python": platform.python_version(),
            "sqlite": sqlite3.sqlite_version,
            **{package: version(package) for package in packages},
        },
        "sqlite_synchronous": synchronous,
        "seed": SEED,
        "growing": growing(options.steps, options.rounds),
    }
    if options.runs:
        report["real_runs"] = real_runs(options.runs)
    shown = json.dumps(report, indent=1)
    print(shown)
    if options.json:
        options.json.write_text(shown + "\n")


if __name__ == "__main__":
    main()
