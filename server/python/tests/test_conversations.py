"""Conversations of pydantic-ai. Skipped without its package.

No package ships a suite for conversation stores. So each call is also made to the package's own store in memory, and
what both return and hold is compared.
"""

from __future__ import annotations

import asyncio
import random

import pytest

import annals

conversation_store = pytest.importorskip("pydantic_ai.conversation_store")

from pydantic_ai import Agent
from pydantic_ai.conversation import Conversation
from pydantic_ai.exceptions import UserError
from pydantic_ai.messages import BinaryImage, ModelRequest, ModelResponse, TextPart, ToolCallPart, UserPromptPart
from pydantic_ai.models.function import FunctionModel
from pydantic_ai.usage import RequestUsage, RunUsage

from annals.pydantic_ai import CONVERSATIONS, ENTRIES, AnnalsConversationStore


@pytest.fixture
def store(tmp_path):
    with annals.open(tmp_path / "store") as opened:
        yield opened


def turn(rng, number):
    asked = [rng.choice(["Grüße", "weather?", "\0"]) + f" {number}"]
    if rng.random() < 0.1:
        asked.append(BinaryImage(rng.randbytes(50_000), media_type="image/png"))
    answer = TextPart("sunny") if rng.random() < 0.7 else ToolCallPart("weather", {"city": f"Oslo {number}"})
    usage = RequestUsage(input_tokens=number, output_tokens=3)
    return [ModelRequest(parts=[UserPromptPart(asked)]), ModelResponse(parts=[answer], usage=usage)]


class Pair:
    """The package's store and annals', to which the same calls are made."""

    def __init__(self, store):
        self.theirs = conversation_store.InMemoryConversationStore()
        self.ours = AnnalsConversationStore(store)
        self.space = store.namespace()
        self.tried = set()

    async def both(self, name, call, arguments=((), ())):
        results = []
        for one, values in zip((self.theirs, self.ours), arguments, strict=True):
            try:
                results.append(await call(one, *values))
            except UserError as error:
                results.append(type(error).__name__)
        assert shown(results[0]) == shown(results[1])
        assert len(self.theirs._records) == len(self.space.keys(CONVERSATIONS, 10_000))
        assert len(self.theirs._entries) == len(self.space.keys(ENTRIES, 10_000))
        self.tried.add((name, results[0] if isinstance(results[0], str) else "done"))
        return results


def shown(value):
    """A result without ids that each store makes, and without times."""
    if isinstance(value, list):
        return [shown(one) for one in value]
    if isinstance(value, Conversation):
        return value.conversation_id, value.messages, value.usage
    if isinstance(value, conversation_store.ConversationRecord):
        tips = (value.head_id is None, value.forked_at is None, len(value.branches))
        return value.conversation_id, value.usage, value.scope, value.forked_from, tips
    if isinstance(value, conversation_store.ConversationEntry):
        return value.message, value.parent_id is None, value.kind
    return value


