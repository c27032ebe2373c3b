#!/usr/bin/env python3
"""Writes tests/golden/sagemaker/requests.json: job files, and the request CreateTrainingJob that the
SageMaker Python SDK sends for the same arguments. Nothing is sent: the session's clients are mocks.

    python3 -m venv venv && venv/bin/pip install 'sagemaker==2.257.*'
    venv/bin/python tools/golden/make_sagemaker_requests.py

Each case: name, estimator (the SDK's class), job (the file that Shoal reads), request (what the SDK
sent). `region`, `account` and the job's name replace the values that the SDK gets from AWS and the clock."""
import argparse
import copy
import json
import logging
import pathlib
import sys
import tempfile
import warnings
from unittest import mock

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)

import boto3  # noqa: E402
import sagemaker  # noqa: E402
from sagemaker.debugger import CollectionConfig, DebuggerHookConfig, ProfilerConfig, TensorBoardOutputConfig  # noqa: E402
from sagemaker.estimator import Estimator  # noqa: E402
from sagemaker.huggingface import HuggingFace, TrainingCompilerConfig  # noqa: E402
from sagemaker.inputs import FileSystemInput, ShuffleConfig, TrainingInput  # noqa: E402
from sagemaker.instance_group import InstanceGroup  # noqa: E402
from sagemaker.pytorch import PyTorch  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
ACCOUNT = "111122223333"
ROLE = f"arn:aws:iam::{ACCOUNT}:role/SageMakerRole"
STAMP = "2026-11-23-08-20-59-123"
SHOAL = f"{ACCOUNT}.dkr.ecr.us-east-1.amazonaws.com/shoal:0.1.0-cuda12"
VERSIONS = {"transformers_version": "4.26.0", "pytorch_version": "1.13.1", "py_version": "py39"}
COMMON = {"role": ROLE, "instance_count": 1, "region": "us-east-1"}

SQUAD = {
    "model_name_or_path": "bert-large-uncased-whole-word-masking", "dataset_name": "squad",
    "do_train": True, "do_eval": True, "fp16": True, "per_device_train_batch_size": 4,
    "per_device_eval_batch_size": 4, "num_train_epochs": 2, "max_seq_length": 384, "max_steps": 100,
    "learning_rate": 3e-05, "doc_stride": 128, "output_dir": "/opt/ml/model"}
MNLI_MP = {
    "partitions": 4, "placement_strategy": "spread", "pipeline": "interleaved", "optimize": "speed",
    "microbatches": 4, "ddp": True}

