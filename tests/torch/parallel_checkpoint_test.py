"""Checkpoints of any layout into any other, and activation checkpointing and offloading."""
import copy
import functools
import glob
import json
import os
import shutil
import subprocess
import tempfile
import types
import unittest
import unittest.mock

import ranks
import torch
from parallel_optimizer_test import SHARDED, begin, model_of, optimizer_of, packed, train, train_plain, unpacked, values
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from shoal.torch import parallel as smp
from shoal.torch.parallel import activations, checkpoint_parts
from shoal.torch.parallel.state import state
from shoal.torch.parallel.tensor.functions import TensorSplit

ONE, SEGMENTS, CUT = (1, {}), (2, SHARDED), (4, {**SHARDED, "partitions": 2, "microbatches": 2})


def assert_same(found, expected, tolerance=0.0):
    assert list(found) == list(expected), (list(found), list(expected))
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=tolerance, atol=tolerance, msg=name)


def run_write(rank, size, config, folder, dtype=torch.float32):
    """Two steps, a checkpoint of each kind, and two steps more."""
    model, optimizer = begin(config, dtype=dtype)
    train(model, optimizer, range(2))
    smp.save_checkpoint(folder, tag="two", model=model, optimizer=optimizer, user_content={"step": 2})
    smp.save_checkpoint(folder, tag="two.bin", partial=False, model=model, optimizer=optimizer, user_content=[2])
    own = optimizer.local_state_dict(gather_if_shard=False)  # as Hugging Face's Trainer does
    if smp.rdp_rank() == 0 or smp.state.cfg.shard_optimizer_state:
        smp.save(own, os.path.join(folder, "optimizer.pt"), v3=smp.state.cfg.shard_optimizer_state)
    smp.barrier()
    train(model, optimizer, range(2, 4))
    return packed((values(model), optimizer.state_dict()))


def run_shared_folder(rank, size, folder):
    """The first ranks of two hosts write the file `newest` of one folder at the same time; it then names a whole
    checkpoint."""
    model, optimizer = begin({"ddp": True})
    train(model, optimizer, range(1))
    state.mesh._ranks["local"] = [rank]
    replace = os.replace

    def at_once(source, target):
        if target.endswith("newest"):
            smp.barrier()
        replace(source, target)

    with unittest.mock.patch("os.replace", at_once):
        smp.save_checkpoint(folder, tag="one", model=model, optimizer=optimizer, user_content="one")
    assert smp.resume_from_checkpoint(folder) == "one"
    smp.save_checkpoint(folder, tag="whole.bin", partial=False, model=model, user_content="whole")
    assert smp.resume_from_checkpoint(folder) == "one"
    assert smp.resume_from_checkpoint(folder, partial=False) == "whole"
    assert not [name for name in os.listdir(folder) if name.endswith(".part")]


def run_continue(rank, size, config, folder, kind, dtype=torch.float32):
    model, optimizer = begin(config, dtype=dtype)
    if kind == "partial":
        assert smp.resume_from_checkpoint(folder, tag="two") == {"step": 2}
    elif kind == "full":
        assert smp.resume_from_checkpoint(folder, tag="two.bin", partial=False) == [2]
    else:
        smp.resume_from_checkpoint(folder, tag="two", load_optimizer=False)
        model.register_post_step_hook(
            lambda model, optimizer: optimizer.load_state_dict(smp.load(os.path.join(folder, "optimizer.pt"))))
    train(model, optimizer, range(2, 4))
    return packed((values(model), optimizer.state_dict()))


def run_unreadable(rank, size, folder):
    """If one host cannot read its folder, every rank fails, and each rank can read the checkpoint afterwards."""
    model, optimizer = begin({"ddp": True})
    for owner, function, message in ((torch, "load", "no memory"),
                                     (checkpoint_parts._native, "read_trainer_state", "no state"),
                                     (checkpoint_parts._native, "ShardedCheckpoint", "no shard")):
        read = getattr(owner, function)

        def fail_on_last(*arguments, **named):
            if rank == size - 1:
                raise RuntimeError(message)
            return read(*arguments, **named)

        with unittest.mock.patch.object(owner, function, fail_on_last):
            try:
                smp.resume_from_checkpoint(folder, tag="two")
            except (RuntimeError, ValueError) as problem:
                assert message in str(problem), problem
                assert rank == size - 1 or f"(on rank {size - 1})" in str(problem), problem
            else:
                raise AssertionError(f"{message}: the checkpoint was loaded")
    assert smp.resume_from_checkpoint(folder, tag="two") == {"step": 2}
    assert model is state.model and optimizer is state.optimizer  # they live until here


