"""Runs go from PyTorch to Shoal's own engine and back by their checkpoints, beside an unbroken run.

A journey has three layouts, of 1 or 2 ranks, with SHOAL_TEST_FULL=1 also of 4. The tests take journeys in which each
pair of values occurs. Partial checkpoints have the optimizer's state. Full ones have only the model in the engine's
format, so their journeys train by SGD.
"""
import functools
import importlib.util
import itertools
import json
import math
import os
import pathlib
import random
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import unittest
from typing import NamedTuple

import parallel_layouts_test as layouts
import ranks
import torch
from parallel_layouts_test import Layout
from parallel_optimizer_test import packed, unpacked

from shoal.torch import parallel as smp
from shoal.torch.parallel.state import state

if importlib.util.find_spec("transformers") is None:
    print("there is no transformers")
    sys.exit(77)
import transformers
from safetensors.torch import load_file

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
PROGRAM = os.environ["SHOAL_PROGRAM"]
BATCH, LENGTH, STEPS, RATE, DECAY = 8, 16, 6, 1e-2, 0.1
EPSILON = 1e-4  # of AdamW; else updates by the rounding of gradients that are 0
OPTIONS = {"block_size": LENGTH, "max_steps": STEPS, "learning_rate": RATE, "lr_scheduler_type": "constant",
           "weight_decay": DECAY, "adam_epsilon": EPSILON, "max_grad_norm": 0, "seed": 1, "logging_steps": 1,
           "train_sampling_strategy": "sequential", "do_train": True, "report_to": "none"}
RUN = {"max_steps": STEPS, "global_batch_size": BATCH, "seed": 1, "data_seed": 1}
VOCABULARY = 500
MODELS = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=32, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0,
        attn_pdrop=0, bos_token_id=0, eos_token_id=0)),
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=32, bos_token_id=0, eos_token_id=0)),
}
BERT = {"vocab_size": 572, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24,
        "max_position_embeddings": 40}
ENCODERS = {
    "bert": lambda: transformers.BertForMaskedLM(transformers.BertConfig(**BERT)),
    "roberta": lambda: transformers.RobertaForMaskedLM(transformers.RobertaConfig(**BERT)),
    "albert": lambda: transformers.AlbertForMaskedLM(transformers.AlbertConfig(**BERT, embedding_size=8)),
    "distilbert": lambda: transformers.DistilBertForMaskedLM(transformers.DistilBertConfig(
        vocab_size=572, dim=16, n_layers=2, n_heads=2, hidden_dim=24, max_position_embeddings=40)),
}


class Journey(NamedTuple):
    """Two steps in PyTorch, two or more of Shoal's own engine, two in PyTorch."""
    kind: str  # of checkpoints: "partial" or "full"
    family: str
    rdp: int
    pp: int
    tp: int
    sharding: str
    native_rdp: int
    native_pp: int
    native_tp: int
    native_sharding: str
    last_rdp: int
    last_pp: int
    last_tp: int
    last_sharding: str

    @property
    def layouts(self):
        return [Layout(self.family, *self[at:at + 4], "kept", "own", "simple", "cluster") for at in (2, 6, 10)]

    @property
    def ranks(self):
        return sum(layout.ranks for layout in self.layouts)


def journeys(kind, folder):
    """Journeys with their folders."""
    ends = [(*each, sharding) for each in layouts.degrees(4 if layouts.FULL else 2) if math.prod(each) != 3
            for sharding in layouts.shardings(*each[:2])]
    found = [Journey(kind, family, *first, *native, *last) for kind, family, first, native, last in itertools.product(
        ("partial", "full"), MODELS, ends, ends, ends)]
    chosen = layouts.covering(random.Random(1).sample(found, len(found)))
    return [(journey, folder / f"journey{number}") for number, journey in enumerate(chosen) if journey.kind == kind]


