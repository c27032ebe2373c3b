"""Bytes of Hugging Face's models on each rank beside the formulas of docs/internals/layouts.md ("What a rank holds").

Parameters, gradients and optimizer state are within 2 %. What activation checkpointing and offloading save is within
5 %, on one rank, on two replicas, under tensor parallelism and on each rank of a pipeline. The formulas are C++'s (parallel/apply/layout_memory.h).
"""
import concurrent.futures
import contextlib
import ctypes
import functools
import importlib.util
import os
import threading
import time
import unittest
from typing import NamedTuple
from unittest import mock

import ranks
import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from shoal import _native
from shoal.torch import parallel as smp
from shoal.torch.parallel import gradients, pipeline
from shoal.torch.parallel.parts import local
from shoal.torch.parallel.state import state

HAS_TRANSFORMERS = importlib.util.find_spec("transformers") is not None
WIDTH, LENGTH, VOCABULARY = 128, 128, 64
LAYERS, HORIZON = 12, 2  # activation_loading_horizon
TP, PP, STATE = {"tensor_parallel_degree": 2}, {"partitions": 2, "microbatches": 2}, {"shard_optimizer_state": True}
PARTS = {"sharded_data_parallel_degree": 2, "sdp_param_persistence_threshold": 2 * WIDTH}
GRADIENTS = {"sharding_strategy": "SHARD_GRAD_OP", "sdp_param_persistence_threshold": 2 * WIDTH}
MESHES = ((1, {}), (2, {}), (2, TP), (2, PP), (4, {**PP, **TP}), (2, STATE), (4, {**STATE, **TP}), (4, {**STATE, **PP}),
          (2, GRADIENTS), (2, PARTS), (4, PARTS), (4, {**PARTS, **TP}))
FAMILIES = "gpt2", "llama"
CUT = {**PP, "pipeline": "simple", "auto_partition": False, "default_partition": 0}  # the second half of the blocks is on rank 1


def model_of(family, layers, length):
    import transformers as hf

    hf.logging.set_verbosity_error()
    cls, config = {
        "gpt2": lambda: (hf.GPT2LMHeadModel, hf.GPT2Config(
            vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=layers, n_head=4, n_positions=length, resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0)),
        "llama": lambda: (hf.LlamaForCausalLM, hf.LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=layers, num_attention_heads=4,
            intermediate_size=4 * WIDTH, max_position_embeddings=length)),
    }[family]()
    config.use_cache = False
    torch.manual_seed(0)
    return cls(config)


def blocks_of(model, family):
    return model.transformer.h if family == "gpt2" else model.model.layers


@smp.step
def train_step(model, ids):
    loss = model(input_ids=ids, labels=ids).loss
    model.backward(loss)
    return loss


def batch_of(samples, length):
    return torch.arange(samples * length).view(samples, length) * 7 % VOCABULARY


# --- state ------------------------------------------------------------------------------------------------------------


def bytes_of(tensors):
    """Of the tensors' storages, each once."""
    storages = [local(tensor).untyped_storage() for tensor in tensors]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def run_state(case):
    """This rank's bytes and the formula's: (parameters, gradients before and after they are summed, optimizer)."""
    _, config, family, dtype = case
    smp.init({**config, "ddp": True, "skip_tracing": True, "bf16": dtype == torch.bfloat16})
    cfg, mesh = state.cfg, state.mesh
    whole = {name: p.numel() for name, p in model_of(family, 8, 8).named_parameters()}
    model = model_of(family, 8, 8).to(dtype)
    smp.set_tensor_parallelism(model)
    model = smp.DistributedModel(model)
    optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters()))
    reduce, summed = gradients.reduce, []

    def measuring(model):
        summed.append(bytes_of(p.grad for p in model.local_parameters() if p.grad is not None))
        reduce(model)

    with mock.patch.object(gradients, "reduce", measuring):
        train_step(model, batch_of(8, 8))
    optimizer.update_master_grads()
    after = bytes_of(piece.value.grad for piece in optimizer._pieces)
    optimizer.step()
    held = [value for of_parameter in optimizer.state.values() for value in of_parameter.values()]
    held += [piece.value for piece in optimizer._pieces if piece.has_master]
    found = bytes_of(model.local_parameters()), summed[0], after, bytes_of(held)

    here = [count for name, count in whole.items() if model.stage_of(name) == mesh.rank("pp")]
    request = dict(elements=round(sum(here) / mesh.size("tp")), dtype="bf16" if dtype == torch.bfloat16 else "f32",
                   persistent=sum(count for count in here
                                  if count <= cfg.sdp_param_persistence_threshold * mesh.size("tp")),
                   shards=mesh.size("shard") if cfg.sharding_level > 1 else mesh.size("rdp"))
    _, before, held = _native.state_memory(**request, level=cfg.sharding_level)
    # SHARD_GRAD_OP (level 2) gathers parameters for a step only, so between two steps they are as at level 3.
    parameters, _, _ = _native.state_memory(**request, level=3 if cfg.sharding_level == 2 else cfg.sharding_level)
    before *= dtype.itemsize / 4  # PyTorch's have the parameters' dtype until they are summed
    # A rank keeps the sums of the elements that it updates, as at level 2.
    _, after, _ = _native.state_memory(**request, level=2 if cfg.sharding_level else 0)
    smp.shutdown()
    return found, (parameters, before, after, held)


