"""Sealing: only whoever has the cluster's token reads a key, and no error says anything of either."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smalti.engines.openai import KEY_VARIABLE, read_key
from smalti.engines.sealing import PREFIX, cluster_token, seal, unseal
from smalti.errors import InputError
from smalti.profiles import Engine, Key, Prompt, PromptText

TEXT = PromptText(user="Describe it.")
TOKEN = "the-cluster's-token"
SECRET = "sk-0123456789"


def profile(**key: str) -> Engine:
    prompt = Prompt(name="plain", sha256=TEXT.sha256, text=TEXT)
    return Engine(
        name="served", role="captioner", kind="openai", model="m", base_url="http://h/v1", prompt=prompt, key=Key(**key)
    )


@pytest.fixture(autouse=True)
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a token; its home."""
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", KEY_VARIABLE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@given(st.text(min_size=1), st.text(st.characters(codec="utf-8"), min_size=1).filter(str.strip))
def test_what_is_sealed_comes_back_with_the_token_alone(secret: str, token: str) -> None:
    try:
        secret.encode()
    except UnicodeEncodeError:
        return
    sealed = seal(secret, token)
    assert sealed.startswith(PREFIX)
    assert unseal(sealed, token) == secret
    with pytest.raises(InputError, match="another token"):
        unseal(sealed, token + "x")


def test_a_sealed_key_shows_nothing_and_is_another_text_each_time() -> None:
    assert SECRET not in seal(SECRET, TOKEN)
    assert TOKEN not in seal(SECRET, TOKEN)
    assert seal(SECRET, TOKEN) != seal(SECRET, TOKEN)


def test_a_token_means_the_same_with_the_line_end_of_its_file() -> None:
    assert unseal(seal(SECRET, TOKEN + "\n"), TOKEN) == SECRET


@pytest.mark.parametrize("text", ["sealed:", "sealed:abc", "sealed:" + "A" * 100, "sealed:é"])
def test_what_is_no_seal_is_one_line(text: str) -> None:
    with pytest.raises(InputError, match="another token") as caught:
        unseal(text, TOKEN)
    assert TOKEN not in str(caught.value)


def test_the_token_is_found_where_ray_finds_it(nobody: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cluster_token() is None
    (nobody / ".ray").mkdir()
    (nobody / ".ray" / "auth_token").write_text("from-home\n")
    assert cluster_token() == "from-home"
    (nobody / "token").write_text("from-path\n")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(nobody / "token"))
    assert cluster_token() == "from-path"
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(nobody / "nothing"))
    assert cluster_token() is None
    monkeypatch.setenv("RAY_AUTH_TOKEN", "from-environment")
    assert cluster_token() == "from-environment"


def test_an_engine_opens_its_sealed_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, seal(SECRET, TOKEN))
    monkeypatch.setenv("RAY_AUTH_TOKEN", TOKEN)
    assert read_key(profile(connection="server")) == SECRET


@pytest.mark.parametrize(("token", "message"), [(None, "no token of the cluster"), ("other", "another token")])
def test_a_wrong_or_missing_token_is_said_and_shows_nothing(
    token: str | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sealed = seal(SECRET, TOKEN)
    monkeypatch.setenv(KEY_VARIABLE, sealed)
    if token:
        monkeypatch.setenv("RAY_AUTH_TOKEN", token)
    with pytest.raises(InputError, match=message) as caught:
        read_key(profile(connection="server"))
    said = f"{caught.value!r} {caught.value} {caught.value.__cause__!r}"
    assert not any(each in said for each in (SECRET, TOKEN, sealed[10:40]))


def test_a_key_that_workers_have_themselves_is_never_unsealed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sealed:so-it-begins")
    assert read_key(profile(env="MY_KEY")) == "sealed:so-it-begins"
