"""shoal.train() and shoal.generate() do within a process the same as the programs."""
import contextlib
import importlib.util
import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
import unittest
import unittest.mock

import shoal

if importlib.util.find_spec("shoal._native") is None:
    print("built without pybind11 for this Python")
    sys.exit(77)

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
PROGRAM = os.environ["SHOAL_PROGRAM"]
TIMES = ("runtime", "per_second", "_mfu")  # in names of metrics that differ between equal runs


def without_times(metrics):
    return {name: value for name, value in metrics.items() if not name.endswith(TIMES)}


class Native(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.directory = pathlib.Path(scratch.name)
        (self.directory / "tokenizer").mkdir()
        (self.directory / "tokenizer" / "tokenizer.json").write_bytes(
            (GOLDEN / "tokenizer" / "plain.json").read_bytes())

    def options(self, name, **more):
        text = str(GOLDEN / "tokenizer" / "genesis.txt")
        return {"model_type": "gpt2", "config_overrides": "n_layer=1,n_embd=16,n_head=2,n_positions=32",
                "tokenizer_name": self.directory / "tokenizer", "train_file": text, "validation_file": text,
                "output_dir": self.directory / name, "block_size": 32, "max_steps": 3, "do_train": True,
                "do_eval": True, "per_device_train_batch_size": 2, "save_strategy": "no", "seed": 1, **more}

    def trained(self, options):
        """The metrics and the printed text."""
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            metrics = shoal.train(options)
        return metrics, printed.getvalue()

    def test_equals_the_programs(self):
        metrics, printed = self.trained(self.options("here"))
        self.assertEqual(metrics, json.loads((self.directory / "here" / "all_results.json").read_text()))
        for name in ("train_loss", "train_runtime", "eval_loss"):
            self.assertGreater(metrics[name], 0)
        self.assertIn("'train_loss'", printed)
        path = self.directory / "options.json"
        path.write_text(json.dumps(self.options("there"), default=str))
        subprocess.run([PROGRAM, "train", path], check=True, capture_output=True)
        theirs = json.loads((self.directory / "there" / "all_results.json").read_text())
        self.assertEqual(without_times(metrics), without_times(theirs))
        weights = "model.safetensors"
        self.assertEqual((self.directory / "here" / weights).read_bytes(),
                         (self.directory / "there" / weights).read_bytes())
        for how in ({"greedy": True}, {"seed": 7, "temperature": 0.8, "top_k": 0, "top_p": 0.9}):
            text = shoal.generate(self.directory / "here", "In the", max_new_tokens=8, **how)
            words = [word for name, value in how.items()
                     for word in ([f"--{name}"] if value is True else [f"--{name}", str(value)])]
            said = subprocess.run([PROGRAM, "generate", "--model", self.directory / "here", "--prompt", "In the",
                                   "--max-new-tokens", "8", *words], check=True, capture_output=True).stdout
            self.assertEqual(text + "\n", said.decode())
            self.assertTrue(text.startswith("In the"))
        here = self.directory / "here"
        self.assertEqual(shoal.generate(here, "In the", greedy=True, max_new_tokens=8, stop="e"),
                         shoal.generate(here, "In the", greedy=True, max_new_tokens=8, stop=["e"]))

    def test_failures(self):
        for options, kind, words in ((self.options("out", max_stepz=3), ValueError, "max_stepz"),
                                     (self.options("out", train_file="/nowhere.txt"), ValueError, "/nowhere.txt"),
                                     (self.options("out", learning_rate="fast"), ValueError, "learning_rate")):
            with self.assertRaisesRegex(kind, f"^shoal.train: (.|\n)*{words}"):
                self.trained(options)
        with self.assertRaisesRegex(ValueError, "/nowhere"):
            shoal.generate("/nowhere", "In the")
        with self.assertRaisesRegex(TypeError, "max_tokens"):
            shoal.generate("/nowhere", "In the", max_tokens=3)

    def interrupted(self, call, *, by=signal.SIGINT, when=lambda: True):
        """Runs call(), which gets the signal once `when` is true."""
        def send():
            while not when():
                time.sleep(0.01)
            os.kill(os.getpid(), by)
        sender = threading.Thread(target=send)
        sender.start()
        try:
            call()
        finally:
            sender.join()

    def test_ctrl_c_saves(self):
        handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
        for by, kind in ((signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)):
            out = self.directory / by.name
            options = self.options(by.name, max_steps=100000, logging_steps=1, do_eval=False, report_to="none")
            with self.assertRaises(kind):
                self.interrupted(lambda: self.trained(options), by=by,
                                 when=lambda: any(file.stat().st_size > 0 for file in out.glob("metrics.jsonl")))
            self.assertTrue(list(out.glob("checkpoint-*")), list(out.iterdir()))
        self.assertEqual(handlers, {number: signal.getsignal(number) for number in handlers})
        with self.assertRaises(KeyboardInterrupt):  # Python's handler is active again
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)
        step = max(int(path.name.split("-")[1]) for path in out.glob("checkpoint-*"))
        resumed, printed = self.trained({**options, "max_steps": step + 2, "resume_from_checkpoint": "true"})
        self.assertGreater(resumed["train_loss"], 0)
        self.assertIn(f"{step}", printed)

    def test_other_threads_run(self):
        counted = 0
        done = threading.Event()

        def count():
            nonlocal counted
            while not done.is_set():
                counted += 1
                time.sleep(0.001)
        counter = threading.Thread(target=count)
        counter.start()
        self.trained(self.options("out", max_steps=200, do_eval=False))
        done.set()
        counter.join()
        self.assertGreater(counted, 20)

    def test_notebook_bar(self):
        """In a notebook, a line below the cell shows the progress."""
        shown = []

        class Handle:
            def update(self, data, raw):
                shown.append(data["text/plain"])

        def display(data, raw, display_id):
            shown.append(data["text/plain"])
            return Handle()
        fakes = {"ipykernel": types.ModuleType("ipykernel"), "IPython": types.ModuleType("IPython"),
                 "IPython.display": types.SimpleNamespace(display=display)}
        with unittest.mock.patch.dict(sys.modules, fakes):
            self.trained(self.options("out"))
        self.assertTrue(any("3/3" in text for text in shown), shown)
        self.assertFalse(any("\x1b" in text or "\r" in text for text in shown), shown)
        shown.clear()
        with unittest.mock.patch.dict(sys.modules, fakes):
            self.trained(self.options("again", disable_tqdm=True))
        self.assertEqual(shown, [])


if __name__ == "__main__":
    unittest.main()
