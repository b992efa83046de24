"""`smalti optout`: what a person types, what comes back, and one line with exit code 2 for a mistake."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from smalti import cli
from smalti.lake import Lake
from smalti.objects import create_bytes
from smalti.optouts.request import read_request, request_ids
from tests.conftest import snapshot
from tests.optouts.test_status import step

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], lake: Lake) -> Run:
    """Call the command line as a shell does: exit code, output, errors."""

    def call(*arguments: str | Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["smalti", "optout", *map(str, arguments)])
        code = cli.run()
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    monkeypatch.setenv("SMALTI_LAKE", lake.root)
    monkeypatch.setenv("LOGNAME", "jo")
    return call


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys.csv"
    path.write_text("kind,value\nowner,Jane\nurl,nothing\nid,cats/1\nid,cats/1\n")
    return path


def test_submit_says_what_it_took_and_which_rows_are_no_keys(run: Run, lake: Lake, keys: Path) -> None:
    code, out, err = run(
        "submit", keys, "--action", "erase", "--reference", "T-1", "--reason", "asked", "--confirm-above", "5", "--json"
    )
    assert (code, err) == (0, "")
    said = json.loads(out)
    assert said["rejected_rows"] == [{"row": 3, "reason": "no URL: write https://host/path"}]
    assert (said["state"], said["keys"], said["rejected"], said["known"]) == ("handed in", 2, 1, False)
    request = read_request(lake, said["request"])
    assert (request.action, request.reference, request.reason, request.confirm_above) == ("erase", "T-1", "asked", 5)
    assert request.submitted_by == "cli:jo"
    assert "keys.csv" not in request.model_dump_json()


def test_submitting_twice_is_one_request(run: Run, lake: Lake, keys: Path) -> None:
    arguments = ("submit", keys, "--action", "exclude", "--reference", "T-1")
    assert run(*arguments)[0] == 0
    before = snapshot(lake.root)
    code, out, _ = run(*arguments)
    assert (code, "known: True" in out) == (0, True)
    assert "row=3  reason=no URL" in out
    assert snapshot(lake.root) == before


def test_keys_are_read_from_standard_input_and_pictures_from_files(
    run: Run, lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"owner J\xc3\xbcrgen\r\nsesame\r\n")))
    code, out, _ = run("submit", "-", "--action", "exclude", "--reference", "T-1", "--json")
    assert (code, json.loads(out)["rejected_rows"][0]["row"], "sesame" in out) == (0, 2, False)
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)).save(tmp_path / "a.png")
    code, out, _ = run("submit", tmp_path / "a.png", "--action", "exclude", "--reference", "T-1", "--json")
    assert (code, json.loads(out)["keys"]) == (0, 1)
    (tmp_path / "b.jpg").write_bytes(b"no picture")
    code, out, _ = run("submit", tmp_path / "b.jpg", "--action", "exclude", "--reference", "T-1")
    assert (code, "cannot be decoded" in out) == (0, True)
    assert len(request_ids(lake)) == 3


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("submit", "{keys}"), "--action: it is not given. Use one of: exclude, erase, query."),
        (("submit", "{keys}", "--action", "withdraw"), "--action: 'withdraw' is no action"),
        (("submit", "{keys}", "--action", "erase"), "--reference: it is not given"),
        (
            ("submit", "{keys}", "--action", "erase", "--reference", "x" * 201),
            "reference: String should have at most 200",
        ),
        (("submit", "nowhere.csv", "--action", "erase", "--reference", "T"), "there is no such object"),
        (("submit", "{keys}.gz", "--action", "erase", "--reference", "T"), "Let its name end in .csv"),
        (("submit", "{bad}", "--action", "erase", "--reference", "T"), "none of its 1 rows is a key; row 1: what kind"),
        (("query", "{bad}"), "there is no key in it; row 1: what kind of key this is cannot be told"),
        (("status", "0" * 16), "there is no such request"),
        (("status", "../../etc/passwd"), "cannot be a name in the lake"),
        (("withdraw", "0" * 16, "--reference", "T"), "there is no such request"),
        (("withdraw", "../../etc", "--reference", "T"), "this is no id of a request"),
        (("withdraw", "0" * 16), "--reference: it is not given"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    run: Run, keys: Path, tmp_path: Path, arguments: Sequence[str], said: str
) -> None:
    (tmp_path / "keys.csv.gz").write_bytes(b"x")
    (tmp_path / "bad.txt").write_text("sesame")
    code, out, err = run(*(each.format(keys=keys, bad=tmp_path / "bad.txt") for each in arguments))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err
    assert "sesame" not in err


def test_without_a_lake_it_says_what_to_set(run: Run, keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SMALTI_LAKE")
    code, _, err = run("status")
    assert (code, "SMALTI_LAKE: no lake is named" in err) == (2, True)


def test_status_lists_all_requests_and_tells_more_of_one(run: Run, lake: Lake, keys: Path) -> None:
    assert run("status") == (0, "request  state  action  reference  keys  rejected  submitted\n", "")
    request = json.loads(run("submit", keys, "--action", "exclude", "--reference", "T-1", "--json")[1])["request"]
    step(lake, 1, requests=[request])
    head, line = run("status")[1].splitlines()
    assert head.split()[:3] == ["request", "state", "action"]
    assert line.split("  ")[:2] == [request, "resolved at position 1"]
    code, out, _ = run("status", request)
    assert (code, f"rejected rows: {lake.optout_rejected(request)}" in out) == (0, True)
    [said] = json.loads(run("status", "--json")[1])["requests"]
    assert said["request"] == request
    assert json.loads(run("status", request, "--json")[1])["state"] == "resolved at position 1"


def test_withdraw_is_a_request_and_the_same_keys_are_then_asked_for_under_another_reference(
    run: Run, lake: Lake, keys: Path
) -> None:
    arguments = ("submit", keys, "--action", "exclude", "--json", "--reference")
    request = json.loads(run(*arguments, "T-1")[1])["request"]
    code, out, _ = run("withdraw", request, "--reference", "T-2", "--json")
    taken = json.loads(out)
    assert (code, taken["withdraws"], taken["known"]) == (0, request, False)
    assert json.loads(run("withdraw", request, "--reference", "T-2", "--json")[1])["known"] is True
    assert len(request_ids(lake)) == 2
    step(lake, 1, withdrawn=[request], withdrawals=[taken["request"]])
    code, _, err = run(*arguments, "T-1")
    assert (code, "withdrawn at position 1. Ask anew under another reference" in err) == (2, True)
    assert run(*arguments, "T-3")[0] == 0


def test_a_query_of_an_empty_lake_tells_what_matches_nothing_and_writes_nothing(
    run: Run, lake: Lake, keys: Path
) -> None:
    """What it tells of a lake with samples is in tests/optouts/test_apply.py."""
    code, out, _ = run("query", keys, "--json")
    said = json.loads(out)
    assert (code, said["samples"], said["unmatched"]) == (0, 0, 2)
    assert said["unmatched_keys"][1] == {"kind": "owner", "value": "Jane"}
    assert said["rejected_rows"] == [{"row": 3, "reason": "no URL: write https://host/path"}]
    assert snapshot(lake.root) == {}


def test_nothing_of_a_key_is_logged(run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "keys.txt"
    path.write_text("owner sesame\nsesame\nurl https://jo:sesame@:x/\nhttps://jo:sesame@a.org/")
    code, out, err = run("submit", path, "--action", "erase", "--reference", "T-1")
    assert code == 0
    assert "sesame" not in out + err + caplog.text
    assert "sesame" not in run("status")[1]


def test_whoever_looks_at_a_page_is_recorded_and_seen_by_status(
    run: Run, lake: Lake, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("submit", keys, "--action", "exclude", "--reference", "T-1")
    [request] = request_ids(lake)
    assert "there is nothing to show of it" in run("show", request)[2]
    create_bytes(lake.optout_receipt(request, "exclude"), b'{"found": 3}')
    create_bytes(lake.optout_receipt_page(request, "exclude"), b"<p>receipt")
    assert run("show", request) == (0, '{"found": 3}\n', "")
    monkeypatch.setenv("SMALTI_USER", "ada")
    assert run("show", request, "--what", "exclude", "--page", "--to", tmp_path / "a.html") == (0, "", "")
    assert (tmp_path / "a.html").read_bytes() == b"<p>receipt"
    assert "the file is there already" in run("show", request, "--page", "--to", tmp_path / "a.html")[2]
    assert run("show", request, "--what", "../x")[0] == 2
    said = json.loads(run("status", request, "--json")[1])
    assert [(each["by"], each["what"], each["form"]) for each in said["viewed"]] == [
        ("cli:jo", "exclude", "json"), ("cli:ada", "exclude", "page")
    ]  # fmt: skip


def test_forget_says_what_it_removed(run: Run, lake: Lake, keys: Path) -> None:
    run("submit", keys, "--action", "exclude", "--reference", "T-1")
    said = json.loads(run("forget", "--json")[1])
    assert (said["requests"], said["ended"], said["rejected"], said["keys"]) == (1, 0, 0, 0)
