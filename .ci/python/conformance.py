"""Runs LangGraph's own conformance suite for checkpoint savers over AnnalsSaver, and prints its report as JSON.

Usage: python .ci/python/conformance.py [REPORT]. Needs annals, langgraph and langgraph-checkpoint-conformance.
Fails if a test fails or a capability is not detected.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import platform
import sys
import tempfile
from pathlib import Path

from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.report import ProgressCallbacks

from annals.langgraph import AnnalsSaver

PACKAGES = ("annals", "langgraph", "langgraph-checkpoint", "langgraph-checkpoint-conformance")


@checkpointer_test(name="AnnalsSaver")
async def saver():
    with tempfile.TemporaryDirectory() as directory:
        async with AnnalsSaver(Path(directory) / "store") as made:
            yield made


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return __import__(package).__version__


def main() -> int:
    tests: dict[str, dict[str, str]] = {}
    missing: list[str] = []

    def began(capability: str, detected: bool) -> None:
        if not detected:
            missing.append(capability)

    def ended(capability: str, test: str, passed: bool, error: str | None) -> None:
        tests.setdefault(capability, {})[test] = "passed" if passed else f"failed: {error}"

    progress = ProgressCallbacks(on_capability_start=began, on_test_result=ended)
    report = asyncio.run(validate(saver, progress=progress))
    report.print_report()
    results = [result for capability in tests.values() for result in capability.values()]
    passed = results.count("passed")
    summary = {
        "versions": {"python": platform.python_version(), **{package: version(package) for package in PACKAGES}},
        "passed": passed,
        "tests": len(results),
        "not_detected": missing,
        "capabilities": tests,
    }
    text = json.dumps(summary, indent=1, ensure_ascii=False) + "\n"
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text)
    print(f"{passed} of {len(results)} tests passed")
    return 0 if passed == len(results) and not missing else 1


if __name__ == "__main__":
    sys.exit(main())
