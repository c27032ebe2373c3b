"""Steps of SMP beyond the usual one: accumulated gradients, several models, failures, first steps, copies, memory,
buffers of replicas.
"""
import copy
import gc
import threading
import unittest
import weakref

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import ranks
from shoal.torch import parallel as smp
from shoal.torch.parallel import gradients
from shoal.torch.parallel import model as models

ROWS, WIDTH = 8, 8


def rows(seed, *shape):
    return torch.randn(ROWS, *(shape or (WIDTH,)), generator=torch.Generator().manual_seed(seed))


def net(dropout=0.0):
    torch.manual_seed(3)
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(dropout), nn.Tanh()) for _ in range(3)))


@smp.step
def train(model, x):
    loss = model(x).square().mean()
    model.backward(loss)
    return loss


def gradients_of(model):
    return {name: p.grad.clone() for name, p in model.local_named_parameters() if p.grad is not None}


def refused(kind, text, call):
    try:
        call()
    except kind as problem:
        assert text in str(problem) and "\n" not in str(problem), problem
    else:
        raise AssertionError(f"nothing said {text!r}")


def blocks_stay_whole(rank, size):
    smp.init({"pipeline_parallel_degree": 2, "tensor_parallel_degree": 2, "microbatches": 2, "ddp": True,
              "prescaled_batch": True})
    torch.manual_seed(1)
    layers = dict(num_layers=3, num_attention_heads=2, attention_head_size=4, hidden_size=WIDTH, intermediate_size=32,
                  attention_dropout_prob=0.3, hidden_dropout_prob=0.3)
    model = smp.DistributedModel(smp.nn.DistributedTransformer(**layers))

    @smp.step
    def step(model, x):
        loss = F.dropout(model((x, None))[0], 0.5).square().mean()
        model.backward(loss)
        return loss

    loss = step(model, rows(0, 4, WIDTH)).reduce_mean().item()
    stages = [{model.stage_of(name) for name, _ in model.module.named_modules() if name.startswith(f"seq_layers.{i}")}
              for i in range(3)]
    assert all(len(one) == 1 for one in stages) and len(set.union(*stages)) == 2, stages
    smp.shutdown()
    smp.init({"pipeline_parallel_degree": 2, "tensor_parallel_degree": 2, "ddp": True, "auto_partition": False,
              "default_partition": 0})
    model = smp.DistributedModel(smp.nn.DistributedTransformer(**layers))
    smp.set_partition(model.module.seq_layers[1].attention.dense, 1)
    refused(ValueError, "seq_layers.1.attention around it is on partition 0 and cannot be cut",
            lambda: step(model, rows(0, 4, WIDTH)))
    return loss


def accumulated(rank, size, more):
    """Two steps before the optimizer's give the sum of the gradients that each one gives by itself."""
    smp.init({"tensor_parallel_degree": 2, "ddp": True, **more})
    torch.manual_seed(1)
    layer = smp.nn.DistributedTransformer(num_layers=2, num_attention_heads=2, attention_head_size=4, hidden_size=WIDTH,
                                          intermediate_size=16, attention_dropout_prob=0.0, hidden_dropout_prob=0.0)
    model = smp.DistributedModel(nn.ModuleDict({"layer": layer, "head": nn.Linear(WIDTH, 2)}))
    mesh = smp.state.mesh

    @smp.step
    def step(model, x):
        model.backward(model.head(model.layer((x, None))[0]).square().mean())

    wanted = {}
    for number in range(2):
        model.zero_grad()
        step(model, rows(10 * number + mesh.rank(mesh.batch_axis), 4, WIDTH))
        for name, gradient in gradients_of(model).items():
            wanted[name] = wanted.get(name, 0) + gradient
    for to_none in (True, False):  # zeros that the step adds to, or nothing
        model.zero_grad(to_none)
        for number in range(2):
            step(model, rows(10 * number + mesh.rank(mesh.batch_axis), 4, WIDTH))
            with torch.no_grad():
                smp.step(lambda x: model.head(x))(rows(0, WIDTH))  # does not change gradients
        found = gradients_of(model)
        assert found.keys() == wanted.keys(), wanted.keys() - found.keys()
        for name, gradient in found.items():
            torch.testing.assert_close(gradient, wanted[name], rtol=1e-5, atol=1e-7, msg=lambda text: f"{name}: {text}")


class Scaled(nn.Module):
    def __init__(self, factor):
        super().__init__()
        self.net, self.factor = net(), factor

    def forward(self, x):
        return self.factor * self.net(x)


