"""Tools, clocks, ids, randomness, states: recorded and handed back in process."""

import asyncio
import dataclasses
import datetime
import http.server
import json
import os
import random
import secrets
import socket
import subprocess
import sys
import textwrap
import threading
import time
import typing
import uuid

import pytest
from session_upstream import Upstream

import annals
from annals import _annals, nondet, snapshots

httpx = pytest.importorskip("httpx")


@pytest.fixture
def up():
    upstream = Upstream()
    yield upstream
    upstream.close()


@pytest.fixture
def store(tmp_path):
    return tmp_path / "s"


ran = []


@annals.tool
def add(a, b=1):
    """Adds."""
    ran.append("add")
    if a < 0:
        raise ValueError("negative", a)
    return {"sum": a + b, "pair": (a, b)}


@annals.tool(name="later", version="2")
async def add_later(a):
    ran.append("later")
    await asyncio.sleep(0)
    return a + 1


@annals.tool
def count(n):
    for number in range(n):
        ran.append("count")
        yield number
    return "done"


@annals.tool
async def count_later(n):
    for number in range(n):
        ran.append("count_later")
        yield number


def use_tools():
    async def later():
        return await add_later(4), [item async for item in count_later(2)]

    with pytest.raises(ValueError, match="negative") as failure:
        add(-1)
    return add(1), add(2, b=3), failure.value.args, list(count(3)), asyncio.run(later())


def test_tool_does_not_run_again(store):
    ran.clear()
    with annals.record("r", store=store):
        recorded = use_tools()
    assert len(ran) == 9
    ran.clear()
    with annals.replay("r", store=store) as replay:
        assert use_tools() == recorded
    assert ran == [] and replay.receipt.faithful and replay.receipt.recorded == 6


def test_live_tools_run_and_are_not_looked_at(store):
    with annals.record("r", store=store):
        add(1)
    ran.clear()
    with annals.replay("r", store=store, tools="live"):
        assert add(7)["sum"] == 8
    assert ran == ["add"]


def test_compared_tool_names_its_difference(store):
    answer = ["old"]

    @annals.tool
    def look():
        return {"found": answer[0]}

    with annals.record("r", store=store):
        look()
    with annals.replay("r", store=store, tools="compare"):
        look()
    answer[0] = "new"
    with (
        pytest.raises(annals.Diverged, match=r'found: "old" was recorded, and now it is "new"'),
        annals.replay("r", store=store, tools="compare"),
    ):
        look()


def test_changed_argument_is_named(store):
    with annals.record("r", store=store):
        add(1)
    with pytest.raises(annals.Diverged, match=r"\$\.args\[0\]"), annals.replay("r", store=store):
        add(9)


def test_calls_and_draws_inside_of_a_tool_are_not_expected(store, up):
    """The tool's own requests and draws are recorded, and a replay that does not run the tool does not want them."""

    @annals.tool
    def fetch():
        return httpx.get(f"{up.url}/{uuid.uuid4()}").text

    def agent():
        fetched = fetch()
        return fetched, uuid.uuid4()

    with annals.record("r", store=store):
        recorded = agent()
    with annals.replay("r", store=store) as replay:
        assert agent() == recorded
    assert replay.receipt.faithful and replay.receipt.recorded == 1
    with annals.replay("r", store=store, tools="compare") as replay:
        assert agent() == recorded
    assert replay.receipt.recorded == 2


def test_argument_that_cannot_be_stored_is_named(store):
    with (
        annals.record("r", store=store),
        socket.socket() as open_socket,
        pytest.raises(annals.NotSerializable, match=r"\$\.args\[0\]\.client: an open socket"),
    ):
        add({"client": open_socket})


def draw():
    return (
        time.time(), time.time_ns(), datetime.datetime.now(), datetime.datetime.now(datetime.timezone.utc),
        datetime.date.today(), uuid.uuid4(), uuid.uuid1(), random.random(), random.randint(1, 10**9), random.choice("abcdef"),
        random.sample(range(100), 5), random.gauss(0, 1), secrets.token_hex(8), os.urandom(5), random.Random().random(),
        random.SystemRandom().random(), nondet.uuid4(), nondet.random(), nondet.now(), nondet.random_bytes(3), nondet.time(),
    )  # fmt: skip


