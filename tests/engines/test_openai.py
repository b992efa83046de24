"""Engines of kind `openai`, against a server on the loopback that fails as it is told."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import logging
import os
import random
import threading
import time
import traceback
import urllib.parse
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from typing import Any, TypeVar

import pytest
from PIL import Image

from smalti.config import Engine
from smalti.engines import openai
from smalti.engines.asking import Answered, answer
from smalti.engines.base import Answer, AsyncEngine, Question, RowError, open_engine
from smalti.engines.openai import KEY_VARIABLE, picture_bytes, read_answer, retry_after
from smalti.errors import EngineError, InputError, SmaltiError
from smalti.images.encode import quality_tables, read_tables
from smalti.profiles import PromptText, Sampling
from tests.support.openai_server import (
    FAULTS,
    Fault,
    OpenAIServer,
    always,
    completion,
    planned,
    refusal,
    seeded,
    serve_openai,
)

T = TypeVar("T")
KEY = "sk-test/Zq+77~31xyzzy=PLUGH"
TEXT = PromptText(system="Be brief.", user="Caption this.")
ROW = Question("s/p/1", "Caption row-1.")


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai, "FIRST_PAUSE", 0.005)
    monkeypatch.setattr(openai, "LONGEST_PAUSE", 0.02)
    monkeypatch.setattr(openai, "LONGEST_RETRY_AFTER", 0.05)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def profile(url: str, text: PromptText = TEXT, **changes: Any) -> Engine:
    prompt = {"name": "p", "sha256": text.sha256, "text": text.model_dump()}
    fields = {"name": "far", "role": "captioner", "kind": "openai", "model": "org/m", "prompt": prompt, "base_url": url}
    return Engine.model_validate(fields | {"timeout": 5.0} | changes)


def use(made: Engine, do: Callable[[AsyncEngine], Awaitable[T]]) -> T:
    """Open, use and close an engine in a loop of its own."""

    async def run() -> T:
        engine = await open_engine(made)
        try:
            return await do(engine)
        finally:
            await engine.close()

    return asyncio.run(run())


def ask(made: Engine, question: Question = ROW, sampling: Sampling | None = None) -> Answer:
    return use(made, lambda engine: engine.ask(question, sampling or made.sampling))


def picture(colour: str = "teal") -> Image.Image:
    return Image.new("RGB", (40, 30), colour)


def sent(server: OpenAIServer) -> dict[str, Any]:
    return server.last[-1].body


def test_a_row_is_asked_about_with_the_profiles_words_and_sampling() -> None:
    sampling = Sampling(temperature=0.3, top_p=0.9, max_tokens=77, seed=5)
    with serve_openai() as server:
        got = ask(profile(server.base_url), sampling=sampling)
        assert got == Answer("about row-1", "stop", 2)
        assert sent(server) == {
            "model": "org/m",
            "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Caption row-1."}],
            "max_tokens": 77,
            "temperature": 0.3,
            "top_p": 0.9,
            "seed": 5,
            "stream": False,
        }
        assert "authorization" not in server.last[-1].headers


def test_a_strict_server_sees_no_field_that_is_not_needed() -> None:
    with serve_openai() as server:
        ask(profile(server.base_url, PromptText(user="x")), sampling=Sampling(top_k=9, repetition_penalty=1.05))
        assert (sent(server)["top_k"], sent(server)["repetition_penalty"]) == (9, 1.05)
        assert [message["role"] for message in sent(server)["messages"]] == ["user"]


def test_arguments_have_the_last_word_and_null_takes_a_field_away() -> None:
    arguments = {"max_tokens": None, "max_completion_tokens": 9, "top_p": 0.5, "chat_template_kwargs": {"x": False}}
    with serve_openai() as server:
        ask(profile(server.base_url, arguments=arguments))
        assert "max_tokens" not in sent(server)
        assert {name: sent(server)[name] for name in list(arguments)[1:]} == dict(list(arguments.items())[1:])


def test_a_picture_goes_as_a_jpeg_of_quality_95_before_the_text() -> None:
    data = picture_bytes(picture())
    with serve_openai() as server:
        ask(profile(server.base_url), Question("s/p/1", "Caption it.", picture()))
        assert server.last[-1].sha256 == hashlib.sha256(data).hexdigest() == server.last[-1].row
        assert [part["type"] for part in sent(server)["messages"][-1]["content"]] == ["image_url", "text"]
    assert read_tables(data) == quality_tables(95)
    assert Image.open(io.BytesIO(data)).size == (40, 30)


def test_pictures_are_encoded_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = []

    def encode(*_: Any) -> bytes:
        threads.append(threading.current_thread())
        return b"jpeg"

    monkeypatch.setattr(openai, "encode", encode)
    with serve_openai() as server:
        ask(profile(server.base_url), Question("s/p/1", "Caption row-1.", picture()))
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (completion(None), Answer("", "stop", 0)),
        (completion("a b", finish="length"), Answer("a b", "length", 2)),
        (completion("a", usage=None), Answer("a", "stop", 0)),
        (completion("a", usage={"completion_tokens": -4}), Answer("a", "stop", 0)),
        (completion("a \ud800 b"), Answer("a \ufffd\ufffd\ufffd b", "stop", 3)),
    ],
)
def test_an_answer_is_read_with_what_may_be_missing(data: bytes, expected: Answer) -> None:
    got = read_answer(data)
    assert got == expected
    got.text.encode()  # can be written down


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"null",
        b"[]",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"choices": []}',
        b'{"choices": [{"message": {"content": 3}, "finish_reason": "stop"}]}',
        b'{"choices": [{"message": null, "finish_reason": "stop"}]}',
        b'{"choices": [{"message": {"content": "x"}}]}',
    ],
)
def test_what_is_no_chat_completion_is_no_answer(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"no JSON|no chat completion|no text"):
        read_answer(data)


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_is_asked_again(name: str) -> None:
    with serve_openai(faults=planned({"row-1": [name, name]})) as server:
        assert ask(profile(server.base_url, timeout=0.3)).text == "about row-1"
        assert (server.asked["row-1"], server.answered["row-1"]) == (3, 1)


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 504, 529])
def test_each_status_that_passes_is_asked_again(status: int) -> None:
    with serve_openai(faults=planned({"row-1": [refusal(status)]})) as server:
        assert ask(profile(server.base_url)).text == "about row-1"
        assert server.asked["row-1"] == 2


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("429", "HTTP 429: a planned fault"),
        ("500", "HTTP 500: a planned fault"),
        ("503", "HTTP 503"),
        ("reset", "ReadError"),
        ("stall", "no answer within 0.1 s"),
        ("cut-body", "RemoteProtocolError"),
    ],
)
def test_a_server_that_never_answers_stops_the_stage(name: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai, "TRIES", 4)
    with serve_openai(faults=always(name)) as server:
        with pytest.raises(EngineError, match=f"no answer about s/p/1 in 4 tries; the last: {says}") as stopped:
            ask(profile(server.base_url, timeout=0.1))
        assert stopped.value.where == server.base_url
        assert server.asked["row-1"] == 4 or (name == "429" and server.asked["row-1"] > 4)


def test_a_server_that_is_not_there_stops_the_stage() -> None:
    with serve_openai() as server:
        url = server.base_url
    with pytest.raises(EngineError, match=r"ConnectError.*See that the server runs"):
        ask(profile(url))


def test_an_answer_that_drips_counts_as_none_after_the_timeout() -> None:
    with serve_openai(faults=planned({"row-1": [Fault(trick="drip")]})) as server:
        began = time.monotonic()
        assert ask(profile(server.base_url, timeout=0.3)).text == "about row-1"
        assert time.monotonic() - began < 2


@pytest.mark.parametrize("name", ["html", "cut-json", "wrong-json"])
def test_garbage_fails_one_row_of_a_server_that_answers_others(name: str) -> None:
    with serve_openai(faults=lambda asked: FAULTS[name] if asked.row == "row-1" else None) as server:

        async def both(engine: AsyncEngine) -> None:
            await engine.ask(Question("s/p/2", "row-2"), Sampling())
            with pytest.raises(RowError, match="the server's answers made no sense: no "):
                await engine.ask(ROW, Sampling())

        use(profile(server.base_url), both)
        assert server.asked["row-1"] == openai.TRIES


@pytest.mark.parametrize("name", ["500", "reset", "403", "404"])
def test_a_row_that_a_server_never_answers_fails_alone_while_it_answers_others(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai, "TRIES", 4)
    fault = FAULTS[name] if name in FAULTS else refusal(int(name), "sk-te is not for this")

    async def work(engine: AsyncEngine) -> str:
        async def keep_asking(row: int) -> None:
            while True:
                await engine.ask(Question(str(row), f"Caption row-{row}."), Sampling())

        others = [asyncio.create_task(keep_asking(row)) for row in range(3)]
        try:
            await asyncio.sleep(0.2)
            with pytest.raises(RowError, match="the server answers others, and not this one in 4 tries") as raised:
                await engine.ask(Question("bad", "Caption row-99."), Sampling())
            return str(raised.value)
        finally:
            for each in others:
                each.cancel()

    with serve_openai(faults=lambda asked: fault if asked.row == "row-99" else None) as server:
        said = use(profile(server.base_url), work)
    assert ("sk-te" in said) == (name == "404")  # what a 403 says is left out


def test_a_server_that_says_only_garbage_stops_the_stage() -> None:
    with (
        serve_openai(faults=always("html")) as server,
        pytest.raises(EngineError, match=r"no JSON: <html>.*See that `base_url`"),
    ):
        ask(profile(server.base_url))


def test_garbage_between_other_faults_does_not_fail_the_row() -> None:
    def mixed(asked: Any) -> Fault | None:
        return FAULTS["500" if asked.number == 1 else "html"] if asked.row == "row-1" else None

    async def both(engine: AsyncEngine) -> None:
        await engine.ask(Question("s/p/2", "row-2"), Sampling())
        with pytest.raises(EngineError):
            await engine.ask(ROW, Sampling())

    with serve_openai(faults=mixed) as server:
        use(profile(server.base_url), both)


@pytest.mark.parametrize("status", [400, 413, 418, 422])
def test_a_refused_row_fails_alone_and_at_once(status: int) -> None:
    message = "the prompt is\n too \x1b[31mlong " + "x" * 500
    with serve_openai(faults=always(refusal(status, message))) as server:
        with pytest.raises(RowError) as refused:
            ask(profile(server.base_url))
        assert str(refused.value).startswith(f"HTTP {status}: the prompt is too [31mlong xxx")
        assert len(str(refused.value)) <= 300 + len("HTTP 400: ")
        assert server.asked["row-1"] == 1


@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [
        (401, InputError, "refuses a request without a key .HTTP 401."),
        (404, InputError, "engines/far.yaml: http://127.0.0.1:[0-9]+/v1 does not know model 'org/m'"),
        (405, InputError, "does not know model"),
        (402, EngineError, "HTTP 402"),
        (307, EngineError, "HTTP 307.*Mend `base_url`"),
    ],
)
def test_what_concerns_every_row_stops_at_once(status: int, kind: type[SmaltiError], says: str) -> None:
    with serve_openai(faults=always(refusal(status))) as server:
        with pytest.raises(kind, match=says):
            ask(profile(server.base_url))
        assert server.asked["row-1"] == 1


@pytest.mark.parametrize(
    ("key", "place"),
    [({"env": "MY_KEY"}, "environment variable MY_KEY"), ({"connection": "far"}, "Airflow connection 'far'")],
)
@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_is_named_by_its_place(
    status: int, key: dict[str, str], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    with (
        serve_openai(faults=always(refusal(status, "wrong key sk-te"))) as server,
        pytest.raises(InputError, match=f"refuses the key in the {place}") as refused,
    ):
        ask(profile(server.base_url, key=key))
    assert "sk-te" not in str(refused.value)


@pytest.mark.parametrize(("key", "variable"), [({"env": "MY_KEY"}, "MY_KEY"), ({"connection": "far"}, KEY_VARIABLE)])
def test_the_key_comes_from_the_environment(
    key: dict[str, str], variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for missing in ("", " \n"):
        monkeypatch.setenv(variable, missing)
        with pytest.raises(InputError, match=f"the environment variable {variable} is not set or is empty"):
            ask(profile("http://127.0.0.1:1/v1", key=key))
    monkeypatch.setenv(variable, f" {KEY}\n")
    with serve_openai() as server:
        ask(profile(server.base_url, key=key))
        assert server.last[-1].headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("odd", ["sk-7731\nx", "sk-7731\x00x", "sk-7731 x", "sk-7731é"])
def test_a_key_that_no_header_may_hold_is_refused_unshown(odd: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {"MY_KEY": odd})  # a real one takes no NUL
    with pytest.raises(InputError, match="MY_KEY has spaces, control characters") as refused:
        openai.read_key(profile("http://h/v1", key={"env": "MY_KEY"}))
    assert "7731" not in str(refused.value)


def test_what_a_profile_lacks_is_said_at_open() -> None:
    bare = profile("http://h/v1").model_copy(update={"prompt": None})
    for made, says in (
        (bare, "a loaded prompt"),
        (profile("http://h/v1", arguments={"x": float("nan")}), "cannot be sent as JSON"),
        (profile("http://h:x/v1"), "`base_url` is no URL"),
    ):
        with pytest.raises(InputError, match=says):
            ask(made)


def forms_of_the_key() -> list[str]:
    """How a server may give it back."""
    coded = [base64.b64encode(text.encode()).decode() for text in (KEY, f"Bearer {KEY}", f"u:{KEY}", f"{KEY}:")]
    safe = [base64.urlsafe_b64encode(f"Bearer {KEY}".encode()).decode()]
    quoted = [urllib.parse.quote(KEY), urllib.parse.quote(KEY, safe=""), urllib.parse.quote_plus(f"Bearer {KEY}")]
    return [KEY, *coded, *safe, *quoted, *(urllib.parse.quote(each) for each in coded)]


def assert_no_key(text: str) -> None:
    core = base64.b64encode(b"\0" + KEY.encode()).decode()[4:24], base64.b64encode(KEY.encode()).decode()[2:22]
    for secret in (KEY, urllib.parse.quote(KEY, safe=""), "xyzzy", *core):
        assert secret not in text


@pytest.mark.parametrize("status", [200, 400, 401, 404, 500])
def test_a_key_that_a_server_echoes_is_told_to_nobody(
    status: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for logger in (None, "httpx", "httpcore"):  # Airflow, where a test before has imported it, makes httpx quieter
        caplog.set_level(logging.DEBUG, logger)
    monkeypatch.setenv("MY_KEY", KEY)
    monkeypatch.setattr(openai, "TRIES", 2)
    told: list[str] = []

    async def fail(engine: AsyncEngine) -> None:
        for form in forms_of_the_key():
            for body in (json.dumps({"error": {"message": f"bad {form}"}}).encode(), f"bad {form}".encode()):
                server.fault = always(Fault(status, body, {"X-Echo": form}))
                with pytest.raises((SmaltiError, RowError)) as failed:
                    await engine.ask(ROW, Sampling())
                told.extend(["".join(traceback.format_exception(failed.value)), repr(failed.value)])
                error = failed.value.__context__
                while error is not None:
                    told.append(repr(error))
                    error = error.__context__

    with serve_openai() as server:
        use(profile(server.base_url, key={"env": "MY_KEY"}), fail)
        assert server.last[-1].headers["authorization"] == f"Bearer {KEY}"
    assert any("[key]" in each for each in told) or status == 401
    names = {record.name for record in caplog.records}
    assert {"httpx", "httpcore.http11"} <= names  # they did write
    assert "[key]" in caplog.text
    assert_no_key(caplog.text + "".join(told))


def test_an_engine_does_not_show_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", KEY)

    async def show(engine: AsyncEngine) -> str:
        return repr(engine) + str(engine) + repr(vars(engine))

    assert_no_key(use(profile("http://127.0.0.1:1/v1", key={"env": "MY_KEY"}), show))
    assert not any(logging.getLogger(name).filters for name in openai._LOGGERS)  # given back


def test_retry_after_is_seconds_or_a_date_and_never_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai, "LONGEST_RETRY_AFTER", 100.0)
    now = 1_700_000_000.0
    assert [retry_after(header, now) for header in ("7", " 2.5", "0", "999999")] == [7, 2.5, 0, 100]
    dates = [formatdate(now + after, usegmt=True) for after in (30, -30, 9999)]
    assert [retry_after(date, now) for date in dates] == [30, 0, 100]
    assert [retry_after(header, now) for header in (None, "", "soon", "-1", "nan", "inf")] == [None] * 6


@pytest.mark.parametrize("name", ["429-after", "503-after"])
def test_a_server_that_asks_for_a_pause_gets_it_from_every_row(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai, "LONGEST_RETRY_AFTER", 9.0)

    async def both(engine: AsyncEngine) -> None:
        first = asyncio.create_task(engine.ask(ROW, Sampling()))
        await asyncio.sleep(0.3)
        await engine.ask(Question("s/p/2", "row-2"), Sampling())
        await first

    with serve_openai(faults=planned({"row-1": [name]})) as server:
        use(profile(server.base_url), both)
        refused = server.times[0][0]
        assert sorted(row for _, row in server.times) == ["row-1", "row-1", "row-2"]
        assert all(at - refused >= 0.99 for at, _ in list(server.times)[1:])


def test_a_429_slows_every_row_down_without_a_header_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai, "_pause", lambda number: 0.4)

    async def both(engine: AsyncEngine) -> None:
        first = asyncio.create_task(engine.ask(ROW, Sampling()))
        await asyncio.sleep(0.2)
        await engine.ask(Question("s/p/2", "row-2"), Sampling())
        await first

    with serve_openai(faults=planned({"row-1": ["429"]})) as server:
        use(profile(server.base_url), both)
        times = list(server.times)
    assert next(at for at, row in times if row == "row-2") - times[0][0] >= 0.39


def test_pauses_grow_with_full_jitter_and_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai, "FIRST_PAUSE", 0.5)
    monkeypatch.setattr(openai, "LONGEST_PAUSE", 60.0)
    monkeypatch.setattr(random, "uniform", lambda low, high: (low, high))
    most: list[Any] = [openai._pause(number) for number in (1, 2, 3, 7, 8, 999)]
    assert most == [(0, 0.5), (0, 1), (0, 2), (0, 32), (0, 60), (0, 60)]


def test_a_server_at_its_limit_slows_the_engine_and_does_not_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai, "TRIES", 3)
    with serve_openai(delay=0.05) as server:
        server.fault = lambda asked: FAULTS["429"] if server.busy > 2 else None
        got = ask_all(profile(server.base_url, concurrency=24), 24)
        assert [each.status for each in got.values()] == ["ok"] * 24
        assert max(server.asked.values()) > openai.TRIES  # put off more often than a server that answers nobody may
        assert set(server.answered.values()) == {1}


def test_as_many_rows_are_asked_about_at_once_as_the_profile_says() -> None:
    with serve_openai(delay=0.25) as server:
        got = ask_all(profile(server.base_url, concurrency=64, timeout=20.0), 80)
        assert len(got) == 80
        assert 48 <= server.busiest <= 64


def test_waiting_for_ones_turn_is_not_waiting_for_an_answer() -> None:
    with serve_openai(delay=0.15) as server:
        ask_all(profile(server.base_url, concurrency=1, timeout=0.6), 6)
        assert set(server.asked.values()) == {1}


def ask_all(made: Engine, rows: int, image: Callable[[int], Image.Image] | None = None) -> dict[str, Answered]:
    """Ask about all at once, as a stage does; id -> what became of it."""
    questions = [Question(f"s/p/{n}", f"Caption row-{n}.", image(n) if image else None) for n in range(rows)]

    async def everything(engine: AsyncEngine) -> list[Answered]:
        return await asyncio.gather(*(answer(engine, made, question) for question in questions))

    got = use(made, everything)
    assert len(got) == rows
    return {question.id: each for question, each in zip(questions, got, strict=True)}


def coloured(n: int) -> Image.Image:
    return Image.new("RGB", (32, 32), (n % 20 * 12, n // 20 * 16, 128))


def test_every_row_is_answered_once_whatever_goes_wrong(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("MY_KEY", KEY)
    with serve_openai(faults=seeded(7, share=0.33)) as server:
        made = profile(server.base_url, key={"env": "MY_KEY"}, concurrency=32, timeout=1.0)
        got = ask_all(made, 300, coloured)
        assert {id: each.text for id, each in got.items()} == {f"s/p/{n}": f"about row-{n}" for n in range(300)}
        assert {each.attempts for each in got.values()} == {1}  # a server's fault is no attempt of the model's
        shown = {f"row-{n}": hashlib.sha256(picture_bytes(coloured(n))).hexdigest() for n in range(300)}
        assert {each.row: each.sha256 for each in server.last} == shown
        assert len(set(shown.values())) == 300
        assert sum(server.failed.values()) > 80
        assert set(server.answered) == set(shown)
    assert_no_key(caplog.text + repr(got))
