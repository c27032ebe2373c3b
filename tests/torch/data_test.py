"""shoal.data: data sets in Parquet and Arrow files become the files that `shoal train` reads."""
import contextlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
import tracemalloc
import unittest
from pathlib import Path
from unittest import mock

from shoal import data

if importlib.util.find_spec("pyarrow") is None:
    print("pyarrow is not installed")
    sys.exit(77)

import pyarrow as pa
import pyarrow.parquet as pq

PROGRAM = os.environ["SHOAL_PROGRAM"]
MNLI = ["entailment", "neutral", "contradiction"]
TEXT = {"dtype": "string", "_type": "Value"}


def table_of(rows, features=None):
    """A table with the metadata that `datasets` 5 writes."""
    table = pa.Table.from_pylist(rows)
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})}) if features else table


def questions(count):
    return [{"id": f"q{i}", "title": "T", "context": f"It was {i} o'clock.\nThen “it” ended.", "question": "When?",
             "answers": {"text": [f"{i} o'clock"], "answer_start": [7]}} for i in range(count)]


def write(path, table):
    """In the form of the file's ending, or as `datasets` writes .arrow: a stream."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


class Data(unittest.TestCase):
    def setUp(self):
        self.directory = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.source, self.output = self.directory / "source", self.directory / "output"

    def write_saved(self, split, tables, root=None):
        """As save_to_disk() does."""
        names = [f"data-{i:05}-of-{len(tables):05}.arrow" for i in range(len(tables))]
        for name, table in zip(names, tables, strict=True):
            write((root or self.source / split) / name, table)
        ((root or self.source / split) / "state.json").write_text(
            json.dumps({"_data_files": [{"filename": name} for name in names], "_split": split}))

    def train(self, *options):
        config = self.directory / "config.json"
        config.write_text(json.dumps({"model_type": "bert", "vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 1,
                                      "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 64}))
        vocabulary = self.directory / "vocab.txt"
        vocabulary.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz0123456789'.?"]))
        return subprocess.run(
            [PROGRAM, "train", "--config_name", config, "--tokenizer_name", vocabulary, "--output_dir", self.directory / "run",
             "--overwrite_output_dir", "true", "--max_steps", "1", "--max_seq_length", "32", "--doc_stride", "8", "--do_train",
             "true", "--do_eval", "true", "--per_device_train_batch_size", "2", *options], capture_output=True, text=True)

    def assert_trains(self, *options):
        run = self.train("--data", self.output, *options)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)

    # What is read.

    def test_a_repository_of_questions_trains(self):
        write(self.source / "plain_text" / "train-00000-of-00002.parquet", table_of(questions(5)[:3]))
        write(self.source / "plain_text" / "train-00001-of-00002.parquet", table_of(questions(5)[3:]))
        write(self.source / "plain_text" / "validation-00000-of-00001.parquet", table_of(questions(2)))
        written = data.convert(self.source, self.output)
        self.assertEqual(written, {"train": (self.output / "train.json", 5), "validation": (self.output / "validation.json", 2)})
        self.assertEqual(json.loads((self.output / "train.json").read_text(encoding="utf-8")), {"data": questions(5)})
        self.assert_trains("--dataset_name", "squad", "--doc_stride", "8")

    def test_classes_are_written_by_name(self):
        features = {"premise": TEXT, "hypothesis": TEXT, "label": {"names": MNLI, "_type": "ClassLabel"}}
        rows = [{"premise": "a", "hypothesis": "b", "label": i % 3} for i in range(6)]
        for split in ("train", "validation_matched", "validation_mismatched"):
            write(self.source / "mnli" / f"{split}-00000-of-00001.parquet", table_of(rows, features))
        for split in ("test_matched", "test_mismatched"):
            write(self.source / "mnli" / f"{split}-00000-of-00001.parquet", table_of([rows[0] | {"label": -1}], features))
        write(self.source / "ax" / "test-00000-of-00001.parquet", table_of(rows, features))
        with self.assertRaisesRegex(ValueError, r"several data sets \(ax, mnli\)"):
            data.convert(self.source, self.output)
        with self.assertRaisesRegex(ValueError, "no data set cola; there are ax, mnli"):
            data.convert(self.source, self.output, config="cola")
        data.convert(self.source, self.output, config="mnli")
        self.assertEqual([row["label"] for row in lines(self.output / "train.jsonl")], MNLI * 2)
        self.assertEqual(lines(self.output / "test_matched.jsonl"), [rows[0] | {"label": None}])
        info = json.loads((self.output / "dataset_info.json").read_text())
        self.assertEqual(info["features"]["label"]["names"], MNLI)
        self.assert_trains("--task_name", "mnli")

    def test_every_data_set_of_glue_trains(self):
        def classes(*names):
            return {"names": names, "_type": "ClassLabel"}
        entailment = classes("entailment", "not_entailment")
        # As in the Hub's copy of GLUE; MNLI is in the test above.
        sets = {"cola": (("sentence",), classes("unacceptable", "acceptable"), "matthews_correlation"),
                "sst2": (("sentence",), classes("negative", "positive"), "accuracy"),
                "mrpc": (("sentence1", "sentence2"), classes("not_equivalent", "equivalent"), "f1"),
                "qqp": (("question1", "question2"), classes("not_duplicate", "duplicate"), "f1"),
                "stsb": (("sentence1", "sentence2"), {"dtype": "float32", "_type": "Value"}, "pearson"),
                "qnli": (("question", "sentence"), entailment, "accuracy"),
                "rte": (("sentence1", "sentence2"), entailment, "accuracy"),
                "wnli": (("sentence1", "sentence2"), classes("not_entailment", "entailment"), "accuracy")}
        for name, (texts, label, metric) in sets.items():
            features = {text: TEXT for text in texts} | {"label": label, "idx": {"dtype": "int32", "_type": "Value"}}
            values = [0, 1, 1, 0] if "names" in label else [0.0, 5.0, 2.5, 3.8]
            rows = [{text: f"the {text} is {i}." for text in texts} | {"label": value, "idx": i} for i, value in enumerate(values)]
            for split in ("train", "validation", "test"):
                hidden = [row | {"label": -1 if "names" in label else -1.0} for row in rows]
                write(self.source / name / f"{split}-00000-of-00001.parquet",
                      table_of(hidden if split == "test" else rows, features))
        for name, (_, label, metric) in sets.items():
            with self.subTest(name):
                data.convert(self.source, self.output, config=name)
                written = [row["label"] for row in lines(self.output / "train.jsonl")]
                self.assertEqual(set(written), set(label.get("names", (0.0, 5.0, 2.5, 3.8))))
                self.assert_trains("--task_name", name, "--max_steps", "2")
                results = json.loads((self.directory / "run/eval_results.json").read_text())
                self.assertIn(f"eval_{metric}", results)

    def test_wikitext_trains_both_kinds_of_language_models(self):
        texts = ["", " = a title = \n", "", *(f" the {i} words of a text . \n" for i in range(40))]
        for split in ("train", "validation", "test"):
            write(self.source / "wikitext-2-raw-v1" / f"{split}-00000-of-00001.parquet",
                  table_of([{"text": text} for text in texts], {"text": TEXT}))
        data.convert(self.source, self.output, config="wikitext-2-raw-v1")
        decoder = self.directory / "decoder.json"
        decoder.write_text(json.dumps({"model_type": "gpt2", "vocab_size": 64, "n_embd": 16, "n_layer": 1, "n_head": 2,
                                       "n_positions": 64}))
        for options, task in ((), "masked-lm"), (("--config_name", decoder, "--block_size", "32"), "causal-lm"):
            with self.subTest(task):
                run = self.train("--data", self.output, "--dataset_name", "wikitext", "--max_steps", "2", *options)
                self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
                self.assertIn(task, run.stdout + run.stderr)
                results = json.loads((self.directory / "run/eval_results.json").read_text())
                self.assertIn("eval_perplexity", results)

    def test_lists_of_classes_in_every_form(self):
        tags = {"names": ["O", "B-PER"], "_type": "ClassLabel"}
        for form in ({"feature": tags, "_type": "List"}, {"feature": tags, "length": -1, "_type": "Sequence"}, [tags]):
            rows = [{"tokens": ["ann", "ran"], "ner_tags": [1, 0]}] * 4
            for split in ("train", "validation"):
                write(self.source / "conll2003" / split / "0000.parquet", table_of(rows, {"ner_tags": form}))
            data.convert(self.source, self.output)
            self.assertEqual(lines(self.output / "train.jsonl"), [{"tokens": ["ann", "ran"], "ner_tags": ["B-PER", "O"]}] * 4)
        self.assert_trains("--dataset_name", "conll2003")

    def test_save_to_disk(self):
        (self.source / "train").mkdir(parents=True)
        (self.source / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
        rows = [{"sentence": str(i), "score": i / 4} for i in range(3000)]
        self.write_saved("train", [table_of(rows[:1000]), table_of(rows[1000:])])
        self.write_saved("test", [table_of(rows[:1])])
        data.convert(self.source, self.output)
        self.assertEqual(lines(self.output / "train.jsonl"), rows)
        self.assertEqual(lines(self.output / "test.jsonl"), rows[:1])

    def test_one_split_of_save_to_disk_and_arrow_files(self):
        self.write_saved("validation", [table_of([{"a": 1}])], root=self.source)
        self.assertEqual(list(data.convert(self.source, self.output)), ["validation"])
        with pa.ipc.new_file(self.directory / "squad-train.arrow", pa.schema([("a", pa.int64())])) as writer:
            writer.write_table(table_of([{"a": 2}]))
        self.assertEqual(list(data.convert(self.directory / "squad-train.arrow", self.output)), ["train"])
        self.assertEqual(lines(self.output / "train.jsonl"), [{"a": 2}])

    def test_names_of_files_give_splits(self):
        for path, split in (("data/train-00000-of-00002.parquet", "train"), ("train-00000-of-00001-a09b74b3ef9c3b56.parquet", "train"),
                            ("data/val-00000-of-00001.parquet", "validation"), ("newstest2014-00000-of-00001.parquet", "newstest2014"),
                            ("c/unsupervised-00000-of-00001.parquet", "unsupervised"), ("test-clean.parquet", "test"),
                            ("train.clean.100-00000-of-00001.parquet", "train.clean.100"), ("train_sft.parquet", "train_sft"),
                            ("validation_matched.parquet", "validation_matched"), ("squad-train.arrow", "train"),
                            ("wikitext-train-00000-of-00002.arrow", "train"), ("default/train/0000.parquet", "train"),
                            ("default/partial-challenge/0000.parquet", "challenge"), ("data/test/part-0.parquet", "test"),
                            ("dev.parquet", "validation"), ("rows.parquet", ""), ("constraint.parquet", "")):
            with self.subTest(path):
                self.assertEqual(data._split_of(Path(path))[0], split)

    def test_splits_and_data_sets_stay_apart(self):
        one = [{"a": 1}]
        for files, config, wanted in (
                (("data/train-00000-of-00001-a09b74b3.parquet", "data/test-00000-of-00001-a09b74b3.parquet"), None, {"train", "test"}),
                (("train/a.parquet", "test/a.parquet"), None, {"train", "test"}),
                (("data/train/part-0.parquet", "data/test/part-0.parquet"), None, {"train", "test"}),
                (("data/en/train-0-of-1.parquet", "data/de/test-0-of-1.parquet"), "en", {"train"}),
                (("data/en/train-0-of-1.parquet", "data/de/test-0-of-1.parquet"), None, "several data sets (data/en, data/de|de, en)"),
                (("data/train-0-of-1.parquet", "en/test-0-of-1.parquet"), "data", {"train"}),
                (("data/train-0-of-1.parquet",), "mnli", "no data set mnli; there are data"),
                (("train.parquet", "rows.parquet"), None, "rows.parquet: its name has no split"),
                (("train.parquet", "cache-1234.arrow", ".cache/x.parquet"), None, {"train"}),
                (("snapshots/h1/a/train-0-of-1.parquet", "snapshots/h1/b/train-0-of-1.parquet"), None, "several data sets")):
            with self.subTest(files=files, config=config), tempfile.TemporaryDirectory() as directory:
                for name in files:
                    write(Path(directory) / name, table_of(one))
                if isinstance(wanted, str):
                    with self.assertRaisesRegex(ValueError, wanted.split("|")[0].split("(")[0]):
                        data.convert(directory, self.output, config=config)
                else:
                    self.assertEqual(set(data.convert(directory, self.output, config=config)), wanted)

    def test_shards_are_in_the_order_of_their_numbers(self):
        for i in range(11):
            write(self.source / f"train-{i}-of-11.parquet", table_of([{"a": i}]))
        data.convert(self.source, self.output)
        self.assertEqual([row["a"] for row in lines(self.output / "train.jsonl")], list(range(11)))

    def test_a_text_stays_one_document(self):
        texts = [" = Title = \n", "", "two\nlines\r\nand \u2028 é", "word " * 40]
        write(self.source / "data" / "train-00000-of-00001.parquet", table_of([{"text": text} for text in texts]))
        data.convert(self.source, self.output)
        written = (self.output / "train.jsonl").read_bytes().split(b"\n")
        self.assertEqual([json.loads(line)["text"] for line in written[:-1]], texts)
        self.assert_trains("--task", "masked-lm", "--validation_split_percentage", "0", "--do_eval", "false")

    def test_types_of_other_libraries(self):
        words = pa.array(["a", None, "a"])
        write(self.source / "train.parquet", pa.table({"x": words.dictionary_encode(), "y": words.cast(pa.large_string()),
                                                       "z": pa.array([1, 2, 3], pa.uint8())}))
        data.convert(self.source, self.output)
        self.assertEqual(lines(self.output / "train.jsonl")[:2], [{"x": "a", "y": "a", "z": 1}, {"x": None, "y": None, "z": 2}])

    def test_some_columns(self):
        write(self.source / "train.parquet", pa.table({"text": ["a"], "image": [b"\xff"]}))
        with self.assertRaisesRegex(ValueError, r"JSON cannot hold the type of image \(binary\)"):
            data.convert(self.source, self.output)
        data.convert(self.source, self.output, columns=["text"])
        self.assertEqual(lines(self.output / "train.jsonl"), [{"text": "a"}])
        with self.assertRaisesRegex(ValueError, "no column label; there are text, image"):
            data.convert(self.source, self.output, columns=["label"])

    def test_rows_are_read_in_batches(self):
        schema = pa.schema([("body", pa.string())])
        with pq.ParquetWriter(self.directory / "train.parquet", schema) as writer:
            for i in range(1000):
                writer.write_table(pa.table({"body": [f"{i} {'x' * 10**5}"]}, schema))
        peak = pa.default_memory_pool().max_memory()
        tracemalloc.start()
        data.convert(self.directory / "train.parquet", self.output)
        self.assertLess(tracemalloc.get_traced_memory()[1], 32 * 2**20)
        tracemalloc.stop()
        self.assertLess(pa.default_memory_pool().max_memory() - peak, 32 * 2**20)
        self.assertGreater((self.output / "train.jsonl").stat().st_size, 100 * 10**6)

    def test_classes_inside_structures(self):
        tag = {"names": ["no", "yes"], "_type": "ClassLabel"}
        features = {"s": {"a": tag, "b": TEXT}, "q": {"feature": {"a": tag}, "_type": "Sequence"}, "l": [{"a": tag}]}
        write(self.source / "train.parquet", table_of([{"s": {"a": 1, "b": "x"}, "q": {"a": [0, 1]}, "l": [{"a": 1}]}], features))
        data.convert(self.source, self.output)
        self.assertEqual(lines(self.output / "train.jsonl"), [{"s": {"a": "yes", "b": "x"}, "q": {"a": ["no", "yes"]}, "l": [{"a": "yes"}]}])

    # What is refused.

    def test_files_with_other_classes(self):
        names = {"names": MNLI, "_type": "ClassLabel"}
        write(self.source / "train-0-of-2.parquet", table_of([{"label": 0}], {"label": names}))
        for other in ({"label": names | {"names": MNLI[::-1]}}, None):
            write(self.source / "train-1-of-2.parquet", table_of([{"label": 0}], other))
            with self.assertRaisesRegex(ValueError, "train-1-of-2.parquet: its classes differ"):
                data.convert(self.source, self.output)
        (self.source / "train-1-of-2.parquet").rename(self.source / "test-0-of-1.parquet")
        write(self.source / "test-0-of-1.parquet", table_of([{"label": 0}], {"label": names | {"names": MNLI[::-1]}}))
        with self.assertRaisesRegex(ValueError, "other classes in another split"):
            data.convert(self.source, self.output)

    def test_directories_of_others_stay(self):
        write(self.source / "train.parquet", table_of([{"a": 1}]))
        for output in (self.source, self.source / "below"):
            with self.assertRaisesRegex(ValueError, "lies in the source"):
                data.convert(self.source, output)
        self.output.mkdir()
        (self.output / "mine.txt").touch()
        with self.assertRaisesRegex(ValueError, "files that shoal.data did not write"):
            data.convert(self.source, self.output)
        (self.output / "mine.txt").unlink()
        data.convert(self.source, self.output)
        (self.output / "added.txt").touch()
        with self.assertRaisesRegex(ValueError, "files that shoal.data did not write"):
            data.convert(self.source, self.output)
        (self.output / "added.txt").unlink()
        (self.source / "train.parquet").rename(self.source / "test.parquet")
        data.convert(self.source, self.output)
        self.assertEqual(sorted(path.name for path in self.output.iterdir()), ["dataset_info.json", "test.jsonl"])

    def test_bad_values_are_named_by_row(self):
        write(self.source / "train.parquet", pa.table({"score": [1.0, float("nan")]}))
        with self.assertRaisesRegex(ValueError, "train.parquet, row 2: JSON cannot hold NaN"):
            data.convert(self.source, self.output)
        write(self.source / "train.parquet", table_of([{"label": 0}, {"label": 3}], {"label": {"names": MNLI, "_type": "ClassLabel"}}))
        with self.assertRaisesRegex(ValueError, "row 2: label is 3, but the 3 classes"):
            data.convert(self.source, self.output)

    def test_a_failure_leaves_the_old_directory(self):
        for split in ("train", "validation"):
            write(self.source / f"{split}.parquet", pa.table({"a": [1.0]}))
        data.convert(self.source, self.output)
        write(self.source / "train.parquet", pa.table({"a": [2.0]}))
        write(self.source / "validation.parquet", pa.table({"a": [float("inf")]}))
        with self.assertRaisesRegex(ValueError, "JSON cannot hold NaN"):
            data.convert(self.source, self.output)
        self.assertEqual(lines(self.output / "train.jsonl"), [{"a": 1.0}])
        self.assertEqual(sorted(path.name for path in self.directory.iterdir()), ["output", "source"])

    def test_damaged_files_and_other_columns(self):
        (self.directory / "train.parquet").write_bytes(b"PAR1 and no more")
        (self.directory / "test.arrow").write_bytes(b"nothing of Arrow's")
        (self.directory / "lfs.parquet").write_text("version https://git-lfs.github.com/spec/v1\n")
        with self.assertRaisesRegex(ValueError, "git lfs pull"):
            data.convert(self.directory / "lfs.parquet", self.output)
        for name in ("train.parquet", "test.arrow"):
            with self.assertRaisesRegex(ValueError, name):
                data.convert(self.directory / name, self.output)
        write(self.source / "train-0-of-2.parquet", table_of([{"a": 1}]))
        write(self.source / "train-1-of-2.parquet", table_of([{"a": "x"}]))
        with self.assertRaisesRegex(ValueError, "train-1-of-2.parquet: column a is of type string, unlike in"):
            data.convert(self.source, self.output)
        write(self.source / "train-1-of-2.parquet", table_of([{"b": 1}]))
        with self.assertRaisesRegex(ValueError, "train-1-of-2.parquet: its columns are b, but"):
            data.convert(self.source, self.output)

    def test_no_data_set(self):
        self.source.mkdir()
        with self.assertRaisesRegex(ValueError, "no .parquet or .arrow files"):
            data.convert(self.source, self.output)
        with self.assertRaisesRegex(FileNotFoundError, "nothing is downloaded"):
            data.convert(self.directory / "squad", self.output)
        (self.directory / "rows.csv").touch()
        with self.assertRaisesRegex(ValueError, "neither a .parquet nor an .arrow file"):
            data.convert(self.directory / "rows.csv", self.output)

    def test_without_pyarrow(self):
        with mock.patch.dict(sys.modules, pyarrow=None), self.assertRaisesRegex(ImportError, r'pip install "shoal\[data\]"'):
            data.convert(self.source, self.output)

    # The command, and the programs.

    def test_command(self):
        write(self.source / "train.parquet", table_of([{"text": "a"}]))
        out, said = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(said):
            self.assertEqual(data.main([str(self.source), str(self.output), "--json"]), 0)
            self.assertEqual(data.main([str(self.directory / "none"), str(self.output)]), 3)
            (self.directory / "file").touch()
            self.assertEqual(data.main([str(self.source), str(self.directory / "file")]), 4)
        self.assertEqual(json.loads(out.getvalue()), {"train": {"file": str(self.output / "train.jsonl"), "rows": 1}})
        self.assertIn("train: 1 rows", said.getvalue())

    def test_training_names_the_command(self):
        write(self.source / "train.parquet", table_of(questions(1)))
        for options in (["--train_file", self.source / "train.parquet", "--task", "masked-lm"],
                        ["--data", self.source, "--dataset_name", "squad"], ["--data", self.source, "--task_name", "mnli"]):
            run = self.train(*options)
            self.assertEqual(run.returncode, 2 if options[0] == "--train_file" else 3)
            self.assertRegex(run.stderr, "Parquet or Arrow file.*run `python -m shoal.data '.*source.*' DIRECTORY`, and train")


if __name__ == "__main__":
    unittest.main()