def tokens_of(path):
    """The samples of a .shoaltok file of 16-bit ids (train/data/token_file.h)."""
    content = path.read_bytes()
    assert content[:8] == b"SHOALTOK" and struct.unpack("<I", content[12:16])[0] == 2
    count = struct.unpack("<Q", content[-128:-120])[0]
    ids = torch.frombuffer(bytearray(content[64:64 + 2 * count]), dtype=torch.int16).long()
    return ids[:count // LENGTH * LENGTH].view(-1, LENGTH)


@smp.step
def train_step(model, ids):
    loss = model(input_ids=ids, labels=ids).loss
    model.backward(loss)
    return loss


def start_of(family, folder):
    """The folder of the model that runs begin with, beside their folders."""
    return folder.parent / f"{family}_start"


def split(model):
    smp.set_tensor_parallelism(model)
    return smp.DistributedModel(model)


def optimizer_of(model, rule="adamw"):
    if rule == "sgd":
        return torch.optim.SGD(model.parameters(), lr=RATE)
    return torch.optim.AdamW(
        [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": DECAY},
         {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0}], lr=RATE, eps=EPSILON)


def batch_of(tokens, step):
    return tokens[BATCH * step:BATCH * (step + 1)]


def run_steps(tokens, index, case):
    """Two steps in a journey's layout `index`: the first ones, or those after the native run's checkpoint."""
    journey, folder = case
    first, last = (4, 6) if index else (0, 2)
    smp.init(journey.layouts[index].parameters)
    model = split(transformers.AutoModelForCausalLM.from_pretrained(start_of(journey.family, folder)))
    optimizer = smp.DistributedOptimizer(optimizer_of(model))
    if index:
        run = smp.resume_from_checkpoint(str(folder / "went_on"), tag=f"checkpoint-{first}")
        assert run["global_step"] == first and run["shoal"]["data_position"] == BATCH * first, run
    losses = [train(model, optimizer, batch_of(tokens, step)) for step in range(first, last)]
    smp.save_checkpoint(str(folder), tag=f"at{last}", model=model, optimizer=optimizer,
                        trainer_state={**RUN, "global_step": last, "data_position": BATCH * last})
    smp.shutdown()
    return losses


def run_whole(tokens, index, case):
    """Two steps in a journey's layout `index`, from one file model.safetensors to another."""
    journey, folder = case
    source = folder / "whole1" if index else start_of(journey.family, folder)
    smp.init(journey.layouts[index].parameters)
    model = split(transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.from_pretrained(start_of(journey.family, folder))))
    optimizer = smp.DistributedOptimizer(optimizer_of(model, "sgd"))
    smp.resume_from_checkpoint(str(source), tag="model.safetensors", partial=False, load_optimizer=False)
    losses = [train(model, optimizer, batch_of(tokens, step)) for step in range(2)]
    smp.save_checkpoint(str(folder / f"whole{index}"), tag="model.safetensors", partial=False, model=model)
    smp.shutdown()
    return losses


def plain_step(model, optimizer, batch):
    loss = model(input_ids=batch, labels=batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return float(loss)


def train(model, optimizer, batch):
    mesh = state.mesh
    loss = train_step(model, batch.tensor_split(mesh.batches)[mesh.rank(mesh.batch_axis)]).reduce_mean()
    torch.distributed.all_reduce(loss, group=mesh.group(mesh.batch_axis))
    optimizer.step()
    optimizer.zero_grad()
    return float(loss) / mesh.batches


def run_encoders(rank, size, folder):
    """The values of each encoder after a step, which it saves."""
    smp.init({"tensor_parallel_degree": size, "ddp": True})
    found = {}
    for family, make in ENCODERS.items():
        torch.manual_seed(4)
        model = split(make())
        optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters(), lr=RATE))
        train_step(model, torch.arange(BATCH * LENGTH).view(BATCH, LENGTH))
        optimizer.step()
        smp.save_checkpoint(folder, tag=family, model=model, optimizer=optimizer,
                            trainer_state={**RUN, "max_steps": 1})
        found[family] = {name: value.detach().clone() for name, value in model.state_dict().items()}
    return packed(found)


