"""Engines of kind `openai`: any server that speaks OpenAI's chat completions (a vLLM server, LiteLLM, OpenAI itself).

What stops the stage (EngineError, InputError) and what fails one row (RowError) is decided in `_judge`; what is asked again, and
when, in `_OpenAI.ask`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import random
import re
import time
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal, NamedTuple, NoReturn

import httpx
from PIL import Image

from smalti.config import Engine
from smalti.engines.base import Answer, AsyncEngine, Question, RowError
from smalti.engines.redact import Secret
from smalti.engines.sealing import PREFIX, cluster_token, unseal
from smalti.errors import EngineError, InputError
from smalti.images.encode import encode
from smalti.profiles import PromptText, Sampling

KEY_VARIABLE: Final = "SMALTI_ENGINE_KEY"
"""Environment variable that holds, sealed, the secret of the Airflow connection which a profile's `key.connection` names."""

TRIES = 8
"""How often a row is sent before the server counts as unable to answer it; a 429 counts once no row
was answered for the profile's timeout."""

FIRST_PAUSE = 0.5
"""Seconds, at most, before the second try; each further pause may be twice as long."""

LONGEST_PAUSE = 60.0
"""Seconds, at most, before any try, where the server does not ask for more."""

LONGEST_RETRY_AFTER = 300.0
"""Seconds of a Retry-After header that are waited at most."""

CONNECT = 30.0
"""Seconds, at most, to connect: a host that is not there is not waited for as long as a slow answer."""

KEEP = 4.0
"""Seconds that an idle connection is kept: uvicorn, hence vLLM, closes it after 5, and a request may meet that."""

LONGEST_BODY = 16 << 20
"""Bytes of an answer; a server that sends more sends something else than a chat completion."""

JPEG_QUALITY = 95
OF_ONE: Final = frozenset({403, 404})
"""Statuses of a server that answers others meanwhile, which are about this row: a picture that a gateway does not let pass."""

AGAIN: Final = frozenset({408, 409, 425, 429})
"""Statuses below 500 that say: not now."""

_LOGGERS = ("httpx", *(f"httpcore.{name}" for name in ("connection", "http11", "http2", "proxy", "socks")))


class Failure(NamedTuple):
    """Why one try gave no answer.

    Attributes:
        kind: "unreachable": no answer came; "status": the server refused or failed; "garbage": no chat completion came.
        what: for people, without the key.
        status: of the answer; 0 if there was none.
        retry_after: seconds that the server asks to wait.
    """

    kind: Literal["unreachable", "status", "garbage"]
    what: str
    status: int = 0
    retry_after: float | None = None

    @property
    def passes(self) -> bool:
        """Whether the same request may be answered later."""
        return self.kind != "status" or self.status in AGAIN or self.status >= 500


async def open_openai(profile: Engine) -> AsyncEngine:
    """An engine that asks the profile's server. Nothing is sent before the first question.

    Raises:
        InputError: the profile has no server, model or prompt, its `arguments` are no JSON, or its key is missing or malformed.
    """
    where = f"engines/{profile.name}.yaml"
    text = profile.prompt.text if profile.prompt else None
    if not profile.base_url or not profile.model or text is None:
        raise InputError(
            "kind openai needs `base_url`, `model` and a loaded prompt", where, "Load the profile by its name"
        )
    try:
        json.dumps(profile.arguments, allow_nan=False)
    except (TypeError, ValueError):
        raise InputError("`arguments` cannot be sent as JSON", where, "Use text, finite numbers, lists, maps") from None
    try:
        httpx.URL(profile.base_url)
    except httpx.InvalidURL as error:
        raise InputError(f"`base_url` is no URL: {error}", where, "Give it up to and with /v1") from None
    return _OpenAI(profile, profile.base_url.rstrip("/"), text, read_key(profile))


def read_key(profile: Engine) -> str | None:
    """The key of the profile's server, from the environment; None if it needs none. For no message and no log.

    Raises:
        InputError: the variable is not set, cannot be unsealed, or holds what no header may.
    """
    where = f"engines/{profile.name}.yaml"
    if profile.key.env is None and profile.key.connection is None:
        return None
    variable = profile.key.env or KEY_VARIABLE
    key = os.environ.get(variable, "").strip()
    if not key:
        fix = f"Set {variable} where the engine runs"
        if profile.key.env is None:
            fix = f"Start the job so that it holds the password of Airflow connection {profile.key.connection!r}"
        raise InputError(f"there is no key: the environment variable {variable} is not set or is empty", where, fix)
    if profile.key.env is None and key.startswith(PREFIX):
        key = unseal(key, cluster_token())
    if not re.fullmatch(r"[\x21-\x7e]+", key):  # httpx would put it into its error
        raise InputError(
            f"the key in {_place(profile)} has spaces, control characters or characters beyond ASCII inside",
            where,
            "Copy it again, on one line",
        )
    return key