class Checkpoints(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder, cls.written = tempfile.mkdtemp(), {}
        cls.addClassCleanup(shutil.rmtree, cls.folder)

    def write(self, size, config, dtype=torch.float32):
        """The folder of a run's checkpoints, and what the run ended with. Tests share the runs."""
        name = f"{size}{json.dumps(config)}{dtype}".replace('"', "")
        if name not in self.written:
            folder = os.path.join(self.folder, name)
            self.written[name] = folder, unpacked(ranks.run(size, run_write, config, folder, dtype)[0])
        return self.written[name]

    def check(self, before, after, kind, tolerance=1e-6, **arguments):
        folder, (expected, expected_state) = self.write(*before, **arguments)
        for text in ranks.run(after[0], functools.partial(run_continue, **arguments), after[1], folder, kind):
            found, found_state = unpacked(text)
            assert_same(found, expected, tolerance)
            for index, of_parameter in expected_state["state"].items():
                assert_same(found_state["state"][index], of_parameter, tolerance)

    def test_same_layout_has_the_same_bits(self):
        self.check(ONE, ONE, "partial", 0.0)
        self.check(SEGMENTS, SEGMENTS, "local", 0.0)
        self.check(CUT, CUT, "full", 0.0)

    def test_masters(self):
        config = {**SHARDED, "bf16": True}
        self.check((2, config), (2, config), "partial", 0.0, dtype=torch.bfloat16)
        self.check((2, config), (1, {"bf16": True}), "full", 5e-3, dtype=torch.bfloat16)

    def test_other_layouts(self):
        self.check(ONE, CUT, "local")
        self.check(SEGMENTS, (2, {"partitions": 2, "microbatches": 2}), "partial")
        self.check(CUT, (2, {"ddp": True}), "partial")
        self.check(CUT, ONE, "local")

    def test_plain_optimizer_continues(self):
        folder, (expected, _) = self.write(*CUT)
        model = model_of()
        model.load_state_dict(torch.load(os.path.join(folder, "two.bin")))
        optimizer = optimizer_of(model)
        optimizer.load_state_dict(torch.load(os.path.join(folder, "optimizer_two.bin")))
        train_plain(model, optimizer, range(2, 4))
        assert_same(dict(model.state_dict()), expected, 1e-6)

    def test_torn_checkpoints_are_refused(self):
        folder = os.path.join(self.folder, "torn")
        shutil.copytree(self.write(*SEGMENTS)[0], folder)
        torn = os.path.join(folder, "two_partial", "shard-00001-of-00002.safetensors")
        marker = os.path.join(folder, "two_partial", "COMPLETE")
        with open(torn, "rb") as file:
            content = file.read()

        def write(changed):
            with open(torn, "wb") as file:
                file.write(changed)

        for damage, message in ((lambda: write(content[:-1] + bytes([content[-1] ^ 1])), "does not match its checksum"),
                                (lambda: write(content[:-8]), f"has {len(content) - 8} bytes instead"),
                                (lambda: os.remove(torn), "is missing"),
                                (lambda: os.remove(marker), "is no checkpoint")):
            damage()
            with self.subTest(message), self.assertRaisesRegex(ranks.Failed, message):
                ranks.run(2, run_continue, {"ddp": True}, folder, "partial")

    def test_hosts_share_a_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            ranks.run(2, run_shared_folder, folder)

    def test_what_one_host_cannot_read(self):
        ranks.run(2, run_unreadable, self.write(*SEGMENTS)[0])

    def test_kept_checkpoints(self):
        folder = os.path.join(self.folder, "kept")
        ranks.run(2, run_many, folder)
        self.assertEqual(sorted(os.listdir(folder)), ["b_partial", "c_partial", "newest"])
        with open(os.path.join(folder, "newest")) as file:
            self.assertEqual(file.read(), "c")
        self.assertEqual(glob.glob(os.path.join(folder, "*", ".*")), [])

    def test_values_of_every_kind(self):
        for size, config in ((1, {}), (2, {"ddp": True})):
            ranks.run(size, run_kinds, config, os.path.join(self.folder, f"kinds{size}"))

    def test_full_disk(self):
        folder = os.path.join(self.folder, "full")
        os.mkdir(folder)
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True).returncode:
            self.skipTest("a file system cannot be mounted")
        self.addCleanup(subprocess.run, ["umount", folder])
        ranks.run(2, run_full, folder)


