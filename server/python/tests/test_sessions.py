"""Sessions of agent frameworks. The tests with a real SDK are skipped if it is not installed."""

from __future__ import annotations

import asyncio
import tempfile
import unittest
from pathlib import Path

import annals
from annals.sessions import OpenAISession

try:
    import agents
except ImportError:
    agents = None


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


if __name__ == "__main__":
    unittest.main()
