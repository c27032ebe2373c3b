#!/usr/bin/env python3
"""Writes tests/golden/sagemaker/environments.json: files of /opt/ml, and the variables that Amazon's
training toolkit derives from them. Needs no network.

    python3 -m venv venv && venv/bin/pip install 'sagemaker-training==5.1.*'
    venv/bin/python tools/golden/make_sagemaker_environments.py

ROOT stands for the directory; num_cpus is this machine's, which the test reads from the case."""
import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent

ONE = {"current_host": "algo-1", "current_instance_type": "ml.m5.xlarge", "current_group_name": "homogeneousCluster",
       "hosts": ["algo-1"], "network_interface_name": "eth0",
       "instance_groups": [{"instance_group_name": "homogeneousCluster", "instance_type": "ml.m5.xlarge",
                            "hosts": ["algo-1"]}]}
TWO = {"current_host": "algo-2", "current_instance_type": "ml.p4d.24xlarge",
       "current_group_name": "homogeneousCluster", "hosts": ["algo-1", "algo-2"], "network_interface_name": "eth1",
       "instance_groups": [{"instance_group_name": "homogeneousCluster", "instance_type": "ml.p4d.24xlarge",
                            "hosts": ["algo-1", "algo-2"]}]}
GROUPS = {"current_host": "algo-3", "current_instance_type": "ml.c5n.18xlarge", "current_group_name": "loaders",
          "hosts": ["algo-1", "algo-2", "algo-3"], "network_interface_name": "eth0",
          "instance_groups": [
              {"instance_group_name": "gpus", "instance_type": "ml.p4d.24xlarge", "hosts": ["algo-1", "algo-2"]},
              {"instance_group_name": "loaders", "instance_type": "ml.c5n.18xlarge", "hosts": ["algo-3"]}]}
CHANNEL = {"TrainingInputMode": "File", "S3DistributionType": "FullyReplicated", "RecordWrapperType": "None"}
CODE = {"sagemaker_program": "\"train.py\"", "sagemaker_submit_directory": "\"s3://bucket/job/sourcedir.tar.gz\"",
        "sagemaker_container_log_level": "10", "sagemaker_job_name": "\"job-1\"", "sagemaker_region": "\"us-east-1\""}

# name, hyperparameters, resources, inputs, variables
CASES = [
    ("plain", {"epochs": "3", "learning_rate": "5e-05", "text": "not json", "quoted": "\"yes\"", "flag": "true",
               "b": "4", "nothing": "null", "list": "[1, \"a\", 2.0]", "with-dash": "1"},
     ONE, {"train": CHANNEL, "eval": {**CHANNEL, "ContentType": "text/plain"}}, {}),
    ("data_parallel", {**CODE, "sagemaker_distributed_dataparallel_enabled": "true",
                       "sagemaker_instance_type": "\"ml.p4d.24xlarge\"",
                       "sagemaker_distributed_dataparallel_custom_mpi_options": "\"-verbose\"", "max_steps": "100"},
     TWO, {"training": CHANNEL}, {"TRAINING_JOB_NAME": "job-1"}),
    ("model_parallel", {**CODE, "sagemaker_mpi_enabled": "true", "sagemaker_mpi_num_of_processes_per_host": "8",
                        "sagemaker_mpi_custom_mpi_options": "\"\"",
                        "mp_parameters": json.dumps({"partitions": 2, "ddp": True, "memory_weight": 0.5,
                                                     "placement_strategy": "spread"})},
     TWO, {}, {"SAGEMAKER_PROGRAM": "other.py"}),
    ("groups", {**CODE, "sagemaker_mpi_enabled": "true", "sagemaker_distribution_instance_groups": "[\"gpus\"]",
                "umlaut": "\"\\u00fc\"", "nested": "{\"b\": {\"x\": [true, null]}, \"a\": 1e-05}"},
     GROUPS, {"Data-1": CHANNEL}, {"AWS_REGION": "eu-west-1"}),
    ("topology", {"x": "1e16"}, {**ONE, "topology": [{"hostName": "algo-1", "capacityUnitId": "u1"}]}, {}, {}),
]

PROGRAM = """
import json, os
from sagemaker_training import environment
made = environment.Environment()
out = dict(made.to_env_vars())
for name in ("SAGEMAKER_JOB_NAME", "SAGEMAKER_REGION", "CURRENT_HOST"):
    out[name] = os.environ[name]
print("RESULT" + json.dumps(out))
"""


def variables_of(hyperparameters, resources, inputs, variables):
    with tempfile.TemporaryDirectory() as root:
        config = pathlib.Path(root) / "input/config"
        config.mkdir(parents=True)
        for name, value in (("hyperparameters", hyperparameters), ("resourceconfig", resources),
                            ("inputdataconfig", inputs)):
            (config / f"{name}.json").write_text(json.dumps(value))
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True,
                              env={**kept, **variables, "SAGEMAKER_BASE_DIR": root})
        line = next(row for row in done.stdout.splitlines() if row.startswith("RESULT"))
        return json.loads(line[len("RESULT"):].replace(root, "ROOT"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=ROOT / "tests/golden/sagemaker/environments.json", type=pathlib.Path)
    out = parser.parse_args().out
    rows = []
    for name, hyperparameters, resources, inputs, variables in CASES:
        rows.append({"name": name, "hyperparameters": hyperparameters, "resourceconfig": resources,
                     "inputdataconfig": inputs, "variables": variables,
                     "environment": dict(sorted(variables_of(hyperparameters, resources, inputs, variables).items()))})
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"cases": rows}, indent=1) + "\n")
    print(f"{len(rows)} cases in {out}", file=sys.stderr)


if __name__ == "__main__":
    main()