def clipped(models, is_sharded=False):
    """Norms of the first model and of both, before and after clipping."""
    first, both = list(models[0].parameters()), [p for model in models for p in model.parameters()]
    norms = [nn.utils.clip_grad_norm_(first, 0.01)]
    gradients = [p.grad for p in both if p.grad is not None]
    if is_sharded:
        refused(ValueError, "does not see the gradients of a sharded optimizer state",
                lambda: nn.utils.get_total_norm(gradients))
        norms.append(nn.utils.clip_grad_norm_(both, float("inf")))
    else:
        norms.append(nn.utils.get_total_norm(gradients))
    norms += [nn.utils.clip_grad_norm_(both, 0.02), nn.utils.clip_grad_norm_(both, float("inf"), 1.0)]
    nn.utils.clip_grad_value_(both, 0.002)
    return norms


def two_models(rank, size, config):
    """One loss through two models with optimizers, then a step of the first model by itself."""
    smp.init(config)
    first, second = smp.DistributedModel(Scaled(1.0)), smp.DistributedModel(Scaled(2.0))
    optimizers = [smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.5)) for model in (first, second)]
    smp.set_activation_checkpointing(first.module)
    mesh = smp.state.mesh
    part = slice(mesh.rank("dp") * ROWS // mesh.size("dp"), (mesh.rank("dp") + 1) * ROWS // mesh.size("dp"))

    @smp.step
    def both(first, second, x):
        loss = second(first(x)).square().mean()
        second.backward(loss)
        return loss

    losses, norms = [], []
    for number in range(2):
        losses.append(both(first, second, rows(number)[part]).reduce_mean())
        norms += clipped((first, second), "shard_optimizer_state" in config)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    losses.append(train(first, rows(2)[part]).reduce_mean())
    optimizers[0].step()
    for loss in losses:
        dist.all_reduce(loss, dist.ReduceOp.AVG, group=mesh.group("dp"))
    weights = [{name: value.tolist() for name, value in model.state_dict().items()} for model in (first, second)]
    return [float(value) for value in [*losses, *norms]], weights


def clipped_between(rank, size, clips):
    """Gradients of the second of two models over two steps. Between them, the first model is clipped, all of whose
    parameters are on one pipeline rank."""
    smp.init({"partitions": 2, "microbatches": 2, "ddp": True, "auto_partition": False, "default_partition": 0})
    first, second = (smp.DistributedModel(net(), backward_passes_per_step=2) for _ in range(2))
    smp.set_partition(second.module[1], 1)
    for number in range(2):
        for model in (first, second):
            train(model, rows(10 * number + smp.dp_rank()))
        if clips and number == 0:
            gradients.clip_grad_norm_(list(first.local_parameters()), 0.01)
    return {name: gradient.tolist() for name, gradient in gradients_of(second).items()}


def two_plain_models():
    first, second = Scaled(1.0), Scaled(2.0)
    optimizers = [torch.optim.SGD(model.parameters(), 0.5) for model in (first, second)]
    losses, norms = [], []
    for number in range(3):
        loss = (second(first(rows(number))) if number < 2 else first(rows(number))).square().mean()
        loss.backward()
        if number < 2:
            norms += clipped((first, second))
        for optimizer in optimizers[:2 if number < 2 else 1]:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return [float(value) for value in [*losses, *norms]], [model.state_dict() for model in (first, second)]


def wrong_backward(rank, size, config):
    smp.init({"microbatches": 2, "ddp": True, **config})
    model = smp.DistributedModel(net())
    if smp.dp_size() > 1:
        refused(RuntimeError, "call model.backward(loss) in a function with @smp.step",
                lambda: model(rows(0)).square().mean().backward())
        model.zero_grad()
    for call in (lambda loss: loss.backward(), lambda loss: torch.autograd.backward(loss)):
        refused(RuntimeError, "call model.backward(loss) instead of loss.backward()",
                lambda: smp.step(lambda model, x: call(model(x).square().mean()))(model, rows(0)))
        model.zero_grad()
    train(model, rows(0))


def raising(rank, size):
    """A step that raises changes no random state, and the step after it is as if it had not been."""
    smp.init({"partitions": size, "microbatches": 2, "ddp": True})
    model = smp.DistributedModel(net(0.5))
    seen = []
    train(model, rows(0))

    @smp.step
    def fails(model, x):
        model.backward(model(x).mean())
        raise KeyError("the step function failed")

    before = torch.get_rng_state()
    refused(Exception, "the step function failed", lambda: fails(model, rows(1)))
    assert torch.equal(torch.get_rng_state(), before)
    model.register_post_step_hook(lambda *_: seen.append("step"))
    smp.step(lambda model, x: model(x))(model, rows(2))
    assert not seen, "the failed step's backward counts"
    model.zero_grad()
    torch.set_rng_state(before)
    loss = train(model, rows(1)).outputs
    found = gradients_of(model)
    model.zero_grad()
    torch.set_rng_state(before)
    assert [a.item() for a in train(model, rows(1)).outputs] == [a.item() for a in loss]
    assert all(torch.equal(gradient, found[name]) for name, gradient in gradients_of(model).items())


def empty_partition(rank, size):
    smp.init({"partitions": size, "microbatches": 2, "auto_partition": False, "default_partition": 0})
    model = smp.DistributedModel(net())
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.5))
    losses = []
    for number in range(2):
        losses.append(train(model, rows(number)).reduce_mean().item())
        optimizer.step()
        optimizer.zero_grad()
    assert len(list(model.local_parameters())) == (0 if rank else 6)
    found = losses, {name: value.tolist() for name, value in model.state_dict().items()}
    smp.shutdown()
    smp.init({"partitions": size, "microbatches": 2})
    refused(ValueError, "the model has 1 modules that can be apart, for 2 partitions: lower pipeline_parallel_degree",
            lambda: train(smp.DistributedModel(nn.Sequential(nn.Linear(WIDTH, WIDTH))), rows(0)))
    return found


