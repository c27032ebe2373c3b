"""PyTorch's own distributed_test, which its wheel brings, with the backend shoal.

    WORLD_SIZE=2 pytorch_suite.py [TEST...]

Gates that name a backend open as for gloo and for MPI, whose CPU tests shoal passes too. The file
pytorch_suite_exceptions.txt lists the tests that are left out, each with its reason.
"""
import os
import pathlib
import sys
import types
import unittest

import torch
import torch.distributed as dist
import torch.testing._internal.common_distributed as common

import shoal.torch

EXCEPTIONS = pathlib.Path(__file__).with_name("pytorch_suite_exceptions.txt")
LEAST = {"2": 93, "4": 94}  # tests that run, by world size: 2 fewer than with PyTorch 2.15


class Name(str):
    """The backend's name. It also compares equal to the backends whose gates it passes."""

    OPENS = ("gloo", "mpi")

    def __eq__(self, other):
        return str.__eq__(self, other) or other in self.OPENS

    def __ne__(self, other):
        return not self == other

    __hash__ = str.__hash__


def suite_module():
    for features in common.DistTestCases.backend_feature.values():
        features.add("shoal")
    for name in ("gpu", "cuda"):
        common.DistTestCases.backend_feature[name].discard("shoal")
    os.environ["BACKEND"] = "shoal"
    os.environ.setdefault("TEMP_DIR", "/tmp")
    common.DistTestCases.backend_feature["plugin"].add("shoal")
    path = pathlib.Path(common.__file__).parent / "distributed" / "distributed_test.py"
    source = path.read_text()
    for old, new in (('BACKEND = os.environ["BACKEND"]', "BACKEND = SHOAL_NAME"),
                     ('@require_backend_is_available({"gloo"})', '@require_backend_is_available({"shoal"})')):
        assert old in source, f"{path} has no {old!r}: adapt this script to PyTorch {torch.__version__}"
        source = source.replace(old, new)
    module = types.ModuleType("distributed_test_with_shoal")
    module.__file__ = str(path)
    module.SHOAL_NAME = Name("shoal")
    sys.modules[module.__name__] = module
    exec(compile(source, str(path), "exec"), module.__dict__)
    for backends in (module.PROFILING_SUPPORTED_BACKENDS, module.SEND_RECV_PROFILING_SUPPORTED_BACKENDS):
        backends.append("shoal")
    return module


def exceptions():
    """Names of tests, by world size, and their reasons."""
    listed = {}
    for line in EXCEPTIONS.read_text().splitlines():
        line = line.strip()
        if line and not line.startswith("#"):
            name, ranks, reason = line.split(None, 2)
            if ranks in ("*", os.environ["WORLD_SIZE"]):
                listed[name] = reason
    return listed


MODULE = suite_module()


class Suite(MODULE.TestDistBackend, MODULE.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        reason = exceptions().get(self._testMethodName)
        if reason and "--all" not in sys.argv:
            self.skipTest(reason)
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    @classmethod
    def _run(cls, rank, test_name, file_name, pipe, **kwargs):
        torch.set_num_threads(1)
        super()._run(rank, test_name, file_name, pipe, **kwargs)


if __name__ == "__main__":
    del dist
    argv = [a if a.startswith("-") else f"Suite.{a}" for a in sys.argv if a != "--all"]
    argv[0] = sys.argv[0]
    result = unittest.main(argv=argv, exit=False).result
    ran = result.testsRun - len(result.skipped)
    least = 1 if any(a.startswith("Suite.") for a in argv) else LEAST[os.environ["WORLD_SIZE"]]
    print(f"{ran} of PyTorch's tests ran")
    if ran < least:
        sys.exit(f"at least {least} should: see the reasons of skipped tests with -v")
    sys.exit(not result.wasSuccessful())
