"""The YAML files that users edit, as pydantic models: sources, datasets, engines, and how long opt-outs are kept.

Every mistake becomes one InputError line: file, line, field, what is wrong, what is allowed.
"""

from __future__ import annotations

import datetime
import difflib
import os
import re
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import Field, ValidationError, field_validator, model_validator

from smalti.captions import CAPTION_COLUMN
from smalti.errors import InputError
from smalti.profiles import Checks as Checks
from smalti.profiles import Engine as Engine
from smalti.profiles import PromptText, caption_column
from smalti.reasons import ALWAYS_SKIPPED, Label, SkipReason
from smalti.reservations import Reservation as Reservation
from smalti.strict import NAME as NAME
from smalti.strict import Name as Name
from smalti.strict import Strict as Strict


class Columns(Strict):
    """Which column of the source's table says what."""

    key: str = Field(description="names a row for ever; with format `files` also the image's path below `images`")
    image: str | None = Field(None, description="format parquet: the binary column, or a struct with a field `bytes`")
    caption: str | None = None
    embedding: str | None = None
    owner: str | None = None
    licence: str | None = None
    url: str | None = None
    reservations: tuple[Reservation, ...] = Field(
        (), description="columns that say that a picture is reserved; its row is dropped as `optout`"
    )
    metadata: tuple[str, ...] = Field((), description="columns that are kept as they are, as JSON")
    others: Literal["refuse", "keep", "ignore"] = Field(
        "refuse", description="columns that are not named here: an error, kept as metadata, or left out"
    )

    @field_validator("reservations")
    @classmethod
    def _each_reservation_once(cls, reservations: tuple[Reservation, ...]) -> tuple[Reservation, ...]:
        named = [(each.column, each.kind) for each in reservations]
        twice = next((each for each in named if named.count(each) > 1), None)
        if twice:
            raise ValueError(f"column {twice[0]!r} stands twice with kind {twice[1]}: leave one of the two")
        return reservations

    def mapped(self) -> dict[str, str]:
        """Our field -> the table's column, where one is named."""
        fields = ("key", "image", "caption", "embedding", "owner", "licence", "url")
        return {field: getattr(self, field) for field in fields if getattr(self, field) is not None}


class Encoding(Strict):
    """How the pictures of a part are cut, stored and split."""

    fit: Literal["cover", "stretch"] = "cover"
    format: Literal["jpeg", "png"] = "jpeg"
    quality: int = Field(92, ge=1, le=100)
    chroma: Literal["420", "444"] = "420"
    shard_bytes: int = Field(1 << 27, ge=1 << 16, le=1 << 31, description="bytes a shard aims at")


class Source(Strict):
    """One file in include/sources: where pictures come from and how they go through the line."""

    name: Name
    description: str = ""
    format: Literal["files", "parquet"]
    uri: str = Field(description="file://, gs:// or a path; ${NAME} is taken from the environment when a run starts")
    table: str | None = Field(None, description="format files: the parquet, csv or jsonl table, below uri")
    images: str = Field("", description="format files: the folder with the images, below uri")
    columns: Columns
    licence: str | None = Field(None, description="of every row that states none itself")
    curators: tuple[str, ...] = Field((), description="what whoever made the collection already did to it")
    schedule: str | None = Field(None, description="cron line, UTC; empty: only people start it")
    start: str | None = Field(None, pattern=r"^\d{4}-\d{2}-\d{2}$", description="first day of a scheduled source")
    priority: int = Field(0, description="among copies of one resolution the higher priority is kept")
    captioner: Name = "rules"
    classifier: Name = "rules-minilm"
    extra_captions: tuple[Name, ...] = Field(
        (),
        description="captioner profiles, and `source` for the source's own captions: each a column caption_<name> of the shards",
    )
    encoding: Encoding = Encoding()
    max_pixels: int = Field(200_000_000, gt=0, description="larger images are rejected before they are decoded")

    @field_validator("start")
    @classmethod
    def _is_a_day(cls, start: str | None) -> str | None:
        if start is not None:
            datetime.date.fromisoformat(start)
        return start

    @model_validator(mode="after")
    def _captions_differ(self) -> Source:
        if self.captioner in self.extra_captions:
            raise ValueError(
                f"`extra_captions` names the captioner {self.captioner}: its words are the column `caption`"
            )
        columns = [caption_column(profile) for profile in (self.captioner, *self.extra_captions)]
        twice = next((each for each in columns if columns.count(each) > 1), None)
        if twice:
            raise ValueError(f"two captioners fill the column {twice}: take one of the two out of `extra_captions`")
        if "caption_ok" in columns[1:]:
            raise ValueError(
                "`extra_captions` names the profile ok, whose column `caption_ok` is taken: rename the profile"
            )
        return self

    @model_validator(mode="after")
    def _fits_its_format(self) -> Source:
        if self.format == "files" and not self.table:
            raise ValueError("format files needs `table`: the parquet, csv or jsonl file that lists the images")
        if self.format == "parquet" and (self.table or self.images):
            raise ValueError("format parquet takes neither `table` nor `images`: its rows hold the images")
        if self.format == "parquet" and not self.columns.image:
            raise ValueError("format parquet needs `columns.image`: the column with the image's bytes")
        if self.table and not self.table.endswith((".parquet", ".csv", ".jsonl")):
            raise ValueError("`table` must end in .parquet, .csv or .jsonl")
        return self

    def location(self) -> str:
        """The URI with ${NAME} filled in. Raises InputError for a name that is not set."""
        return expand(self.uri, f"source {self.name}, uri")


