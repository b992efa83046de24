"""Who was shown what is recorded before it is shown, and never changed."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from smalti import objects
from smalti.errors import InputError, LakeError
from smalti.lake import Lake
from smalti.optouts.views import pages_of, show, views
from smalti.release.skips import compress
from tests.optouts.test_status import handed

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


def test_each_look_is_an_object_of_its_own(any_lake: Lake) -> None:
    request = handed(any_lake, 1)
    assert pages_of(any_lake, request) == []
    objects.create_bytes(any_lake.optout_preview(request), compress(b'{"shown": []}'))
    objects.create_bytes(any_lake.optout_preview_page(request), b"<p>preview")
    objects.create_bytes(any_lake.optout_receipt(request, "exclude"), b"{}")
    assert pages_of(any_lake, request) == ["preview", "exclude"]
    assert show(any_lake, request, "preview", "cli:ada", page=True, now=NOON) == b"<p>preview"
    assert show(any_lake, request, "preview", "airflow:bob", page=False, now=NOON) == b'{"shown": []}'
    show(any_lake, request, "exclude", "cli:ada", page=False, now=NOON + timedelta(seconds=1))
    found = views(any_lake, request)
    assert {(each.by, each.what, each.form) for each in found} == {
        ("cli:ada", "preview", "page"), ("airflow:bob", "preview", "json"), ("cli:ada", "exclude", "json")
    }  # fmt: skip
    assert [each.viewed for each in found] == [NOON, NOON, NOON + timedelta(seconds=1)]
    assert {each.sha256 for each in found} == {
        hashlib.sha256(shown).hexdigest() for shown in (b"<p>preview", b'{"shown": []}', b"{}")
    }
    names = objects.list_names(any_lake.optout_views(request))
    assert len(names) == 3
    assert all(name.startswith("20261130T12000") for name in names)


@pytest.mark.parametrize("what", ["preview", "erase", "../../../staging", "request.json.gz", ""])
def test_what_is_not_there_is_not_shown_and_not_recorded(lake: Lake, what: str) -> None:
    request = handed(lake, 1)
    with pytest.raises(InputError):
        show(lake, request, what, "cli:ada", page=False)
    assert views(lake, request) == []


def test_what_cannot_be_recorded_is_not_shown(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    request = handed(lake, 1)
    objects.create_bytes(lake.optout_receipt(request, "exclude"), b"{}")

    def denied(*_: Any) -> bool:
        raise LakeError("access is denied", "gs://b", "Grant storage.objects.create")

    monkeypatch.setattr(objects, "create_same", denied)
    with pytest.raises(LakeError, match="access is denied"):
        show(lake, request, "exclude", "cli:ada", page=False)
