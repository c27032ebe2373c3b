#!/usr/bin/env python3
"""acceptance_test.py APPS: checks examples/acceptance with the programs of that directory. A dry run prints every
command; each option must exist. Then all parts run on this machine, on two ranks and with small sizes.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

KIT = pathlib.Path(__file__).resolve().parents[2] / "examples" / "acceptance"
APPS = pathlib.Path(sys.argv.pop(1)).resolve()
TINY = {"model_type": "gpt2", "config_overrides": "n_layer=1,n_head=2,n_embd=32,n_positions=64", "block_size": 32}


class Acceptance(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = pathlib.Path(holder.name)

    def run_kit(self, *words, hosts, **variables):
        (self.folder / "hosts").write_text(hosts)
        environment = {**os.environ, **variables, "PATH": f"{APPS}:{os.environ['PATH']}", "OMPI_ALLOW_RUN_AS_ROOT": "1",
                       "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_orte_tmpdir_base": str(self.folder)}
        environment.pop("MASTER_ADDR", None)
        return subprocess.run([KIT / "acceptance.sh", *words, "hosts", "out"], cwd=self.folder, env=environment,
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=170)

    def check_options(self, program, line):
        """Every option of the program in this line is in its help."""
        words = line.split()
        name = [program, *(word for word in words[1:2] if program == "shoal")]
        said = subprocess.run([APPS / name[0], *name[1:], "--help-all"], capture_output=True, text=True)
        if said.returncode != 0:
            said = subprocess.run([APPS / name[0], *name[1:], "--help"], capture_output=True, text=True, check=True)
        for option in (word for word in words if re.fullmatch(r"--?[a-zA-Z_-]+", word)):
            self.assertRegex(said.stdout, rf"[\s,]{option}[\s,=]", line)

    def test_every_command_of_the_dry_run_exists(self):
        done = self.run_kit("--dry-run", hosts="# two hosts\nhost-a slots=8\nhost-b slots=8\n")
        self.assertEqual(done.returncode, 0, done.stderr)
        commands = [line for line in (done.stdout + done.stderr).splitlines()
                    if re.match(r"(?:mpirun|shoal) ", line)]
        # The token, doctor, three operations on two backends, the fault, and eight runs of the study.
        self.assertEqual(len(commands), 1 + 1 + 6 + 1 + 8, done.stdout + done.stderr)
        runs = [line for line in commands if "--ddp_backend" in line]
        self.assertEqual([len([line for line in runs if f" -n {ranks} " in line]) for ranks in (8, 16)], [4, 4])
        for line in commands:
            program = re.search(r"(?:^|[ /])(shoal(?:-collective-perf)?) .*", line)
            if program:
                self.check_options(program[1], program[0].strip(" /"))
            else:
                self.assertIn("fault.sh", line)
        perf = re.search(r"^(shoal-collective-perf) [^>&]*", (KIT / "fault.sh").read_text(), re.MULTILINE)
        self.check_options(perf[1], perf[0])

    def test_all_parts_here(self):
        if not shutil.which("mpirun"):
            self.skipTest("mpirun is not installed")
        (self.folder / "tiny.json").write_text(json.dumps(TINY))
        done = self.run_kit(hosts="localhost slots=2\n", RANKS_PER_NODE="1", PROVIDER="", BACKENDS="native", MOST="64k",
                            CONFIG="tiny.json", EXAMPLES="32", BATCH="4", FAULT_AFTER="2", SHOAL_THREADS="1")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"survivors: 1, of these without exit status 5: 0, the last ended [01]\.\d\d s")
        out = self.folder / "out"
        self.assertIn("rank 1", (out / "fault.txt").read_text())
        self.assertIn("Out of bounds values : 0 OK", (out / "all_gather-native.txt").read_text())
        study = json.loads((out / "study" / "study.json").read_text())
        self.assertEqual([(run["nodes"], run["workers"]) for run in study["runs"]], [(1, 0), (1, 2), (2, 0), (2, 2)])
        self.assertFalse((out / "job-token").exists())

    def test_scripts(self):
        for path in KIT.glob("*.sh"):
            self.assertTrue(os.access(path, os.X_OK), path)
            if shutil.which("shellcheck"):
                done = subprocess.run(["shellcheck", path], capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stdout)


if __name__ == "__main__":
    unittest.main()