class DatasetSource(Strict):
    """A source as one dataset uses it."""

    name: Name
    group: Name = Field("main", description="streams of one mix group are drawn with one weight")


class Duplicates(Strict):
    """When two pictures are one."""

    distance: int = Field(0, ge=0, le=4, description="bits in which the hashes of copies may differ; 0 is PRX's rule")
    cluster_limit: int = Field(
        100, ge=2, description="more look-alikes than this are set aside (quarantine) until a person has decided"
    )
    decided: tuple[str, ...] = Field(
        (), description="URIs of text files with what a person decided: `merge CLUSTER` or `keep CLUSTER`, one a line"
    )


class Drops(Strict):
    """What curation leaves out, beside duplicates and what may never be served."""

    labels: tuple[Label, ...] = (Label.TEXT, Label.NSFW)
    captioners: tuple[str, ...] | None = Field(None, description="accepted captioner profiles; left out: all")
    classifiers: tuple[str, ...] | None = Field(None, description="accepted classifier profiles; left out: all")
    licences: tuple[str, ...] | None = Field(None, description="accepted licences; left out: all")
    min_tier: Literal[512, 1024, 2048, 4096] = 512
    denylist: tuple[str, ...] = Field((), description="URIs of text files, one sample id a line")
    duplicates: Duplicates = Duplicates()

    @field_validator("labels")
    @classmethod
    def _something_is_left(cls, labels: tuple[Label, ...]) -> tuple[Label, ...]:
        if Label.VISUAL in labels:
            raise ValueError("`visual` is what a release is made of: drop text, nsfw or neither")
        return labels


class Band(Strict):
    """Expected share of samples, in percent; a release outside it warns."""

    low: float = Field(0.0, ge=0, le=100)
    high: float = Field(100.0, ge=0, le=100)


class Dataset(Strict):
    """One file in include/datasets: what a release is made of."""

    name: Name
    description: str = ""
    sources: tuple[DatasetSource, ...] = Field(min_length=1)
    groups: dict[str, float] = Field({"main": 1.0}, description="mix group -> proportion")
    drops: Drops = Drops()
    captions: dict[str, float] = Field(
        {"caption": 1.0},
        description="caption column -> weight; others than `caption` are filled by the sources' `extra_captions`",
    )
    reason_sets: tuple[tuple[SkipReason, ...], ...] = Field(
        (), description="sets of skip reasons that a training run may lift (`without`), each deduplicated on its own"
    )
    expected: dict[SkipReason, Band] = Field(
        {SkipReason.DUPLICATE: Band(high=10), SkipReason.TEXT: Band(high=10), SkipReason.NSFW: Band(high=1)},
        description="skip reason -> expected share in percent; a release outside warns",
    )
    publish: Literal["streams", "tree"] = "streams"
    approve: bool = Field(
        False, description="a person approves each version in the Airflow UI before LATEST moves to it"
    )
    schedule: Literal["any", "all"] = Field("any", description="which of its sources' assets start a release")

    @field_validator("sources")
    @classmethod
    def _each_once(cls, sources: tuple[DatasetSource, ...]) -> tuple[DatasetSource, ...]:
        names = [s.name for s in sources]
        if len(set(names)) != len(names):
            raise ValueError("a source is named twice")
        return sources

    @field_validator("captions")
    @classmethod
    def _columns_and_weights(cls, captions: dict[str, float]) -> dict[str, float]:
        if not captions:
            raise ValueError("name at least one column, for instance `caption: 1.0`")
        for column, weight in captions.items():
            if not re.fullmatch(CAPTION_COLUMN, column):
                raise ValueError(
                    f"{column!r} is no caption column: write `caption`, or `caption_` and a profile's name with _"
                )
            if weight <= 0:
                raise ValueError(
                    f"the weight of {column} is {weight:g}: weights are above 0, leave a column out instead"
                )
        return captions

    @field_validator("reason_sets")
    @classmethod
    def _sets_that_may_be_lifted(cls, sets: tuple[tuple[SkipReason, ...], ...]) -> tuple[tuple[SkipReason, ...], ...]:
        for each in sets:
            never = sorted(ALWAYS_SKIPPED & set(each))
            if never:
                raise ValueError(f"samples skipped as {', '.join(never)} are never served: take it out of the set")
            if not each or len(set(each)) != len(each):
                raise ValueError("each set names at least one reason, and each reason once")
        ordered = tuple(tuple(sorted(each)) for each in sets)
        if len(set(ordered)) != len(ordered):
            raise ValueError("a set stands twice")
        return tuple(sorted(ordered))

    @model_validator(mode="after")
    def _groups_are_known(self) -> Dataset:
        missing = {s.group for s in self.sources} - set(self.groups)
        if missing:
            raise ValueError(f"`groups` lacks {', '.join(sorted(missing))}: give each group of `sources` a proportion")
        idle = set(self.groups) - {s.group for s in self.sources}
        if idle:
            raise ValueError(f"`groups` names {', '.join(sorted(idle))}, and no source is in it: take it out")
        if any(weight <= 0 for weight in self.groups.values()):
            raise ValueError("`groups`: proportions are above 0")
        return self