def evaluated_first(rank, size, mode):
    """The first step has no gradients; returns what later ones give, and the bytes that the trace has seen."""
    smp.init({"partitions": size, "microbatches": 2})
    seen, decide = [], models.decide
    models.decide = lambda tree, trace, count: seen.append(trace.bytes) or decide(tree, trace, count)
    model = smp.DistributedModel(net())
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.5, momentum=0.9))
    with mode():
        first = smp.step(lambda model, x: model(x))(model, rows(0)).concat().tolist()
    losses = []
    for number in range(3):
        losses.append(train(model, rows(number)).reduce_mean().item())
        optimizer.step()
        optimizer.zero_grad()
    return first, losses, [sum(one.values()) for one in seen]


def copied(rank, size):
    smp.init({"partitions": size, "microbatches": 2, "ddp": True})
    model = smp.DistributedModel(net())
    model.double()
    assert next(model.parameters()).dtype == torch.float64
    model.float()
    train(model, rows(0))
    refused(TypeError, "a DistributedModel cannot be copied", lambda: copy.deepcopy(model))
    refused(TypeError, "save its state_dict()", lambda: copy.copy(model))
    assert model.to("cpu") is model and model.float() is model
    if size > 1:
        refused(RuntimeError, "convert the module before smp.DistributedModel(module)", model.half)
    else:
        assert next(model.half().parameters()).dtype == torch.float16
    assert all(p.dtype == (torch.float32 if size > 1 else torch.float16) for p in model.local_parameters())
    smp.shutdown()
    smp.init({"ddp": True, "shard_optimizer_state": True})
    model = smp.DistributedModel(net())
    optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters()))
    if size > 1:
        refused(RuntimeError, "convert the module before smp.DistributedModel(module)", model.half)
    del optimizer


def _tensors():
    return sum(isinstance(one, torch.Tensor) for one in gc.get_objects())


def freed(rank, size):
    """Without the garbage collector, steps leave no tensors and threads, and a deleted model leaves no modules."""
    smp.init({"partitions": size, "microbatches": 2, "ddp": True})
    model = smp.DistributedModel(net())
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.5))
    counts = []
    for number in range(5):
        train(model, rows(number))
        optimizer.step()
        optimizer.zero_grad()
        if number == 1:
            gc.collect()
            gc.disable()
        counts.append((_tensors(), threading.active_count()))
    assert counts[2] == counts[4], counts
    inner = [weakref.ref(module) for module in model.module.modules()]
    del model, optimizer
    assert not any(one() is not None for one in inner)
    gc.enable()


def normalized():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))


def statistics(rank, size, partitions, options):
    """The buffers of this rank's replica after three steps, the last one without gradients. Without partitions it is
    DistributedDataParallel's."""
    if partitions:
        smp.init({"partitions": partitions, "ddp": True, "auto_partition": False, "default_partition": 0,
                  "partition_assignment": {"2": partitions - 1, "3": partitions - 1}})
        model, replica = smp.DistributedModel(normalized(), **options), smp.rdp_rank()
        step = train
    else:
        model, replica = nn.parallel.DistributedDataParallel(normalized(), **options), rank

        def step(model, x):
            model(x).square().mean().backward()

    for number in range(2):
        step(model, rows(10 * number + replica))
    with torch.no_grad():
        (smp.step(lambda model, x: model(x)) if partitions else lambda model, x: model(x))(model.eval(), rows(5))
    whole = model.state_dict() if partitions else model.module.state_dict()
    return {name: value.tolist() for name, value in whole.items() if name in dict(model.module.named_buffers())}


