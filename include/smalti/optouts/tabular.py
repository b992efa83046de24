"""Files with a key in each row or each cell: CSV, JSON Lines, Parquet.

Their columns are `kind` and `value`, or kinds, such as `url` and `owner`, where each cell that is not empty is a key. A column with another
name is refused, not passed over: it may be a kind that somebody misspelled.
"""

from __future__ import annotations

import csv
import functools
import io
import json
from collections.abc import Iterator, Sequence
from typing import Any

from smalti.errors import InputError
from smalti.optouts.keys import KeyKind, kind_of
from smalti.optouts.rows import MOST_KEYS, Parsed, Rows, as_text

COLUMNS = f"Name the columns kind and value, or by kinds: {', '.join(KeyKind)}"
_QUOTES = "its quotes do not pair: put the value in quotes, and write each quote inside it twice"
_CELLS = "it has more cells than there are columns: put a value with a separator in it in quotes"
_TEXT = "a key is text: put it in quotes"


def parse_csv(data: bytes, where: str) -> Parsed:
    """Commas, semicolons or tabs between the cells, whichever the header has. The header is row 1.

    A quoted cell may run over several lines, as the format has it; it is then one rejected row, because keys do not.

    Raises:
        InputError: not UTF-8, no header that is known, or too many keys.
    """
    text = as_text(data, where)
    lines = list(io.StringIO(text, newline=""))  # at \n, \r\n and \r, and nowhere else
    header, columns, separator = _csv_header(lines, where)
    rows = Rows(where)
    for row, cells, line in _records(lines, separator):
        if row <= header:
            continue
        if cells is None:
            rows.reject(row, line, _QUOTES)
        elif any(cell.strip() for cell in cells[len(columns) :]):
            rows.reject(row, line, _CELLS)
        else:
            _add(rows, row, columns, [cell if cell.strip() else None for cell in cells])
    return rows.parsed()


def _csv_header(lines: Sequence[str], where: str) -> tuple[int, tuple[str, ...], str]:
    """Row of the header, its columns, and what is between them."""
    for separator in ",;\t":
        for row, cells, _ in _records(lines, separator):
            if cells is not None and not any(cell.strip() for cell in cells):
                continue
            found = _columns(tuple(cells or ()))
            if found and (separator == "," or len(found) > 1):
                return row, found, separator
            break
    raise InputError("its first row is no header", where, COLUMNS)


def _records(lines: Sequence[str], separator: str) -> Iterator[tuple[int, list[str] | None, str]]:
    """Row, cells, and the line it begins with. Of a line that cannot be read there are no cells; the next one is read afresh."""
    row = start = 0
    while start < len(lines):
        reader = csv.reader(_from(lines, start), delimiter=separator, strict=True, skipinitialspace=True)
        done = 0
        try:
            for cells in reader:
                row += 1
                yield row, cells, lines[start + done]
                done = reader.line_num
            return
        except csv.Error:
            row += 1
            yield row, None, lines[start + done]
            start += done + 1


def _from(lines: Sequence[str], start: int) -> Iterator[str]:
    for number in range(start, len(lines)):
        yield lines[number]


@functools.lru_cache(64)
def _columns(names: tuple[str, ...]) -> tuple[str, ...] | None:
    """The columns as they are compared; None: they are not what is known."""
    found = [name.strip().lower() for name in names]
    while found and not found[-1]:
        found.pop()
    known = sorted(found) == ["kind", "value"] or (
        found and len(set(found)) == len(found) and all(kind_of(name) for name in found)
    )
    return tuple(found) if known else None


def _add(rows: Rows, row: int, columns: Sequence[str], cells: Sequence[str | None]) -> None:
    """The keys of one row; None is an empty cell."""
    said = {name: cell for name, cell in zip(columns, cells, strict=False) if cell is not None}
    if "kind" not in columns:
        for name, cell in said.items():
            rows.add(row, name, cell, column=name if len(columns) > 1 else "")
    elif said:
        rows.add(row, said.get("kind", ""), said.get("value", ""))


class _Object(list[tuple[str, Any]]):
    """A JSON object as it stands there: a name that is in it twice would hide a key."""


_JSON = json.JSONDecoder(object_pairs_hook=_Object)


def parse_jsonl(data: bytes, where: str) -> Parsed:
    """An object a line: {"kind": ..., "value": ...}, or kinds: {"url": ..., "owner": ...}. null is no key; a whole number is its digits.

    Raises:
        InputError: not UTF-8, or too many keys.
    """
    rows = Rows(where)
    for row, line in enumerate(io.StringIO(as_text(data, where), newline=""), 1):
        if not line.strip():
            continue
        try:
            said = _JSON.decode(line)
        except (ValueError, RecursionError):
            said = None
        columns = _columns(tuple(name for name, _ in said)) if isinstance(said, _Object) else None
        if columns is None:
            rows.reject(
                row,
                line.rstrip(),
                'no such object: write {"kind": "url", "value": "https://..."} or {"url": "https://..."}',
            )
            continue
        cells = [str(each) if type(each) is int else each for _, each in said]
        if any(not isinstance(each, str | None) for each in cells):
            rows.reject(row, line.rstrip(), _TEXT)
        elif not any(cells):
            rows.reject(row, line.rstrip(), "there is no key in it")
        else:
            _add(rows, row, columns, cells)
    return rows.parsed()


def parse_parquet(data: bytes, where: str) -> Parsed:
    """Columns of text; whole numbers are their digits. null is no key. The first row is row 1.

    Raises:
        InputError: broken, other columns or types, or too many rows.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = Rows(where)
    try:
        file = pq.ParquetFile(io.BytesIO(data))
        columns = _columns(tuple(file.schema_arrow.names))
        if columns is None:
            raise InputError("these are not its columns", where, COLUMNS)
        if file.metadata.num_rows > MOST_KEYS:
            raise InputError(f"it has more than {MOST_KEYS:,} rows", where, "Divide it into several files")
        row = 0
        for batch in file.iter_batches(1 << 14):
            texts = [_texts(column, where) for column in batch.columns]
            for cells in zip(*texts, strict=True):
                row += 1
                _add_bytes(rows, row, columns, cells)
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        raise InputError("it is no Parquet file, or a broken one", where, "Write it again") from error
    return rows.parsed()


def _texts(column: Any, where: str) -> list[bytes | None]:
    """The cells as UTF-8, or what is there in its place."""
    import pyarrow as pa

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if pa.types.is_integer(kind) or pa.types.is_null(kind):
        column = column.cast(pa.string())
    elif not any(is_text(kind) for is_text in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)):
        raise InputError(f"a column is of the type {kind}", where, "Write text")
    elif column.type != kind:
        column = column.dictionary_decode()
    found: list[bytes | None] = column.cast(pa.large_binary()).to_pylist()
    return found


def _add_bytes(rows: Rows, row: int, columns: Sequence[str], cells: Sequence[bytes | None]) -> None:
    try:
        _add(rows, row, columns, [None if cell is None else cell.decode() for cell in cells])
    except UnicodeDecodeError:
        rows.reject(
            row, " ".join(cell.decode(errors="replace") for cell in cells if cell is not None), "it is not UTF-8"
        )
