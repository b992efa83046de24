"""Builds of releases settle the ledger before they fix what they work on."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest

from smalti import objects
from smalti.curation.inputs import settle_inputs
from smalti.errors import InputError
from smalti.lake import Lake
from smalti.optouts import ledger
from smalti.optouts.ledger import resolve, state
from smalti.optouts.reach import Matcher
from smalti.release import verify as verify_module
from smalti.release.manifest import read_manifest
from smalti.release.publish import publish, rollback
from smalti.settings import ReleaseRun
from tests.maintenance.conftest import Died, dying_after, release, served
from tests.optouts.conftest import RUN
from tests.optouts.lakes import ask, match
from tests.release.conftest import add, build
from tests.release.test_verify import kept_ids
from tests.support.pictures import Row, picture, release_run, stored


@pytest.fixture(autouse=True)
def small_matcher(monkeypatch: pytest.MonkeyPatch) -> None:
    def the_matcher() -> Matcher:
        return match

    monkeypatch.setattr(ledger, "the_matcher", the_matcher)


def late(lake: Lake) -> None:
    """A part with a copy of `demo/2.jpg`, and one picture of its own."""
    add(lake, [Row("again.jpg", stored(picture(2, 600, 600))), Row("new.jpg", stored(picture(50)))], batch="b2")


def test_a_build_in_a_lake_without_requests_writes_nothing_of_opt_outs(released: Lake) -> None:
    late(released)
    assert settle_inputs(released, RUN.model_copy(update={"build": "nightly"})).optouts == 0
    assert not objects.list_names(f"{released.root}/optouts")


def test_a_build_leaves_out_what_arrived_after_the_request(released: Lake) -> None:
    resolve(released, [ask(released, ("id", "demo/2.jpg"))])
    late(released)
    manifest = release(released, RUN)
    assert manifest.optouts == 2
    ids = served(released, manifest).keys()
    assert "demo/new.jpg" in ids
    assert not ids & {"demo/2.jpg", "demo/again.jpg"}
    assert settle_inputs(released, RUN).optouts == 2  # nothing came since


def test_a_build_that_is_killed_works_on_the_same_whatever_is_asked_meanwhile(
    released: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RUN.model_copy(update={"build": "nightly"})
    resolve(released, [ask(released, ("id", "demo/2.jpg"))])
    late(released)
    begun = []
    for writes in itertools.count():
        lake = copied(released, tmp_path / str(writes))
        revive = dying_after(monkeypatch, writes)
        try:
            settle_inputs(lake, run)
            died = False
        except Died:
            died = True
        finally:
            revive()
        begun.append(objects.exists(lake.build("set", "nightly")))
        if begun[-1]:
            resolve(lake, [ask(lake, ("id", "demo/3.jpg"))])
        inputs = settle_inputs(lake, run)
        assert inputs.optouts == 2
        assert state(lake).parts == set(inputs.parts)
        if not died:
            break
    assert begun == [False] * 4 + [True]  # the rows, the step and the snapshot of what arrived come first


def copied(lake: Lake, folder: Path) -> Lake:
    path = objects.local_path(lake.root)
    assert path is not None
    shutil.copytree(path, folder)
    return Lake.at(str(folder))


def test_a_tree_with_what_was_opted_out_is_neither_published_nor_gone_back_to(
    released: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever reads a tree reads no snapshot. A version that leaves it out is published, and so is what no request touches."""
    run = release_run("demo:main", "other:extra", publish="tree")
    monkeypatch.setattr(verify_module, "read_ids", kept_ids)  # importing the loader takes seconds

    def built() -> ReleaseRun:
        named = run.model_copy(update={"manifest": build(released, run).manifest})
        verify_module.verify(released, named)
        return named

    old = built()
    publish(released, old)
    late(released)
    late_one = built()
    resolve(released, [ask(released, ("id", "demo/3.jpg"))])
    with pytest.raises(InputError, match="was opted out since"):
        publish(released, late_one)
    assert not objects.list_names(str(late_one.manifest).replace("manifest.json", "tree"))
    new = built()
    assert publish(released, new).tree
    with pytest.raises(InputError, match="was opted out since"):
        rollback(released, "set", read_manifest(str(old.manifest)).version)
    with pytest.raises(InputError, match="was opted out since"):
        publish(released, old)
    resolve(released, [ask(released, ("id", "demo/nobody.jpg"))])
    assert publish(released, new).tree