# (name, estimator, job without the common fields)
CASES = [
    ("squad_data_parallel", "HuggingFace", {
        "transformers_version": "4.6.1", "pytorch_version": "1.7.1", "py_version": "py36",
        "entry_point": "run_qa.py", "source_dir": "examples/question-answering",
        "instance_type": "ml.p3dn.24xlarge", "instance_count": 2, "volume_size": 200,
        "hyperparameters": SQUAD, "inputs": None,
        "distribution": {"smdistributed": {"dataparallel": {"enabled": True}}}}),
    ("mnli_model_parallel", "HuggingFace", {
        "transformers_version": "4.6", "pytorch_version": "1.7", "py_version": "py36",
        "entry_point": "run_glue.py", "source_dir": "examples/text-classification",
        "instance_type": "ml.p3.16xlarge",
        "hyperparameters": {"model_name_or_path": "roberta-large", "task_name": "mnli", "do_train": True,
                            "per_device_train_batch_size": 16, "max_steps": 500, "learning_rate": 5e-05},
        "metric_definitions": [{"Name": "training_loss", "Regex": "'loss': ([0-9]+(.|e\\-)[0-9]+)"}],
        "distribution": {"smdistributed": {"modelparallel": {"enabled": True, "parameters": MNLI_MP}},
                         "mpi": {"enabled": True, "processes_per_host": 8}}}),
    ("spot", "HuggingFace", {
        **VERSIONS, "entry_point": "train.py", "source_dir": "scripts", "instance_type": "ml.g5.2xlarge",
        "use_spot_instances": True, "max_run": 3600, "max_wait": 7200,
        "checkpoint_s3_uri": "s3://bucket/checkpoints/spot", "checkpoint_local_path": "/opt/ml/checkpoints",
        "base_job_name": "huggingface-spot", "debugger_hook_config": False, "disable_profiler": True,
        "hyperparameters": {"epochs": 1, "train_batch_size": 32, "output_dir": "/opt/ml/checkpoints"},
        "inputs": {"train": "s3://bucket/train", "test": "s3://bucket/test"}}),
    ("gpt2_data_parallel", "HuggingFace", {
        "transformers_version": "4.17.0", "pytorch_version": "1.10.2", "py_version": "py38",
        "region": "eu-west-1", "entry_point": "run_clm.py", "source_dir": "scripts",
        "instance_type": "ml.p4d.24xlarge", "instance_count": 4, "keep_alive_period_in_seconds": 1800,
        "output_path": "s3://my-bucket/models/gpt2/", "output_kms_key": "alias/mine",
        "distribution": {"smdistributed": {"dataparallel": {
            "enabled": True, "custom_mpi_options": "-verbose -x NCCL_DEBUG=VERSION"}}},
        "hyperparameters": {"model_type": "gpt2", "config_overrides": "n_embd=1024,n_layer=24",
                            "weight_decay": 0.01, "warmup_ratio": 0.05, "adam_epsilon": 1e-8},
        "tags": {"team": "nlp", "cost-centre": "42"}, "environment": {"WANDB_MODE": "offline"}}),
    ("training_compiler", "HuggingFace", {
        "transformers_version": "4.21.1", "pytorch_version": "1.11.0", "py_version": "py38",
        "entry_point": "train.py", "instance_type": "ml.p3.8xlarge", "compiler_config": {"debug": False},
        "distribution": {"pytorchxla": {"enabled": True}}, "disable_profiler": True,
        "debugger_hook_config": False, "hyperparameters": {"n_gpus": 4, "learning_rate": 0.0001}}),
    ("torch_distributed", "HuggingFace", {
        "transformers_version": "4.28.1", "pytorch_version": "2.0.0", "py_version": "py310",
        "entry_point": "train.py", "source_dir": "scripts", "instance_type": "ml.p4d.24xlarge",
        "instance_count": 2, "distribution": {"torch_distributed": {"enabled": True}},
        "subnets": ["subnet-0abc", "subnet-0def"], "security_group_ids": ["sg-0123"],
        "encrypt_inter_container_traffic": True, "region": "us-gov-west-1"}),
    ("torch_distributed_beside_smdistributed", "PyTorch", {
        "image_uri": SHOAL, "entry_point": "train.py", "source_dir": "scripts",
        "instance_type": "ml.p5.48xlarge", "instance_count": 2,
        "distribution": {"torch_distributed": {"enabled": True},
                         "smdistributed": {"modelparallel": {"enabled": True, "parameters": {
                             "hybrid_shard_degree": 8, "sm_activation_offloading": True}}}}}),
    ("custom_mpi", "HuggingFace", {
        "image_uri": SHOAL, "py_version": "py39", "entry_point": "train.py", "source_dir": "scripts",
        "instance_type": "ml.c5n.18xlarge", "instance_count": 3,
        "distribution": {"mpi": {"enabled": True, "processes_per_host": 4,
                                 "custom_mpi_options": "--NCCL_DEBUG INFO -x FI_LOG_LEVEL=info"}},
        "max_retry_attempts": 3, "container_log_level": 10,
        "inputs": {"train": {"s3_data": "s3://bucket/train", "distribution": "ShardedByS3Key",
                             "input_mode": "FastFile", "content_type": "text/plain",
                             "shuffle_config": {"seed": 7}},
                   "validation": {"s3_data": "s3://bucket/validation/manifest", "compression": "Gzip",
                                  "s3_data_type": "ManifestFile", "record_wrapping": "RecordIO"}}}),
    ("pytorch_ddp", "HuggingFace", {
        **VERSIONS, "entry_point": "train.py", "source_dir": "scripts", "instance_type": "ml.p3.16xlarge",
        "instance_count": 2, "distribution": {"pytorchddp": {"enabled": True}},
        "inputs": {"train": {"file_system_id": "fs-0123456789abcdef0", "file_system_type": "FSxLustre",
                             "directory_path": "/fsx/data"}},
        "code_location": "s3://code-bucket/some/where/",
        "debugger_hook_config": {"s3_output_path": "s3://bucket/debug", "hook_parameters": {"save_interval": "100"},
                                 "collection_configs": [{"name": "losses", "parameters": {"save_interval": "10"}}]},
        "profiler_config": {"system_monitor_interval_millis": 1000},
        "tensorboard_output_config": {"s3_output_path": "s3://bucket/tb", "container_local_output_path": "/opt/ml/output/tensorboard"}}),
    ("odd_values", "HuggingFace", {
        **VERSIONS, "entry_point": "train.py", "source_dir": "scripts", "instance_type": "ml.g4dn.xlarge",
        "job_name": "odd-values-1", "disable_output_compression": True,
        "enable_sagemaker_metrics": False, "input_mode": "Pipe",
        "hyperparameters": {"big": 1e16, "larger": 1e22, "small": 1e-05, "whole": 2.0, "text": "na\u00efve \"quoted\"\n",
                            "list": [1, 2.5, "x", None, True], "nested": {"b": {"c": []}, "a": -0.0},
                            "none": None, "negative": -3, "umlaut": "\u00fc\U0001f41f"},
        "inputs": "s3://bucket/prefix"}),
    ("network_isolation", "HuggingFace", {
        **VERSIONS, "entry_point": "train.py", "source_dir": "scripts", "instance_type": "ml.g5.48xlarge",
        "enable_network_isolation": True, "model_uri": "s3://bucket/model.tar.gz", "model_channel_name": "pretrained",
        "inputs": {"train": "s3://bucket/train"}, "region": "ap-northeast-3"}),
    ("instance_groups", "HuggingFace", {
        "image_uri": SHOAL, "py_version": "py39", "entry_point": "train.py", "source_dir": "scripts",
        "instance_count": None,
        "instance_groups": [
            {"instance_group_name": "gpus", "instance_type": "ml.p4d.24xlarge", "instance_count": 2},
            {"instance_group_name": "loaders", "instance_type": "ml.c5n.18xlarge", "instance_count": 1}],
        "distribution": {"instance_groups": ["gpus"],
                         "smdistributed": {"dataparallel": {"enabled": True}}},
        "inputs": {"train": {"s3_data": "s3://bucket/train", "instance_groups": ["gpus"]}}}),
    ("image_without_code", "Estimator", {
        "image_uri": SHOAL, "instance_type": "ml.m5.4xlarge", "container_entry_point": ["train"],
        "container_arguments": ["--verbose", "x"], "training_repository_access_mode": "Vpc",
        "training_repository_credentials_provider_arn": f"arn:aws:lambda:us-east-1:{ACCOUNT}:function:login",
        "enable_remote_debug": True, "enable_infra_check": False, "enable_session_tag_chaining": True,
        "enable_sagemaker_metrics": True, "volume_kms_key": "1234abcd-12ab-34cd",
        "tags": [{"Key": "a", "Value": "b"}],
        "experiment_config": {"ExperimentName": "exp", "TrialName": "trial"}}),
    ("source_in_s3", "HuggingFace", {
        "transformers_version": "4.56.2", "pytorch_version": "2.8.0", "py_version": "py312",
        "entry_point": "train.py", "source_dir": "s3://bucket/code/sourcedir.tar.gz",
        "instance_type": "ml.p5.48xlarge", "region": "cn-north-1",
        "role": f"arn:aws-cn:iam::{ACCOUNT}:role/SageMakerRole"}),
]


