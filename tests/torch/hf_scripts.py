"""Runs Hugging Face's example scripts: where they are, what they need, and their processes.

SHOAL_HF_EXAMPLES names the folder examples/pytorch of transformers' source tree, which PyPI does not have.
"""
import importlib.util
import json
import os
import pathlib
import socket
import subprocess
import sys

SHARED = pathlib.Path(__file__).resolve().parents[3] / "shared/data"
SCRIPTS = os.environ.get("SHOAL_HF_EXAMPLES")
OFFLINE = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
# The variables of SageMaker's container for distribution {"smdistributed": {"dataparallel": {"enabled": True}}}.
_SAGEMAKER = {"SM_HOSTS": '["localhost"]', "SM_CURRENT_HOST": "localhost",
             "SM_FRAMEWORK_PARAMS": '{"sagemaker_distributed_dataparallel_enabled": true}',
             "SAGEMAKER_JOB_NAME": "examples", "ACCELERATE_TORCH_DEVICE": "cpu"}
# A replacement for Shoal's smdistributed package that uses gloo.
_ON_GLOO = """
import pathlib, runpy, shoal
real = pathlib.Path(shoal.__file__).parent.parent / "smdistributed/dataparallel/torch/torch_smddp.py"
runpy.run_path(str(real))
import torch.distributed as dist
dist.Backend._ensure_backend_registered("gloo")
dist.Backend._plugins["SMDDP"] = dist.Backend._plugins["GLOO"]
def gather(output, tensor):  # accelerate's call of smddp has shapes that gloo refuses
    dist.all_gather(list(output.view(-1, *tensor.shape)), tensor)
dist.all_gather_into_tensor = gather
pathlib.Path(__file__).with_name("used").touch()
"""


def _missing(packages, examples):
    if examples and SCRIPTS is None:
        return "SHOAL_HF_EXAMPLES does not name transformers' folder examples/pytorch"
    if not SHARED.is_dir():
        return f"there is no {SHARED}"
    absent = [name for name in packages if importlib.util.find_spec(name) is None]
    return f"this Python lacks {', '.join(absent)}" if absent else None


def skip_if_missing(*packages, examples=False):
    """Exits with status 77 if transformers, accelerate, one of the packages, the data or the examples are missing."""
    if reason := _missing(("transformers", "accelerate", *packages), examples):
        print(f"skipped: {reason}")
        raise SystemExit(77)


def environment(folder, **more):
    """Environment variables for a process in `folder`, without those of a launcher or of SageMaker."""
    ours = {key: value for key, value in os.environ.items()
            if not key.startswith(("OMPI_", "SM_")) and key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    return {**ours, **OFFLINE, "HF_HOME": str(folder / "hub"), "NLTK_DATA": str(folder / "nltk"), **more}


def start(folder, command, variables):
    """Starts a process of this Python."""
    return subprocess.Popen([sys.executable, *command], cwd=folder, env=variables, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def torchrun(ranks, command):
    """Python's arguments with which torchrun starts the command's ranks."""
    return ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks), *command]


def run_as_sagemaker(folder, ranks, command, *, on_gloo=False):
    """Runs the command's ranks with the variables of mpirun and SageMaker, on smddp, or on gloo under smddp's name."""
    path = os.environ.get("PYTHONPATH", "")
    package = folder / "on-gloo/smdistributed/dataparallel/torch"
    if on_gloo:
        package.mkdir(parents=True, exist_ok=True)
        for directory in (package, *package.parents[:2]):
            (directory / "__init__.py").touch()
        (package / "torch_smddp.py").write_text(_ON_GLOO)
        path = f"{package.parents[2]}:{path}"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    mpi = {"SIZE": ranks, "LOCAL_SIZE": ranks}
    wait([start(folder, command, environment(
        folder, **_SAGEMAKER, MASTER_PORT=port, PYTHONPATH=path,
        **{f"OMPI_COMM_WORLD_{name}": str(value)
           for name, value in {**mpi, "RANK": rank, "LOCAL_RANK": rank}.items()})) for rank in range(ranks)])
    if on_gloo:
        (package / "used").unlink()  # FileNotFoundError: the ranks had another backend


def wait(processes):
    """Waits for processes. If one has failed, raises AssertionError with the end of its output."""
    try:
        for process in processes:
            output, _ = process.communicate(timeout=900)
            assert process.returncode == 0, output[-6000:]
    finally:
        for process in processes:  # those that wait for one that failed
            process.kill()
            process.communicate()


def logged(folder):
    """(losses of the logged steps, all_results.json) of a run of the Trainer."""
    state = json.loads((folder / "trainer_state.json").read_text())
    steps = {entry["step"]: entry["loss"] for entry in state["log_history"] if "loss" in entry}
    return steps, json.loads((folder / "all_results.json").read_text())
