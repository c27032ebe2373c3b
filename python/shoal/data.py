"""Writes data sets in Parquet or Arrow files as the files that `shoal train` reads.

    python -m shoal.data squad squad-files
    shoal train --dataset_name squad --data squad-files ...

The source is a file, a directory that `datasets`' save_to_disk() wrote, or a local copy of a data set's repository on
the Hub: CONFIG/SPLIT-00000-of-00002.parquet, data/SPLIT-*.parquet or CONFIG/SPLIT/0000.parquet. Nothing is downloaded.
pyarrow reads the files in batches, so that a data set may be larger than memory (pip install "shoal[data]").
"""
import argparse
import contextlib
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

__all__ = ["Written", "convert"]

_ENDINGS = ".parquet", ".arrow"
_BATCH = 128  # rows that are in memory at a time: documents may have megabytes


class Written(NamedTuple):
    """A split, as it was written."""
    path: Path
    rows: int


def convert(source: str | os.PathLike[str], output: str | os.PathLike[str], *, config: str | None = None,
            columns: Sequence[str] | None = None, report: Callable[[str], None] | None = None) -> dict[str, Written]:
    """Writes each split of `source` to a file in the directory `output`, and returns the files by the splits' names.

        shoal.data.convert("glue", "mnli", config="mnli")["train"].path  # mnli/train.jsonl

    `config` names one of several data sets in `source` (glue's mnli). `columns` are those to write; default: all.
    `report` gets lines of progress. The files have the names and forms by which `shoal train --data output` finds them:

    - SQuAD's columns (context, question, answers): SPLIT.json;
    - the column `text` alone: SPLIT.txt, a row a line, as `datasets` reads such files;
    - all else: SPLIT.jsonl, a record a row.

    Classes are written by their names; a class of -1, which test sets have, as null. dataset_info.json has the classes in
    the order of their ids, for `--streaming`. A file appears whole or not at all; one of that name is replaced.

    Raises ValueError where the source is no such data set, a value has no form in JSON (bytes, dates, NaN) or `columns` has
    a name that is not there; OSError for what reading and writing files raise; ImportError without pyarrow.
    """
    try:
        import pyarrow  # noqa: F401
    except ImportError as problem:
        raise ImportError('shoal.data needs pyarrow: pip install "shoal[data]"') from problem
    source, output = Path(source), Path(output)
    splits = _splits(source, config)
    output.mkdir(parents=True, exist_ok=True)
    written, labels = {}, {}
    for split, files in splits.items():
        table = _Table(files, columns)
        labels |= table.classes
        with _whole(output / (split + table.ending)) as (path, file):
            written[split] = Written(path, _write(table, file, split, report or (lambda line: None)))
    info = output / "dataset_info.json"
    info.unlink(missing_ok=True)
    if labels:
        features = {name: {"names": names, "_type": "ClassLabel"} for name, names in labels.items()}
        with _whole(info) as (_, file):
            json.dump({"features": features}, file, ensure_ascii=False, indent=2)
    return written


# --- the source's files -----------------------------------------------------------------------------------------------


def _splits(source: Path, config: str | None) -> dict[str, list[Path]]:
    """The files of each split, in their order."""
    if source.is_file():
        if source.suffix not in _ENDINGS:
            raise ValueError(f"{source}: neither a .parquet nor an .arrow file; shoal train reads text and JSON itself")
        return {_split_of(source) or "train": [source]}
    if not source.is_dir():
        raise FileNotFoundError(f"{source}: there is no such file or directory; nothing is downloaded")
    if (source / "dataset_dict.json").exists():
        return {split: _saved(source / split) for split in _read(source / "dataset_dict.json")["splits"]}
    if (source / "state.json").exists():
        return {_read(source / "state.json").get("_split") or "train": _saved(source)}
    splits: dict[str, list[Path]] = {}
    for path in _of_config(source, config):
        splits.setdefault(_split_of(path) or "train", []).append(path)
    return splits


