"""Measures the cost of recording in process, with a release build: `python tests/measure_session.py`.

Prints the wall time of 200 requests against an upstream of 20 ms, with and without a recording, and the time and
the bytes of a snapshot of 1 MB that has changed by 1 KB.
"""

import pathlib
import random
import statistics
import tempfile
import time

import httpx
from session_upstream import Upstream

import annals

REQUESTS, ROUNDS = 200, 5


def requests(url):
    with httpx.Client() as client:
        began = time.perf_counter()
        for number in range(REQUESTS):
            client.post(f"{url}/slow/20", json={"n": number, "text": "x" * 500})
        return time.perf_counter() - began


def overhead(directory):
    up = Upstream()
    plain, recorded = [], []
    requests(up.url)
    for number in range(ROUNDS):
        plain.append(requests(up.url))
        with annals.record(f"r{number}", store=directory / "s"):
            recorded.append(requests(up.url))
    up.close()
    one, other = statistics.median(plain), statistics.median(recorded)
    print(f"{REQUESTS} requests: {one:.3f} s, recorded {other:.3f} s, overhead {100 * (other / one - 1):.2f} %")


def snapshots(directory):
    made = random.Random(1)
    state = {"messages": [{"n": n, "text": made.randbytes(500).hex()} for n in range(1000)]}
    store = directory / "t"
    times, sizes = [], []

    def size():
        return sum(file.stat().st_size for file in store.rglob("*") if file.is_file())

    from annals.snapshots import encode_bytes

    with annals.record("r", store=store, nondet=False) as run:
        run.snapshot(state)
        for number in range(50):
            state["messages"][number * 7]["text"] = made.randbytes(500).hex()
            before = size()
            began = time.perf_counter()
            run.snapshot(state)
            times.append(time.perf_counter() - began)
            sizes.append(size() - before)
        encoding = min(_timed(lambda: encode_bytes(state)) for _ in range(5))
        print(f"snapshot of {len(encode_bytes(state)):,} bytes: median {1000 * statistics.median(times):.2f} ms (encoding alone, into new bytes of Python: {1000 * encoding:.2f} ms); {statistics.mean(sizes):.0f} bytes on disk")


def _timed(run):
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made_directory:
        overhead(pathlib.Path(made_directory))
        snapshots(pathlib.Path(made_directory))
