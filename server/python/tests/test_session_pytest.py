"""The pytest plugin: a project's tests recorded into tapes, replayed, and red after one byte is changed."""

import os
import pathlib
import subprocess
import sys
import textwrap

import pytest
from session_upstream import Upstream

import annals

pytest.importorskip("httpx")


@pytest.fixture
def up():
    upstream = Upstream()
    yield upstream
    upstream.close()


@pytest.fixture
def project(tmp_path, up):
    test = """
        import os, uuid
        import httpx, pytest

        @pytest.mark.annals
        @pytest.mark.parametrize("word", ["one", "two"])
        def test_chat(word):
            body = {"model": "m", "messages": [{"role": "user", "content": f"{word} {uuid.uuid4()}"}]}
            answer = httpx.post(os.environ["UPSTREAM"] + "/v1/chat/completions", json=body).json()
            assert word in answer["choices"][0]["message"]["content"]

        @pytest.mark.annals(tape="named.annals")
        class TestMethods:
            def test_named(self):
                assert httpx.get(os.environ["UPSTREAM"] + "/a").status_code == 200

        def test_unmarked():
            pass
    """
    (tmp_path / "test_it.py").write_text(textwrap.dedent(test))
    return tmp_path


def run(project, up, *options):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "annals.pytest_plugin", "-p", "no:cacheprovider", *options]
    env = {**os.environ, "UPSTREAM": up.url, "PYTHONPATH": str(pathlib.Path(annals.__file__).parents[1])}
    return subprocess.run(command, cwd=project, env=env, capture_output=True, text=True)


def test_tapes_are_recorded_once_and_replayed(project, up):
    done = run(project, up)
    assert "3 failed, 1 passed" in done.stdout and "--annals-record=once" in done.stdout, done.stdout
    assert up.requests == 0, "a test without a tape calls nobody"
    done = run(project, up, "--annals-record=once")
    assert "4 passed" in done.stdout, done.stdout
    tapes = sorted(str(tape.relative_to(project)) for tape in project.rglob("*.annals"))
    assert tapes == ["named.annals", "tapes/test_it/test_chat[one].annals", "tapes/test_it/test_chat[two].annals"]
    requests = up.requests
    for options in ((), ("--annals-record=once",)):
        done = run(project, up, *options)
        assert "4 passed" in done.stdout, done.stdout
    assert up.requests == requests == 3


@pytest.mark.parametrize("mode", ["all", "rewrite"])
def test_all_and_rewrite_record_again(project, up, mode):
    run(project, up, "--annals-record=once")
    (tape,) = project.glob("tapes/*/*one*")
    before = tape.read_bytes()
    done = run(project, up, f"--annals-record={mode}")
    assert "4 passed" in done.stdout and up.requests == 6, done.stdout
    assert tape.read_bytes() != before
    assert "4 passed" in run(project, up).stdout


def test_tape_of_a_failed_test_is_not_written(project, up):
    text = (project / "test_it.py").read_text()
    (project / "test_it.py").write_text(text.replace("== 200", "== 201"))
    run(project, up, "--annals-record=once")
    assert not (project / "named.annals").exists()


def test_one_changed_byte_is_red(project, up):
    run(project, up, "--annals-record=once")
    (tape,) = project.glob("tapes/*/*one*")
    original = tape.read_bytes()
    for place in (len(original) // 3, len(original) // 2, len(original) - 5):
        changed = bytearray(original)
        changed[place] ^= 1
        tape.write_bytes(changed)
        done = run(project, up, "-k", "one")
        assert "1 failed" in done.stdout, f"byte {place}: {done.stdout}"
    tape.write_bytes(original)
    assert "1 passed" in run(project, up, "-k", "one").stdout


def test_changed_prompt_is_red(project, up):
    run(project, up, "--annals-record=once")
    text = (project / "test_it.py").read_text()
    (project / "test_it.py").write_text(text.replace('f"{word} ', 'f"{word}, '))
    done = run(project, up)
    assert "2 failed, 2 passed" in done.stdout and "$.messages[0].content" in done.stdout, done.stdout