class Steps(unittest.TestCase):
    def close(self, found, wanted):
        torch.testing.assert_close(torch.tensor(found), torch.as_tensor(wanted), rtol=1e-5, atol=1e-6)

    def test_split_blocks_stay_whole(self):
        losses = ranks.run(4, blocks_stay_whole)
        self.assertEqual(len(set(losses)), 1)

    def test_accumulated_gradients(self):
        for more in ({}, {"prescaled_batch": True}, {"prescaled_batch": True, "optimize": "memory"}):
            with self.subTest(more):
                ranks.run(2, accumulated, more)
        ranks.run(4, accumulated, {})

    def test_two_models(self):
        losses, weights = two_plain_models()
        for size, config in ((2, {"ddp": True}), (2, {"partitions": 2, "microbatches": 2}),
                             (2, {"ddp": True, "shard_optimizer_state": True})):
            for found, values in ranks.run(size, two_models, config):
                with self.subTest(config):
                    self.close(found, losses)
                    for one, other in zip(values, weights, strict=True):
                        for name, value in one.items():
                            self.close(value, other[name])

    def test_clipping_a_model_that_a_rank_has_no_part_of(self):
        self.assertEqual(ranks.run(4, clipped_between, True), ranks.run(4, clipped_between, False))

    def test_wrong_backward(self):
        sharded = {"sharded_data_parallel_degree": 2, "sdp_param_persistence_threshold": 0}
        for size, config in ((1, {}), (2, {"partitions": 2}), (2, {}), (2, sharded)):
            with self.subTest(config):
                ranks.run(size, wrong_backward, config)

    def test_step_that_raises(self):
        for size in (1, 2):
            ranks.run(size, raising)

    def test_empty_partition(self):
        plain = net()
        optimizer = torch.optim.SGD(plain.parameters(), 0.5)
        wanted = []
        for number in range(2):
            optimizer.zero_grad()
            loss = plain(rows(number)).square().mean()
            loss.backward()
            optimizer.step()
            wanted.append(loss.item())
        for losses, weights in ranks.run(2, empty_partition):
            self.close(losses, wanted)
            for name, value in weights.items():
                self.close(value, plain.state_dict()[name])

    def test_evaluation_comes_first(self):
        plain, wanted = net(), []
        output = plain(rows(0)).tolist()
        optimizer = torch.optim.SGD(plain.parameters(), 0.5, momentum=0.9)
        for number in range(3):
            optimizer.zero_grad()
            loss = plain(rows(number)).square().mean()
            loss.backward()
            optimizer.step()
            wanted.append(loss.item())
        for mode in (torch.inference_mode, torch.no_grad):
            results = ranks.run(2, evaluated_first, mode)
            self.assertTrue(all(count > 0 for count in results[0][2]) and results[0][2], results[0][2])
            for first, losses, _ in results:
                self.close(first, output)
                self.close(losses, wanted)

    def test_copies_and_conversions(self):
        for size in (1, 2):
            ranks.run(size, copied)

    def test_buffers_of_replicas(self):
        for options in ({}, {"broadcast_buffers": False}):
            wanted = ranks.run(2, statistics, 0, options)
            self.assertEqual(wanted[0] == wanted[1], not options)
            for partitions in (1, 2):
                found = ranks.run(2 * partitions, statistics, partitions, options)
                for place, buffers in enumerate(found):
                    for name, value in buffers.items():
                        self.close(value, wanted[place // partitions][name])

    def test_ignored_arguments_are_logged_once(self):
        def body(rank, size):
            smp.init()
            with self.assertLogs("shoal.torch.parallel", "WARNING") as logged:
                for _ in range(2):
                    smp.DistributedModel(net(), trace_device="cpu", bucket_cap_mb=50, overlapping_allreduce=True)
            return logged.output
        (lines,) = ranks.run(1, body)
        self.assertEqual(len(lines), 2, lines)
        self.assertIn("trace_device ('cpu') has no effect: a model is traced on its own device", lines[0])
        self.assertIn("bucket_cap_mb (50) has no effect: ", lines[1])

    def test_memory(self):
        for size in (1, 2):
            ranks.run(size, freed)


if __name__ == "__main__":
    unittest.main()
