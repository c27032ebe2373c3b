"""A SageMaker job of one of Hugging Face's scripts, which tests/sagemaker/container/cluster_script_test.cc starts.

    container_job.py make SCRIPT DIRECTORY        DIRECTORY/code becomes the job's code, with data and models.
                                                  DIRECTORY/alone has the same run without a container. Prints the
                                                  job's hyperparameters. Exit status 77: something is missing.
    container_job.py compare SCRIPT DIRECTORY OUTPUT   fails if the job's output differs from that run's.

run_qa.py has two ranks on each of two hosts and data parallelism; alone it has four ranks on gloo. run_glue.py has
two partitions on two hosts, with two replicas; alone it is one process.
"""
import json
import os
import pathlib
import shutil
import sys

import examples_test
import hf_comparison
import hf_inputs
import hf_scripts
import parallel_trainer_test as smp_test

RANKS = 4
QA, GLUE = "question-answering/run_qa.py", "text-classification/run_glue.py"
SMP = {**smp_test.PARAMETERS, "partitions": 2, "placement_strategy": "spread", "pipeline": "interleaved"}
DISTRIBUTIONS = {QA: {"sagemaker_distributed_dataparallel_enabled": True},
                 GLUE: {"mp_parameters": SMP, "sagemaker_mpi_enabled": True}}


def arguments(script, replicas):
    if script == QA:
        return [*examples_test.EXAMPLES[QA], *hf_comparison.COMMON]
    return [word for word in smp_test.COMMAND[1:] if word != "--use_cpu"] + [
        "--per_device_train_batch_size", str(smp_test.BATCH // replicas)]


def hyperparameters(script):
    """The script's arguments, and the job's distribution as SageMaker's hyperparameters."""
    words = arguments(script, replicas=RANKS // 2)
    given = {word[2:]: True if following.startswith("--") else following
             for word, following in zip(words, [*words[1:], "--"]) if word.startswith("--")}
    given["output_dir"] = "../model"  # relative to /opt/ml/code: SM_MODEL_DIR
    return {name: json.dumps(value) for name, value in {**given, **DISTRIBUTIONS[script]}.items()}


def make(script, directory):
    code = directory / "code"
    code.mkdir(parents=True)
    hf_inputs.make(code, hf_scripts.SHARED)
    for file in (pathlib.Path(hf_scripts.SCRIPTS) / script).parent.glob("*.py"):
        shutil.copy(file, code)
    alone = directory / "alone"
    shutil.copytree(code, alone)
    command = [os.path.basename(script), *arguments(script, replicas=1), "--output_dir", "output"]
    if script == QA:
        hf_scripts.run_as_sagemaker(alone, RANKS, command, on_gloo=True)
    else:
        hf_scripts.wait([hf_scripts.start(alone, [*command, "--use_cpu"], hf_scripts.environment(alone))])
    print(json.dumps(hyperparameters(script)))


def compare(script, directory, output):
    alone = directory / "alone/output"
    if script == QA:
        hf_comparison.assert_same(hf_comparison.losses(alone), hf_comparison.losses(output), "run_qa")
    else:
        smp_test.assert_same(smp_test.outcome(alone), smp_test.outcome(output), "run_glue")


if __name__ == "__main__":
    {"make": make, "compare": compare}[sys.argv[1]](sys.argv[2], *map(pathlib.Path, sys.argv[3:]))
