"""Workspaces of pydantic-ai, by the suite that it ships. Skipped without its package."""

from __future__ import annotations

import asyncio

import pytest

import annals

pytest.importorskip("pydantic_ai.workspaces")

from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.workspaces import Workspace, WorkspaceRef, WorkspaceUnavailableError
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

from annals.pydantic_ai import FILES, AnnalsWorkspace


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture
def store(tmp_path):
    with annals.open(tmp_path / "store") as opened:
        yield opened


class TestPydanticAiSuite(WorkspaceBackendSuite):
    """The suite of the package. It skips the rules of commands and of symbolic links, which annals does not have."""

    @pytest.fixture
    def backend(self, store):
        return AnnalsWorkspace(store)

    @pytest.fixture
    def fresh_backend(self, store):
        return lambda: AnnalsWorkspace(store)

    @pytest.fixture
    def attach_backend(self, store):
        return lambda ref: AnnalsWorkspace(store, ref=ref)

    @pytest.fixture
    def destroy_environment(self):
        return lambda backend: backend.delete()

    @pytest.fixture
    def can_detect_exit_with_inherited_output_pipes(self):
        # Without commands the rule would wait 30 s for one.
        return False


def test_workspace_of_an_agent_goes_on_in_another_process(tmp_path):
    def model(messages, info):
        if any(isinstance(part, ToolCallPart) for message in messages for part in message.parts):
            return ModelResponse(parts=[TextPart("done")])
        return ModelResponse(parts=[ToolCallPart("note", {"text": "é"})])

    agent = Agent(FunctionModel(model))

    @agent.tool
    async def note(ctx: RunContext[None], text: str) -> str:
        """Writes a note."""
        await ctx.workspace.write_text("notes/first.txt", text)
        return "written"

    first = AnnalsWorkspace(tmp_path / "store")
    result = asyncio.run(agent.run("note it", workspace=first))
    assert result.output == "done"
    ref = result.all_messages()[-1].workspace_ref
    assert ref == first.ref and ref.provider == "annals"
    first.close()
    again = AnnalsWorkspace(tmp_path / "store", ref=ref)
    assert asyncio.run(Workspace(again).read_text("notes/first.txt")) == "é"
    again.close()


def test_names_in_paths_are_kept_apart(store):
    async def work():
        workspace = AnnalsWorkspace(store)
        other = AnnalsWorkspace(store)
        names = ["a", "a\0", "a\0\1b", "ab", "é", "x" * 900, "a b", "..."]
        for name in names:
            await workspace.write_bytes(f"/workspace/{name}/file", name.encode())
        await other.write_bytes("/workspace/a/other", b"")
        assert sorted(entry.name for entry in await workspace.list_dir("/workspace")) == sorted(names)
        await workspace.remove("/workspace/a")
        for name in names[1:]:
            assert await workspace.read_bytes(f"/workspace/{name}/file") == name.encode()
        assert await workspace.read_bytes("//workspace/./ab/../ab/file") == b"ab"
        with pytest.raises(ValueError):
            await workspace.read_bytes("ab/file")
        # A folder that is made again has nothing of the one that was removed.
        await workspace.write_bytes("/workspace/tree/in/deep", b"old")
        await workspace.remove("/workspace/tree")
        await workspace.write_bytes("/workspace/tree/in/new", b"new")
        assert [entry.name for entry in await workspace.list_dir("/workspace/tree/in")] == ["new"]
        assert await other.exists("/workspace/a/other")
        await workspace.delete()
        with pytest.raises(WorkspaceUnavailableError):
            await workspace.exists("/")
        await other.delete()
        assert store.namespace().keys(FILES) == []
        with pytest.raises(annals.Invalid):
            AnnalsWorkspace(store, ref=WorkspaceRef(provider="local", id="/tmp"))

    asyncio.run(work())
