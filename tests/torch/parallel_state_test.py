"""Guarantees of checkpoints: complete or an error on every rank, damage detected, and runs that resume unchanged."""
import contextlib
import copy
import errno
import importlib.util
import os
import shutil
import subprocess
import tempfile
import textwrap
import unittest

import ranks
import torch
from parallel_optimizer_test import SHARDED, begin, model_of, optimizer_of, packed, train, unpacked, values
from torch import nn

from shoal.torch import parallel as smp
from shoal.torch.parallel.state import state

try:
    import safetensors
except ImportError:
    safetensors = None


def fill(folder):
    """Writes until the disk is full; returns the file."""
    path = os.path.join(folder, "ballast")
    with contextlib.suppress(OSError), open(path, "wb", buffering=0) as file:
        while file.write(b"0" * 4096):
            pass
    return path


def refused(folder, at, **arguments):
    """save_checkpoint() fails with an OSError that names a file of `at`."""
    try:
        smp.save_checkpoint(folder, **arguments)
    except OSError as problem:
        assert problem.errno == errno.ENOSPC or "space" in str(problem), problem
        assert at in str(problem), (at, str(problem))
        return
    raise AssertionError("a full disk took a checkpoint")


def run_full_disk(rank, size, config, folder, partial):
    model, optimizer = begin(config)
    train(model, optimizer, range(1))
    kept = {"model": model, "optimizer": optimizer, "partial": partial}
    smp.save_checkpoint(folder, tag="good.bin", user_content="good", **kept)
    saved = values(model)
    train(model, optimizer, range(1, 2))
    smp.barrier()
    ballast = fill(folder) if rank == 0 else None
    smp.barrier()
    refused(folder, folder, tag="bad.bin", user_content="bad", **kept)
    smp.barrier()
    left = sorted(name for name in os.listdir(folder) if "bad" in name or name.endswith(".part"))
    assert not left, left
    assert smp.resume_from_checkpoint(folder, partial=partial) == "good"
    assert all(torch.equal(value, saved[name]) for name, value in values(model).items())
    smp.barrier()
    if ballast:
        os.remove(ballast)
    smp.barrier()
    smp.save_checkpoint(folder, tag="bad.bin", user_content="now", **kept)
    assert smp.resume_from_checkpoint(folder, partial=partial) == "now"


def run_one_full_disk(rank, size, config, folders):
    """Ranks with disks of their own, one of which is full."""
    model, optimizer = begin(config)
    train(model, optimizer, range(1))
    if rank == 1:
        fill(folders[1])
    smp.barrier()
    refused(folders[rank], folders[1] if rank == 1 else "", tag="bad", model=model, optimizer=optimizer)
    assert not os.path.exists(os.path.join(folders[0], "bad_partial"))
    train(model, optimizer, range(1, 2))  # the ranks are still together


def run_several_models(rank, size, folder):
    """With two live models, one must be named. The other one and its optimizer do not change."""
    smp.init({"ddp": True})
    made = [(one := smp.DistributedModel(model_of()), smp.DistributedOptimizer(optimizer_of(one))) for _ in range(2)]
    (first, optimizer), (second, other) = made
    for one in made:
        train(*one, range(2))
    smp.save_checkpoint(folder, tag="two", model=first, optimizer=optimizer)
    smp.save_checkpoint(folder, tag="two.bin", partial=False, model=first, optimizer=optimizer)
    saved = packed((values(first), optimizer.state_dict()))
    for one in made:
        train(*one, range(2, 4))
    later = packed((values(second), other.state_dict()))
    for arguments, message in (({}, "name the one to load into by model="),
                               ({"model": second, "optimizer": optimizer}, "is of another model"),
                               ({"model": first.module}, "not a Sequential")):
        try:
            smp.resume_from_checkpoint(folder, tag="two", **arguments)
        except (ValueError, TypeError) as problem:
            assert message in str(problem), problem
        else:
            raise AssertionError(f"a checkpoint was loaded with {list(arguments)}")
    for partial in (True, False):
        for named in ({"model": first}, {"optimizer": optimizer}, {"model": first, "optimizer": optimizer}):
            smp.resume_from_checkpoint(folder, tag="two" if partial else "two.bin", partial=partial, **named)
            assert packed((values(first), optimizer.state_dict())) == saved, (partial, list(named))
            assert packed((values(second), other.state_dict())) == later, (partial, list(named))
            train(first, optimizer, range(2, 4))
    del second, other, one, made
    smp.resume_from_checkpoint(folder, tag="two")
    assert packed((values(first), optimizer.state_dict())) == saved


