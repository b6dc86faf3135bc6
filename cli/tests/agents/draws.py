"""An agent that puts times, ids and random numbers into its prompts, as its first argument says."""
import concurrent.futures
import datetime
import http.client
import json
import os
import random
import secrets
import subprocess
import sys
import threading
import time
import urllib.parse
import uuid

BASE = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])


def chat(text):
    connection = http.client.HTTPConnection(BASE.hostname, BASE.port, timeout=60)
    body = json.dumps({"model": "m-1", "messages": [{"role": "user", "content": text}]}).encode()
    connection.request("POST", BASE.path + "/chat/completions", body, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    # One write: children share a pipe, and lines of theirs must not run into each other.
    os.write(1, f"{answer.status} {answer.read().decode()}\n".encode())


def drawn():
    words = {"some", "words", "in", "a", "set"}
    with open("/dev/urandom", "rb", buffering=0) as device:
        device = device.read(4).hex()
    return (
        f"{time.time()!r} {time.time_ns()} {datetime.datetime.now()} {time.strftime('%s')} {uuid.uuid4()} "
        f"{os.urandom(5).hex()} {os.getrandom(3).hex()} {device} {random.random()} {secrets.token_hex(4)} {words}"
    )


def every():
    for step in range(3):
        chat(f"step {step}: {drawn()}")


def clocks(many):
    """Many reads between two calls, each of which counts."""
    sums = sum(time.time_ns() % 1000 for _ in range(int(many)))
    chat(f"first {sums}")
    chat(f"second {time.time_ns()}")


def threads():
    """Eight at once, each drawing for itself."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        barrier = threading.Barrier(8)

        def one(number):
            barrier.wait()
            time.sleep(random.SystemRandom().random() / 100)
            chat(f"thread {number} {uuid.uuid4()} {time.time()}")

        list(pool.map(one, range(8)))


def children():
    """Two child processes at once, one with an empty environment, one forked off, one through a shell."""
    environment = {"OPENAI_BASE_URL": os.environ["OPENAI_BASE_URL"]}
    all_of_them = [subprocess.Popen([sys.executable, "-B", __file__, "every"], env=env) for env in (None, environment)]
    assert [child.wait() for child in all_of_them] == [0, 0]
    child = os.fork()
    if child == 0:
        chat(f"forked {drawn()}")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.system(f"'{sys.executable}' -B '{__file__}' every") == 0
    chat(f"parent {drawn()}")


def more(times):
    """Draws as often as a variable says, or as the recording's argument does."""
    for _ in range(int(os.environ.get("DRAW_TIMES", times))):
        os.urandom(2)
    chat("always the same")


def races():
    """Another order of kinds each time: by a monotonic clock, which is not served."""
    for _ in range(64):
        time.time() if time.monotonic_ns() % 2 else os.urandom(1)
    chat("always the same")


def dies():
    chat(f"before {drawn()}")
    os.kill(os.getpid(), 9)


globals()[sys.argv[1]](*sys.argv[2:])
