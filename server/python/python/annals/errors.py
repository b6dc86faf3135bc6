"""Exceptions, named by what the caller can do. Each is an `annals.Error`."""

from annals._annals import (
    Bug,
    Conflict,
    Damaged,
    Diverged,
    Error,
    Gone,
    Invalid,
    Locked,
    NotFound,
    Poisoned,
    Unavailable,
    Unsupported,
)

__all__ = [
    "Bug",
    "Conflict",
    "Damaged",
    "Diverged",
    "Error",
    "Gone",
    "Invalid",
    "Locked",
    "NotFound",
    "NotSerializable",
    "Poisoned",
    "ToolError",
    "Unavailable",
    "Unrecorded",
    "Unsupported",
]


class NotSerializable(Invalid, TypeError):
    """A value cannot be stored. `path` says where it is."""

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path}: {what}")
        self.path = path
        self.what = what


class Unrecorded(Error):
    """The guard refused something that a recording cannot contain."""


class ToolError(Error):
    """A recorded tool raised an exception whose class cannot be built again here."""