# --- activations ------------------------------------------------------------------------------------------------------


class _Allocated(ctypes.Structure):
    """glibc's struct mallinfo2."""
    _fields_ = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]


_mallinfo2 = ctypes.CDLL(None).mallinfo2
_mallinfo2.restype = _Allocated


class _Sampling(TorchDispatchMode):
    def __init__(self, peaks):
        super().__init__()
        self._peaks = peaks

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self._peaks.sample()
        return result


class Peaks:
    """Bytes that the process has allocated, after each operation until the gradients are summed over ranks."""

    def __init__(self):
        self.most, self._ended = 0, False
        self._here = threading.local()

    def sample(self):
        info = _mallinfo2()
        now = info.uordblks + info.hblkhd
        if not self._ended:
            self.most = max(self.most, now)
        return now

    def _end(self, reduce, model):
        self._ended = True
        reduce(model)

    @contextlib.contextmanager
    def _in_thread(self):
        if getattr(self._here, "samples", False):
            yield
            return
        self._here.samples = True
        try:
            with _Sampling(self):
                yield
        finally:
            self._here.samples = False

    @contextlib.contextmanager
    def _applied(self, applied, settings):
        with self._in_thread(), applied(settings):
            yield

    @contextlib.contextmanager
    def measuring(self):
        """Samples this thread and those of a pipeline."""
        with (mock.patch.object(gradients, "reduce", functools.partial(self._end, gradients.reduce)),
              mock.patch.object(pipeline, "applied", functools.partial(self._applied, pipeline.applied)),
              self._in_thread()):
            self.most = self.sample()
            yield


class Run(NamedTuple):
    family: str
    ranks: int
    config: dict
    treatment: str = "kept"  # or "checkpointed", "offloaded"
    layers: int = LAYERS

    @property
    def microbatches(self):
        return self.config.get("microbatches", 1)