class _OpenAI:
    """One client and its back-off. Made, used and closed in one event loop."""

    def __init__(self, profile: Engine, base_url: str, prompt: PromptText, key: str | None) -> None:
        self._profile, self._base_url, self._system = profile, base_url, prompt.system
        self._secret = Secret(key)
        for name in _LOGGERS:  # at DEBUG they write down headers, and a server may echo ours
            logging.getLogger(name).addFilter(self._secret)
        self._slots = asyncio.Semaphore(profile.concurrency)  # waiting for a connection is not waiting for an answer
        self._client = httpx.AsyncClient(
            headers={"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {}),
            limits=httpx.Limits(
                max_connections=profile.concurrency,
                max_keepalive_connections=profile.concurrency,
                keepalive_expiry=KEEP,
            ),
            timeout=httpx.Timeout(None, connect=min(CONNECT, profile.timeout)),  # the whole answer's: see _try
        )
        self._answered = 0
        self._answered_at = 0.0  # loop time of the last answer
        self._not_before = 0.0  # loop time; nobody asks earlier
        self._refused_at = 0.0  # loop time of the last 429
        self._refusals = 0  # waves of 429 since the last answer

    async def ask(self, question: Question, sampling: Sampling) -> Answer:
        """See `AsyncEngine.ask`. A row whose every try failed fails alone, if the server has answered others meanwhile.

        Raises:
            RowError: the server refuses this row, or its answers about it make no sense.
            EngineError: the server cannot be reached, fails, or is no chat completions server.
            InputError: the server refuses the key or does not know the model.
        """
        body = await asyncio.to_thread(_body, self._profile, self._system, question, sampling)
        tries, all_garbage, began = 0, True, _now()
        since = began  # when the try before the last one began: who was answered later was answered beside failures
        last = began
        while True:
            async with self._slots:
                await self._quiet()
                since, last = last, _now()
                got = await self._try(body)
            if isinstance(got, Answer):
                return got
            if not got.passes and not (got.status in OF_ONE and self._answered_at >= began):
                self._judge(got)
            all_garbage = all_garbage and got.kind == "garbage"
            # A server at its limit answers some and puts off others: being put off says nothing until answers stay away.
            if got.status != 429 or _now() - max(began, self._answered_at) >= self._profile.timeout:
                tries += 1
            if tries >= TRIES:
                break
            await asyncio.sleep(_pause(tries))
        if all_garbage and self._answered:
            raise RowError(f"the server's answers made no sense: {got.what}")
        what = f"HTTP {got.status}" if got.status in (401, 403) else got.what  # some repeat a part of the key
        if self._answered_at >= since:
            raise RowError(f"the server answers others, and not this one in {TRIES} tries: {what}")
        fix = "See that the server runs and is not overloaded, then start the task again: it goes on where it stopped"
        if all_garbage:
            fix = "See that `base_url` is that of a chat completions server, up to and with /v1"
        raise EngineError(f"no answer about {question.id} in {TRIES} tries; the last: {what}", self._base_url, fix)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()
        for name in _LOGGERS:
            logging.getLogger(name).removeFilter(self._secret)

    async def _quiet(self) -> None:
        """Wait as long as the server asked everybody to."""
        while (left := self._not_before - _now()) > 0:
            await asyncio.sleep(left)

    async def _try(self, body: bytes) -> Answer | Failure:
        """Send one request and note what its answer says of the server. Exceptions end here: some hold the request's headers."""
        began = _now()
        try:
            async with asyncio.timeout(self._profile.timeout):  # httpx's own begins anew with each byte
                got = await self._send(body)
        except TimeoutError:
            got = Failure("unreachable", f"no answer within {self._profile.timeout:g} s")
        except httpx.DecodingError as error:
            got = Failure("garbage", self._said(error))
        except (httpx.HTTPError, OSError) as error:
            got = Failure("unreachable", self._said(error))
        if isinstance(got, Answer):
            self._answered, self._answered_at = self._answered + 1, _now()
            self._refusals = 0
        else:
            self._slow_down(got, began)
        return got

    async def _send(self, body: bytes) -> Answer | Failure:
        data = bytearray()
        async with self._client.stream("POST", f"{self._base_url}/chat/completions", content=body) as response:
            async for piece in response.aiter_bytes():
                data += piece
                if len(data) > LONGEST_BODY:
                    return Failure("garbage", f"more than {LONGEST_BODY} bytes", response.status_code)
        status = response.status_code
        if not 200 <= status < 300:
            after = response.headers.get("Retry-After") if status in (429, 503) else None
            message = self._secret.clean(_message(bytes(data)))
            return Failure("status", f"HTTP {status}: {message}", status, retry_after(after, time.time()))
        try:
            return read_answer(bytes(data))
        except ValueError as error:
            return Failure("garbage", self._secret.clean(str(error)), status)

    def _slow_down(self, failure: Failure, began: float) -> None:
        """Let the whole engine wait where the server says that it is asked too much."""
        now = _now()
        if failure.retry_after is not None:
            self._not_before = max(self._not_before, now + failure.retry_after)
        elif failure.status == 429 and began >= self._refused_at:  # requests sent before are of the same wave
            self._refusals += 1
            self._not_before = max(self._not_before, now + _pause(self._refusals))
        if failure.status == 429:
            self._refused_at = now

    def _judge(self, failure: Failure) -> NoReturn:
        """Raise what a status means that no patience changes."""
        profile, status, where = self._profile, failure.status, f"engines/{self._profile.name}.yaml"
        if status in (401, 403):  # its message is left out: some servers repeat a part of the key
            had = f"the key in {_place(profile)}" if self._secret.known else "a request without a key"
            raise InputError(
                f"{self._base_url} refuses {had} (HTTP {status})",
                where,
                f"Put a key that it takes into {_place(profile)}",
            )
        if status in (404, 405, 410):
            raise InputError(
                f"{self._base_url} does not know model {profile.model!r}, or has no chat completions ({failure.what})",
                where,
                "Mend `model`, or `base_url`, which goes up to and with /v1",
            )
        if 400 <= status < 500 and status not in (402, 407):
            raise RowError(failure.what)
        raise EngineError(
            failure.what, self._base_url, "Mend `base_url`, the proxy or the account, then start the task again"
        )

    def _said(self, error: Exception) -> str:
        return self._secret.clean(f"{type(error).__name__}: {error}")


def _place(profile: Engine) -> str:
    """Where a person finds the key."""
    if profile.key.env is not None:
        return f"the environment variable {profile.key.env}"
    if profile.key.connection is not None:
        return f"the Airflow connection {profile.key.connection!r}"
    return "an environment variable, and name that as `key.env`"


def _now() -> float:
    """Loop time, seconds."""
    return asyncio.get_running_loop().time()


def _pause(number: int) -> float:
    """Seconds to wait before another try, after `number` that failed: full jitter, so that rows do not come back together."""
    return random.uniform(0, min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(max(0, number - 1), 60)))


