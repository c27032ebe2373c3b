"""transformers' run_glue.py, unmodified, trains a model that the job's SMP parameters cut as one process does.

The job is that of SageMaker's example for SMP: MNLI's columns and labels, RoBERTa, and the parameters below. Needs
what examples_test.py needs.
"""
import json
import os
import pathlib
import tempfile
import unittest

import hf_scripts

hf_scripts.skip_if_missing("datasets", "evaluate", "sklearn", examples=True)

import safetensors.torch  # noqa: E402

import hf_inputs  # noqa: E402

PARAMETERS = {"microbatches": 4, "optimize": "speed", "ddp": True}
# (ranks, the job's parameters)
LAYOUTS = (
    (4, {"partitions": 4, "placement_strategy": "cluster", "pipeline": "interleaved"}),
    (4, {"partitions": 2, "placement_strategy": "spread", "pipeline": "simple"}),
    (8, {"partitions": 4, "placement_strategy": "spread", "pipeline": "interleaved"}),
    (8, {"partitions": 2, "placement_strategy": "cluster", "pipeline": "simple"}),
)
SHARDED = 2, {"partitions": 1, "sharded_data_parallel_degree": 2, "sdp_param_persistence_threshold": 64}
BATCH = 16  # per step, over all replicas
COMMAND = ["run_glue.py", "--model_name_or_path", "roberta", "--max_seq_length", "48",
           "--train_file", "mnli-train.json", "--validation_file", "mnli-validation.json",
           "--test_file", "mnli-validation.json", "--do_train", "--do_eval", "--do_predict", "--use_cpu",
           "--max_steps", "6", "--per_device_eval_batch_size", "4", "--learning_rate", "1e-3", "--max_grad_norm", "0.5",
           "--logging_steps", "1", "--save_steps", "3", "--report_to", "none", "--disable_tqdm", "true"]
PREDICTIONS = "predict_results_None.txt"


def outcome(folder):
    """(the numbers, the predictions) of a run."""
    steps, results = hf_scripts.logged(folder)
    assert sorted(steps) == [1, 2, 3, 4, 5, 6], steps
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    numbers = {**{f"loss of step {step}": loss for step, loss in steps.items()}, "eval_loss": results["eval_loss"],
               **{f"norm of {name}": weight.double().norm().item() for name, weight in weights.items()}}
    return numbers, (folder / PREDICTIONS).read_text()


def assert_same(one, run, name):
    """A run is as one process is, both by their outcome()."""
    numbers, predictions = run
    assert numbers.keys() == one[0].keys()
    losses = {key: abs(numbers[key] - value) / value for key, value in one[0].items() if "loss" in key}
    print(f"{name}: losses differ by {max(losses.values()):.1e}", flush=True)
    assert max(losses.values()) < 1e-5, losses
    for key, value in one[0].items():
        assert abs(numbers[key] - value) < 1e-3 * value + 1e-4, key
    assert predictions == one[1]


class Seeds(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.holder.name)
        hf_inputs.make(cls.folder, hf_scripts.SHARED)
        cls.one = cls.run_glue("one", 1)

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()

    @classmethod
    def run_glue(cls, output, ranks, parameters=None, more=()):
        """(the numbers, the predictions) of a run; without parameters it is one process."""
        replicas = ranks // (parameters or {}).get("partitions", 1)
        script = os.path.join(hf_scripts.SCRIPTS, "text-classification", COMMAND[0])
        command = [script, *COMMAND[1:], "--output_dir", output,
                   "--per_device_train_batch_size", str(BATCH // replicas), *more]
        sagemaker = {}
        if parameters:
            parameters = {**PARAMETERS, **parameters}
            given = ",".join(f"{key}={value}" for key, value in parameters.items())  # as SageMaker's toolkit writes it
            command = hf_scripts.torchrun(ranks, ["-m", "shoal.run", *command, "--mp_parameters", given])
            sagemaker = {"SM_HP_MP_PARAMETERS": json.dumps(parameters),
                         "SM_FRAMEWORK_PARAMS": '{"sagemaker_mpi_enabled": true}'}
        hf_scripts.wait([hf_scripts.start(cls.folder, command, hf_scripts.environment(cls.folder, **sagemaker))])
        return outcome(cls.folder / output)

    def same(self, run, name):
        assert_same(self.one, run, name)

    def test_every_layout_trains_evaluates_and_predicts_as_one_process(self):
        for ranks, parameters in LAYOUTS:
            name = f"{ranks} ranks, {', '.join(str(value) for value in parameters.values())}"
            with self.subTest(name):
                self.same(self.run_glue(name.replace(", ", "-").replace(" ", "-"), ranks, parameters), name)

    def test_a_run_goes_on_from_its_checkpoint(self):
        for name, (ranks, parameters) in {"pipeline": LAYOUTS[1], "sharded": SHARDED}.items():
            with self.subTest(name):
                self.same(self.run_glue(name, ranks, parameters), f"{name}, before")
                more = ["--resume_from_checkpoint", f"{name}/checkpoint-3"]
                self.same(self.run_glue(f"{name}-again", ranks, parameters, more), f"{name}, resumed")


if __name__ == "__main__":
    unittest.main()
