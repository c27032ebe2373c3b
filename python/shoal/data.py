"""Writes data sets in Parquet or Arrow files as the files that `shoal train` reads.

    python -m shoal.data squad squad-files
    shoal train --dataset_name squad --data squad-files ...

The source is a file, a directory that `datasets`' save_to_disk() wrote, or a local copy of a data set's repository on
the Hub: CONFIG/SPLIT-00000-of-00002.parquet, data/SPLIT-*.parquet or CONFIG/SPLIT/0000.parquet. Nothing is downloaded.
pyarrow reads the files in batches, so a data set may be larger than memory (pip install "shoal[data]").
"""
import argparse
import contextlib
import errno
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

__all__ = ["Written", "convert"]

_ENDINGS = ".parquet", ".arrow"
_BATCH = 128  # rows that are in memory at a time: documents may have megabytes
_INFO = "dataset_info.json"
_MARK = {"written_by": "shoal.data"}  # in _INFO: the directory may be replaced
_SPLITS = {"train": "train", "training": "train", "validation": "validation", "valid": "validation", "val": "validation",
           "dev": "validation", "test": "test", "testing": "test", "eval": "test", "evaluation": "test"}


class Written(NamedTuple):
    """A split, as it was written."""
    path: Path
    rows: int


def convert(source: str | os.PathLike[str], output: str | os.PathLike[str], *, config: str | None = None,
            columns: Sequence[str] | None = None, report: Callable[[str], None] | None = None) -> dict[str, Written]:
    """Writes each split of `source` to a file in the directory `output`, and returns the files by the splits' names.

        shoal.data.convert("glue", "mnli", config="mnli")["train"].path  # mnli/train.jsonl

    `config` names one of several data sets in `source`, such as glue's mnli. `columns` names the columns to write;
    default: all. `report` receives lines of progress.

    A split becomes SPLIT.jsonl, with one record a row. A split with SQuAD's columns (context, question, answers) becomes
    SPLIT.json. `shoal train --data output` finds these names. Each class is written by its name; a class of -1, which
    test sets have, becomes null. dataset_info.json lists the classes in the order of their ids, for `--streaming`.

    `output` appears whole or not at all. It must be new, empty, or written by this function before; then it is replaced.

    Raises ValueError if the source is not such a data set, if JSON cannot hold a value (bytes, dates, NaN), or if
    `columns` has an unknown name; OSError if a file cannot be read or written; ImportError without pyarrow.
    """
    try:
        import pyarrow  # noqa: F401
    except ImportError as problem:
        raise ImportError('shoal.data needs pyarrow: pip install "shoal[data]"') from problem
    source, output = Path(source), Path(output)
    _check_output(source, output)
    tables = {split: _Table(files, columns) for split, files in _splits(source, config).items()}
    classes = _same_classes(tables.values())
    written = {}
    with _replaced(output) as directory:
        for split, table in tables.items():
            path = directory / (split + table.ending)
            rows = _write(table, path, split, report or (lambda line: None))
            written[split] = Written(output / path.name, rows)
        with _created(directory / _INFO) as file:
            json.dump({"features": classes, **_MARK, "files": sorted(one.path.name for one in written.values())}, file, ensure_ascii=False, indent=2)
    return written


# --- the source's files -----------------------------------------------------------------------------------------------


def _splits(source: Path, config: str | None) -> dict[str, list[Path]]:
    """The files of each split, in their order."""
    if source.is_file():
        if source.suffix not in _ENDINGS:
            raise ValueError(f"{source}: neither a .parquet nor an .arrow file; shoal train reads text and JSON itself")
        return {_split_of(source)[0] or "train": [source]}
    if not source.is_dir():
        raise FileNotFoundError(f"{source}: there is no such file or directory, and nothing is downloaded; run `hf download "
                                f"--repo-type dataset NAME --local-dir {source}` first")
    if (source / "dataset_dict.json").exists():
        return {split: _saved(source / split) for split in _read(source / "dataset_dict.json")["splits"]}
    if (source / "state.json").exists():
        return {_read(source / "state.json").get("_split") or "train": _saved(source)}
    files = _of_config(source, config)
    splits: dict[str, list[Path]] = {}
    for path in files:
        split = _split_of(path)[0]
        if not split and len(files) > 1:
            raise ValueError(f"{path}: its name has no split; name the file like train-00000-of-00001{path.suffix}, or "
                             "convert it alone")
        splits.setdefault(split or "train", []).append(path)
    return splits


