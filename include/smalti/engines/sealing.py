"""A key on its way from Airflow to a job, sealed: Ray shows a job's environment to everybody who may see its dashboard.

It is sealed with a key that is derived from the cluster's token. Airflow has the token as the password of its connection to Ray,
and the cluster's machines have it where Ray itself looks for it.
"""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from smalti.errors import InputError

if TYPE_CHECKING:
    from cryptography.fernet import Fernet

PREFIX: Final = "sealed:"
INFO: Final = b"smalti engine key 1"
"""Of the derivation: a key that is derived for anything else is another."""


def seal(secret: str, token: str) -> str:
    """The secret as a text that says nothing to whoever lacks the token. Other text each time."""
    return PREFIX + _fernet(token).encrypt(secret.encode()).decode()


def unseal(text: str, token: str | None) -> str:
    """What `seal` was given.

    Raises:
        InputError: there is no token, or it was sealed with another; says nothing of either.
    """
    from cryptography.fernet import InvalidToken

    where = "the engine's key"
    if not token:
        raise InputError(
            "it came sealed, and this machine has no token of the cluster to open it with",
            where,
            "Set RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH where Ray runs, on every machine",
        )
    try:
        return _fernet(token).decrypt(text.removeprefix(PREFIX).encode()).decode()
    except (InvalidToken, ValueError):
        raise InputError(
            "it was sealed with another token than this machine's",
            where,
            "Make the password of the Airflow connection to Ray the token of the cluster, on every machine",
        ) from None


def cluster_token() -> str | None:
    """The token of this machine's Ray, from where Ray takes it: RAY_AUTH_TOKEN, a file that RAY_AUTH_TOKEN_PATH names,
    ~/.ray/auth_token. None if there is none."""
    if token := os.environ.get("RAY_AUTH_TOKEN", "").strip():
        return token
    named = os.environ.get("RAY_AUTH_TOKEN_PATH", "")
    try:
        return (Path(named) if named else Path.home() / ".ray" / "auth_token").read_text().strip() or None
    except (OSError, ValueError, RuntimeError):  # RuntimeError: there is no home
        return None


def _fernet(token: str) -> Fernet:
    from cryptography.fernet import Fernet
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    key = HKDF(algorithm=SHA256(), length=32, salt=None, info=INFO).derive(token.strip().encode())
    return Fernet(base64.urlsafe_b64encode(key))
