#!/usr/bin/env python3
"""Writes tests/golden/records.json: small files, and the rows that Python's csv module, pandas and Hugging Face's
`datasets` read in them.

csv    CSV with a header: pandas' values, which csv (but for blank lines) and `datasets` must share; null: pandas refuses it
rows   random CSV of two columns: the rows of two fields that csv reads, the rest left out
tsv    GLUE's reading: a text file of Python, csv without quotation
json   .json and .jsonl: what `datasets` reads; null: it refuses the file
text   lines as `datasets`' text loader gives them to run_clm (keep_linebreaks)
spaces the characters that Python's str.rstrip() and Rust's trim() (of `tokenizers`) remove
fields the columns and rows that `datasets` reads from JSON records with different fields
uses   JSON records and CSV as run_glue and run_ner use them: a text, a label, words, tags; null: the tokenizer or the
       sorting of the classes refuses the values; "scores": the labels are floating-point numbers
tags   CoNLL's columns as the loading script of conll2003 reads them: columns split at spaces, the tag without later text

Needs the packages `datasets`, `pandas`, `tokenizers` and `transformers`. Deterministic.
"""
import argparse
import csv
import io
import json
import os
import pathlib
import random
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
import datasets  # noqa: E402
import pandas  # noqa: E402
import tokenizers  # noqa: E402
import transformers  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

CSV = {
    "marks within fields": 'a,b\na 12" ruler, new\nx,"y"\na 12" z,1\n',
    "text behind a quotation": 'a,b\n"x"y,1\n"x" ,2\n"x""y"z"w,3\n',
    "doubled marks": 'a,b\n"",2\n"""",3\n"a ""b"", c",4\n',
    "a blank before a mark": 'a,b\nk, "x"\n z",2\n',
    "\\r": "a,b\r1,2\r3,4\r",
    "\\r\\n": 'a,b\r\n1,2\r\n3,"4"',
    "all ends": "a,b\r1,2\n3,4\r\n5,6\n",
    "ends within a quotation": 'a,b\n"x\ry",2\n"x\r\ny",3\n"x\n\ny",4\n',
    "blank lines": 'a,b\n\n1,2\n  \n\r\n3,4\n\t\n',
    "byte order mark": '\ufeff"a",b\n1,2\n',
    "\\r\\r\\n": "a,b\r\r\n1,2\r\r\n",
    "other separators of lines": "a,b\n1,x\x0cy\n2,x\u2028y\n3,x\x85y\n4,x\x0by\n5,x\x1cy\n",
    "NUL": "a,b\n1,x\0y\n",
    "one column": 'a\n"x, y"\nz"\n""\n"\n"\n',
    "a quotation that does not end": 'a,b\n1,"2\n3,4\n',
}
TSV = {
    "marks": 'a\tb\n"it\'s\t1\nx "y"\t2\n',
    "\\r": "a\tb\r1\t2\r3\t4",
    "all ends": "a\tb\r1\t2\n3\t4\r\n5\t6\n",
    "blank lines": "a\tb\n\n1\t2\n\r\n\t\n",
    "byte order mark": "\ufeffa\tb\n1\t2\n",
}
JSON = [
    ("a.jsonl", '{"a": "x"}\n{"a": "y"}\n'), ("a.json", '{"a": "x"}\n{"a": "y"}\n'),
    ("a.jsonl", '{"a": "x"}\r{"a": "y"}\r'), ("a.jsonl", '{"a": "x"}\r\n\r\n{"a": "y"}\r\n'),
    ("a.jsonl", '\ufeff{"a": "x"}\n{"a": "y"}'), ("a.json", '[{"a": "x"}, {"a": "y"}]'),
    ("a.json", '\ufeff[{"a": "x"}]'), ("a.json", ' \r\n[\n  {\n    "a": "x, ]}\\"[{"\n  },\n  {"a": "\\\\"}\n]\n'),
    ("a.json", '[{"a": "x"}, {"b": "y"}]'), ("a.json", '[{"a": ["A", "b"], "b": [1, 2]},{"a": [], "b": []}]'),
    ("a.json", '[{"a": {"b": "]"}}]'), ("a.json", '[{"a": "x"},]'), ("a.json", '[{"a": "x"}] z'),
    ("a.json", '[{"a": "x"}'), ("a.json", '[{"a": "x"}]\n[{"a": "y"}]\n'), ("a.json", '[{"a": "x"}]\n{"a": "y"}\n'),
    ("a.json", '[{"a": "x"} {"a": "y"}]'), ("a.json", '[,{"a": "x"}]'),
    *((name, text) for name in ("a.json", "a.jsonl") for text in (
        '{\n  "a": "x"\n}\n{\n  "a": "y"\n}\n', '{"a": "x"}{"a": "y"}', '{"a": "x"} {"a": "y"}\n{"a": "z"}\n',
        '{\n"a": [1,\n2]\n}\n\n {"a": [3]} \n', '{"a": "}{"}\n{"a": "} {"}', '{"a": "x"\n}{\n"a": "y"}',
        '{"a": "x"},\n{"a": "y"}', '{"a": "x"}\n\n{\r\n"a":\r"y"}\n', '{"a": "x"}\n{"a":\n"y"}\n', '{"a": "x"}\n[{"a": "y"}]',
        '{"a": "x"\n{"a": "y"}\n', '{"a": "x\n"}\n', '{"a": "x"]}\n')),
    ("a.json", '["x", "y"]'), ("a.json", '["x",\n"y, ]\\""]'), ("a.json", '[["x", "y"], []]'), ("a.json", '["x", null, "z"]'),
    ("a.json", '["x"]\n["y"]'), ("a.json", '["x" "y"]'), ("a.json", '[{"a": "x"}, "y"]'), ("a.json", '[1, 2]'),
]
TEXT = ["a\nb\n", "a\rb\r\nc\n\nd", "a\r\rb\r\n\r\nc", "a\x0cb\u2028c\x85d\x0be\x1cf\n", "\ufeffa\n  \n\n", "\r", "\n\r", "a\r\n"]
FIELDS = ['{"a": "x", "b": null}\n{"a": "y", "b": "z"}\n', '{"a": "x"}\n{"a": "y", "b": "z"}\n',
          '{"c": 1}\n{"a": "y"}\n{"b": 2}\n',
          '{"a": ["x"]}\n{"b": {"c": 1}}\n']
