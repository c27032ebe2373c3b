"""Runs go from PyTorch to Shoal's own engine and back by their checkpoints, beside an unbroken run of the engine."""
import importlib.util
import json
import os
import pathlib
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import unittest

import ranks
import torch
from parallel_optimizer_test import SHARDED, packed, unpacked

from shoal.torch import parallel as smp
from shoal.torch.parallel.state import state

if importlib.util.find_spec("transformers") is None:
    print("there is no transformers")
    sys.exit(77)
import transformers
from safetensors.torch import load_file

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"
PROGRAM = os.environ["SHOAL_PROGRAM"]
BATCH, LENGTH, STEPS, RATE, DECAY = 4, 16, 6, 1e-2, 0.1
OPTIONS = {"block_size": LENGTH, "per_device_train_batch_size": BATCH, "max_steps": STEPS, "learning_rate": RATE,
           "lr_scheduler_type": "constant", "weight_decay": DECAY, "max_grad_norm": 0, "seed": 1, "logging_steps": 1,
           "train_sampling_strategy": "sequential", "do_train": True, "report_to": "none"}
RUN = {"max_steps": STEPS, "global_batch_size": BATCH, "seed": 1, "data_seed": 1}
VOCABULARY = 500
MODELS = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(
        vocab_size=VOCABULARY, n_positions=32, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0,
        attn_pdrop=0, bos_token_id=0, eos_token_id=0)),
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
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
CUT = {"partitions": 2, "microbatches": 2, "skip_tracing": True}
SPLIT = {"tensor_parallel_degree": 2, "ddp": True, "shard_optimizer_state": True}


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


def begin(config, directory):
    smp.init(config)
    model = smp.DistributedModel(transformers.AutoModelForCausalLM.from_pretrained(directory))
    return model, smp.DistributedOptimizer(torch.optim.AdamW(
        [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": DECAY},
         {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0}], lr=RATE))


def run_steps(rank, size, config, start, source, tag, tokens, first, last):
    """Steps [first, last), from a checkpoint if there is a `source`. Saves one in `start`'s folder."""
    model, optimizer = begin(config, start)
    if source is not None:
        run = smp.resume_from_checkpoint(source, tag=tag)
        assert run["global_step"] == first and run["shoal"]["data_position"] == BATCH * first, run
    mesh, losses = state.mesh, []
    for step in range(first, last):
        batch = tokens[BATCH * step:BATCH * (step + 1)].tensor_split(mesh.batches)[mesh.rank(mesh.batch_axis)]
        loss = train_step(model, batch).reduce_mean()
        torch.distributed.all_reduce(loss)
        losses.append(float(loss) / size)
        optimizer.step()
        optimizer.zero_grad()
    smp.save_checkpoint(os.path.dirname(start), tag=f"at{last}", model=model, optimizer=optimizer,
                        user_content=last, trainer_state={**RUN, "global_step": last, "data_position": BATCH * last})
    return losses


def run_encoders(rank, size, folder):
    """The values of each encoder after a step, which it saves."""
    smp.init({"tensor_parallel_degree": size, "ddp": True})
    found = {}
    for family, make in ENCODERS.items():
        torch.manual_seed(4)
        model = smp.DistributedModel(make())
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

    @staticmethod
    def shoal(*words):
        done = subprocess.run([PROGRAM, *map(str, words)], capture_output=True, text=True)
        if done.returncode:
            raise AssertionError(f"{words}: {done.stdout}{done.stderr}")
        return done.stdout

    def begin(self, family):
        folder = self.folder / family
        torch.manual_seed(3)
        MODELS[family]().save_pretrained(folder / "start")
        return folder

    def train(self, out, size=1, **more):
        """The losses by step of a run of Shoal's own on `size` ranks."""
        options = out.with_suffix(".json")
        options.write_text(json.dumps({
            **OPTIONS, "tokenizer_name": self.folder / "tokenizer", "train_file": self.text, "output_dir": out, **more},
            default=str))
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

    def check(self, family, before, native, after):
        """Two steps in PyTorch, four natively, and the last two of these in PyTorch again."""
        folder = self.begin(family)
        start = folder / "start"
        unbroken = self.train(folder / "unbroken", model_name_or_path=start)
        expected = [unbroken[step] for step in range(1, STEPS + 1)]

        first = ranks.run(before[0], run_steps, before[1], str(start), None, None, self.tokens, 0, 2)
        self.assert_losses(first[0], expected[:2])
        saved = folder / "at2_partial"
        whole = self.shoal("checkpoint", "inspect", "--verify", saved)
        self.assertIn(f"{before[0]} shard", whole)
        self.assertIn("step 2, complete (checksums verified)", whole)

        went_on = self.train(folder / "went_on", native[0], model_name_or_path=start, resume_from_checkpoint=saved,
                             save_strategy="steps", save_steps=2, **native[1])
        self.assertEqual(sorted(went_on), [3, 4, 5, 6])
        self.assert_losses([went_on[step] for step in range(3, STEPS + 1)], expected[2:])

        last = ranks.run(after[0], run_steps, after[1], str(start), str(folder / "went_on"), "checkpoint-4",
                         self.tokens, 4, 6)
        self.assert_losses(last[0], expected[4:])
        self.shoal("checkpoint", "convert", folder / "at6_partial", folder / "converted")
        found = transformers.AutoModelForCausalLM.from_pretrained(folder / "converted").state_dict()
        whole = transformers.AutoModelForCausalLM.from_pretrained(folder / "unbroken").state_dict()
        self.assertEqual(list(found), list(whole))
        for name, value in whole.items():
            torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-5, msg=name)

    def test_gpt2(self):
        self.check("gpt2", (2, CUT), (1, {}), (2, SHARDED))

    def test_llama(self):
        self.check("llama", (4, SPLIT), (2, {"pipeline_parallel_degree": 2}), (1, {}))

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