def retry_after(header: str | None, now: float) -> float | None:
    """Seconds that a Retry-After header (seconds or an HTTP date) asks for, 0 to LONGEST_RETRY_AFTER; None if it says nothing.

    Args:
        now: Unix time, seconds.
    """
    if header is None:
        return None
    if re.fullmatch(r"\s*[0-9]{1,12}(\.[0-9]*)?\s*", header):
        return min(float(header), LONGEST_RETRY_AFTER)
    try:
        return min(max(0.0, parsedate_to_datetime(header).timestamp() - now), LONGEST_RETRY_AFTER)
    except (ValueError, OverflowError):
        return None


def picture_bytes(image: Image.Image) -> bytes:
    """The JPEG that a server is shown of an RGB picture; always the same bytes."""
    return encode(image, "jpeg", JPEG_QUALITY)


def _body(profile: Engine, system: str, question: Question, sampling: Sampling) -> bytes:
    """The request; a null in the profile's `arguments` takes a field away. To be made in a thread: a JPEG takes tens of ms."""
    content: str | list[dict[str, Any]] = question.user
    if question.image is not None:
        data = base64.b64encode(picture_bytes(question.image)).decode()
        content = [
            {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{data}"}},
            {"type": "text", "text": question.user},
        ]
    messages: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    body: dict[str, Any] = {
        "model": profile.model,
        "messages": [*messages, {"role": "user", "content": content}],
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "seed": sampling.seed,
        "stream": False,
    }
    if sampling.top_k is not None:  # not OpenAI's: a strict server refuses fields that it does not know
        body["top_k"] = sampling.top_k
    if sampling.repetition_penalty != 1.0:
        body["repetition_penalty"] = sampling.repetition_penalty
    body |= profile.arguments
    return json.dumps({name: value for name, value in body.items() if value is not None}).encode()


def read_answer(data: bytes) -> Answer:
    """What a chat completion says.

    Raises:
        ValueError: the bytes are no chat completion.
    """
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        raise ValueError(f"no JSON: {_message(data)}") from None
    try:
        choice = found["choices"][0]
        text, finish = choice["message"]["content"], choice["finish_reason"]
    except (LookupError, TypeError):
        raise ValueError(f"no chat completion: {_message(data)}") from None
    if not isinstance(text, str | None) or not isinstance(finish, str | None):
        raise ValueError("content or finish_reason is no text")
    usage = found.get("usage")
    tokens = usage.get("completion_tokens") if isinstance(usage, dict) else 0
    if type(tokens) is not int or not 0 <= tokens < 1 << 31:
        tokens = 0
    return Answer(_whole(text or ""), _whole(finish or ""), tokens)


def _whole(text: str) -> str:
    """Without lone surrogates, which JSON may hold and no file."""
    return text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def _message(data: bytes) -> str:
    """What a server says is wrong: OpenAI's error.message, vLLM's or FastAPI's fields, or the body's beginning."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    for name in ("error", "message", "detail"):
        if isinstance(found, dict) and found.get(name):
            found = found[name]
    text = found if isinstance(found, str) else data[: 1 << 16].decode(errors="replace")
    return text or "(an empty answer)"