def run_full(rank, size, folder):
    model, optimizer = begin({"ddp": True})
    smp.save_checkpoint(folder, tag="small", model=model)
    with ranks.raises(OSError, "large_partial is not written: "):
        smp.save_checkpoint(folder, tag="large", model=model, user_content=torch.zeros(100_000))
    smp.barrier()
    assert sorted(os.listdir(folder)) == ["newest", "small_partial"], os.listdir(folder)
    smp.resume_from_checkpoint(folder, load_optimizer=False)


def run_many(rank, size, folder):
    model, optimizer = begin({"ddp": True})
    for tag in ("a", "b", "a", "b", "c"):
        smp.save_checkpoint(folder, tag=tag, model=model, user_content=tag, num_kept_partial_checkpoints=2)
    assert smp.resume_from_checkpoint(folder, load_optimizer=False) == "c"
    with ranks.raises(ValueError, "has no optimizer"):
        smp.resume_from_checkpoint(folder)


class PartsOfRanks(unittest.TestCase):
    def test_parts(self):
        """Four ranks, (rdp, tp) = (2, 2), written one after another: each element once, read by other layouts."""
        self.addCleanup(setattr, state, "mesh", getattr(state, "mesh", None))
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        generator = torch.Generator().manual_seed(0)
        wholes = {name: (torch.randn(shape, generator=generator), split) for name, shape, split in (
            ("qkv", (5, 30), (1, 30, 3)), ("bias", (30,), (0, 30, 3)), ("vocabulary", (13, 6), (0, 13, 1)),
            ("norm", (6,), None), ("scalar", (), None), ("short", (1, 4), (0, 1, 1)))}

        def record_of(whole, split, tp, ranks, elements=None):
            count = whole.numel()
            if split is not None:
                count = count // split[1] * TensorSplit(*split).length(tp, ranks)
            return {"shape": list(whole.shape), "split": split and [*split, tp, ranks],
                    "range": list(elements or (0, count)), "values": {}, "others": {}}

        def at(rank):
            return types.SimpleNamespace(rank=lambda axis: rank if axis == "world" else rank % 2, size=lambda axis: 4)

        helds = []
        for rank in range(4):
            state.mesh, tp = at(rank), rank % 2
            held = checkpoint_parts._Held(None, None)
            for name, (whole, split) in wholes.items():
                part = TensorSplit(*split).take(whole, tp, 2) if split else whole
                held._add(name, record_of(whole, split, tp, 2), part, held.values)
                cut = min(part.numel(), part.numel() // 3 + tp)  # splits differ between tp ranks, as with buckets
                elements = (0, cut) if rank < 2 else (cut, part.numel())
                held._add(f"exp_avg/{name}", record_of(whole, split, tp, 2, elements),
                          part.reshape(-1)[slice(*elements)] * 2, {})
            helds.append(held)
        keys = [held.keys() for held in helds]
        for rank, held in enumerate(helds):
            state.mesh = at(rank)
            held.keep_own(keys)
            held.write(folder, "a save")
        found = checkpoint_parts.Tensors(folder)
        for name, (whole, split) in wholes.items():
            for size in (1, 2, 3) if split else (1,):
                for tp in range(size):
                    part = TensorSplit(*split).take(whole, tp, size) if split else whole
                    record = record_of(whole, split, tp, size)
                    self.assertTrue(torch.equal(found.read(name, record).view(part.shape), part), (name, size, tp))
                    record["range"] = [part.numel() // 4, part.numel()]
                    self.assertTrue(torch.equal(found.read(f"exp_avg/{name}", record),
                                                2 * part.reshape(-1)[part.numel() // 4:]), (name, size, tp))


class Kinds(nn.Module):
    """Values that are not all of the format's dtypes, and a tied parameter."""

    def __init__(self, seed):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.norm = nn.BatchNorm1d(4)
        self.norm.num_batches_tracked += seed
        self.first = nn.Linear(4, 4)
        with torch.no_grad():
            self.first.weight.copy_(torch.randn(4, 4, generator=generator))
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.register_buffer("mask", torch.rand(5, generator=generator) > 0.5)
        self.register_buffer("roots", torch.randn(3, generator=generator, dtype=torch.complex64))
        self.register_buffer("none", torch.empty(0, 3))
        self.register_buffer("seven", torch.randn([1] * 6 + [2], generator=generator))
        self.seed = seed

    def get_extra_state(self):
        return {"seed": self.seed}

    def set_extra_state(self, extra):
        self.seed = extra["seed"]

    def forward(self, x):
        return self.second(self.first(self.norm(x))).square().mean()


def run_kinds(rank, size, config, folder):
    smp.init({**config, "fp16": True})

    def begin_kinds(seed):
        model = smp.DistributedModel(Kinds(seed))
        return model, smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1))

    model, optimizer = begin_kinds(5)

    @smp.step
    def step(model, x):
        model.backward(model(x))

    step(model, torch.ones(4, 4))
    optimizer.scaler.value, optimizer.scaler.good_steps, optimizer.scaler.shift_left = 8.0, 3, 2
    smp.save_checkpoint(folder, tag="kinds", model=model, optimizer=optimizer)
    expected = copy.deepcopy(model.state_dict())
    model, optimizer = begin_kinds(6)
    smp.resume_from_checkpoint(folder)
    assert_same(model.state_dict(), expected)
    assert model.module.seed == 5
    step(model, torch.ones(4, 4))
    assert optimizer.scaler.state_dict() == {"value": 8.0, "good_steps": 3, "shift_left": 2}


# Activations.

WIDTH, LAYERS = 256, 12


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.drop = nn.Dropout(0.3)

    def forward(self, x):
        return x + self.drop(self.down(torch.relu(self.up(x))))


class Chain(nn.Module):
    """Blocks as a sequence, which pipelines may cut, between two layers."""

    def __init__(self, layers):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3)
        self.blocks = nn.Sequential(*(Block() for _ in range(layers)))

    def forward(self, x):
        return self.last(self.blocks(self.first(x)))


def run_activations(rank, size, config, strategy, layers=4):
    """Gradients and the random state after a step, with and without checkpoints."""
    smp.init(config)
    found, calls = [], []
    for use in (False, True):
        model = smp.DistributedModel(Chain(layers))
        if use:
            smp.set_activation_checkpointing(model.module.blocks, strategy=strategy)
        optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.0))

        @smp.step
        def step(model, x):
            loss = model(x).square().mean()
            model.backward(loss)
            return loss

        for _ in range(2):
            torch.manual_seed(7)
            optimizer.zero_grad()
            calls.append(0)

            def count(*_):
                calls[-1] += 1

            handle = model.module.blocks[-1].up.register_forward_pre_hook(count)
            loss = step(model, torch.randn(8, WIDTH)).reduce_mean()
            handle.remove()
        found.append((loss, torch.get_rng_state(),
                      {name: p.grad.clone() for name, p in model.local_named_parameters()}))
        del model, optimizer
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1]), "checkpoints change the random state"
    assert_same(found[1][2], found[0][2])
    return calls