class Retention(Strict):
    """How long the ledger of opt-outs keeps what nothing is compared with any more.

    All times run from the end of a request: its last receipt, that it was refused, or that it was taken back.
    """

    rejected_days: float = Field(
        90.0,
        ge=0,
        description="rows and files that are no keys, as they were handed in; of those that made no request, since then",
    )
    preview_days: float = Field(90.0, ge=0, description="previews and their pages with pictures")
    keys_days: float = Field(
        90.0, ge=0, description="keys and reason of what was taken back, refused, or only asked what is held"
    )


M = TypeVar("M", bound=Strict)


def home() -> Path:
    """The directory with sources/, datasets/ and engines/: SMALTI_CONFIG, or include/ of this checkout."""
    given = os.environ.get("SMALTI_CONFIG")
    return Path(given) if given else Path(__file__).resolve().parents[1]


def load_sources(root: Path | None = None) -> list[Source]:
    """Every file in sources/, by name."""
    return _load_all((root or home()) / "sources", Source)


def load_datasets(root: Path | None = None) -> list[Dataset]:
    """Every file in datasets/, by name, each with sources that exist."""
    root = root or home()
    datasets = _load_all(root / "datasets", Dataset)
    known = sorted(path.stem for path in (root / "sources").glob("*.yaml"))
    for dataset in datasets:
        for source in dataset.sources:
            if source.name not in known:
                raise InputError(
                    f"there is no source {source.name!r}",
                    str(root / "datasets" / f"{dataset.name}.yaml"),
                    f"Use one of: {', '.join(known)}",
                )
    return datasets


def load_source(name: str, root: Path | None = None) -> Source:
    return _load_one((root or home()) / "sources", name, Source)


def load_dataset(name: str, root: Path | None = None) -> Dataset:
    return _load_one((root or home()) / "datasets", name, Dataset)


def load_engine(name: str, role: str, root: Path | None = None) -> Engine:
    """A profile, which must be for the role it is asked for."""
    folder = (root or home()) / "engines"
    engine = _with_prompt(folder, _load_one(folder, name, Engine))
    if engine.role != role:
        raise InputError(
            f"engine {name!r} is a {engine.role}", f"engines/{name}.yaml", f"Name a profile whose role is {role}"
        )
    return engine


def load_retention(root: Path | None = None) -> Retention:
    """optouts.yaml, or the defaults where there is none."""
    path = (root or home()) / "optouts.yaml"
    return load_file(path, Retention) if path.exists() else Retention()


def load_engines(root: Path | None = None) -> list[Engine]:
    """Every file in engines/, by name, with their prompts."""
    folder = (root or home()) / "engines"
    return [_with_prompt(folder, engine) for engine in _load_all(folder, Engine)]