def test_draws_are_served_in_order(store):
    with annals.record("r", store=store):
        recorded = draw()
    assert draw() != recorded
    with annals.replay("r", store=store) as replay:
        assert draw() == recorded
    assert replay.receipt.faithful


def test_draws_of_a_module_that_is_imported_are_not_recorded(store, tmp_path, monkeypatch):
    # A replay in the same process does not import it again.
    (tmp_path / "draws_at_import.py").write_text("import helper_of_it\nDRAWN = helper_of_it.draw()\n")
    (tmp_path / "helper_of_it.py").write_text("import uuid\ndef draw():\n    return str(uuid.uuid4())\n")
    monkeypatch.syspath_prepend(tmp_path)

    def agent():
        import draws_at_import

        return draws_at_import.DRAWN, str(uuid.uuid4())

    with annals.record("r", store=store):
        recorded = agent()
    with annals.replay("r", store=store) as replay:
        assert agent() == recorded
    assert replay.receipt.faithful


def test_names_imported_before_the_block_see_datetime(store):
    from datetime import datetime as imported

    with annals.record("r", store=store):
        recorded = imported.now()
    with annals.replay("r", store=store):
        assert imported.now() == recorded
    assert type(imported.now()) is imported


@pytest.mark.parametrize("repeat", range(3))
def test_threads_and_tasks_get_their_own_draws(store, repeat):
    """Each lane draws a different number of values, in an order that the machine chooses."""

    def agent():
        drawn = {}

        def worker(name, count):
            drawn[name] = [uuid.uuid4() for _ in range(count)]

        threads = [threading.Thread(target=worker, args=(n, 3 + n)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        async def task(name, count):
            for _ in range(count):
                drawn.setdefault(name, []).append(uuid.uuid4())
                await asyncio.sleep(0)

        async def main():
            await asyncio.gather(*(task(f"t{n}", 5 - n) for n in range(4)))
            await asyncio.gather(*(asyncio.to_thread(worker, f"x{n}", n) for n in range(4)))

        asyncio.run(main())
        return drawn

    with annals.record("r", store=store):
        recorded = agent()
    with annals.replay("r", store=store) as replay:
        assert agent() == recorded
    assert replay.receipt.faithful


def test_drifting_source_is_caught(store, up):
    """The negative control: a check that passes here checks nothing."""

    def agent():
        httpx.post(f"{up.url}/a", json={"id": str(uuid.uuid4()), "at": time.time()})

    with annals.record("r", store=store):
        agent()
    with annals.replay("r", store=store):
        agent()
    with pytest.raises(annals.Diverged, match=r"\$\.(id|at)"), annals.replay("r", store=store, drifting=True):
        agent()


@pytest.mark.parametrize(
    "draw",
    [
        lambda: int(time.time()) % 60,
        lambda: int(time.time()) // 86_400,
        lambda: f"{random.random():.1f}",
        lambda: uuid.uuid4().hex[:8],
        lambda: os.urandom(8)[7] >> 6,
    ],
)
def test_drifting_source_changes_coarse_uses(store, up, draw):
    """It changed the last bits only: what a program rounds or cuts stayed the same, and its check passed."""

    def agent():
        httpx.post(f"{up.url}/a", json={"said": str(draw())})

    with annals.record("r", store=store):
        agent()
    with pytest.raises(annals.Diverged), annals.replay("r", store=store, drifting=True):
        agent()


def test_further_draw_and_missing_draw_diverge(store):
    with annals.record("r", store=store):
        uuid.uuid4()
    with pytest.raises(annals.Diverged, match="after its last recorded draw"), annals.replay("r", store=store):
        uuid.uuid4(), uuid.uuid4()
    with pytest.raises(annals.Diverged, match="undrawn 1"), annals.replay("r", store=store):
        pass
    with pytest.raises(annals.Diverged, match="drew a uuid"), annals.replay("r", store=store):
        time.time()


def test_guard_refuses_what_cannot_be_recorded(store):
    # Threads were refused by an audit event that only Python 3.12 has.
    refused = [
        lambda: threading.Thread(target=print).start(),
        lambda: subprocess.run([sys.executable, "-c", ""]),
        lambda: time.monotonic(),
        lambda: time.sleep(0),
        lambda: os.system("true"),
    ]
    with annals.record("r", store=store, guard=True):
        for action in refused:
            with pytest.raises(annals.Unrecorded):
                action()
        random.random(), time.time(), datetime.datetime.now()
    time.monotonic()
    with annals.record("r2", store=store):
        for action in refused:
            action()


class Model(http.server.BaseHTTPRequestHandler):
    """Answers in the server's own thread: a guarded block refuses others."""

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"hi")

    def log_message(self, *args):
        pass


@pytest.mark.parametrize("captured", [True, False])
def test_guarded_block_calls_a_model(store, captured):
    """httpx measures each request with `time.perf_counter`, which the guard refused: no request could be made."""
    with http.server.HTTPServer(("127.0.0.1", 0), Model) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/a"
        with annals.record("r", store=store, guard=True, nondet=captured):
            assert httpx.post(url, json={"asked": 1}).content == b"hi"
        server.shutdown()
    with annals.replay("r", store=store, guard=True, nondet=captured):
        assert httpx.post(url, json={"asked": 1}).content == b"hi"


def test_guard_refuses_draws_that_are_not_captured(store):
    """With `nondet=False` a guarded block drew times, ids and random numbers that were neither recorded nor refused, so
    its replay could ask something else."""
    draws = [
        lambda: time.time(), lambda: time.time_ns(), lambda: uuid.uuid1(), lambda: uuid.uuid4(),
        lambda: random.random(), lambda: random.randint(1, 6), lambda: random.SystemRandom().random(),
        lambda: secrets.token_hex(4), lambda: os.urandom(4), lambda: random.Random(), lambda: datetime.datetime.now(),
        lambda: datetime.datetime.utcnow(), lambda: datetime.datetime.today(), lambda: datetime.date.today(),
    ]  # fmt: skip
    with annals.record("r", store=store, guard=True, nondet=False):
        for draw in draws:
            with pytest.raises(annals.Unrecorded, match="nondet=False"):
                draw()
        # These are recorded or repeatable.
        drawn = nondet.time(), nondet.uuid4(), nondet.random()
        assert random.Random(4).random() == random.Random(4).random()
    with annals.replay("r", store=store, guard=True, nondet=False):
        with pytest.raises(annals.Unrecorded):
            time.time()
        assert drawn == (nondet.time(), nondet.uuid4(), nondet.random())
    # Another block's draws, and those of no block, are as ever.
    with annals.record("captured", store=store, guard=True):
        for draw in draws:
            draw()
    with annals.record("free", store=store, nondet=False):
        for draw in draws:
            draw()
    for draw in draws:
        draw()


def test_patches_of_clocks_are_taken_out(store):
    before = time.time, uuid.uuid4, random.random, os.urandom, random.Random.seed, datetime.datetime.now
    with annals.record("r", store=store):
        assert time.time is not before[0]
    after = time.time, uuid.uuid4, random.random, os.urandom, random.Random.seed, datetime.datetime.now
    assert before == after


# States


@dataclasses.dataclass
class Plan:
    steps: list
    seen: frozenset = frozenset()


class Typed(typing.TypedDict):
    a: int


def test_state_keeps_its_types():
    numpy = pytest.importorskip("numpy")
    pydantic = pytest.importorskip("pydantic")

    global Message

    class Message(pydantic.BaseModel):
        role: str
        content: str

    state = {
        "plan": Plan([1, (2, 3)], frozenset({"x"})), "message": Message(role="user", content="hi"), "typed": Typed(a=1),
        "at": datetime.datetime(2026, 1, 2, 3, 4, 5), "id": uuid.UUID(int=1), 3: b"\x00", "nan": float("inf"), "$odd": 1,
    }  # fmt: skip
    decoded = snapshots.decode_bytes(snapshots.encode_bytes(state))
    assert decoded == state
    array = numpy.arange(6, dtype="float32").reshape(2, 3)
    again = snapshots.decode(snapshots.encode(array))
    assert again.dtype == array.dtype and (again == array).all()


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda: {"tools": [1, 2, {"client": socket.socket()}]}, r"\$\.tools\[2\]\.client: an open socket"),
        (lambda: {"f": open(__file__)}, r"\$\.f: an open file"),  # noqa: SIM115
        (lambda: {"g": (n for n in ())}, r"\$\.g: a generator"),
        (lambda: {"l": lambda: 1}, r"\$\.l: a lambda"),
        (lambda: {"x": threading.Lock()}, r"\$\.x: a lock"),
        (lambda: {"o": Plan([object()])}, r"\$\.o\.steps\[0\]: an object of builtins\.object"),
    ],
)
def test_state_that_cannot_be_stored_is_named(make, path, store):
    with annals.record("r", store=store) as run, pytest.raises(annals.NotSerializable, match=path):
        run.snapshot(make())


