"""The environment variables through which torch.distributed finds its ranks, under each launcher."""
import json
import os

# torchrun's variables, and the Open MPI variables that hold the same values.
_FROM_MPI = {"RANK": "RANK", "WORLD_SIZE": "SIZE", "LOCAL_RANK": "LOCAL_RANK", "LOCAL_WORLD_SIZE": "LOCAL_SIZE"}
_PORT = "29500"  # torchrun's


def _master() -> str | None:
    hosts = json.loads(os.environ.get("SM_HOSTS", "[]"))
    if hosts:
        return sorted(hosts)[0]
    return "127.0.0.1" if os.environ["LOCAL_WORLD_SIZE"] == os.environ["WORLD_SIZE"] else None


def set_variables() -> None:
    """Sets torchrun's variables on ranks that mpirun started. Under other launchers it changes nothing."""
    if "RANK" not in os.environ and "OMPI_COMM_WORLD_RANK" in os.environ:
        for name, theirs in _FROM_MPI.items():
            os.environ[name] = os.environ[f"OMPI_COMM_WORLD_{theirs}"]
        if "MASTER_ADDR" not in os.environ and (master := _master()):
            os.environ["MASTER_ADDR"] = master
        os.environ.setdefault("MASTER_PORT", _PORT)