def _saved(directory: Path) -> list[Path]:
    """The files of a split that save_to_disk() wrote."""
    return [directory / file["filename"] for file in _read(directory / "state.json")["_data_files"]]


def _of_config(source: Path, config: str | None) -> list[Path]:
    """The files of one data set of a repository."""
    found: dict[str, list[Path]] = {}
    for path in sorted((path for ending in _ENDINGS for path in source.rglob(f"*{ending}")), key=_order):
        folders = list(path.relative_to(source).parts[:-1])
        # datasets keeps results of map() as cache-*.arrow.
        if path.name.startswith(("cache-", "tmp")) or any(folder.startswith(".") for folder in folders):
            continue
        if folders and _split_of(path)[1]:
            folders.pop()
        if folders[:1] == ["data"]:
            folders.pop(0)
        found.setdefault("/".join(folders) or "data", []).append(path)
    if not found:
        raise ValueError(f"{source}: no {' or '.join(_ENDINGS)} files")
    wanted = [name for name in found if config is None or name == config or name.startswith(f"{config}/")]
    if not wanted:
        raise ValueError(f"{source}: no data set {config}; there are {', '.join(found)}")
    if len(wanted) > 1:
        raise ValueError(f"{source}: several data sets ({', '.join(wanted)}): choose one with --config")
    return found[wanted[0]]