class Counting(nn.Linear):
    calls = 0

    def forward(self, x):
        Counting.calls += 1
        return super().forward(x)


class Reader(nn.Module):
    """Uses a weight that lives on another pipeline rank than the modules around it."""

    calls = 0

    def __init__(self, weight):
        super().__init__()
        self.a, self.b = Counting(8, 8), nn.Linear(8, 8)
        self.weight = weight

    def forward(self, x):
        Reader.calls += 1
        return self.b(torch.tanh(nn.functional.linear(self.a(x), self.weight)))


def run_reader(rank, size):
    """Gradients with and without checkpoints. How often the last rank computes `a`, and the module around it, in a
    step of two microbatches."""
    smp.init({"partitions": 2, "microbatches": 2, "auto_partition": False, "default_partition": 0})
    found = []
    for use in (False, True):
        torch.manual_seed(3)
        first = nn.Linear(8, 8)
        net = nn.Sequential(first, Reader(first.weight))
        smp.set_partition(net[1].a, 1)
        smp.set_partition(net[1].b, 1)
        model = smp.DistributedModel(net)
        if use:
            smp.set_activation_checkpointing(model.module[1])

        @smp.step
        def step(model, x):
            model.backward(model(x).square().mean())

        Counting.calls = Reader.calls = 0
        step(model, torch.randn(4, 8, generator=torch.Generator().manual_seed(1)))
        assert model.stage_of("1") == 1 and model.stage_of("1.weight") == 0
        found.append({name: p.grad.clone() for name, p in model.local_named_parameters()})
        del model
    assert_same(found[1], found[0])
    return Counting.calls, Reader.calls