USES = [
    *(("text", "a.jsonl", f'{{"v": {one}}}\n{{"v": {other}}}\n') for one, other in (
        ('"x"', '""'), ('1', '2'), ('1.5', '2.5'), ('true', 'false'), ('"x"', 'null'), ('{"a": 1}', '{"a": 2}'), ('"x"', '1'),
        ('"x"', '{"a": 1}'), ('"x"', '["x"]'))),
    *(("label", "a.jsonl", "".join(f'{{"t": "x", "v": {one}}}\n' for one in values.split())) for values in (
        '"b" "a" "b"', "1 0 10 9", '"1" "0" "10" "9"', "0.5 1", "1.0 0", '"0.5" "1"', "true false", '"a" null', '"a" 1', "[1] [0]",
        '{"a":1} {"a":2}', '"01" "1"', "-1 1")),
    *(("label", "a.csv", "t,v\n" + "".join(f"x,{one}\n" for one in values)) for values in (
        ("01", "1", "+1", "-0", "0", " 1", "1 "), ("01", "b"), ("10", "9", "1"), ("0.5", "1"), (" 0.5", "+1.5"), ("+01", "+2"),
        ("-01", "-1", "2"), ("a", " a"))),
    *(("words", "a.jsonl", f'{{"v": {words}}}\n') for words in (
        '["a", "b"]', '["a", null]', '["a", 1]', '["a", ["b"]]', '["a", {"x": 1}]', '["a", true]', '[1, 2]')),
    *(("tags", "a.jsonl", f'{{"t": {json.dumps(["w"] * len(json.loads(tags)))}, "v": {tags}}}\n') for tags in (
        '["O", "B-X"]', '["O", null]', "[10, 9, 0]", '["O", {"x": 1}]', '["O", ["x"]]', "[[1]]", "[true, false]", "[null, 1]", '["O", 1]')),
]
TAGS = ["EU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\nPeter B-PER\n", "EU B-ORG \r\nrejects O\t\r\n\r\nPeter B-PER  \r\n",
        "EU B-ORG\rrejects O\r\rPeter B-PER", "-DOCSTART- -X- O O\n\nEU B-ORG\u00a0\nrejects O\u3000 \n"]