def _order(path: Path) -> list[Any]:
    """Part 10 comes after part 2."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", str(path))]


def _split_of(path: Path) -> tuple[str, bool]:
    """The split that a path names, and whether its folder does. An empty name: neither does.

    train of train-00000-of-00002.parquet, squad-train.arrow, train/0000.parquet and train-clean.parquet.
    """
    any_name, known = r"\w+(?:\.\w+)*", "|".join(_SPLITS)
    shard = re.fullmatch(rf"(?:.*-)?({any_name})-\d+-of-\d+(?:-[0-9a-f]+)?", path.stem)
    if shard and shard[1] != "data":
        return _SPLITS.get(shard[1], shard[1]), False
    folder = path.parent.name.removeprefix("partial-")
    if path.stem.isdigit() and re.fullmatch(any_name, folder):
        return _SPLITS.get(folder, folder), True
    for name, is_folder in ((path.stem, False), (folder, True)):
        if exact := re.fullmatch(rf"(?:.*-)?((?:{known})(?:[_.]{any_name})?)", name):
            return _SPLITS.get(exact[1], exact[1]), is_folder
        words = [word for word in re.split(r"[^a-z]+", name) if word in _SPLITS]
        if words and not is_folder:
            return _SPLITS[words[0]], False
    return "", False


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


# --- rows -------------------------------------------------------------------------------------------------------------


class _Table:
    """A split's rows: dictionaries, with the names of classes in place of their ids."""

    def __init__(self, files: list[Path], columns: Sequence[str] | None) -> None:
        self._files = files
        self.columns, self.features = self._described(files[0], columns)
        self._kinds: dict[str, Any] = {}
        for path in files:
            there, features = self._described(path, columns)
            if set(there) != set(self.columns):
                raise ValueError(f"{path}: its columns are {', '.join(there)}, but {files[0]} has {', '.join(self.columns)}")
            if features != self.features:
                raise ValueError(f"{path}: its classes differ from those of {files[0]}")

    def _described(self, path: Path, columns: Sequence[str] | None) -> tuple[list[str], dict[str, Any]]:
        """The columns to read, and the features of those that have classes."""
        with _opened(path, None) as (schema, _):
            there = schema.names
        if len(set(there)) != len(there):
            raise ValueError(f"{path}: several columns have one name: {', '.join(there)}")
        for column in columns or ():
            if column not in there:
                raise ValueError(f"{path}: no column {column}; there are {', '.join(there)}")
        wanted = list(columns or there)
        wrong = [f"{column} ({schema.field(column).type})" for column in wanted if _kind(schema.field(column).type) is None]
        if wrong:
            raise ValueError(f"{path}: JSON cannot hold the type of {', '.join(wrong)}; choose other columns with --columns")
        try:
            metadata = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
        except ValueError as problem:
            raise ValueError(f"{path}: its metadata of datasets is not JSON: {problem}") from problem
        features = ((metadata or {}).get("info") or {}).get("features") or {}
        return wanted, {name: features[name] for name in sorted(wanted) if name in features and _has_classes(features[name])}

    @property
    def ending(self) -> str:
        return ".json" if {"context", "question", "answers"} <= set(self.columns) else ".jsonl"

    def rows(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each row, and its place for messages."""
        for path in self._files:
            row = 0
            with _opened(path, self.columns) as (schema, batches):
                for name in self.columns:
                    kind = _kind(schema.field(name).type)
                    if not _agree(kind, self._kinds.setdefault(name, kind)):
                        raise ValueError(f"{path}: column {name} is of type {schema.field(name).type}, unlike in "
                                         f"{self._files[0]}")
                for batch in batches:
                    for values in batch.to_pylist():
                        row += 1
                        place = f"{path}, row {row}"
                        for name, feature in self.features.items():
                            values[name] = _named(f"{place}: {name}", feature, values[name])
                        yield place, {name: values[name] for name in self.columns}


@contextlib.contextmanager
def _opened(path: Path, columns: list[str] | None) -> Iterator[tuple[Any, Iterable[Any]]]:
    """A file's schema, and its record batches of at most _BATCH rows."""
    import pyarrow as pa
    import pyarrow.parquet

    try:
        if path.suffix == ".parquet":
            with pa.parquet.ParquetFile(path) as file:
                yield file.schema_arrow, file.iter_batches(_BATCH, columns=columns)
            return
        with pa.memory_map(os.fspath(path)) as mapped:
            is_file = mapped.read(6) == b"ARROW1"
            mapped.seek(0)
            with (pa.ipc.open_file if is_file else pa.ipc.open_stream)(mapped) as reader:
                batches = map(reader.get_batch, range(reader.num_record_batches)) if is_file else reader
                yield reader.schema, (batch.slice(first, _BATCH).select(columns or batch.schema.names)
                                      for batch in batches for first in range(0, batch.num_rows, _BATCH))
    except (pa.ArrowException, OSError, UnicodeDecodeError) as problem:
        if isinstance(problem, OSError) and problem.errno is not None:  # of the operating system
            raise
        with path.open("rb") as file:
            is_pointer = file.read(20) == b"version https://git-"
        told = "a pointer of Git LFS; run `git lfs pull`" if is_pointer else str(problem).strip()
        raise ValueError(f"{path}: {told}") from problem


def _kind(type_: Any) -> Any:
    """What a type is in JSON: "text", "number", "boolean", "null", ["list", kind] or a dictionary of kinds; None: JSON
    cannot hold it."""
    from pyarrow import types

    def is_a(*names: str) -> bool:
        return any(test(type_) for name in names if (test := getattr(types, f"is_{name}", None)) is not None)

    if is_a("dictionary"):
        return _kind(type_.value_type)
    if is_a("list", "large_list", "fixed_size_list", "list_view", "large_list_view"):
        item = _kind(type_.value_type)
        return None if item is None else ["list", item]
    if is_a("struct"):
        fields = {field.name: _kind(field.type) for field in type_}
        return None if None in fields.values() else fields
    for kind, names in (("text", ("string", "large_string", "string_view")), ("number", ("integer", "floating")),
                        ("boolean", ("boolean",)), ("null", ("null",))):
        if is_a(*names):
            return kind
    return None


def _agree(a: Any, b: Any) -> bool:
    """Whether two files' kinds of a column go together."""
    if "null" in (a, b):
        return True
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_agree(a[name], b[name]) for name in a)
    if isinstance(a, list) and isinstance(b, list):
        return _agree(a[1], b[1])
    return a == b


# --- classes ----------------------------------------------------------------------------------------------------------


def _item(feature: Any) -> Any:
    """The feature of a list's items; None: the feature is not a list. [feature] is the oldest form."""
    if isinstance(feature, list):
        return feature[0] if len(feature) == 1 else None
    return feature.get("feature") if feature.get("_type") in ("Sequence", "List", "LargeList") else None


def _has_classes(feature: Any) -> bool:
    if (item := _item(feature)) is not None:
        return _has_classes(item)
    if not isinstance(feature, dict):
        return False
    return feature.get("_type") == "ClassLabel" or any(
        _has_classes(inner) for inner in feature.values() if isinstance(inner, (dict, list)))


def _named(place: str, feature: Any, value: Any) -> Any:
    """The value with names in place of the ids of its classes."""
    if value is None or not _has_classes(feature):
        return value
    if (item := _item(feature)) is not None:
        if isinstance(value, dict):  # datasets keeps a Sequence of a dictionary as a dictionary of lists
            return {name: _named(place, [item[name]], inner) for name, inner in value.items()}
        return [_named(place, item, one) for one in value]
    if isinstance(value, dict):
        return {name: _named(place, feature[name], inner) for name, inner in value.items()}
    if isinstance(value, str):
        return value
    names = feature.get("names") or []
    if value == -1:
        return None
    if not isinstance(value, int) or not 0 <= value < len(names):
        raise ValueError(f"{place} is {value}, but the {len(names)} classes have the ids from 0")
    return names[value]


