"""Keep a key out of what people and files are told."""

from __future__ import annotations

import base64
import json
import logging
import re
import urllib.parse

LONGEST = 300
"""Characters of a cleaned message at most."""


class Secret(logging.Filter):
    """A key that takes itself out of texts, however a server or a library wrote it. As a filter it does so to log records."""

    def __init__(self, key: str | None) -> None:
        super().__init__()
        forms = _forms(key) if key else []
        self.known = bool(forms)
        self._pattern = re.compile("|".join(map(re.escape, forms)), re.IGNORECASE) if forms else None

    def __repr__(self) -> str:
        return "<a key>"

    def filter(self, record: logging.LogRecord) -> bool:
        if self._pattern:
            record.msg, record.args = self.hide(record.getMessage()), None
        return True

    def hide(self, text: str) -> str:
        return self._pattern.sub("[key]", text) if self._pattern else text

    def clean(self, text: str) -> str:
        """One line of at most LONGEST characters, without control characters and the key. Cut last: half a key is one, too."""
        printable = "".join(c if c.isprintable() else " " for c in text)
        return self.hide(" ".join(printable.split()))[:LONGEST]


def _forms(key: str) -> list[str]:
    """The key as it is, in URLs and JSON, and what of it is in the base64 of any text that has it inside; longest first."""
    forms = {key, urllib.parse.quote(key, safe=""), urllib.parse.quote(key), json.dumps(key)[1:-1], repr(key)[1:-1]}
    for shift in range(3):  # three ways to lie across base64's groups of three bytes
        coded = base64.b64encode(b"\0" * shift + key.encode()).decode().rstrip("=")
        whole = coded[(0, 2, 3)[shift] : (shift + len(key)) * 8 // 6]  # characters that depend on the key alone
        if len(whole) >= 6:
            forms |= {whole, whole.replace("+", "-").replace("/", "_"), urllib.parse.quote(whole, safe="")}
    return sorted(forms, key=lambda form: (-len(form), form))
