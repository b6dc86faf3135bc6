"""Sessions of agent frameworks. The tests with a real SDK are skipped if it is not installed."""

from __future__ import annotations

import asyncio
import tempfile
import unittest
from pathlib import Path

import annals
from annals.sessions import ClaudeSessionStore, OpenAISession

try:
    import agents
except ImportError:
    agents = None
try:
    import claude_agent_sdk
except ImportError:
    claude_agent_sdk = None


class OpenAI(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.store = annals.open(Path(directory.name) / "store")
        self.addCleanup(self.store.close)

    def test_items_are_added_limited_popped_and_cleared(self):
        async def work():
            session, other = (OpenAISession(name, self.store) for name in ("a", "ab"))
            await other.add_items([{"content": "other"}])
            items = [{"role": "user", "content": f"é {number}"} for number in range(5)]
            await session.add_items(items[:2])
            await session.add_items(items[2:])
            self.assertEqual(await session.get_items(), items)
            self.assertEqual(await session.get_items(limit=2), items[3:])
            self.assertEqual(await session.pop_item(), items[4])
            with self.assertRaisesRegex(annals.Invalid, "item 0"):
                await session.add_items([{"content": object()}])
            await session.clear_session()
            self.assertEqual((await session.get_items(), await session.pop_item()), ([], None))
            self.assertEqual(len(await other.get_items()), 1)

        asyncio.run(work())

    def test_sessions_added_to_at_once_lose_nothing(self):
        # Two sessions of one id saw the same last item: with a counter one would overwrite the other's.
        async def work():
            sessions = [OpenAISession("a", self.store) for _ in range(4)]
            await asyncio.gather(*(session.add_items([{"n": n}]) for session in sessions for n in range(10)))
            return await sessions[0].get_items()

        self.assertEqual(len(asyncio.run(work())), 40)

    @unittest.skipIf(agents is None, "openai-agents is not installed")
    def test_agents_sdk_takes_it_as_a_session(self):
        from agents.memory import Session

        self.assertIsInstance(OpenAISession("a", self.store), Session)


@unittest.skipIf(claude_agent_sdk is None, "claude-agent-sdk is not installed")
class Claude(unittest.TestCase):
    def test_the_sdks_conformance_suite_passes(self):
        from claude_agent_sdk.testing import run_session_store_conformance

        with tempfile.TemporaryDirectory() as directory:
            made = []

            def make():
                made.append(ClaudeSessionStore(Path(directory) / str(len(made))))
                return made[-1]

            asyncio.run(run_session_store_conformance(make))
            for store in made:
                store.close()

    def test_entry_that_is_sent_again_is_kept_once(self):
        async def work(store):
            key = {"project_key": "p", "session_id": "s"}
            entry = {"type": "user", "uuid": "u1", "text": "é"}
            await store.append(key, [entry, {"type": "title"}])
            await store.append(key, [entry, {"type": "title"}, entry])
            return await store.load(key)

        with tempfile.TemporaryDirectory() as directory:
            store = ClaudeSessionStore(Path(directory) / "store")
            loaded = asyncio.run(work(store))
            store.close()
        self.assertEqual([entry["type"] for entry in loaded], ["user", "title", "title"])


if __name__ == "__main__":
    unittest.main()