def _saved(directory: Path) -> list[Path]:
    """The files of a split that save_to_disk() wrote."""
    return [directory / file["filename"] for file in _read(directory / "state.json")["_data_files"]]


def _of_config(source: Path, config: str | None) -> list[Path]:
    """The files of a repository's data set."""
    found: dict[str, list[Path]] = {}
    for path in sorted(path for ending in _ENDINGS for path in source.rglob(f"*{ending}")):
        folders = path.relative_to(source).parts[:-1]
        found.setdefault(folders[0] if folders and folders[0] != _split_of(path) else "", []).append(path)
    if not found:
        raise ValueError(f"{source}: no {' or '.join(_ENDINGS)} files")
    names = sorted(name for name in found if name not in ("", "data"))
    if config:
        if config not in found and names:
            raise ValueError(f"{source}: no data set {config}; there are {', '.join(names)}")
        return found.get(config) or found.get("data") or found[""]
    if len(found) > 1:
        raise ValueError(f"{source}: several data sets ({', '.join(names)}): choose one with --config")
    return next(iter(found.values()))


def _split_of(path: Path) -> str:
    """train of train-00000-of-00002.parquet, train/0000.parquet and squad-train.arrow; empty: the name has none."""
    stem = re.sub(r"-\d+-of-\d+$", "", path.stem)
    if re.fullmatch(r"\d+|data", stem):
        stem = path.parent.name.removeprefix("partial-")
    name = stem.rpartition("-")[2]
    return name if re.match(r"train|valid|dev|test", name) else ""


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


# --- rows -------------------------------------------------------------------------------------------------------------