def run_trainer(rank, size, folder):
    """The Trainer resumes, and loads its best model, into its own model beside an older and a newer one."""
    os.environ.update(SM_HP_MP_PARAMETERS='{"partitions": 1, "microbatches": 1, "ddp": true}', HF_HUB_OFFLINE="1",
                      SM_FRAMEWORK_PARAMS='{"sagemaker_mpi_enabled": true}')
    import transformers as hf

    def bert(seed):
        torch.manual_seed(seed)
        return hf.BertForSequenceClassification(hf.BertConfig(
            vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
            max_position_embeddings=8))

    def trainer(model, steps, *callbacks):
        arguments = hf.TrainingArguments(
            folder, max_steps=steps, save_steps=2, eval_strategy="steps", eval_steps=2, load_best_model_at_end=True,
            use_cpu=True, report_to="none", disable_tqdm=True, per_device_train_batch_size=4)
        return hf.Trainer(model, arguments, train_dataset=data, eval_dataset=data, callbacks=list(callbacks))

    class Watch(hf.TrainerCallback):
        def on_train_begin(self, arguments, progress, control, **others):
            self.resumed = copy.deepcopy(again.model.state_dict())
            self.newer = smp.DistributedModel(bert(4))

    data = [{"input_ids": torch.arange(8) % (i + 2), "labels": torch.tensor(i % 2)} for i in range(16)]
    first = trainer(bert(1), 2)
    first.train()
    trained = copy.deepcopy(first.model.state_dict())
    older, watch = smp.DistributedModel(bert(3)), Watch()
    again = trainer(bert(2), 4, watch)
    again.train(resume_from_checkpoint=os.path.join(folder, "checkpoint-2"))
    assert len(state.models()) == 4 and state.model is watch.newer and again.state.global_step == 4
    for model, expected in ((watch.resumed, trained), (older.state_dict(), bert(3).state_dict()),
                            (watch.newer.state_dict(), bert(4).state_dict())):
        torch.testing.assert_close(dict(model), dict(expected), rtol=0, atol=0)
    best = int(again.state.best_model_checkpoint.rpartition("-")[2])
    assert best in (2, 4), best
    if best == 2:
        torch.testing.assert_close(dict(again.model.state_dict()), dict(trained), rtol=0, atol=0)


class SeveralModels(unittest.TestCase):
    def test_the_script_names_one(self):
        with tempfile.TemporaryDirectory() as folder:
            ranks.run(2, run_several_models, folder)

    @unittest.skipUnless(importlib.util.find_spec("transformers"), "transformers is not installed")
    def test_the_trainer_loads_into_its_own(self):
        with tempfile.TemporaryDirectory() as folder:
            ranks.run(1, run_trainer, folder, timeout=240)


class FullDisk(unittest.TestCase):
    def setUp(self):
        self.small, self.large = (tempfile.mkdtemp(prefix="shoal-disk-") for _ in range(2))
        self.addCleanup(shutil.rmtree, self.large)
        self.addCleanup(os.rmdir, self.small)
        mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "none", self.small]
        if os.geteuid() or subprocess.run(mount, capture_output=True).returncode:
            self.skipTest("only root can mount a small tmpfs")
        self.addCleanup(subprocess.run, ["umount", self.small], check=True)

    def test_of_all_ranks(self):
        for partial in (True, False):
            with self.subTest(partial=partial):
                ranks.run(2, run_full_disk, SHARDED, os.path.join(self.small, str(partial)), partial)

    def test_of_one_rank(self):
        ranks.run(2, run_one_full_disk, SHARDED, [self.large, self.small])


# Damaged checkpoints.


def problem_of(call):
    try:
        call()
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}"
    return "no error"


