"""Compares runs of a script of Hugging Face's Trainer on shoal with the same on gloo.

Each script runs by torchrun with gloo and with shoal.run, and with mpirun's and SageMaker's variables on smddp. The
Trainer logs other losses in SageMaker's mode (rank 0's own), so that mode has its own run on gloo beside it.
"""
import os
import pathlib
import tempfile
import unittest

import safetensors.torch

import hf_inputs
import hf_scripts

COMMON = ["--do_train", "--do_eval", "--max_steps", "6", "--per_device_train_batch_size", "2",
          "--per_device_eval_batch_size", "2", "--learning_rate", "1e-3", "--logging_steps", "1",
          "--save_strategy", "no", "--report_to", "none", "--disable_tqdm", "true"]


def losses(folder):
    """The numbers of a run by name."""
    steps, results = hf_scripts.logged(folder)
    assert sorted(steps) == [1, 2, 3, 4, 5, 6], steps
    # run_qa.py's evaluation has no labels, thus no loss.
    ends = {key: results[key] for key in ("train_loss", "eval_loss") if key in results}
    weights = safetensors.torch.load_file(folder / "model.safetensors").values()
    return {**{f"loss of step {step}": loss for step, loss in steps.items()}, **ends,
            "weights": sum(weight.double().square().sum().item() for weight in weights)}


def assert_same(gloo, shoal, what):
    assert gloo.keys() == shoal.keys()
    assert ("eval_loss" in gloo) == ("run_qa" not in what), gloo
    largest = max(abs(shoal[key] - loss) / loss for key, loss in gloo.items())
    print(f"{what}: train_loss {shoal['train_loss']:.7f}, largest relative difference {largest:.1e}", flush=True)
    assert largest < 1e-6, f"gloo: {gloo}\nshoal: {shoal}"


class Comparison(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.holder.name)
        hf_inputs.make(cls.folder, hf_scripts.SHARED)

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()

    def torchrun(self, ranks, output, command):
        hf_scripts.wait([hf_scripts.start(self.folder, hf_scripts.torchrun(ranks, [*command, "--output_dir", output]),
                                          hf_scripts.environment(self.folder))])
        return losses(self.folder / output)

    def mpirun(self, ranks, output, command, *, on_gloo=False):
        hf_scripts.run_as_sagemaker(self.folder, ranks, [*command, "--output_dir", output], on_gloo=on_gloo)
        return losses(self.folder / output)

    def compare(self, script, arguments, ranks):
        command = [os.fspath(script), *arguments, *COMMON]
        name = f"{pathlib.Path(script).stem}-{ranks}"
        gloo = self.torchrun(ranks, f"{name}-gloo", [*command, "--use_cpu"])
        assert_same(gloo, self.torchrun(ranks, f"{name}-shoal", ["-m", "shoal.run", *command]), f"{name}, shoal.run")
        gloo = self.mpirun(ranks, f"{name}-mpi-gloo", command, on_gloo=True)
        assert_same(gloo, self.mpirun(ranks, f"{name}-smddp", command), f"{name}, smddp")