class _Table:
    """A split's rows: dictionaries, with the names of classes in place of their ids."""

    def __init__(self, files: list[Path], columns: Sequence[str] | None) -> None:
        self._files = files
        with _opened(files[0]) as (schema, _):
            self._schema = schema
        there = self._schema.names
        for column in columns or ():
            if column not in there:
                raise ValueError(f"{files[0]}: no column {column}; there are {', '.join(there)}")
        self.columns = list(columns or there)
        for column in self.columns:
            _check_type(files[0], column, self._schema.field(column).type)
        features = json.loads((self._schema.metadata or {}).get(b"huggingface", b"{}")).get("info", {}).get("features", {})
        self.classes = {name: names for name in self.columns if (names := _names_of_classes(features.get(name)))}

    @property
    def ending(self) -> str:
        if {"context", "question", "answers"} <= set(self.columns):
            return ".json"
        return ".txt" if self.columns == ["text"] else ".jsonl"

    def rows(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each row, and its place for messages."""
        for path in self._files:
            row = 0
            with _opened(path) as (schema, batches):
                if not schema.equals(self._schema):
                    raise ValueError(f"{path}: other columns or types than {self._files[0]}")
                for batch in batches:
                    for values in batch.select(self.columns).to_pylist():
                        row += 1
                        place = f"{path}, row {row}"
                        yield place, values | {name: _named(place, name, values[name], names)
                                               for name, names in self.classes.items()}


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Iterable[Any]]]:
    """A file's schema and its record batches."""
    import pyarrow as pa
    import pyarrow.parquet

    try:
        if path.suffix == ".parquet":
            with pa.parquet.ParquetFile(path) as file:
                yield file.schema_arrow, file.iter_batches(_BATCH)
            return
        with pa.memory_map(os.fspath(path)) as mapped:
            file = mapped.read(6) == b"ARROW1"
            mapped.seek(0)
            if file:
                with pa.ipc.open_file(mapped) as reader:
                    yield reader.schema, map(reader.get_batch, range(reader.num_record_batches))
            else:
                with pa.ipc.open_stream(mapped) as reader:
                    yield reader.schema, reader
    except pa.ArrowInvalid as problem:
        raise ValueError(f"{path}: {problem}") from problem


def _check_type(path: Path, column: str, kind: Any) -> None:
    from pyarrow import types

    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        _check_type(path, column, kind.value_type)
    elif types.is_struct(kind):
        for field in kind:
            _check_type(path, f"{column}.{field.name}", field.type)
    elif not (types.is_string(kind) or types.is_large_string(kind) or types.is_integer(kind) or types.is_floating(kind)
              or types.is_boolean(kind) or types.is_null(kind)):
        raise ValueError(f"{path}: column {column} has the type {kind}, which JSON has not; choose others with --columns")


def _names_of_classes(feature: Any) -> list[str] | None:
    """Of a feature of `datasets`: a class, or a list of them."""
    while isinstance(feature, (list, dict)):
        if isinstance(feature, list):  # the oldest form of a list
            feature = feature[0] if len(feature) == 1 else None
        elif feature.get("_type") == "ClassLabel":
            return feature.get("names")
        else:
            feature = feature.get("feature") if feature.get("_type") in ("Sequence", "List", "LargeList") else None
    return None


def _named(place: str, column: str, value: Any, names: list[str]) -> Any:
    if isinstance(value, list):
        return [_named(place, column, one, names) for one in value]
    if value is None or value == -1:
        return None
    if not 0 <= value < len(names):
        raise ValueError(f"{place}: {column} is {value}, but there are {len(names)} classes")
    return names[value]


# --- what is written --------------------------------------------------------------------------------------------------


def _write(table: _Table, file: TextIO, split: str, report: Callable[[str], None]) -> int:
    rows, told = 0, time.monotonic()
    if table.ending == ".json":
        file.write('{"data": [\n')
    for place, row in table.rows():
        if table.ending == ".txt":
            file.write((row["text"] or "").removesuffix("\n") + "\n")
        else:
            try:
                text = json.dumps(row, ensure_ascii=False, allow_nan=False)
            except ValueError as problem:
                raise ValueError(f"{place}: a number is NaN or infinite, which JSON has not") from problem
            file.write((",\n" if table.ending == ".json" and rows > 0 else "") + text)
            if table.ending == ".jsonl":
                file.write("\n")
        rows += 1
        if time.monotonic() - told > 5:
            told = time.monotonic()
            report(f"{split}: {rows:,} rows so far")
    if table.ending == ".json":
        file.write("\n]}\n")
    report(f"{split}: {rows:,} rows in {file.name.removesuffix('.part')}")
    return rows


@contextlib.contextmanager
def _whole(path: Path) -> Iterator[tuple[Path, TextIO]]:
    """A file that appears under its name when all of it is on the disk."""
    part = path.with_name(path.name + ".part")
    try:
        with part.open("w", encoding="utf-8", newline="\n") as file:
            yield path, file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m shoal.data", description=__doc__.split("\n")[0])
    parser.add_argument("source", help="a .parquet or .arrow file, a directory of save_to_disk(), or a repository's copy")
    parser.add_argument("output", help="the directory for train.jsonl and so on")
    parser.add_argument("--config", help="one of several data sets in the source: mnli of glue")
    parser.add_argument("--columns", type=lambda text: text.split(","), help="columns to write, with commas; default: all")
    parser.add_argument("--json", action="store_true", help="print the files and their rows as JSON")
    given = parser.parse_args(arguments)
    try:
        written = convert(given.source, given.output, config=given.config, columns=given.columns,
                          report=lambda line: print(line, file=sys.stderr))
    except (ValueError, OSError, ImportError) as problem:
        print(f"shoal.data: {problem}", file=sys.stderr)
        # The programs' statuses: docs/reference/exit-status.md.
        return 3 if isinstance(problem, (ValueError, FileNotFoundError)) else 4 if isinstance(problem, OSError) else 2
    if given.json:
        print(json.dumps({split: {"file": os.fspath(one.path), "rows": one.rows} for split, one in written.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