def run_flips(rank, size, folder):
    """Flips one byte of a weight or of a moment in each file that has it; resuming must tell. Returns the files."""
    model, optimizer = begin({})
    train(model, optimizer, range(2))
    both = {"model": model, "optimizer": optimizer}
    smp.save_checkpoint(folder, tag="parts", **both)
    smp.save_checkpoint(folder, tag="whole.bin", partial=False, **both)
    if safetensors:
        smp.save_checkpoint(folder, tag="whole.safetensors", partial=False, **both)
    assert set(torch.load(os.path.join(folder, "whole.bin"))) == set(model.state_dict())
    needles = [values(model)["0.weight"].numpy().tobytes(),
               optimizer.state_dict()["state"][0]["exp_avg"].numpy().tobytes()]
    loads = {tag: (lambda tag=tag: smp.resume_from_checkpoint(folder, tag=tag, partial=tag == "parts"))
             for tag in ("parts", "whole.bin", "whole.safetensors") if safetensors or not tag.endswith("safetensors")}
    for load in loads.values():
        load()
    flipped = []
    for path in (os.path.join(at, name) for at, _, names in os.walk(folder) for name in names):
        with open(path, "rb") as file:
            content = file.read()
        at = max(content.find(needle) for needle in needles)
        if at < 0:
            continue
        with open(path, "wb") as file:
            file.write(content[:at + 5] + bytes([content[at + 5] ^ 16]) + content[at + 6:])
        flipped.append(os.path.relpath(path, folder))
        load = next(load for tag, load in loads.items() if tag in flipped[-1])
        text = problem_of(load)
        assert text.startswith(f"ValueError: {folder}"), (path, text)
        with open(path, "wb") as file:
            file.write(content)
        load()
    return flipped


def run_saved_flip(rank, size, folder):
    smp.init({})
    path = os.path.join(folder, "object.pt")
    value = torch.arange(1000.0)
    smp.save({"value": value}, path)
    with open(path + "_0_0", "r+b") as file:
        at = file.read().find(value.numpy().tobytes())
        file.seek(at + 2001)
        file.write(b"\xff")
    smp.load(path)


class Damage(unittest.TestCase):
    def test_flipped_bytes_of_checkpoints(self):
        with tempfile.TemporaryDirectory() as folder:
            flipped, = ranks.run(1, run_flips, folder)
        self.assertGreaterEqual(len(flipped), 5 if safetensors else 3, flipped)

    def test_flipped_bytes_of_objects(self):
        with tempfile.TemporaryDirectory() as folder, self.assertRaisesRegex(ranks.Failed, "is damaged"):
            ranks.run(1, run_saved_flip, folder)


# Options.


def run_options(rank, size, folder):
    model, optimizer = begin({"ddp": True})
    train(model, optimizer, range(1))
    texts = [problem_of(lambda: smp.resume_from_checkpoint(folder, translate_function=dict)),
             problem_of(lambda: smp.resume_from_checkpoint(folder, load_sharded_optimizer_state=False)),
             problem_of(lambda: smp.save_checkpoint(folder, tag="x", optimizer=optimizer.optimizer)),
             problem_of(lambda: smp.save_checkpoint(folder, tag="x", model=model.module)),
             problem_of(lambda: smp.save_checkpoint(folder, tag="a/b", model=model)),
             problem_of(lambda: smp.save_checkpoint(folder, tag="x", num_kept_partial_checkpoints=0)),
             problem_of(lambda: smp.resume_from_checkpoint(os.path.join(folder, "none")))]
    smp.save_checkpoint(folder, tag="whole.bin", partial=False, model=model, optimizer=optimizer)
    saved, moments = values(model), packed(optimizer.state_dict())
    train(model, optimizer, range(1, 2))
    moved = values(model)

    def without_last(whole):
        return {name: value for name, value in whole.items() if name != "4.bias"}

    texts.append(problem_of(lambda: smp.resume_from_checkpoint(folder, partial=False, translate_function=without_last)))
    smp.resume_from_checkpoint(folder, partial=False, strict=False, load_optimizer=False,
                               translate_function=without_last)
    for name, value in values(model).items():
        assert torch.equal(value, (moved if name == "4.bias" else saved)[name]), name
    assert packed(optimizer.state_dict()) != moments, "the optimizer was loaded"
    smp.resume_from_checkpoint(folder, tag="whole.bin", partial=False)
    found, expected = optimizer.state_dict(), unpacked(moments)
    assert all(torch.equal(found["state"][i]["exp_avg"], one["exp_avg"]) for i, one in expected["state"].items())
    return texts


def run_masters_only(rank, size, folder):
    """load_sharded_optimizer_state=False: masters and the loss scale, but no moments."""
    config = {**SHARDED, "fp16": True}
    rule = {"dynamic_loss_args": {"init_scale": 16.0, "scale_window": 1}}
    model, optimizer = begin(config, dtype=torch.float16, **rule)
    train(model, optimizer, range(2))
    masters = [piece.value.detach().clone() for piece in optimizer._pieces]
    for group in optimizer.param_groups:
        group["lr"] = 0.5
    smp.save_checkpoint(folder, tag="two", model=model, optimizer=optimizer)
    state.clear()
    model, optimizer = begin(config, dtype=torch.float16, **rule)
    smp.resume_from_checkpoint(folder, load_sharded_optimizer_state=False)
    assert all(torch.equal(piece.value, master) for piece, master in zip(optimizer._pieces, masters, strict=True))
    assert optimizer.loss_scale == 64.0 and not optimizer.state and optimizer.param_groups[0]["lr"] == 0.01
    smp.resume_from_checkpoint(folder)
    assert optimizer.state and optimizer.param_groups[0]["lr"] == 0.5