class NativeCheckpoints(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        scratch = tempfile.TemporaryDirectory()
        cls.addClassCleanup(scratch.cleanup)
        cls.folder = pathlib.Path(scratch.name)
        (cls.folder / "tokenizer").mkdir()
        (cls.folder / "tokenizer" / "tokenizer.json").write_bytes((GOLDEN / "tokenizer" / "plain.json").read_bytes())
        cls.shoal("data", "prepare", "--tokenizer", cls.folder / "tokenizer", "--output", cls.folder,
                  "--add-special-tokens", "false", GOLDEN / "tokenizer" / "genesis.txt")
        cls.text = next(cls.folder.glob("*.shoaltok"))
        cls.tokens = tokens_of(cls.text)
        cls.starts = {}
        for family, make in MODELS.items():
            cls.starts[family] = start_of(family, cls.folder / "any")
            torch.manual_seed(3)
            make().save_pretrained(cls.starts[family])

    @staticmethod
    def shoal(*words):
        done = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True)
        if done.returncode:
            raise AssertionError(f"{words}: {done.stdout}{done.stderr}")
        return done.stdout

    def train(self, out, size=1, **more):
        """The losses by step of a run of Shoal's own on `size` ranks."""
        options = out.with_suffix(".json")
        options.write_text(json.dumps({
            **OPTIONS, "per_device_train_batch_size": BATCH, "tokenizer_name": self.folder / "tokenizer",
            "train_file": self.text, "output_dir": out, **more}, default=str))
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        started = [subprocess.Popen(
            [PROGRAM, "train", options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(size), "LOCAL_RANK": str(rank),
                 "LOCAL_WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
            for rank in range(size)]
        said = [process.communicate(timeout=60)[0] for process in started]
        self.assertEqual([process.returncode for process in started], [0] * size, said)
        self.assertNotIn("warning", "".join(said))
        if not (out / "metrics.jsonl").exists():
            return {}
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        return {line["step"]: line["loss"] for line in lines if "loss" in line}

    def assert_losses(self, found, expected):
        for one, other in zip(found, expected, strict=True):
            self.assertLess(abs(one / other - 1), 1e-5, (found, expected))

    def native(self, layout, out, **more):
        return self.train(out, layout.ranks, mp_parameters=layout.parameters,
                          per_device_train_batch_size=BATCH // layout.batches, **more)

    def test_journeys_of_whole_models(self):
        """The steps of each part are of the same two batches, since such a file does not say how far the run was."""
        torch.set_num_threads(1)  # OpenMP's threads do not live on in forked ranks
        unbroken = {}
        for family, start in self.starts.items():
            model = transformers.AutoModelForCausalLM.from_pretrained(start)
            optimizer = optimizer_of(model, "sgd")
            unbroken[family] = [plain_step(model, optimizer, batch_of(self.tokens, step)) for step in (0, 1) * 3]
        cases = journeys("full", self.folder)
        self.check_in_pytorch(run_whole, cases, 0, unbroken, 0, 2)
        for journey, folder in cases:
            with self.subTest(journey):
                shutil.copy(self.starts[journey.family] / "config.json", folder / "whole0")
                losses = self.native(journey.layouts[1], folder / "whole1", model_name_or_path=folder / "whole0",
                                     max_steps=2, optim="sgd", weight_decay=0)
                self.assert_losses([losses[1], losses[2]], unbroken[journey.family][2:4])
        self.check_in_pytorch(run_whole, cases, 2, unbroken, 4, 6)

    def check_in_pytorch(self, body, cases, index, unbroken, *steps):
        """Runs the part of each journey that is in its layout `index`."""
        body = functools.partial(body, self.tokens, index)
        for (journey, _), by_rank in ranks.run_cases(body, cases, lambda case: case[0].layouts[index].ranks):
            with self.subTest(journey, steps=steps):
                for losses in by_rank:
                    self.assert_losses(losses, unbroken[journey.family][slice(*steps)])

    def test_journeys(self):
        """The native part goes on to the end, so that its whole rest is compared."""
        unbroken = {}
        for family, start in self.starts.items():
            losses = self.train(self.folder / family, model_name_or_path=start)
            unbroken[family] = [losses[step] for step in range(1, STEPS + 1)]
        cases = journeys("partial", self.folder)
        self.check_in_pytorch(run_steps, cases, 0, unbroken, 0, 2)
        for journey, folder in cases:
            with self.subTest(journey):
                saved = folder / "at2_partial"
                whole = self.shoal("checkpoint", "inspect", "--verify", saved)
                self.assertIn(f"{journey.layouts[0].ranks} shard", whole)
                self.assertIn("step 2, complete (checksums verified)", whole)
                went_on = self.native(journey.layouts[1], folder / "went_on", resume_from_checkpoint=saved,
                                      model_name_or_path=self.starts[journey.family], save_strategy="steps",
                                      save_steps=2)
                self.assertEqual(sorted(went_on), [3, 4, 5, 6])
                self.assert_losses([went_on[step] for step in range(3, STEPS + 1)], unbroken[journey.family][2:])
        self.check_in_pytorch(run_steps, cases, 2, unbroken, 4, 6)
        for journey, folder in cases:
            self.shoal("checkpoint", "convert", folder / "at6_partial", folder / "converted")
            found = transformers.AutoModelForCausalLM.from_pretrained(folder / "converted").state_dict()
            whole = transformers.AutoModelForCausalLM.from_pretrained(self.folder / journey.family).state_dict()
            self.assertEqual(list(found), list(whole))
            for name, value in whole.items():
                torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5, msg=f"{journey}: {name}")

    def test_encoders(self):
        """Two tensor-parallel ranks save; a run of Shoal's own loads that, has no step left, and saves the model."""
        shutil.copy(GOLDEN / "tokenizer" / "word_piece.json", self.folder / "tokenizer.json")
        expected = unpacked(ranks.run(2, run_encoders, str(self.folder))[0])
        for family, values in expected.items():
            saved, out = self.folder / f"{family}_partial", self.folder / family
            self.train(out, config_name=saved, task="masked-lm", tokenizer_name=self.folder / "tokenizer.json",
                       max_steps=1, train_file=GOLDEN / "tokenizer" / "genesis.txt", resume_from_checkpoint=saved)
            found = load_file(out / "model.safetensors")
            self.assertLess(set(found), set(values))  # without the other names of tied values
            for name, value in found.items():
                torch.testing.assert_close(value, values[name], rtol=0, atol=0, msg=f"{family}: {name}")


if __name__ == "__main__":
    unittest.main()
