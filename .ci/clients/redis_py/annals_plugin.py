"""A pytest plugin for redis-py's own tests: notes which commands each test gives and what came of it (a line of JSON each to NOTES).

FLUSHDB and FLUSHALL, which the fixtures clean up with, become SCAN and DEL: annals does not offer them, and they are not what is tested.
"""
import json
import os

import pytest
import redis
from redis.connection import AbstractConnection

given, outcomes = set(), {}


def flush(self, *_args, **_options):
    keys = list(self.scan_iter(count=1000))
    if keys:
        self.delete(*keys)
    return True


redis.Redis.flushdb = redis.Redis.flushall = flush


def noting(of, each):
    def wrapped(self, *args, **options):
        args = each(args)
        return of(self, *args, **options)

    return wrapped


def one(args):
    if args:
        given.add(str(args[0]).upper())
    return args


def many(args):
    commands = list(args[0])
    for command in commands:
        one(command)
    return (commands, *args[1:])


AbstractConnection.send_command = noting(AbstractConnection.send_command, one)
AbstractConnection.pack_commands = noting(AbstractConnection.pack_commands, many)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    given.clear()


def pytest_runtest_logreport(report):
    if report.failed or report.nodeid not in outcomes:
        said = (str(report.longrepr).strip().splitlines() or [""])[-1] if report.longrepr else ""
        outcomes[report.nodeid] = [report.outcome, said]
    if report.when == "teardown":
        with open(os.environ["NOTES"], "a") as notes:
            test = report.nodeid.split("/")[-1]
            notes.write(json.dumps([test, *outcomes[report.nodeid], sorted(given)]) + "\n")