def session(region):
    made = sagemaker.Session(
        boto_session=boto3.Session(region_name=region, aws_access_key_id="none", aws_secret_access_key="none"),
        sagemaker_client=mock.MagicMock(), sagemaker_runtime_client=mock.MagicMock(),
        default_bucket=f"sagemaker-{region}-{ACCOUNT}")
    made._default_bucket = f"sagemaker-{region}-{ACCOUNT}"
    made.s3_resource = mock.MagicMock()
    made.s3_client = mock.MagicMock()
    made.account_id = lambda: ACCOUNT
    return made


def sdk_input(value):
    if not isinstance(value, dict):
        return value
    if "file_system_id" in value:
        return FileSystemInput(**value)
    value = dict(value)
    if "shuffle_config" in value:
        value["shuffle_config"] = ShuffleConfig(**value["shuffle_config"])
    return TrainingInput(**value)


def request_of(estimator_name, job, root):
    # The SDK modifies its arguments.
    arguments = copy.deepcopy({name: value for name, value in job.items() if value is not None})
    region = arguments.pop("region")
    name = arguments.pop("job_name", None)
    inputs = arguments.pop("inputs", None)
    experiment = arguments.pop("experiment_config", None)
    if isinstance(inputs, dict):
        inputs = {channel: sdk_input(value) for channel, value in inputs.items()}
    for key, wrap in (("profiler_config", ProfilerConfig), ("tensorboard_output_config", TensorBoardOutputConfig),
                      ("compiler_config", TrainingCompilerConfig)):
        if key in arguments:
            arguments[key] = wrap(**arguments[key])
    hook = arguments.get("debugger_hook_config")
    if isinstance(hook, dict):
        hook = dict(hook)
        hook["collection_configs"] = [CollectionConfig(**one) for one in hook.pop("collection_configs", [])]
        arguments["debugger_hook_config"] = DebuggerHookConfig(**hook)
    if "instance_groups" in arguments:
        groups = [InstanceGroup(**one) for one in arguments["instance_groups"]]
        arguments["instance_groups"] = groups
        arguments["distribution"] = dict(arguments["distribution"])
        arguments["distribution"]["instance_groups"] = [
            group for group in groups if group.instance_group_name in arguments["distribution"]["instance_groups"]]
    source = arguments.get("source_dir")
    if source and not source.startswith("s3://"):
        arguments["source_dir"] = str(root / source)
        (root / source).mkdir(parents=True, exist_ok=True)
    if "entry_point" in arguments and not (source or "").startswith("s3://"):
        path = root / (source or "") / arguments["entry_point"]
        path.write_text("pass\n")
        if not source:
            arguments["entry_point"] = str(path)
    made = session(region)
    kind = {"HuggingFace": HuggingFace, "PyTorch": PyTorch, "Estimator": Estimator}[estimator_name]
    if kind is PyTorch:
        arguments.setdefault("framework_version", "2.2.0")
        arguments.setdefault("py_version", "py310")
    estimator = kind(sagemaker_session=made, **arguments)
    # Otherwise the SDK would report each call to Amazon.
    with mock.patch("sagemaker.utils.sagemaker_timestamp", lambda: STAMP), \
            mock.patch("sagemaker.telemetry.telemetry_logging._send_telemetry_request", lambda *all, **named: None):
        estimator.fit(inputs, wait=False, logs=False, job_name=name, experiment_config=experiment)
    sent = made.sagemaker_client.create_training_job.call_args.kwargs
    return json.loads(json.dumps(sent))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=ROOT / "tests/golden/sagemaker/requests.json", type=pathlib.Path)
    out = parser.parse_args().out
    rows = []
    for name, estimator, own in CASES:
        job = {key: value for key, value in {**COMMON, **own}.items() if value is not None}
        with tempfile.TemporaryDirectory() as root:
            rows.append({"name": name, "estimator": estimator, "job": job,
                         "request": request_of(estimator, {**COMMON, **own}, pathlib.Path(root))})
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps({"sdk": sagemaker.__version__, "stamp": STAMP, "account": ACCOUNT,
                               "cases": rows}, indent=1) + "\n")
    print(f"{len(rows)} cases in {out}", file=sys.stderr)


if __name__ == "__main__":
    main()