def read(loader, name, data, **options):
    """The rows that `datasets` reads, or None."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, name)
        path.write_bytes(data)
        try:
            rows = datasets.load_dataset(loader, data_files=str(path), cache_dir=folder + "/cache", **options)["train"]
            return rows.column_names, rows.to_list()
        except Exception:
            return None


def csv_case(name, text):
    case = {"name": name, "text": text, "columns": None, "rows": None}
    data = text.encode()
    try:
        frame = pandas.read_csv(io.BytesIO(data), dtype=str, keep_default_na=False)
    except pandas.errors.ParserError:
        return case
    case["columns"], case["rows"] = list(frame.columns), frame.values.tolist()
    plain = [row for row in csv.reader(io.StringIO(text.lstrip("\ufeff"), newline="")) if row and ",".join(row).strip(" \t")]
    if name != "one column":  # csv reads a quoted blank as pandas does, but this filter cannot tell
        assert plain == [case["columns"]] + case["rows"], name
    features = datasets.Features({column: datasets.Value("string") for column in case["columns"]})
    rows = read("csv", "a.csv", data, features=features, keep_default_na=False)[1]
    assert [list(row.values()) for row in rows] == case["rows"], name
    return case


def random_rows(generator):
    cases = []
    while len(cases) < 150:
        text = "".join(generator.choice('ab",,""\n\r ') for _ in range(generator.randrange(4, 40)))
        try:
            pandas.read_csv(io.StringIO(text, newline=""), header=None, names=range(40), dtype=str)
        except (pandas.errors.ParserError, pandas.errors.EmptyDataError):
            continue  # an unterminated quotation
        rows = [row for row in csv.reader(io.StringIO(text, newline="")) if len(row) == 2]
        if rows:
            cases.append({"text": text, "rows": rows})
    return cases


def tsv_case(name, text):
    with tempfile.NamedTemporaryFile(suffix=".tsv") as file:
        pathlib.Path(file.name).write_bytes(text.encode())
        with open(file.name, encoding="utf-8-sig") as lines:
            rows = [row for row in csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE) if row]
    return {"name": name, "text": text, "columns": rows[0], "rows": rows[1:]}


def json_case(name, text):
    result = read("json", name, text.encode())
    rows = result and [{key: value for key, value in row.items() if value is not None} for row in result[1]]
    return {"name": name, "text": text, "rows": rows}


def fields_case(text):
    columns, rows = read("json", "a.jsonl", text.encode())
    rows = [{key: value for key, value in row.items() if value is not None} for row in rows]
    return {"text": text, "columns": columns, "rows": rows}


def used(use, values, tokenizer):
    """The values that run_glue and run_ner use for a column."""
    if use == "text":
        tokenizer(values)
        return values
    if use == "words":
        tokenizer(values, is_split_into_words=True)
        return values
    labels = set(values) if use == "label" else set().union(*(set(tags) for tags in values))
    if use == "label" and all(isinstance(label, float) for label in labels):
        return "scores"
    labels = sorted(labels)  # raises for values without an order
    assert not any(isinstance(label, (list, dict)) for label in labels)
    return [label if isinstance(label, str) else json.dumps(label) for label in labels]


def use_case(use, name, text):
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(ROOT / "tests/golden/tokenizer/word_piece.json"))
    rows = read("csv" if name.endswith("csv") else "json", name, text.encode())
    try:
        values = used(use, [row["v"] for row in rows[1]], tokenizer)
    except Exception:
        values = None
    return {"use": use, "name": name, "text": text, "values": values}


def spaces():
    characters = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    strip = tokenizers.normalizers.Strip()
    return [{"python": [ord(c) for c in characters if ("x" + c).rstrip() == "x"],
             "rust": [ord(c) for c in characters if strip.normalize_str("x" + c) == "x"]}]


def tags_case(text):
    sentences, words, tags = [], [], []
    with tempfile.NamedTemporaryFile(suffix=".txt") as file:
        pathlib.Path(file.name).write_bytes(text.encode())
        with open(file.name, encoding="utf-8") as lines:
            for line in lines:
                if line.startswith("-DOCSTART-") or line == "" or line == "\n":
                    if words:
                        sentences.append([words, tags])
                        words, tags = [], []
                else:
                    columns = line.rstrip().split(" ")
                    words.append(columns[0])
                    tags.append(columns[-1].rstrip())
            if words:
                sentences.append([words, tags])
    return {"text": text, "sentences": sentences}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", default=str(ROOT / "tests/golden/records.json"))
    datasets.disable_progress_bars()
    cases = {
        "csv": [csv_case(*case) for case in CSV.items()],
        "rows": random_rows(random.Random(25)),
        "tsv": [tsv_case(*case) for case in TSV.items()],
        "json": [json_case(*case) for case in JSON],
        "text": [{"text": text, "lines": [row["text"] for row in read("text", "a.txt", text.encode(), keep_linebreaks=True)[1]]}
                 for text in TEXT],
        "fields": [fields_case(text) for text in FIELDS],
        "uses": [use_case(*case) for case in USES],
        "tags": [tags_case(text) for text in TAGS],
        "spaces": spaces(),
    }
    output = parser.parse_args().output
    parts = [f'"{name}": [\n' + ",\n".join(json.dumps(case) for case in part) + "]" for name, part in cases.items()]
    pathlib.Path(output).write_text("{" + ",\n".join(parts) + "}\n")  # a case a line


if __name__ == "__main__":
    main()
