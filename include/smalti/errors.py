"""The errors of smalti: few, typed, one line each, for terminal, log and alert alike.

SmaltiError
├── InputError        what a person wrote is wrong: exit code 2, never retried
├── MissingObject     an object that should be in the lake or a source is not
├── ConflictError     an object is there already, with other content
├── LakeError         the lake cannot be read or written
├── CorruptError      a hash, count or shape is not what was recorded
└── EngineError       a captioner or classifier cannot run
"""

from __future__ import annotations


class SmaltiError(Exception):
    """What is wrong, where, and what to do: ``where: what. fix.``"""

    def __init__(self, what: str, where: str, fix: str) -> None:
        super().__init__(what, where, fix)  # in args, so that it survives Ray's pickling

    @property
    def what(self) -> str:
        return str(self.args[0])

    @property
    def where(self) -> str:
        return str(self.args[1])

    @property
    def fix(self) -> str:
        return str(self.args[2])

    def __str__(self) -> str:
        line = f"{self.where}: {self.what.rstrip('.')}. {self.fix.rstrip('.')}."
        return " ".join(line.split())  # one line, whatever a library put into it


class InputError(SmaltiError):
    """A file, flag, form or source is wrong: exit code 2, no retry."""


class MissingObject(SmaltiError):
    """An object is not there."""


class ConflictError(SmaltiError):
    """An object is there already and has other content; nothing was changed."""


class LakeError(SmaltiError):
    """The store refused or failed."""


class CorruptError(SmaltiError):
    """Stored bytes are not what was recorded about them."""


class EngineError(SmaltiError):
    """An engine cannot be started or does not answer as it must."""
