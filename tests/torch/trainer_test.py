"""A script of Hugging Face's Trainer has the same losses on shoal as on gloo, and cut by SMP as in one process."""
import json
import os
import pathlib
import unittest

import hf_scripts

hf_scripts.skip_if_missing()

import torch  # noqa: E402

import hf_comparison  # noqa: E402

SCRIPT = pathlib.Path(__file__).with_name("trainer_script.py")
PARAMETERS = {"partitions": 2, "microbatches": 2, "ddp": True}
BATCH, REPLICAS = 4, 2
ARGUMENTS = [*hf_comparison.COMMON, "--use_cpu", "--do_predict", "--max_grad_norm", "0.05", "--save_strategy", "steps",
             "--save_steps", "3", "--per_device_eval_batch_size", "4"]
WITHOUT_DROPOUT = {"attn_pdrop": 0, "embd_pdrop": 0, "resid_pdrop": 0}  # so that microbatches are as their batch


class Trainer(hf_comparison.Comparison):
    def test_two_ranks(self):
        self.compare(SCRIPT, [], ranks=2)


class ModelParallel(hf_comparison.Comparison):
    """Two replicas of two partitions."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        path = cls.folder / "gpt2/config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **WITHOUT_DROPOUT}))
        cls.one = cls.outcome("one", [os.fspath(SCRIPT)], BATCH)

    @classmethod
    def outcome(cls, output, command, batch, **variables):
        """(the numbers, [the predictions, the labels]) of a run."""
        command = [*command, *ARGUMENTS, "--per_device_train_batch_size", str(batch), "--output_dir", output]
        hf_scripts.wait([hf_scripts.start(cls.folder, command, hf_scripts.environment(cls.folder, **variables))])
        folder = cls.folder / output
        steps = json.loads((folder / "trainer_state.json").read_text())["log_history"]
        norms = {f"norm of step {entry['step']}": entry["grad_norm"] for entry in steps if "grad_norm" in entry}
        numbers = {**hf_comparison.losses(folder), **norms}
        return numbers, [torch.tensor(one) for one in json.loads((folder / "predictions.json").read_text())]

    def cut(self, output, *more):
        """outcome() of the job's ranks."""
        given = ",".join(f"{key}={value}" for key, value in PARAMETERS.items())  # as SageMaker's toolkit writes it
        command = ["-m", "shoal.run", os.fspath(SCRIPT), "--mp_parameters", given, *more]
        return self.outcome(output, hf_scripts.torchrun(PARAMETERS["partitions"] * REPLICAS, command),
                            BATCH // REPLICAS, SM_HP_MP_PARAMETERS=json.dumps(PARAMETERS),
                            SM_FRAMEWORK_PARAMS='{"sagemaker_mpi_enabled": true}')

    def same(self, found):
        numbers, (predictions, labels) = found
        wanted, (predicted, asked) = self.one
        self.assertEqual(numbers.keys(), wanted.keys())
        for name, value in wanted.items():
            if name != "train_loss":  # a resumed run's is over its own steps
                self.assertAlmostEqual(numbers[name], value, delta=1e-5 * value, msg=name)
        self.assertTrue(torch.equal(labels, asked))
        torch.testing.assert_close(predictions, predicted, rtol=1e-5, atol=1e-6)

    def test_two_replicas_of_two_partitions(self):
        self.assertGreater(min(value for name, value in self.one[0].items() if "norm" in name), 0.05)  # all are clipped
        self.same(self.cut("cut"))
        notes = (self.folder / "cut/rng_files.txt").read_text().splitlines()
        # One file for each replica, from its first rank.
        self.assertEqual(sorted(notes), ["0 rng_state_0.pth"] * 2 + ["2 rng_state_1.pth"] * 2)
        self.same(self.cut("again", "--resume_from_checkpoint", "cut/checkpoint-3"))


if __name__ == "__main__":
    unittest.main()