def run_offload(rank, size, horizon):
    """Bytes of the blocks' inputs that are alive after forward, and at most in backward; gradients as without."""
    smp.init({"offload_activations": horizon > 0,
              **({"activation_loading_horizon": horizon} if horizon else {})})
    model = smp.DistributedModel(Chain(LAYERS))
    smp.set_activation_checkpointing(model.module.blocks)
    inputs = []
    for block in model.module.blocks:
        block.up.register_forward_pre_hook(
            lambda module, args: inputs.append(StorageWeakRef(args[0].untyped_storage())))
    x = torch.randn(64, WIDTH, generator=torch.Generator().manual_seed(2))
    size_of_one = x.nbytes

    def alive():
        return size_of_one * len({ref.cdata for ref in inputs if not ref.expired()})

    seen = []

    @smp.step
    def step(model, x):
        torch.manual_seed(5)
        loss = model(x).square().mean()
        seen.append(alive())
        inputs.clear()
        model.backward(loss)

    step(model, x)
    resident = None
    if horizon:
        resident = seen_in_backward(model, x)
    return packed((seen[0] / size_of_one, resident, {n: p.grad for n, p in model.local_named_parameters()}))


def seen_in_backward(model, x):
    """The most inputs that are in memory at once in backward: in use, or loaded ahead."""
    most, loaded = [0], []
    load = activations._Away._load

    def counting(away):
        tensor, event = load(away)
        loaded.append(StorageWeakRef(tensor.untyped_storage()))
        most[0] = max(most[0], sum(not ref.expired() for ref in loaded))
        return tensor, event

    activations._Away._load = counting

    @smp.step
    def step(model, x):
        model.backward(model(x).square().mean())

    gradients_before = {n: p.grad.clone() for n, p in model.local_named_parameters()}
    step(model, x)
    for name, p in model.local_named_parameters():
        p.grad = gradients_before[name]
    return most[0]


class Activations(unittest.TestCase):
    def test_same_bits(self):
        for strategy in ("each", "contiguous", "group_2"):
            self.assertEqual(ranks.run(1, run_activations, {}, strategy)[0], [1, 1, 2, 2])

    def test_parts_of_a_pipeline(self):
        config = {"partitions": 2, "microbatches": 2, "skip_tracing": True}  # two models with the same partition
        for strategy in ("each", "group_2"):
            found = ranks.run(2, run_activations, config, strategy)
            self.assertEqual(sum(calls[1] for calls in found), 2)  # the last block, in each microbatch
            self.assertEqual(sum(calls[3] for calls in found), 4)
        ranks.run(2, run_activations, {**config, "offload_activations": True}, "each")

    def test_modules_that_read_a_weight_of_another_rank(self):
        self.assertEqual(ranks.run(2, run_reader)[1], (4, 2))  # `a` is checkpointed, its outer module is not

    def test_offloaded_inputs(self):
        kept, _, expected = unpacked(ranks.run(1, run_offload, 0)[0])
        self.assertAlmostEqual(kept, LAYERS, delta=0.05 * LAYERS)
        for horizon in (1, 3):
            left, in_backward, found = unpacked(ranks.run(1, run_offload, horizon)[0])
            self.assertLessEqual(left, 0.05 * LAYERS)
            self.assertLessEqual(in_backward, horizon + 1)
            self.assertGreaterEqual(in_backward, horizon)
            assert_same(found, expected)

    def test_functions(self):
        state.clear()
        torch.manual_seed(0)
        chain = Chain(5)
        x = torch.randn(4, WIDTH, requires_grad=True)
        for strategy, runs in (("each", 5), ("contiguous", 1), ("group_3", 2)):
            torch.manual_seed(1)
            expected = torch.autograd.grad(chain.blocks(x).sum(), x)[0]
            torch.manual_seed(1)
            self.assertTrue(torch.equal(torch.autograd.grad(
                smp.activations.checkpoint_sequential(chain.blocks, x, strategy).sum(), x)[0], expected))
            self.assertEqual(len(activations._groups(list(chain.blocks), activations._length(strategy, 5))), runs)
        two = nn.Sequential(*(type("Two", (nn.Module,), {"forward": lambda self, a, b: (a + b, a * b)})()
                              for _ in range(3)))
        a, b = smp.activations.checkpoint_sequential(two, (x, x), "group_2")
        self.assertTrue(torch.equal(a, (2 * x + x * x) + 2 * x * x * x))
        for strategy in ("all", "group_0", "group_x"):
            with self.assertRaisesRegex(ValueError, "strategy of activation checkpointing"):
                smp.activations.checkpoint_sequential(two, (x, x), strategy)


if __name__ == "__main__":
    unittest.main()
