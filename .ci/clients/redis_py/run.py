#!/usr/bin/env python3
"""redis-py's own tests, from its source distribution, against `annals serve`.

Usage: .ci/clients/redis_py/run.py [--work DIR]     (default: target/clients/redis-py)
A test counts if every command it gives is offered. It must pass, or stand in LEFT_OUT below with the reason; one that stands there and
passes is an error, too. Tests of streams get a store of their own each: what a run recorded is not deleted. Needs pip and its index.
ANNALS names the binary (default: target/debug/annals, built if it is not there). Ends with 1 if a test failed.
"""
import argparse
import collections
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
VERSION = "8.1.0"
FILES = ["test_commands", "test_pipeline", "test_encoding", "test_lock", "test_connection_pool", "test_client"]
STREAMS = "test_x"
PORT = 7462

# Tests whose commands are all offered and that ask for something else of them.
LEFT_OUT = {
    "settings are changed where the daemon is started": "test_auth test_config_set test_config_set_multi_params test_config_resetstat",
    "settings of Redis that annals has nothing like": "test_config_get test_config_get_multi_params test_slowlog_get test_slowlog_get_limit test_slowlog_length",
    "a subcommand of CLIENT that is not offered": "test_client_trackinginfo test_client_tracking test_client_unblock test_client_kill "
    "test_client_kill_filter_by_id test_client_kill_filter_by_addr test_client_kill_filter_by_laddr test_client_pause test_client_pause_all "
    "test_client_unpause test_client_no_evict test_client_no_touch test_client_reply test_client_getredir",
    "a subcommand of COMMAND that is not offered": "test_command_getkeys test_command_getkeysandflags",
    "of MEMORY only USAGE is offered, of OBJECT not FREQ and IDLETIME": "test_memory_malloc_stats test_memory_stats test_object",
    "more commands are asked for than annals has": "test_command_list",
    "a cluster, a module, a second server or a server at port 6379 is asked for": "test_mset_on_cluster_multiple_slots test_module test_module_loadex "
    "test_psync test_client_setinfo test_client_setinfo_with_driver_info",
    "the stand-in for SHUTDOWN makes no connection": "test_shutdown test_shutdown_with_params",
    "an entry's id is its time and its frame's number: only * is supported": "test_xadd test_xadd_explicit_ms",
    "nothing recorded is trimmed": "test_xadd_minlen_and_limit test_xinfo_stream",
    "consumer groups, XINFO STREAM FULL": "test_xgroup_create test_xgroup_create_entriesread test_xinfo_stream_full",
}


class Annals:
    """A daemon on a store of its own."""

    def __init__(self, binary, work):
        self.store = work / "store"
        shutil.rmtree(self.store, ignore_errors=True)
        command = [binary, "--store", self.store, "serve", "--tcp", f"127.0.0.1:{PORT}", "--no-auth"]
        self.child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def offers(self, python):
        ask = f"import redis; c = redis.connection.Connection(port={PORT}); c.connect(); c.send_command('COMMAND', 'LIST'); print(*c.read_response())"
        for _ in range(100):
            said = subprocess.run([python, "-c", ask.replace("print(*c.read_response())", "print(*[str(x, 'ascii') for x in c.read_response()])")], capture_output=True, text=True)
            if said.returncode == 0:
                return set(said.stdout.upper().split())
            time.sleep(0.1)
        sys.exit(f"the daemon does not answer: {said.stderr}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.terminate()
        self.child.wait()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=pathlib.Path, default=ROOT / "target" / "clients" / "redis-py")
    work = parser.parse_args().work
    work.mkdir(parents=True, exist_ok=True)
    binary = os.environ.get("ANNALS", str(ROOT / "target" / "debug" / "annals"))
    if not pathlib.Path(binary).exists():
        subprocess.run(["cargo", "build", "-p", "annals-cli"], cwd=ROOT, check=True)
    python = str(work / "venv" / "bin" / "python")
    if not pathlib.Path(python).exists():
        subprocess.run([sys.executable, "-m", "venv", work / "venv"], check=True)
        wanted = [f"redis=={VERSION}", "pytest", "pytest-asyncio", "pytest-timeout", "numpy", "hatchling"]
        subprocess.run([python, "-m", "pip", "install", "-q", *wanted], check=True)
    tests = work / f"redis-{VERSION}"
    if not tests.exists():
        fetch = [python, "-m", "pip", "download", "-q", f"redis=={VERSION}", "--no-binary", ":all:", "--no-deps", "--no-build-isolation"]
        subprocess.run(fetch, cwd=work, check=True)
        shutil.unpack_archive(work / f"redis-{VERSION}.tar.gz", work, filter="data")

    notes = work / "notes.jsonl"
    notes.unlink(missing_ok=True)

    def pytest(*chosen):
        command = [python, "-m", "pytest", "-p", "annals_plugin", f"--redis-url=redis://127.0.0.1:{PORT}/9", "--timeout=30", "--tb=line", "-q", *chosen]
        environment = os.environ | {"PYTHONPATH": str(HERE), "NOTES": str(notes), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(command, cwd=tests, env=environment, capture_output=True, text=True)

    with Annals(binary, work) as server:
        offered = server.offers(python)
        said = pytest(*(f"tests/{file}.py" for file in FILES))
        if not notes.exists():
            sys.exit(said.stdout + said.stderr)
    done = {test: rest for test, *rest in map(json.loads, notes.read_text().splitlines())}
    is_stream = re.compile(rf"::(?:{STREAMS})").search
    # A class that redis-py makes for each protocol has the same test twice.
    for test in [test for test in done if is_stream(test) and done[test][0] != "skipped" and set(first(done[test][2])) <= offered]:
        with Annals(binary, work) as server:
            server.offers(python)
            notes.unlink(missing_ok=True)
            pytest(f"tests/{test}")
            done[test] = json.loads(notes.read_text().splitlines()[-1])[1:]
    sys.exit(judge(done, offered))


def first(commands):
    return [command.split()[0] for command in commands]


def judge(done, offered):
    reasons = {test: reason for reason, tests in LEFT_OUT.items() for test in tests.split()}
    counts, wrong = collections.Counter(), []
    for test, (outcome, said, commands) in sorted(done.items()):
        name = test.split("::")[-1].split("[")[0]
        foreign = set(first(commands)) - offered
        if foreign:
            counts["give commands that are not offered"] += 1
        elif outcome == "skipped":
            counts["skipped by redis-py itself"] += 1
        elif outcome == "passed":
            counts["pass"] += 1
            if name in reasons:
                wrong.append(f"{test} passes and stands in LEFT_OUT")
        elif name in reasons:
            counts["left out, with reasons"] += 1
        else:
            wrong.append(f"{test}: {said} ({' '.join(commands)})")
    for reason, tests in LEFT_OUT.items():
        print(f"left out: {reason}: {', '.join(tests.split())}")
    print(f"redis-py {VERSION}, {len(done)} tests: " + ", ".join(f"{count} {what}" for what, count in counts.most_common()))
    print("\n".join(wrong) or "none failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    main()