def begin(run):
    """A model that has trained, so that its gradients and buffers are there."""
    smp.init({"ddp": True, "skip_tracing": True, **run.config} | (
        {"offload_activations": True, "activation_loading_horizon": HORIZON} if run.treatment == "offloaded" else {}))
    model = model_of(run.family, run.layers, LENGTH)
    smp.set_tensor_parallelism(model)
    for block in blocks_of(model, run.family)[run.layers // 2:] if smp.pp_size() > 1 else ():
        smp.set_partition(block, 1)
    model = smp.DistributedModel(model)
    if run.treatment != "kept":
        smp.set_activation_checkpointing(blocks_of(model.module, run.family))
    for _ in range(2):
        step(model, run)
    return model


@contextlib.contextmanager
def _noted(begun, applied, settings):
    begun.add(threading.get_native_id())
    with applied(settings):
        yield


def step(model, run):
    """A step, and the end of a pipeline's threads: MKL frees what it keeps for a thread after Python has joined it."""
    begun = set()
    with mock.patch.object(pipeline, "applied", functools.partial(_noted, begun, pipeline.applied)):
        model.zero_grad(set_to_none=False)
        train_step(model, batch_of(2 * run.microbatches, LENGTH))
    assert begun or run.config.get("partitions", 1) == 1, "a pipeline no longer computes in applied()"
    begun.discard(threading.get_native_id())
    deadline = time.monotonic() + 30
    while begun.intersection(map(int, os.listdir("/proc/self/task"))):
        assert time.monotonic() < deadline, "a thread of the pipeline has not ended within 30 s"
        time.sleep(0.001)


def peak_of_step(model, run):
    """The most of two steps: where something of the last step is still there when a step begins, it finds too little."""
    found = []
    for _ in range(2):
        peaks = Peaks()
        with peaks.measuring():
            before = peaks.most
            step(model, run)
        found.append(peaks.most - before)
    return max(found)


def run_peak(run):
    """The most bytes that a step holds beside the state."""
    found = peak_of_step(begin(run), run)
    smp.shutdown()
    return found


def run_scratch(run):
    """Bytes that MKL keeps for each thread that multiplies matrices, until the thread ends."""
    model = begin(run)
    with concurrent.futures.ThreadPoolExecutor(1) as thread:
        found = thread.submit(peak_of_step, model, run).result() - peak_of_step(model, run)
    smp.shutdown()
    return found


def run_units(run):
    """Embeddings, a block and the head as units of the formula, measured in a model of one block; the bytes of the
    stream between them."""
    model, peaks, seen = begin(run), Peaks(), {}

    def mark(name):
        seen[name] = peaks.sample(), peaks.most
        peaks.most = 0

    def entered(block, args, kwargs):
        x = args[0] if args else kwargs["hidden_states"]
        seen["stream"] = x.nbytes
        mark("embeddings")
        x.register_hook(lambda _: mark("block, backward"))

    def left(block, args, output):
        mark("block")
        (output[0] if isinstance(output, tuple) else output).register_hook(lambda _: mark("head, backward"))

    block = blocks_of(model.module, run.family)[0]
    handles = (block.register_forward_pre_hook(entered, with_kwargs=True), block.register_forward_hook(left),
               model.module.register_forward_hook(lambda *_: mark("head")))
    with peaks.measuring():
        before = peaks.most
        step(model, run)
        mark("embeddings, backward")
    for handle in handles:
        handle.remove()
    smp.shutdown()
    stream = seen["stream"]
    units, held = [], before
    for name in ("embeddings", "block", "head"):
        kept = seen[name][0] - held - (0 if name == "head" else stream)  # the next unit counts its input
        units.append({"name": name, "activation_bytes": kept,
                      "peak_bytes": max(seen[name][1], seen[f"{name}, backward"][1]) - held})
        held += kept
    return units, stream


def run_activations(run):
    """The peaks of a step that keeps, checkpoints or offloads its activations, and the formula's."""
    cut = "partitions" in run.config
    one = run._replace(layers=1, config={} if cut else run.config)
    (embeddings, block, head), stream = run_units(one)
    # A pipeline has a new thread for each microbatch of each step.
    scratch = run.microbatches * run_scratch(one) if cut else 0
    if cut and dist.get_rank() == 1:
        embeddings = head = {"name": "none"}
    here = [embeddings, *[block] * (LAYERS // 2 if cut else LAYERS), head]
    found, wanted = [], []
    for treatment in ("kept", "checkpointed", "offloaded"):
        found.append(run_peak(run._replace(treatment=treatment)))
        wanted.append(scratch + _native.peak_activations(
            here, stages=[(0, len(here))], stream_bytes=stream, microbatches=run.microbatches,
            checkpoint_group=treatment != "kept", offloads=treatment == "offloaded", loading_horizon=HORIZON))
    return found, wanted


@unittest.skipUnless(HAS_TRANSFORMERS, "transformers is not installed")
class Memory(unittest.TestCase):
    def setUp(self):
        torch.set_num_threads(1)  # OpenMP's threads do not live on in forked ranks
        model_of("gpt2", 1, LENGTH)  # imports transformers once, and not in each rank

    def assert_near(self, found, wanted, tolerance):
        self.assertLess(abs(found / wanted - 1), tolerance, (found, wanted))

    def test_state(self):
        cases = [(*mesh, family, torch.float32) for mesh in MESHES for family in FAMILIES]
        cases += [(size, config, "gpt2", torch.bfloat16) for size, config in ((1, {}), (2, TP), (2, STATE), (2, PARTS))]
        for case, by_rank in ranks.run_cases(run_state, cases, lambda case: case[0]):
            for found, wanted in by_rank:
                with self.subTest(case):
                    for one, other in zip(found, wanted, strict=True):
                        self.assert_near(one, other, 0.02)

    def test_activations(self):
        cases = [Run(family, size, config) for family in FAMILIES
                 for size, config in ((1, {}), (2, {}), (2, TP), (2, CUT))]
        for case, by_rank in ranks.run_cases(run_activations, cases, lambda case: case.ranks):
            for (kept, *others), (wanted, *wanted_others) in by_rank:
                with self.subTest(case):
                    self.assert_near(kept, wanted, 0.05)
                    for one, other in zip(others, wanted_others, strict=True):
                        self.assert_near(kept - one, wanted - other, 0.05)
                    if "partitions" not in case.config:  # a pipeline's messages depend on time
                        checkpointed, offloaded = others
                        self.assert_near(checkpointed - offloaded, wanted_others[0] - wanted_others[1], 0.05)


if __name__ == "__main__":
    unittest.main()
