"""annals records AI-agent runs bit-exactly, replays them with a proof, and forks them at any step."""

from annals._annals import __version__

__all__ = ["__version__"]
