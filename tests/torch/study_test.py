"""`shoal study` compares `shoal train` with Hugging Face's Trainer on gloo and on Shoal, on one rank and on two."""
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import unittest

import hf_scripts

hf_scripts.skip_if_missing()

import hf_inputs  # noqa: E402

SHOAL = os.environ["SHOAL_PROGRAM"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


class Study(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)
        if not pathlib.Path(SHOAL).exists():
            self.skipTest("the program shoal is not built")
        if not shutil.which("mpirun"):
            self.skipTest("mpirun is not installed")

    def study(self, **changes):
        file = {"options": {"model_name_or_path": "gpt2", "train_file": "text-train.txt", "block_size": 32, "seed": 5,
                            "use_cpu": True},
                "ranks": [1, 2], "workers": [0], "batches": [2], "examples": 16, "python": sys.executable,
                "backends": ["native", "ddp", "ddp-shoal"],
                "script": str(pathlib.Path(__file__).with_name("trainer_script.py")), **changes}
        (self.folder / "three.json").write_text(json.dumps(file))
        variables = hf_scripts.environment(self.folder, MASTER_PORT=free_port(), OMPI_ALLOW_RUN_AS_ROOT="1",
                                           OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                                           OMPI_MCA_orte_tmpdir_base=str(self.folder))
        return subprocess.run([SHOAL, "study", "three.json", "--json"], cwd=self.folder, env=variables, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=900)

    def test_three_backends(self):
        hf_inputs.make(self.folder, hf_scripts.SHARED)
        done = self.study()
        self.assertEqual(done.returncode, 0, done.stderr)
        runs = {(run["backend"], run["ranks"]): run for run in json.loads(done.stdout)["runs"]}
        self.assertEqual(len(runs), 6)
        for (backend, ranks), run in runs.items():
            self.assertGreater(run["samples_per_second"], 0)
            self.assertEqual(run["losses"][-1][0], 16)
            self.assertEqual(len(run["losses"]), 16 // (2 * ranks))
            self.assertEqual(run["loader_stall_share"] is None, backend != "native")
        for ranks in (1, 2):
            gloo, shoal = ([loss for _, loss in runs[backend, ranks]["losses"]] for backend in ("ddp", "ddp-shoal"))
            for one, other in zip(gloo, shoal):
                self.assertAlmostEqual(one, other, places=3)

    def test_ranks_that_do_not_meet_are_noticed(self):
        hf_inputs.make(self.folder, hf_scripts.SHARED)
        # Without mpirun, a single process stands for two ranks.
        done = self.study(backends=["native"], script=None, ranks=[2], launch="env UNUSED={ranks}")
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertIn("trained on 8 examples instead of 16; the launcher must start the ranks as one job", done.stderr)

    def test_a_python_without_pytorch(self):
        hf_inputs.make(self.folder, hf_scripts.SHARED)
        (self.folder / "python").write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
        (self.folder / "python").chmod(0o755)
        done = self.study(python="./python")
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("/python: ./python cannot run", done.stderr)
        self.assertNotIn("begins", done.stderr)


if __name__ == "__main__":
    unittest.main()
