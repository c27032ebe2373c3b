#!/usr/bin/env python3
"""Checks examples/launch as far as possible without a cluster: the files parse, have the fields that their
schedulers require, start as many ranks as they have GPUs, and use existing options of shoal train.
launch_test.py [SHOAL]: with that program, --help must list the options.
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

ROOT = pathlib.Path(__file__).resolve().parents[2]
LAUNCH = ROOT / "examples" / "launch"
SHOAL = sys.argv.pop(1) if len(sys.argv) > 1 and not sys.argv[1].startswith("-") else None
# The SageMaker tests' installation of moto includes PyYAML.
sys.path += [str(path) for path in ROOT.glob("build/moto/lib/python3*/site-packages")]
try:
    import yaml
except ImportError:
    yaml = None


def documents(name):
    if yaml is None:
        raise unittest.SkipTest("there is no PyYAML, neither Python's nor in build/moto")
    return list(yaml.safe_load_all((LAUNCH / name).read_text()))


def options(words):
    return [word[2:] for word in words[words.index("shoal"):] if word.startswith("--")]


def value_after(words, flag):
    return words[words.index(flag) + 1]


class Launch(unittest.TestCase):
    def check_options(self, words):
        self.assertEqual(words[words.index("shoal") + 1], "train")
        if SHOAL:
            said = subprocess.run([SHOAL, "train", "--help-all"], capture_output=True, text=True, check=True).stdout
            for option in options(words):
                self.assertIn(f"--{option} ", said.replace("\n", " \n"))

    def check_pod(self, pod):
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            self.assertTrue(container["image"])
            self.assertLessEqual({mount["name"] for mount in container["volumeMounts"]}, volumes)
        token = [volume["secret"] for volume in pod["volumes"] if "secret" in volume]
        self.assertEqual([secret["defaultMode"] for secret in token], [0o400])  # Shoal refuses a token others can read
        self.assertGreaterEqual(pod["terminationGracePeriodSeconds"], 60)

    def test_mpijob(self):
        job, = documents("kubernetes-mpijob.yaml")
        self.assertEqual((job["apiVersion"], job["kind"]), ("kubeflow.org/v2beta1", "MPIJob"))
        replicas = job["spec"]["mpiReplicaSpecs"]
        self.assertEqual(set(replicas), {"Launcher", "Worker"})
        words = replicas["Launcher"]["template"]["spec"]["containers"][0]["command"]
        workers, pod = replicas["Worker"]["replicas"], replicas["Worker"]["template"]["spec"]
        gpus = pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
        self.assertEqual(job["spec"]["slotsPerWorker"], gpus)
        self.assertEqual(int(value_after(words, "-n")), workers * gpus)
        name = job["metadata"]["name"]
        self.assertIn(f"MASTER_ADDR={name}-worker-0.{name}", words)
        self.check_pod(pod)
        self.check_options(words)

    def test_trainjob(self):
        runtime, job = documents("kubernetes-trainjob.yaml")
        self.assertEqual({runtime["apiVersion"], job["apiVersion"]}, {"trainer.kubeflow.org/v1alpha1"})
        self.assertEqual((runtime["kind"], job["kind"]), ("TrainingRuntime", "TrainJob"))
        self.assertEqual(job["spec"]["runtimeRef"]["name"], runtime["metadata"]["name"])
        self.assertEqual(job["spec"]["runtimeRef"]["kind"], runtime["kind"])
        policy, trainer = runtime["spec"]["mlPolicy"], job["spec"]["trainer"]
        self.assertEqual(policy["mpi"]["mpiImplementation"], "OpenMPI")
        self.assertEqual(policy["mpi"]["numProcPerNode"], trainer["resourcesPerNode"]["limits"]["nvidia.com/gpu"])
        self.assertEqual(int(value_after(trainer["command"], "-n")),
                         trainer["numNodes"] * policy["mpi"]["numProcPerNode"])
        jobs = {each["name"]: each["template"]["spec"]["template"]["spec"]
                for each in runtime["spec"]["template"]["spec"]["replicatedJobs"]}
        self.assertEqual(set(jobs), {"launcher", "node"})
        for pod in jobs.values():
            self.assertEqual([container["name"] for container in pod["containers"]], ["node"])
            self.check_pod(pod)
        name = job["metadata"]["name"]
        self.assertIn(f"MASTER_ADDR={name}-launcher-0-0.{name}", trainer["command"])
        self.check_options(trainer["args"])

    def test_slurm(self):
        text = (LAUNCH / "slurm.sh").read_text()
        given = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(.*))?$", text, re.MULTILINE))
        self.assertEqual(given["ntasks-per-node"], given["gpus-per-node"])
        self.assertEqual(given["signal"], "USR1@300")
        self.assertIn("requeue", given)
        self.check_options(re.search(r"^srun (.*) \|\|", text, re.MULTILINE)[1].split())

    def test_slurm_queues_again_after_a_checkpoint(self):
        """Runs the script with a stand-in for SLURM of three lines."""
        for status, ends, queued in ((0, 0, False), (138, 0, True), (1, 1, False)):
            with tempfile.TemporaryDirectory() as directory:
                folder = pathlib.Path(directory)
                for name, body in (("srun", f"exit {status}"), ("scontrol", "echo $* > queued"), ("shoal", "touch $2")):
                    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
                    (folder / name).chmod(0o755)
                done = subprocess.run(["bash", LAUNCH / "slurm.sh"], cwd=folder, capture_output=True, text=True,
                                      env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "7"})
                self.assertEqual(done.returncode, ends, done.stderr)
                self.assertEqual((folder / "queued").exists(), queued)
                self.assertEqual(list(folder.glob("job-token*")), [])

    def test_scripts(self):
        for path in LAUNCH.glob("*.sh"):
            self.assertTrue(os.access(path, os.X_OK), path)
            done = subprocess.run(["bash", "-n", path], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            if shutil.which("shellcheck"):
                done = subprocess.run(["shellcheck", path], capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, done.stdout)

    def test_parallelcluster(self):
        cluster, = documents("parallelcluster.yaml")
        for key in ("Region", "Image", "HeadNode", "Scheduling"):
            self.assertIn(key, cluster)
        self.assertEqual(cluster["Scheduling"]["Scheduler"], "slurm")
        queue, = cluster["Scheduling"]["SlurmQueues"]
        resource, = queue["ComputeResources"]
        self.assertTrue(resource["Efa"]["Enabled"] and queue["Networking"]["PlacementGroup"]["Enabled"])
        self.assertEqual(len(queue["Networking"]["SubnetIds"]), 1)  # a placement group is in one zone
        storage, = cluster["SharedStorage"]
        self.assertEqual(storage["StorageType"], "FsxLustre")
        self.assertEqual(storage["FsxLustreSettings"]["StorageCapacity"] % 1200, 0)

    def test_batch(self):
        job = json.loads((LAUNCH / "batch-job-definition.json").read_text())
        self.assertEqual(job["type"], "multinode")
        nodes = job["nodeProperties"]
        self.assertLess(nodes["mainNode"], nodes["numNodes"])
        group, = nodes["nodeRangeProperties"]
        container = group["container"]
        gpus = {each["type"]: each["value"] for each in container["resourceRequirements"]}["GPU"]
        words = container["command"]
        self.assertEqual(words[:2], ["/runs/batch-start.sh", gpus])
        self.assertEqual({mount["sourceVolume"] for mount in container["mountPoints"]},
                         {volume["name"] for volume in container["volumes"]})
        self.check_options(words)

    def test_the_page_lists_every_file(self):
        listed = set(re.findall(r"^\| `([^`]+)`", (LAUNCH / "README.md").read_text(), re.MULTILINE))
        self.assertEqual(listed, {path.name for path in LAUNCH.iterdir()} - {"README.md"})


if __name__ == "__main__":
    unittest.main()
