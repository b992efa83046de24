"""What a store raises, as one clear line."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from smalti.errors import LakeError, MissingObject


@contextlib.contextmanager
def lake_errors(uri: str) -> Iterator[None]:
    """Turn what a store raises into one clear line."""
    try:
        yield
    except FileNotFoundError as error:
        raise MissingObject(
            "there is no such object", uri, "Check the name, and that the run that makes it is done"
        ) from error
    except OSError as error:
        raise LakeError(
            f"{error.strerror or error}", uri, "Check that the place exists, has room and may be written"
        ) from error
    except Exception as error:
        clear = _from_google(uri, error)
        if clear is None:
            raise
        raise clear from error


def _from_google(uri: str, error: Exception) -> Exception | None:
    if not type(error).__module__.startswith(("google.", "requests")):
        return None
    from google.api_core import exceptions as google
    from google.auth.exceptions import DefaultCredentialsError

    if isinstance(error, DefaultCredentialsError):
        return LakeError(
            "there are no Google credentials on this machine",
            uri,
            "Set GOOGLE_APPLICATION_CREDENTIALS to a key file or a workload identity configuration, or run "
            "`gcloud auth application-default login` (docs/how-to/train-on-a-release.md)",
        )
    if isinstance(error, google.PreconditionFailed):  # an outcome, handled by who asked for it
        return None
    if isinstance(error, google.NotFound):
        return MissingObject(
            "there is no such object or bucket", uri, "Check the name, and that the run that makes it is done"
        )
    if isinstance(error, google.Forbidden | google.Unauthorized):
        return LakeError(
            "Google Cloud Storage refused access", uri, "Give the service account storage.objects rights on the bucket"
        )
    return LakeError(
        f"Google Cloud Storage failed: {error}", uri, "Try again; if it stays, check the network and the bucket"
    )