@pytest.mark.parametrize("seed", range(4))
def test_conversations_are_as_in_the_packages_own_store(store, seed):
    rng = random.Random(seed)

    async def work():
        pair = Pair(store)
        # Copies that were loaded or saved some time: the newest, and older ones, which are stale.
        known = {name: [] for name in "abcd"}
        for number in range(150):
            name = rng.choice(sorted(known))
            copies, scope = known[name], rng.choice([None, None, None, "x", "y"])
            kind = rng.choice(["save"] * 5 + ["load"] * 3 + ["list", "branch", "fork", "fork", "delete"])
            if kind == "save":
                old = copies and (copies[-1] if rng.random() < 0.8 else rng.choice(copies))
                pairs = old or [Conversation(conversation_id=name) for _ in range(2)]
                rewrite = old and rng.random() < 0.2
                added = turn(rng, number)
                for conversation in pairs:
                    if rewrite:
                        # A history that was changed: nothing is known of what is stored.
                        kept = conversation.messages[: len(conversation.messages) // 2]
                        conversation.messages = kept
                        conversation.new_message_index = None
                    conversation.messages = [*conversation.messages, *added]
                    conversation.usage = RunUsage(input_tokens=number)
                await pair.both(kind, lambda one, at: one.save(at, scope=scope), [(one,) for one in pairs])
                copies.append(pairs)
            elif kind == "load":
                limit = rng.choice([None, None, 0, 1, 3, -1])
                loaded = await pair.both(kind, lambda one: one.load(name, limit=limit, scope=scope))
                await pair.both("entries", lambda one: one.load_entries(name, limit=limit, scope=scope))
                if isinstance(loaded[0], Conversation):
                    copies.append(loaded)
            elif kind == "list":
                limit = rng.choice([None, 0, 2, -1])
                await pair.both(kind, lambda one: one.list_conversations(scope=scope, limit=limit))
            elif kind == "branch":
                at = rng.randrange(4)
                # Mostly the newest revision.
                pairs = copies and (copies[-1] if rng.random() < 0.7 else rng.choice(copies))
                revisions = [(one.revision,) for one in pairs] if pairs else [(None,)] * 2
                branched = await pair.both(
                    kind, lambda one, revision: one.branch(name, at=at, expected_revision=revision), revisions
                )
                if isinstance(branched[0], Conversation):
                    copies.append(branched)
            elif kind == "fork":
                at, into = rng.choice([None, 0, 1, 2, 9]), rng.choice([f"{name}{number}", rng.choice(sorted(known))])
                forked = await pair.both(kind, lambda one: one.fork(name, at=at, new_conversation_id=into, scope=scope))
                if isinstance(forked[0], Conversation):
                    known.setdefault(into, []).append(forked)
            else:
                await pair.both(kind, lambda one: one.delete(name, scope=scope))
        for name in known:
            await pair.both("load", lambda one, name=name: one.load(name))
            await pair.both("delete", lambda one, name=name: one.delete(name))
        assert pair.space.keys(ENTRIES) == []
        return pair.tried

    tried = asyncio.run(work())
    for kind in ("save", "branch", "fork"):
        assert {(kind, "done"), (kind, "ConversationConflict")} <= tried, tried
    assert {("load", "UserError"), ("list", "done"), ("delete", "done")} <= tried


def test_conversation_goes_on_in_another_process(tmp_path):
    def model(messages, info):
        return ModelResponse(parts=[TextPart(f"answer {len(messages)}")])

    async def work():
        agent = Agent(FunctionModel(model))
        first = AnnalsConversationStore(tmp_path / "store")
        result = await agent.run("one", conversation=Conversation(conversation_id="c"))
        assert len(await first.save(result, scope="user-7")) == 2
        first.close()
        again = AnnalsConversationStore(tmp_path / "store")
        result = await agent.run("two", conversation=await again.load("c", scope="user-7"))
        assert result.output == "answer 3"
        assert len(await again.save(result)) == 2, "messages that are stored are not stored again"
        assert [entry.message for entry in await again.load_entries("c")] == result.all_messages()
        assert await again.load("c", scope="user-8") is None
        again.close()

    asyncio.run(work())


def test_conversation_saved_by_ten_at_once_is_saved_once(store):
    async def work():
        stores = [AnnalsConversationStore(store) for _ in range(2)]
        saves = [one.save(Conversation(conversation_id="c", messages=turn(random.Random(1), 1))) for one in stores * 5]
        results = await asyncio.gather(*saves, return_exceptions=True)
        assert sum(isinstance(result, conversation_store.ConversationConflict) for result in results) == 9
        assert len(await stores[0].load_entries("c")) == 2

    asyncio.run(work())


def test_record_of_a_deleted_history_is_refused(store):
    # Another writer has deleted what a fork points into.
    async def work():
        for one in (AnnalsConversationStore(store), conversation_store.InMemoryConversationStore()):
            record = conversation_store.ConversationRecord(conversation_id="fork", head_id="deleted")
            with pytest.raises(conversation_store.ConversationConflict):
                await one.write_record(record, expected_revision=None)
            with pytest.raises(LookupError):
                await one.read_history("deleted")

    asyncio.run(work())