def load_file(path: Path, model: type[M]) -> M:
    """One YAML file as a model. Its `name` is the file's name and may be left out.

    Raises:
        InputError: the file is missing, is not YAML, or says what the model does not allow.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        others = sorted(p.stem for p in path.parent.glob("*.yaml"))
        raise InputError(
            f"there is no {model.__name__.lower()} {path.stem!r}",
            str(path),
            f"Use one of: {', '.join(others) or '(none is there)'}",
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"the file cannot be read ({error})", str(path), "Make it a readable UTF-8 file") from error
    try:
        data = yaml.load(text, Loader=_NoDuplicates)  # a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        raise InputError(f"this is not YAML ({getattr(error, 'problem', error)})", where, "Mend the line") from error
    if not isinstance(data, dict):
        raise InputError(
            "the file holds no fields", str(path), f"Write the fields of a {model.__name__}, one `field: value` a line"
        )
    if "name" in model.model_fields and data.setdefault("name", path.stem) != path.stem:
        raise InputError(
            f"name {data['name']!r} is not the file's name",
            f"{path}:{_line(text, ('name',))}",
            f"Write {path.stem}, or leave it out",
        )
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise _first_mistake(path, text, model, error) from None


def expand(text: str, where: str) -> str:
    """Fill in ${NAME} from the environment. Raises InputError for a name that is not set."""

    def value(match: re.Match[str]) -> str:
        found = os.environ.get(match[1])
        if found is None:
            raise InputError(
                f"the environment variable {match[1]} is not set", where, f"Set {match[1]}, or write the value itself"
            )
        return found

    return re.sub(r"\$\{(\w+)\}", value, text)


class _NoDuplicates(yaml.SafeLoader):
    """YAML keeps the last of two equal keys in silence; here it is an error. A day stays the text that it is."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - as PyYAML has it
        first: [each for each in resolvers if each[0] != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "the name of a field is a text", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the field {key.value!r} stands twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _with_prompt(folder: Path, engine: Engine) -> Engine:
    """The profile with the text of its prompt, which must be the text that the profile pins."""
    if engine.prompt is None:
        return engine
    path = folder / "prompts" / f"{engine.prompt.name}.yaml"
    text = load_file(path, PromptText)
    if text.sha256 != engine.prompt.sha256:
        raise InputError(
            f"the prompt's text is not the one that profile {engine.name!r} pins; its sha256 is {text.sha256}",
            str(path),
            "Undo the change, or save prompt and profile under new names",
        )
    prompt = engine.prompt.model_copy(update={"text": text})
    try:
        return Engine.model_validate(engine.model_dump() | {"prompt": prompt.model_dump()})
    except ValidationError as error:
        raise InputError(error.errors()[0]["msg"], str(path), "Mend the prompt") from None


def _load_all(folder: Path, model: type[M]) -> list[M]:
    return [load_file(path, model) for path in sorted(folder.glob("*.yaml"))]


def _load_one(folder: Path, name: str, model: type[M]) -> M:
    if not re.fullmatch(NAME, name):
        raise InputError(f"{name!r} is not a name", str(folder), "Use lower-case letters, digits, _ . -")
    return load_file(folder / f"{name}.yaml", model)


def _first_mistake(path: Path, text: str, model: type[Strict], error: ValidationError) -> InputError:
    """The first mistake, with its line; how many more there are."""
    mistakes = error.errors()
    first = mistakes[0]
    field = tuple(x for x in first["loc"] if isinstance(x, str | int))
    name = ".".join(str(x) for x in field) or model.__name__.lower()
    more = f" (and {len(mistakes) - 1} more)" if len(mistakes) > 1 else ""
    where = f"{path}:{_line(text, field)}"
    if first["type"] == "extra_forbidden":
        known = _fields(model, field[:-1])
        near = difflib.get_close_matches(str(field[-1]), known, 1)
        hint = f"Did you mean {near[0]}? " if near else ""
        return InputError(f"there is no field {name!r}{more}", where, f"{hint}Allowed: {', '.join(known)}")
    if first["type"] == "missing":
        return InputError(f"the field {name!r} is missing{more}", where, f"Add it{_describe(model, field)}")
    message = first["msg"].removeprefix("Value error, ")
    return InputError(f"{name} is wrong: {message}{more}", where, f"Change it{_describe(model, field)}")


def _model_at(model: type[Strict], field: tuple[str | int, ...]) -> type[Strict] | None:
    for step in field:
        if isinstance(step, int):
            continue
        info = model.model_fields.get(step)
        if info is None:
            return None
        inner = [t for t in (info.annotation, *getattr(info.annotation, "__args__", ())) if isinstance(t, type)]
        models = [t for t in inner if issubclass(t, Strict)]
        if not models:
            return None
        model = models[0]
    return model


def _fields(model: type[Strict], field: tuple[str | int, ...]) -> list[str]:
    at = _model_at(model, field)
    return sorted(at.model_fields) if at else []


def _describe(model: type[Strict], field: tuple[str | int, ...]) -> str:
    names = [x for x in field if isinstance(x, str)]
    at = _model_at(model, tuple(names[:-1])) if names else None
    info = at.model_fields.get(names[-1]) if at else None
    return f" ({info.description})" if info and info.description else ""


def _line(text: str, field: tuple[str | int, ...]) -> int:
    """The line of the deepest part of a field's path that the file has."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    line = 1
    for step in field:
        if isinstance(node, yaml.MappingNode):
            found = next(((k, v) for k, v in node.value if k.value == str(step)), None)
            if found is None:
                break
            line, node = found[0].start_mark.line + 1, found[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            node = node.value[step]
            line = node.start_mark.line + 1
        else:
            break
    return line
