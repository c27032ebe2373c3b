"""Hugging Face's example scripts, unmodified, have the same losses on shoal as on gloo.

Needs SHOAL_HF_EXAMPLES (hf_scripts.py), transformers, accelerate, datasets, evaluate, scikit-learn, nltk and
../shared/data. Each script runs by
torchrun with gloo and with shoal.run, and with mpirun's and SageMaker's variables on smddp. The Trainer logs
other losses in SageMaker's mode (rank 0's own), so that mode has its own run on gloo beside it.
"""
import os
import pathlib
import socket
import tempfile
import unittest

import hf_scripts

hf_scripts.skip_if_missing()

import safetensors.torch  # noqa: E402

import hf_inputs  # noqa: E402

PAIRS, SQUAD, TEXT, SUMMARIES = (
    ["--train_file", f"{name}-train.{end}", "--validation_file", f"{name}-validation.{end}"]
    for name, end in (("pairs", "json"), ("squad", "json"), ("text", "txt"), ("summaries", "json")))
EXAMPLES = {
    "text-classification/run_glue.py": ["--model_name_or_path", "bert", "--max_seq_length", "32", *PAIRS],
    "question-answering/run_qa.py": ["--model_name_or_path", "bert", "--max_seq_length", "64", "--doc_stride", "16",
                                     "--max_eval_samples", "12", *SQUAD],
    "language-modeling/run_clm.py": ["--model_name_or_path", "gpt2", "--block_size", "32", "--max_eval_samples", "12",
                                     *TEXT],
    "language-modeling/run_mlm.py": ["--model_name_or_path", "bert", "--max_seq_length", "32",
                                     "--max_eval_samples", "12", *TEXT],
    "summarization/run_summarization.py": ["--model_name_or_path", "t5", "--max_source_length", "48",
                                           "--max_target_length", "16", *SUMMARIES],
}
COMMON = ["--do_train", "--do_eval", "--max_steps", "6", "--per_device_train_batch_size", "2",
          "--per_device_eval_batch_size", "2", "--learning_rate", "1e-3", "--logging_steps", "1",
          "--save_strategy", "no", "--report_to", "none", "--disable_tqdm", "true"]
# What SageMaker's container has where distribution is {"smdistributed": {"dataparallel": {"enabled": True}}}.
SAGEMAKER = {"SM_HOSTS": '["localhost"]', "SM_CURRENT_HOST": "localhost",
             "SM_FRAMEWORK_PARAMS": '{"sagemaker_distributed_dataparallel_enabled": true}',
             "SAGEMAKER_JOB_NAME": "examples", "ACCELERATE_TORCH_DEVICE": "cpu"}
# SageMaker's library whose backend is gloo, in the place of Shoal's.
ON_GLOO = """
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


class Examples(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.holder = tempfile.TemporaryDirectory()
        cls.folder = pathlib.Path(cls.holder.name)
        hf_inputs.make(cls.folder, hf_scripts.SHARED)
        cls.on_gloo = cls.folder / "on-gloo/smdistributed/dataparallel/torch"
        cls.on_gloo.mkdir(parents=True)
        for package in (cls.on_gloo, *cls.on_gloo.parents[:2]):
            (package / "__init__.py").touch()
        (cls.on_gloo / "torch_smddp.py").write_text(ON_GLOO)

    @classmethod
    def tearDownClass(cls):
        cls.holder.cleanup()

    def losses(self, output):
        steps, results = hf_scripts.logged(self.folder / output)
        self.assertEqual(len(steps), 6)
        # run_qa.py's evaluation has no labels, thus no loss.
        ends = {key: results[key] for key in ("train_loss", "eval_loss") if key in results}
        weights = safetensors.torch.load_file(self.folder / output / "model.safetensors").values()
        return {**{f"loss of step {step}": loss for step, loss in steps.items()}, **ends,
                "weights": sum(weight.double().square().sum().item() for weight in weights)}

    def torchrun(self, ranks, output, command):
        hf_scripts.wait([hf_scripts.start(self.folder, hf_scripts.torchrun(ranks, [*command, "--output_dir", output]),
                                          hf_scripts.environment(self.folder))])
        return self.losses(output)

    def mpirun(self, ranks, output, command, path=os.environ.get("PYTHONPATH", "")):
        """Ranks with the variables that mpirun gives them; SageMaker starts them so."""
        mpi = {"SIZE": ranks, "LOCAL_SIZE": ranks}
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        hf_scripts.wait([hf_scripts.start(self.folder, [*command, "--output_dir", output], hf_scripts.environment(
            self.folder, **SAGEMAKER, MASTER_PORT=port, PYTHONPATH=path,
            **{f"OMPI_COMM_WORLD_{name}": str(value)
               for name, value in {**mpi, "RANK": rank, "LOCAL_RANK": rank}.items()})) for rank in range(ranks)])
        return self.losses(output)

    def same(self, gloo, shoal, what):
        self.assertEqual(gloo.keys(), shoal.keys())
        self.assertEqual("eval_loss" in gloo, "run_qa" not in what)
        largest = max(abs(shoal[key] - loss) / loss for key, loss in gloo.items())
        print(f"{what}: train_loss {shoal['train_loss']:.7f}, largest relative difference {largest:.1e}", flush=True)
        self.assertLess(largest, 1e-6, f"gloo: {gloo}\nshoal: {shoal}")

    def compare(self, script, ranks):
        command = [os.path.join(hf_scripts.SCRIPTS, script), *EXAMPLES[script], *COMMON]
        name = f"{pathlib.Path(script).stem}-{ranks}"
        gloo = self.torchrun(ranks, f"{name}-gloo", [*command, "--use_cpu"])
        self.same(gloo, self.torchrun(ranks, f"{name}-shoal", ["-m", "shoal.run", *command]), f"{name}, shoal.run")
        path = f"{self.on_gloo.parents[2]}:{os.environ.get('PYTHONPATH', '')}"
        gloo = self.mpirun(ranks, f"{name}-mpi-gloo", command, path)
        (self.on_gloo / "used").unlink()
        self.same(gloo, self.mpirun(ranks, f"{name}-smddp", command), f"{name}, smddp")


for _script in EXAMPLES:
    for _ranks in (2, 4):
        setattr(Examples, f"test_{pathlib.Path(_script).stem}_{_ranks}_ranks",
                lambda self, script=_script, ranks=_ranks: self.compare(script, ranks))


if __name__ == "__main__":
    unittest.main()