def test_plain_states_are_written_as_json_does_it():
    # Plain data is written in Rust, the rest in Python: both must give the bytes of `json.dumps`.
    seed = random.SystemRandom().getrandbits(32)
    made = random.Random(seed)
    alphabet = [*map(chr, range(0, 160)), "é", "\u2028", "\ud800", "😀", "\x7f", "/"]

    def text():
        return "".join(made.choices(alphabet, k=made.choice([0, 1, 5, 63, 64, 65, 200])))

    def value(depth):
        kinds = [
            lambda: None, lambda: True, lambda: False, lambda: made.randint(-5, 5), lambda: made.getrandbits(80),
            lambda: -made.getrandbits(63), lambda: made.uniform(-1, 1), lambda: 1e300, lambda: 5e-324, lambda: -0.0, text,
        ]  # fmt: skip
        if depth:
            kinds += [
                lambda: [value(depth - 1) for _ in range(made.randrange(4))],
                lambda: {text().lstrip("$"): value(depth - 1) for _ in range(made.randrange(4))},
            ] * 4
        return made.choice(kinds)()

    for number in range(300):
        state = value(5)
        plain = json.dumps(state, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")
        assert snapshots.encode_bytes(state) == plain, f"seed {seed}, state {number}"


def test_mixed_states_are_written_as_python_does_it():
    shared = [1]
    state = {"a": [(1, 2), {"b": {3: "x"}}], "$c": {"d": b"e"}, "f": [shared, shared], "g": {"h": float("nan")}, "é": Typed(a=1)}
    plain = json.dumps(snapshots.encode(state), separators=(",", ":"), ensure_ascii=False).encode()
    assert snapshots.encode_bytes(state) == plain
    deep = []
    for _ in range(300):
        deep = [deep]
    with pytest.raises(annals.NotSerializable, match="more than 200 deep"):
        snapshots.encode_bytes({"deep": deep})
    with pytest.raises(annals.NotSerializable, match=r"\$\.tools\[2\]\.client: a generator"):
        snapshots.encode_bytes({"tools": [1, 2, {"client": (n for n in "x")}]})
    with pytest.raises(annals.NotSerializable, match=r"\$\.tools\[1\]: a cycle: it contains \$ again"):
        cyclic = {"tools": [1]}
        cyclic["tools"].append(cyclic)
        snapshots.encode_bytes(cyclic)


def test_cycle_is_named():
    state = {"a": [1]}
    state["a"].append(state)
    with pytest.raises(annals.NotSerializable, match=r"\$\.a\[1\]: a cycle: it contains \$ again"):
        snapshots.encode(state)


def test_snapshot_copies_at_once_and_is_compared(store):
    def agent(last):
        state = {"results": []}
        run = annals.current_run()
        run.snapshot(state)
        state["results"].append(last)
        return run.snapshot(state)

    with annals.record("r", store=store):
        agent(1)
    states = [frame["seq"] for frame in _annals.frames(store, "default", "r") if frame["component"] == "state"]
    assert [snapshots.decode_bytes(_annals.snapshot(store, "default", "r", seq)[1]) for seq in states] == [
        {"results": []},
        {"results": [1]},
    ]
    with annals.replay("r", store=store):
        agent(1)
    with pytest.raises(annals.Diverged, match=r"\$\.results\[0\]: 1 was recorded, and now it is 2"), annals.replay("r", store=store):
        agent(2)


def test_frozen_state_cannot_change():
    state = annals.frozen({"a": [1, {"b": {2}}]})
    with pytest.raises(TypeError):
        state["a"] = 1
    with pytest.raises(AttributeError):
        state["a"].append(1)
    with pytest.raises(annals.NotSerializable):
        annals.frozen({"f": socket.socket()})


def test_parallel_results_merge_in_recorded_order(store):
    def agent(order):
        return annals.merge_recorded((name, name.upper()) for name in order)

    with annals.record("r", store=store):
        assert agent("bca") == ["B", "C", "A"]
    with annals.replay("r", store=store):
        assert agent("abc") == ["B", "C", "A"]
    with pytest.raises(annals.Diverged), annals.replay("r", store=store):
        agent("abd")


# Processes that end or split


def run_program(text, tmp_path, **env):
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(text))
    return subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, env={**os.environ, **env}
    )


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_other_processes_do_not_hang_and_are_named(method, store, tmp_path, up):
    text = f"""
        import multiprocessing, sys, warnings
        import annals, httpx

        def child(url):
            httpx.get(url)

        if __name__ == "__main__":
            with annals.record("r", store={str(store)!r}) as run:
                httpx.get({up.url!r} + "/a")
                process = multiprocessing.get_context({method!r}).Process(target=child, args=({up.url!r} + "/b",))
                process.start()
                process.join()
                assert process.exitcode == 0, process.exitcode
            print(run.counts["requests"], run.notes)
    """
    done = run_program(text, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 ")
    assert "process" in done.stdout, "what the other process does is not recorded, which is said"


def test_forked_child_of_a_replay_calls_nobody(store, tmp_path, up):
    with annals.record("r", store=store):
        httpx.get(f"{up.url}/a")
    text = f"""
        import os, annals, httpx
        with annals.replay("r", store={str(store)!r}):
            httpx.get({up.url!r} + "/a")
            if os.fork() == 0:
                try:
                    httpx.get({up.url!r} + "/a")
                except annals.Diverged:
                    os._exit(7)
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
    """
    before = up.requests
    done = run_program(text, tmp_path)
    assert done.returncode == 0, done.stderr
    assert up.requests == before


def test_connection_of_no_known_client_is_named_and_refused(store, up):
    import urllib.request

    with pytest.warns(UserWarning, match="connection to 127.0.0.1"), annals.record("r", store=store):
        urllib.request.urlopen(f"{up.url}/a").read()
    before = up.requests
    with pytest.raises(annals.Diverged, match="connects to 127.0.0.1"), annals.replay("r", store=store):
        urllib.request.urlopen(f"{up.url}/a").read()
    assert up.requests == before
    with annals.replay("r", store=store, network="allow") as replay:
        urllib.request.urlopen(f"{up.url}/a").read()
    assert replay.notes


def test_interpreter_that_ends_in_a_stream_keeps_what_came(store, tmp_path, up):
    text = f"""
        import sys, annals, httpx
        block = annals.record("r", store={str(store)!r})
        block.__enter__()
        client = httpx.Client()
        response = client.send(client.build_request("GET", {up.url!r} + "/stream"), stream=True)
        next(response.iter_raw())
        sys.exit(3)
    """
    done = run_program(text, tmp_path)
    assert done.returncode == 3 and "ended inside of the block" in done.stderr, done.stderr
    (frame,) = _annals.frames(store, "default", "r")
    assert frame["output"].startswith(b"data:")


def test_killed_program_keeps_acknowledged_frames(store, tmp_path, up):
    """tracefork loses the whole run."""
    text = f"""
        import os, signal, annals, httpx
        with annals.record("r", store={str(store)!r}) as run:
            for n in range(3):
                httpx.post({up.url!r} + "/a", json={{"n": n}})
            run._run.record("user", b"", b"last", b"{{}}")
            os.kill(os.getpid(), signal.SIGKILL)
    """
    done = run_program(text, tmp_path)
    assert done.returncode == -9
    with annals.record("next", store=store):
        pass
    frames = _annals.frames(store, "default", "r")
    assert len([frame for frame in frames if frame["component"] == "http"]) >= 2


def test_interrupt_ends_the_run_as_failed(store, up):
    with pytest.raises(KeyboardInterrupt), annals.record("r", store=store):
        httpx.get(f"{up.url}/a")
        raise KeyboardInterrupt
    assert len(_annals.frames(store, "default", "r")) >= 1


def test_ended_run_refuses_further_calls(store):
    with annals.record("r", store=store) as run:
        pass
    with pytest.raises(annals.Invalid, match="ended"):
        run.record("user", b"x")


def test_missing_run_and_store_are_not_found(tmp_path, store):
    with pytest.raises(annals.Error), annals.replay("r", store=tmp_path / "nothing"):
        pass
    assert not (tmp_path / "nothing").exists(), "tracefork creates a file here"
    with annals.record("r", store=store):
        pass
    with pytest.raises(annals.NotFound), annals.replay("other", store=store):
        pass