def _same_classes(tables: Iterable[_Table]) -> dict[str, Any]:
    """The classes of all splits."""
    classes: dict[str, Any] = {}
    for table in tables:
        for name, feature in table.features.items():
            if classes.setdefault(name, feature) != feature:
                raise ValueError(f"column {name} has other classes in another split; convert the splits one by one")
    return classes


# --- the output -------------------------------------------------------------------------------------------------------


def _check_output(source: Path, output: Path) -> None:
    if output.resolve() == source.resolve() or source.resolve() in output.resolve().parents:
        raise ValueError(f"{output}: the output lies in the source; choose another directory")
    if output.exists() and not output.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), os.fspath(output))
    if output.is_dir() and any(output.iterdir()) and not _is_own(output):
        raise ValueError(f"{output}: the directory has files that shoal.data did not write; choose another one")


def _is_own(directory: Path) -> bool:
    """Whether the directory holds only what convert() wrote."""
    try:
        info = _read(directory / _INFO)
        return (info.get("written_by") == _MARK["written_by"]
                and {path.name for path in directory.iterdir()} <= {_INFO, *info["files"]})
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return False


@contextlib.contextmanager
def _replaced(output: Path) -> Iterator[Path]:
    """A directory that takes the place of `output` when all of its files are on the disk."""
    part, old = output.with_name(f".{output.name}.shoal-part"), output.with_name(f".{output.name}.shoal-old")
    for left in (part, old):  # of a run that was killed
        shutil.rmtree(left, ignore_errors=True)
    output.parent.mkdir(parents=True, exist_ok=True)
    part.mkdir()
    try:
        yield part
        if output.exists():
            output.rename(old)
        part.rename(output)
    finally:
        for left in (part, old):
            shutil.rmtree(left, ignore_errors=True)


@contextlib.contextmanager
def _created(path: Path) -> Iterator[TextIO]:
    """A new file that is on the disk at the end."""
    try:
        with path.open("x", encoding="utf-8", newline="\n") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
    except OSError as problem:
        if problem.filename is not None:
            raise
        raise OSError(problem.errno, problem.strerror, os.fspath(path)) from problem


def _write(table: _Table, path: Path, split: str, report: Callable[[str], None]) -> int:
    is_list = table.ending == ".json"
    rows, told = 0, time.monotonic()
    with _created(path) as file:
        file.write('{"data": [' if is_list else "")
        for place, row in table.rows():
            try:
                text = json.dumps(row, ensure_ascii=False, allow_nan=False)
            except ValueError as problem:
                raise ValueError(f"{place}: JSON cannot hold NaN and infinity; choose other columns with "
                                 "--columns") from problem
            file.write((",\n" if rows > 0 else "\n") + text if is_list else text + "\n")
            rows += 1
            if time.monotonic() - told > 5:
                told = time.monotonic()
                report(f"{split}: {rows:,} rows so far")
        file.write("\n]}\n" if is_list else "")
    report(f"{split}: {rows:,} rows")
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m shoal.data", description=__doc__.split("\n")[0])
    parser.add_argument("source", help="a .parquet or .arrow file, a directory of save_to_disk(), or a repository's copy")
    parser.add_argument("output", help="the directory for train.jsonl and so on")
    parser.add_argument("--config", help="one of several data sets in the source: mnli of glue")
    parser.add_argument("--columns", help="the columns to write, with commas; default: all",
                        type=lambda text: [name.strip() for name in text.split(",")])
    parser.add_argument("--json", action="store_true", help="print the files and their rows as JSON")
    given = parser.parse_args(arguments)
    try:
        written = convert(given.source, given.output, config=given.config, columns=given.columns,
                          report=lambda line: print(line, file=sys.stderr))
    except (ValueError, OSError, ImportError) as problem:
        print(f"shoal.data: {problem}", file=sys.stderr)
        # The programs' statuses: docs/reference/exit-status.md.
        return 3 if isinstance(problem, (ValueError, FileNotFoundError)) else 4 if isinstance(problem, OSError) else 2
    print(f"next: `shoal train --data {given.output} --task TASK ...`", file=sys.stderr)
    if given.json:
        print(json.dumps({split: {"file": os.fspath(one.path), "rows": one.rows} for split, one in written.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
