"""Exceptions, named by what the caller can do. Each is an `annals.Error`."""


class Error(Exception):
    """Any error of annals."""


class Invalid(Error):
    """The call itself is wrong: correct it."""


class NotFound(Error):
    """What was named does not exist."""


class Conflict(Error):
    """It exists already, or was changed by another."""


class Locked(Error):
    """Another process holds the store."""


class Damaged(Error):
    """Stored bytes fail a check."""


class Diverged(Error):
    """A replayed program did something that was not recorded. The text names the difference."""


class Gone(Error):
    """It was deleted, or is older than what is kept."""


class Unavailable(Error):
    """A resource is missing; try again."""


class Poisoned(Error):
    """The store's writer has failed: open the store again."""


class Bug(Error):
    """A mistake in annals: report it."""


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
