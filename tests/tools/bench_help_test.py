"""`./dev bench NAME --help` builds nothing: runs tools/bench.sh in a tree of stand-ins."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

SOURCE = pathlib.Path(__file__).resolve().parents[2]


class BenchHelp(unittest.TestCase):
    def setUp(self):
        root = tempfile.TemporaryDirectory()
        self.addCleanup(root.cleanup)
        self.root = pathlib.Path(root.name)
        (self.root / "tools").mkdir()
        for name in ("bench.sh", "dev-common.sh"):
            shutil.copy(SOURCE / "tools" / name, self.root / "tools")
        # Programs that build or start ranks log their call.
        for name in ("cmake", "ninja", "mpirun", "apt-get"):
            self.program(f"bin/{name}", f"echo {name} >> calls; exit 3")

    def program(self, path, text):
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)

    def bench(self, *words):
        environment = dict(os.environ, PATH=f"{self.root}/bin:{os.environ['PATH']}")
        run = subprocess.run(["bash", "tools/bench.sh", *words], cwd=self.root, env=environment, text=True,
                             stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=20)
        calls = self.root / "calls"
        return run.stdout, calls.read_text() if calls.exists() else ""

    def test_is_of_the_program_that_was_built(self):
        for name, folder in {"kernels": "kernels", "tokenizer": "tokenizer", "loader": "loader", "s3": "s3",
                             "parallel": "parallel", "train": "train", "packing": "train"}.items():
            self.program(f"build/release/bench/{folder}/shoal_bench_{name}", f'echo "{name}: $*"')
            for words in (["--help"], ["--more", "1", "-h"]):
                self.assertEqual(self.bench(name, *words), (f"{name}: --help\n", ""))

    def test_is_of_the_script(self):
        for path in ("bench/collectives/compare.py", "bench/collectives/ddp.py", "bench/collectives/ddp_train.py"):
            self.program(path, "")
            (self.root / path).write_text(f"import sys; print({path!r}, *sys.argv[1:])")
        self.program("bench/s3/training_stall", 'echo "stall $*"')
        self.assertEqual(self.bench("collectives", "--peers", "--help"), ("bench/collectives/compare.py --help\n", ""))
        self.assertEqual(self.bench("collectives", "--ddp", "-h"), ("bench/collectives/ddp.py --help\n", ""))
        self.assertEqual(self.bench("collectives", "--ddp-train", "--help"),
                         ("bench/collectives/ddp_train.py --help\n", ""))
        self.assertEqual(self.bench("s3", "--training", "--help"), ("stall --help\n", ""))
        said, calls = self.bench("collectives", "--no-overlap", "--help")
        self.assertIn("--ddp-train [ARGS]", said)
        self.assertEqual(calls, "")

    def test_builds_what_is_not_there(self):
        self.assertIn("cmake", self.bench("kernels", "--help")[1])


if __name__ == "__main__":
    unittest.main()