class Options(unittest.TestCase):
    def test_each_does_what_it_says(self):
        with tempfile.TemporaryDirectory() as folder:
            for texts in ranks.run(2, run_options, folder):
                for text, expected in zip(texts, (
                        "ValueError: translate_function is of full checkpoints",
                        "ValueError: load_sharded_optimizer_state=False needs a sharded",
                        "TypeError: save_checkpoint saves an smp.DistributedOptimizer",
                        "TypeError: save_checkpoint saves an smp.DistributedModel",
                        'ValueError: the tag "a/b"', "ValueError: num_kept_partial_checkpoints is 0",
                        "FileNotFoundError", "RuntimeError: load_state_dict: missing keys"), strict=True):
                    self.assertTrue(text.startswith(expected), text)

    def test_masters_without_moments(self):
        with tempfile.TemporaryDirectory() as folder:
            ranks.run(2, run_masters_only, folder)


# Resuming.


def run_go_on(rank, size, config, folder, resumes):
    """Two steps, a checkpoint, two more; or just the latter, from the checkpoint. With dropout and a schedule."""
    smp.init(config)
    layers = list(model_of(torch.float16 if config.get("fp16") else torch.float32))
    model = smp.DistributedModel(nn.Sequential(*layers[:2], nn.Dropout(0.3), *layers[2:]))
    rule = {"dynamic_loss_args": {"init_scale": 16.0, "scale_window": 1}} if config.get("fp16") else {}
    optimizer = smp.DistributedOptimizer(optimizer_of(model), **rule)
    torch.manual_seed((50 if resumes else 10) + rank)

    def scheduler(last_epoch):
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 1 / (1 + epoch), last_epoch)

    if resumes:
        step = smp.resume_from_checkpoint(folder)["step"]
        assert optimizer.loss_scale == (64.0 if rule else 1.0)
        schedule = scheduler(step - 1)
    else:
        schedule = scheduler(-1)
        train(model, optimizer, range(2), schedule)
        smp.save_checkpoint(folder, tag="two", model=model, optimizer=optimizer, user_content={"step": 2})
    rates = [optimizer.param_groups[0]["lr"]]
    train(model, optimizer, range(2, 4), schedule)
    return packed((values(model), rates + [optimizer.param_groups[0]["lr"]], optimizer.loss_scale,
                   torch.get_rng_state()))


class GoingOn(unittest.TestCase):
    def check(self, config):
        with tempfile.TemporaryDirectory() as folder:
            expected = [unpacked(text) for text in ranks.run(2, run_go_on, config, folder, False)]
            found = [unpacked(text) for text in ranks.run(2, run_go_on, config, folder, True)]
        for (weights, rates, scale, random), (known, *others, known_random) in zip(found, expected, strict=True):
            self.assertEqual([rates, scale], others)
            self.assertTrue(torch.equal(random, known_random), "other random numbers")
            for name, value in known.items():
                self.assertTrue(torch.equal(weights[name], value), name)

    def test_replicas(self):
        self.check(SHARDED)

    def test_pipeline_in_fp16(self):
        self.check({"partitions": 2, "microbatches": 2, "fp16": True, "skip_tracing": True})


# The documentation.


def run_example(rank, size, text, folder):
    """The script twice: the second time it goes on. Returns the losses after each."""
    os.chdir(folder)
    losses = []
    for begin in (0, 20):
        names = {}
        exec(text, names)
        assert names["begin"] == begin
        losses.append(names["loss"].item())
        smp.shutdown()
    return losses


class Documentation(unittest.TestCase):
    def test_example(self):
        root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        with open(os.path.join(root, "docs", "guides", "pytorch.md"), encoding="utf-8") as file:
            section = file.read().split("## SageMaker's model parallelism\n")[1]
        text = textwrap.dedent(section.split("\n\n`shoal.torch.parallel`")[0])
        with tempfile.TemporaryDirectory() as folder:
            found = ranks.run(4, run_example, text, folder)
        for first, second in found:
            self.assertLess(second, first)


if __name__ == "__main__":
    unittest.main()
