"""What a wrong file says: file, line, field, what is wrong, what is allowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from smalti import config
from smalti.config import Dataset, Engine, Source, load_file
from smalti.errors import InputError
from smalti.reservations import Words
from smalti.settings import source_run

GOOD = """\
format: files
uri: gs://bucket/cats
table: captions.csv
columns:
  key: file
  caption: text
"""


def write(tmp_path: Path, text: str, name: str = "cats") -> Path:
    path = tmp_path / f"{name}.yaml"
    path.write_text(text)
    return path


def mistake(tmp_path: Path, text: str, model: type[config.Strict] = Source) -> str:
    with pytest.raises(InputError) as caught:
        load_file(write(tmp_path, text), model)
    line = str(caught.value)
    assert "\n" not in line
    return line.replace(str(tmp_path), "")


def test_a_good_file_is_read_and_takes_its_name_from_the_file(tmp_path: Path) -> None:
    source = load_file(write(tmp_path, GOOD), Source)
    assert (source.name, source.columns.key, source.encoding.quality) == ("cats", "file", 92)


def test_an_unknown_field_names_line_and_neighbour(tmp_path: Path) -> None:
    line = mistake(tmp_path, GOOD + "colums: {}\n")
    assert line.startswith("/cats.yaml:7: there is no field 'colums'. Did you mean columns? Allowed: captioner, ")


def test_an_unknown_field_deep_down_lists_that_level(tmp_path: Path) -> None:
    line = mistake(tmp_path, GOOD + "  kaption: x\n")
    assert line.startswith(
        "/cats.yaml:7: there is no field 'columns.kaption'. Did you mean caption? Allowed: caption, "
    )


def test_a_missing_field_says_what_it_is_for(tmp_path: Path) -> None:
    line = mistake(tmp_path, "format: files\ntable: t.csv\ncolumns:\n  caption: x\nuri: gs://b/c\n")
    assert line.startswith("/cats.yaml:3: the field 'columns.key' is missing. Add it (names a row for ever")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (GOOD.replace("format: files", "format: zip"), "format is wrong: Input should be 'files' or 'parquet'"),
        (GOOD.replace("table: captions.csv\n", ""), "format files needs `table`"),
        (GOOD.replace("captions.csv", "captions.xls"), "must end in .parquet, .csv or .jsonl"),
        (GOOD + "encoding:\n  quality: 400\n", "encoding.quality is wrong: Input should be less than or equal to 100"),
        (GOOD + "name: dogs\n", "name 'dogs' is not the file's name"),
        (GOOD + "uri: gs://twice/x\n", "the field 'uri' stands twice"),
        (GOOD + "  - broken\n", "this is not YAML"),
        ("- a list\n", "the file holds no fields"),
        ("", "the file holds no fields"),
    ],
)
def test_each_mistake_is_one_line_that_names_it(tmp_path: Path, text: str, says: str) -> None:
    assert says in mistake(tmp_path, text)


RESERVED = GOOD + "  reservations:\n    - {column: robots, kind: noai}\n"


def test_columns_that_reserve_pictures_are_named_with_their_kind(tmp_path: Path) -> None:
    text = RESERVED + '    - {column: use, kind: artist, reserved: ["no"], free: ["yes", "ask me"]}\n'
    source = load_file(write(tmp_path, text), Source)
    assert [(each.column, each.kind) for each in source.columns.reservations] == [("robots", "noai"), ("use", "artist")]
    assert source.columns.reservations[1].words == Words(frozenset({"no"}), frozenset({"yes", "ask me"}))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (
            "{column: tdm}",
            "cats.yaml:9: the field 'columns.reservations.1.kind' is missing. Add it (noai (X-Robots-Tag)",
        ),
        ("{kind: tdm}", "the field 'columns.reservations.1.column' is missing"),
        ("{column: a, kind: tdm, values: [x]}", "there is no field 'columns.reservations.1.values'. Allowed: column, "),
        ("{column: a, kind: artist}", "kind artist is not one of noai, tdm, ai.txt: say in `reserved` which values"),
        (
            "{column: a, kind: tdm, reserved: [yes]}",
            "columns.reservations.1.reserved.0 is wrong: Input should be a valid",
        ),
        ('{column: a, kind: tdm, reserved: ["x"], free: ["X"]}', "'x' means reserved and free"),
        ("{column: robots, kind: noai}", "column 'robots' stands twice with kind noai"),
        ("robots", "columns.reservations.1 is wrong: "),
    ],
)
def test_each_mistake_in_reservations_is_one_line(tmp_path: Path, more: str, says: str) -> None:
    assert says in mistake(tmp_path, f"{RESERVED}    - {more}\n")


def test_the_line_number_is_the_mistake_s(tmp_path: Path) -> None:
    assert ":8:" in mistake(tmp_path, GOOD + "encoding:\n  quality: 400\n")


def test_a_missing_file_names_those_that_are_there(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    with pytest.raises(InputError, match=r"there is no source 'dogs'\. Use one of: cats"):
        load_file(tmp_path / "dogs.yaml", Source)


def test_a_dataset_of_an_unknown_source_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sources").mkdir()
    (tmp_path / "datasets").mkdir()
    write(tmp_path / "sources", GOOD)
    write(tmp_path / "datasets", "sources: [{name: dogs}]\n", "pets")
    with pytest.raises(InputError, match=r"pets\.yaml: there is no source 'dogs'\. Use one of: cats"):
        config.load_datasets(tmp_path)


def test_a_group_without_a_proportion_is_refused(tmp_path: Path) -> None:
    assert "`groups` lacks rare" in mistake(tmp_path, "sources: [{name: cats, group: rare}]\n", Dataset)


def test_an_engine_is_taken_for_its_own_role_only(tmp_path: Path) -> None:
    (tmp_path / "engines").mkdir()
    write(tmp_path / "engines", "role: captioner\nkind: rules\n", "rules")
    assert config.load_engine("rules", "captioner", tmp_path).kind == "rules"
    with pytest.raises(InputError, match="engine 'rules' is a captioner"):
        config.load_engine("rules", "classifier", tmp_path)
    assert "role is wrong: Input should be 'captioner' or 'classifier'" in mistake(
        tmp_path, "role: x\nkind: rules\n", Engine
    )


def test_a_name_cannot_leave_its_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a name"):
        config.load_source("../secrets", tmp_path)


def test_a_uri_takes_names_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = load_file(write(tmp_path, GOOD.replace("gs://bucket", "${PLACE}")), Source)
    with pytest.raises(InputError, match="source cats, uri: the environment variable PLACE is not set"):
        source.location()
    monkeypatch.setenv("PLACE", "gs://other")
    assert source.location() == "gs://other/cats"


def test_the_files_of_this_repository_are_valid() -> None:
    assert "demo" in [source.name for source in config.load_sources()]
    assert "demo" in [dataset.name for dataset in config.load_datasets()]


def test_labels_and_expected_reasons_are_checked_when_the_file_is_read(tmp_path: Path) -> None:
    base = "sources: [{name: cats}]\n"
    assert "`visual` is what a release is made of" in mistake(tmp_path, base + "drops: {labels: [visual]}\n", Dataset)
    assert "expected.ugly" in mistake(tmp_path, base + "expected: {ugly: {high: 1}}\n", Dataset)


def test_a_day_may_be_written_without_quotes_and_must_exist(tmp_path: Path) -> None:
    assert load_file(write(tmp_path, GOOD + "start: 2026-11-01\n"), Source).start == "2026-11-01"
    assert "start is wrong" in mistake(tmp_path, GOOD + "start: 2026-13-45\n")


def test_what_names_nothing_is_refused(tmp_path: Path) -> None:
    base = "sources: [{name: cats}]\n"
    assert "no source is in it" in mistake(tmp_path, base + "groups: {main: 1, other: 2}\n", Dataset)
    assert "groups.main is wrong" in mistake(tmp_path, base + "groups: {main: .nan}\n", Dataset)
    assert "the name of a field is a text" in mistake(tmp_path, "? [a, b]\n: c\n")


@pytest.mark.parametrize(
    ("captions", "says"),
    [
        ("{nope: 1}", "'nope' is no caption column"),
        (
            "{caption_qwen3-vl-8b: 1}",
            "is no caption column: write `caption`, or `caption_` and a profile's name with _",
        ),
        ("{}", "name at least one column"),
        ("{caption: 1, caption_source: 0}", "the weight of caption_source is 0: weights are above 0"),
        ("{caption: -1}", "the weight of caption is -1"),
        ("{caption: .inf}", "finite number"),
        ("{caption: much}", "valid number"),
        ("[caption]", "valid dictionary"),
    ],
)
def test_captions_of_a_dataset_are_columns_with_weights(tmp_path: Path, captions: str, says: str) -> None:
    line = mistake(tmp_path, f"sources: [{{name: cats}}]\ncaptions: {captions}\n", Dataset)
    assert says in line
    assert "captions" in line


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ("[rules]", "`extra_captions` names the captioner rules: its words are the column `caption`"),
        ("[source, source]", "two captioners fill the column caption_source"),
        ("[short-1, short.1]", "two captioners fill the column caption_short_1"),
        ("[Short]", "extra_captions.0 is wrong"),
    ],
)
def test_each_extra_caption_of_a_source_is_a_column_of_its_own(tmp_path: Path, names: str, says: str) -> None:
    assert says in mistake(tmp_path, GOOD + f"extra_captions: {names}\n")


def test_a_run_knows_the_profiles_of_its_extra_captions(tmp_path: Path) -> None:
    for folder in ("sources", "engines"):
        (tmp_path / folder).mkdir()
    write(tmp_path / "sources", GOOD + "captioner: long\nextra_captions: [source, short]\n")
    for name in ("long", "short"):
        write(tmp_path / "engines", "role: captioner\nkind: rules\n", name)
    write(tmp_path / "engines", "role: classifier\nkind: rules\n", "rules-minilm")
    run = source_run("cats", "b1", root=tmp_path)
    assert [engine.name for engine in run.extra_captioners] == ["short"]
    write(tmp_path / "sources", GOOD + "captioner: long\nextra_captions: [rules-minilm]\n")
    with pytest.raises(InputError, match="is a classifier"):
        source_run("cats", "b1", root=tmp_path)
