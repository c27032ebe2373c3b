"""DistributedOptimizer and the gradients of a mesh beside one process with the plain optimizer."""
import io
import unittest

import ranks
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.utils import clip_grad

from shoal.torch import parallel as smp
from shoal.torch.parallel import amp, gradients, sharding
from shoal.torch.parallel.optimizer import DistributedOptimizer, LossScale
from shoal.torch.parallel.state import state
from shoal.torch.parallel.tensor.functions import TensorSplit

SAMPLES = 8
SHARDED = {"ddp": True, "shard_optimizer_state": True}


def packed(value):
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def unpacked(value):
    return torch.load(io.BytesIO(value), weights_only=False)


def model_of(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 5), nn.LayerNorm(5), nn.Linear(5, 3)).to(dtype)


def optimizer_of(model, kind="adamw"):
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.1},
              {"params": [p for p in model.parameters() if p.dim() <= 1], "weight_decay": 0.0}]
    if kind == "adamw":
        return torch.optim.AdamW(groups, lr=0.01)
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9)


def batch(step):
    generator = torch.Generator().manual_seed(100 + step)
    return torch.randn(SAMPLES, 6, generator=generator), torch.randn(SAMPLES, 3, generator=generator)


def loss_of(model, x, y):
    return (model(x.to(next(iter(model.parameters())).dtype)).float() - y).square().mean()


@smp.step
def train_step(model, x, y):
    loss = loss_of(model, x, y)
    model.backward(loss)
    return loss


def train(model, optimizer, steps, scheduler=None, clip=0.5):
    """Steps of this rank's part of the batches; returns the norms before clipping."""
    mesh, norms = state.mesh, []
    mine = slice(mesh.rank(mesh.batch_axis) * SAMPLES // mesh.batches,
                 (mesh.rank(mesh.batch_axis) + 1) * SAMPLES // mesh.batches)
    for step in steps:
        train_step(model, *(part[mine] for part in batch(step)))
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), clip)))
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        optimizer.zero_grad()
    return norms


def train_plain(model, optimizer, steps, scheduler=None, clip=0.5):
    norms = []
    for step in steps:
        loss_of(model, *batch(step)).backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), clip)))
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
        optimizer.zero_grad()
    return norms


def begin(config, kind="adamw", dtype=torch.float32, **arguments):
    smp.init(config)
    model = smp.DistributedModel(model_of(dtype))
    return model, smp.DistributedOptimizer(optimizer_of(model, kind), **arguments)


def values(model):
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def run_equal(rank, size, config, kind):
    model, optimizer = begin(config, kind)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=10)
    norms = train(model, optimizer, range(4), scheduler)
    return packed((values(model), norms, optimizer.state_dict()))


def run_state_of_model(rank, size, config):
    """The model gives its own optimizer's whole state, also beside a newer model."""
    smp.init(config)
    model = smp.DistributedModel(model_of())
    with ranks.raises(RuntimeError, "has no DistributedOptimizer"):
        model.optimizer_state_dict()
    optimizer = smp.DistributedOptimizer(optimizer_of(model))
    train(model, optimizer, range(2))
    other = smp.DistributedModel(model_of())
    other_optimizer = smp.DistributedOptimizer(optimizer_of(other))
    found, expected = model.optimizer_state_dict(), optimizer.state_dict()
    torch.testing.assert_close(found.pop("state"), state_of := expected.pop("state"), rtol=0, atol=0)
    assert found == expected and state_of and state.optimizer is other_optimizer


class Case(unittest.TestCase):
    def assert_close(self, found, expected, tolerance=1e-6):
        self.assertEqual(list(found), list(expected))
        for name, value in expected.items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(found[name], value, rtol=tolerance, atol=tolerance, msg=name)


class Equal(Case):
    """Weights, norms and states equal those of one process."""

    def check(self, size, config, kind):
        model = model_of()
        optimizer = optimizer_of(model, kind)
        norms = train_plain(model, optimizer, range(4), torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=10))
        expected = optimizer.state_dict()
        for text in ranks.run(size, run_equal, config, kind):
            found, found_norms, found_state = unpacked(text)
            self.assert_close(found, model.state_dict())
            for a, b in zip(found_norms, norms, strict=True):
                self.assertAlmostEqual(a, b, delta=1e-6 * b)
            self.assertEqual(list(found_state["state"]), list(expected["state"]))
            for index, of_parameter in expected["state"].items():
                self.assert_close(found_state["state"][index], of_parameter)
            for a, b in zip(found_state["param_groups"], expected["param_groups"], strict=True):
                self.assertEqual({key: a[key] for key in b}, b)

    def test_replicas(self):
        self.check(1, {}, "adamw")
        self.check(2, {"ddp": True}, "adamw")
        self.check(4, {"ddp": True}, "sgd")

    def test_segments(self):
        self.check(2, SHARDED, "sgd")
        self.check(4, SHARDED, "adamw")

    def test_state_of_a_model(self):
        ranks.run(2, run_state_of_model, {"partitions": 2, "microbatches": 2})

    def test_pipeline(self):
        self.check(2, {"partitions": 2, "microbatches": 2}, "adamw")
        self.check(4, {**SHARDED, "partitions": 2, "microbatches": 2}, "adamw")


class Whole(nn.Module):
    """A split weight, one that each tp rank has whole, one whose gradient is a part, and one that may have none."""

    def __init__(self):
        super().__init__()
        tp = state.mesh.rank("tp"), state.mesh.size("tp")
        torch.manual_seed(1)
        self.split = nn.Parameter(TensorSplit(0, 6).take(torch.randn(6, 2), *tp))
        self.split.tp_split = TensorSplit(0, 6)
        self.same = nn.Parameter(torch.randn(5))
        self.partial = nn.Parameter(torch.randn(3))
        self.partial.tp_partial = True
        self.seldom = nn.Parameter(torch.randn(4))
        self.never = nn.Parameter(torch.randn(4))


def run_split(rank, size, config):
    """Gradients that are put in by hand: of batch b, g + b for each element's own g."""
    smp.init(config)
    mesh = state.mesh
    model = smp.DistributedModel(Whole())
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0, weight_decay=0.1))
    before = {name: p.detach().clone() for name, p in model.local_named_parameters()}
    whole = torch.arange(12.0).view(6, 2)
    tp, batch_number = mesh.size("tp"), mesh.rank(mesh.batch_axis)
    module = model.module
    # The gradient of a split parameter covers the batches of all tp ranks.
    here = [mesh.rank("rdp")] if config.get("prescaled_batch") else [mesh.rank("rdp") * tp + t for t in range(tp)]
    module.split.grad = sum(TensorSplit(0, 6).take(whole, mesh.rank("tp"), tp) + b for b in here)
    module.same.grad = torch.arange(5.0) + batch_number
    share = tp if config.get("prescaled_batch") else 1
    module.partial.grad = (torch.arange(3.0) + batch_number) / share
    if batch_number == mesh.batches - 1:
        module.seldom.grad = torch.ones(4)
    gradients.reduce(model)
    mean = (mesh.batches - 1) / 2
    expected = {"split": whole + mean, "same": torch.arange(5.0) + mean, "partial": torch.arange(3.0) + mean,
                "seldom": torch.ones(4) / mesh.batches}
    norms = {}
    for kind in (1.0, 2.0, 3.0, float("inf")):
        found = gradients.clip_grad_norm_(model.parameters(), float("inf"), kind)
        flat = torch.cat([g.reshape(-1) for g in expected.values()])
        torch.testing.assert_close(found, torch.linalg.vector_norm(flat, kind), rtol=1e-6, atol=0)
        norms[kind] = found.item()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 2.0)
    assert norm.item() == norms[2.0], (norm, norms)
    torch.testing.assert_close(nn.utils.clip_grad_norm_(model.parameters(), 1e9).item(), 2.0, rtol=1e-5, atol=0)
    optimizer.step()
    expected["split"] = TensorSplit(0, 6).take(expected["split"], mesh.rank("tp"), tp)
    for name, p in model.local_named_parameters():
        if name in expected:
            step = 0.1 * before[name] + expected[name] * 2 / norms[2.0]
            torch.testing.assert_close(p.detach(), before[name] - step, rtol=1e-5, atol=1e-5, msg=name)
        else:  # no gradient on any rank: no weight decay either
            assert torch.equal(p.detach(), before[name]), name
    return norms[2.0]


def run_pending(rank, size, config):
    """Fewer passes than backward_passes_per_step at the end of an epoch."""
    smp.init(config)
    model = smp.DistributedModel(model_of(), backward_passes_per_step=2)
    optimizer = smp.DistributedOptimizer(optimizer_of(model, "sgd"))
    plain = model_of()
    plain_optimizer = optimizer_of(plain, "sgd")
    half = slice(rank * 4, rank * 4 + 4)
    for steps in ([0, 1], [2], [3, 4]):
        for step in steps:
            x, y = batch(step)
            train_step(model, x[half], y[half])
            loss_of(plain, x, y).backward()
        norm = gradients.clip_grad_norm_(model.parameters(), float("inf"))
        torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(plain.parameters(), float("inf")), rtol=1e-6, atol=0)
        optimizer.step()
        plain_optimizer.step()
        model.zero_grad()
        plain.zero_grad()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-6, atol=1e-6)


def run_left_out(rank, size, config, zero):
    """A batch whose gradients are thrown away, clipped or not, leaves no trace."""
    model, optimizer = begin(config, "sgd")
    start = values(model)
    half = slice(rank * 4, rank * 4 + 4)
    for clip in (False, True):
        train_step(model, *(part[half] for part in batch(7)))
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        (model if zero == "model" else optimizer).zero_grad()
    assert all(torch.equal(value, start[name]) for name, value in values(model).items())
    train(model, optimizer, range(1))
    plain = model_of()
    train_plain(plain, optimizer_of(plain, "sgd"), range(1))
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(values(model)[name], value, rtol=1e-6, atol=1e-6)


class Loose(nn.Module):
    """A model with a frozen parameter and one that no forward uses."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.net = model_of(dtype)
        self.net[2].bias.requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(3, dtype=dtype))

    def forward(self, x):
        return self.net(x)


def train_loose(model, net, optimizer, step):
    """Clips the last layer, then the first one's parameters as they were before the cut, then all. Later one more
    parameter is frozen. Returns the norms."""
    first, norms = list(net[0].parameters()), []
    for number in range(3):
        net[0].bias.requires_grad_(number == 0)
        step(number)
        norms.append([float(nn.utils.clip_grad_norm_(parameters, limit, kind)) for parameters, limit, kind in (
            (net[4].parameters(), 0.1, 2.0), (first, 0.1, 1.0), (model.parameters(), 0.2, 2.0),
            ([p for p in net[3].parameters() if not p.is_meta], 1e9, float("inf")))])
        nn.utils.clip_grad_value_(net[4].parameters(), 0.01)
        optimizer.step()
        model.zero_grad()
    return norms


def loose_optimizer(model, net):
    """Without the normalization's parameters."""
    left_out = {id(p) for p in net[3].parameters()}
    return torch.optim.SGD([p for p in model.parameters() if id(p) not in left_out], lr=0.1, momentum=0.9)


def run_loose(rank, size, config, dtype):
    smp.init(config)
    model = smp.DistributedModel(Loose(dtype))
    optimizer = smp.DistributedOptimizer(loose_optimizer(model, model.module.net),
                                         **({"static_loss_scale": 64.0} if config.get("fp16") else {}))
    mesh = state.mesh
    mine = slice(mesh.rank("dp") * SAMPLES // mesh.size("dp"), (mesh.rank("dp") + 1) * SAMPLES // mesh.size("dp"))

    def step(number):
        train_step(model, *(part[mine] for part in batch(number)))

    norms = train_loose(model, model.module.net, optimizer, step)
    return packed((norms, values(model)))


class Gradients(Case):
    def test_parameters_that_are_left_out(self):
        plain = Loose()
        norms = train_loose(plain, plain.net, loose_optimizer(plain, plain.net),
                            lambda number: loss_of(plain, *batch(number)).backward())
        self.assertTrue(all(norm > 0 for of_step in norms for norm in of_step))
        pipeline = {"partitions": 2, "microbatches": 2}
        for size, config, dtype, tolerance in (
                (2, {"ddp": True}, torch.float32, 1e-5), (2, SHARDED, torch.float32, 1e-5),
                (2, pipeline, torch.float32, 1e-5), (4, {**pipeline, **SHARDED}, torch.float32, 1e-5),
                (2, {"ddp": True, "fp16": True}, torch.float16, 0.02),
                (2, {**SHARDED, "fp16": True}, torch.float16, 0.02)):
            for text in ranks.run(size, run_loose, config, dtype):
                with self.subTest(config=config):
                    found, weights = unpacked(text)
                    torch.testing.assert_close(torch.tensor(found), torch.tensor(norms), rtol=tolerance, atol=0)
                    self.assert_close({n: v.float() for n, v in weights.items()}, plain.state_dict(), tolerance)

    def test_batches_may_be_left_out(self):
        for zero in ("model", "optimizer"):
            ranks.run(2, run_left_out, SHARDED, zero)

    def test_split_and_whole_parameters_count_once(self):
        tensor = {"tensor_parallel_degree": 2, "ddp": True}
        for config in (tensor, {**tensor, "prescaled_batch": True}, {**tensor, "shard_optimizer_state": True}):
            found = ranks.run(4, run_split, config)
            self.assertEqual(len(set(found)), 1, found)

    def test_pending_gradients_are_reduced(self):
        ranks.run(2, run_pending, {"ddp": True})
        ranks.run(2, run_pending, SHARDED)

    def test_torch_has_its_own_clipping_without_init(self):
        self.assertFalse(hasattr(clip_grad._get_total_norm, "shoal"))
        self.assertIs(nn.utils.get_total_norm, clip_grad._get_total_norm)

    def test_other_models_have_torchs_clipping(self):
        ranks.run(2, run_other_model)


def run_other_model(rank, size):
    model, optimizer = begin({"ddp": True})
    train(model, optimizer, range(1))
    other = nn.Linear(3, 2)
    other(torch.full((1, 3), rank + 1.0)).sum().backward()
    expected = torch.linalg.vector_norm(torch.cat([p.grad.reshape(-1) for p in other.parameters()]))
    torch.testing.assert_close(nn.utils.clip_grad_norm_(other.parameters(), 1.0), expected)
    train_step(model, *batch(0))
    with ranks.raises(ValueError, "clip each by itself"):
        nn.utils.clip_grad_norm_([*other.parameters(), *model.parameters()], 1.0)


def run_bytes(rank, size, config, dtype):
    smp.init(config)
    torch.manual_seed(0)
    model = smp.DistributedModel(nn.Sequential(*(nn.Linear(96, 96) for _ in range(12))).to(dtype))
    optimizer = smp.DistributedOptimizer(torch.optim.AdamW(model.parameters()))

    @smp.step
    def step(model, x):
        model.backward(model(x.to(dtype)).float().square().mean())

    step(model, torch.ones(2, 96))
    grads = sum(p.value.grad.nbytes for p in optimizer._pieces if p.value.grad is not None)
    left = sum(p.grad is not None for p in model.parameters())
    optimizer.step()
    states = sum(v.nbytes for s in optimizer.state.values() for v in s.values() if v.dim())
    masters = sum(p.value.nbytes for p in optimizer._pieces if p.has_master)
    storages = {p.untyped_storage().data_ptr(): p.untyped_storage().nbytes() for p in model.parameters()}
    return sum(p.numel() for p in model.parameters()), sum(storages.values()), grads, left, states, masters


class Memory(unittest.TestCase):
    def test_bytes_of_segments(self):
        for size in (2, 4):
            for count, weights, grads, left, states, masters in ranks.run(size, run_bytes, SHARDED, torch.float32):
                for found, expected in ((weights, 4 * count), (grads, 4 * count / size), (states, 8 * count / size)):
                    self.assertLess(abs(found / expected - 1), 0.02)
                self.assertEqual((left, masters), (0, 0))
        for count, weights, grads, left, states, masters in ranks.run(
                2, run_bytes, {**SHARDED, "bf16": True}, torch.bfloat16):
            for found, expected in ((weights, 2 * count), (grads, 4 * count / 2), (states, 8 * count / 2),
                                    (masters, 4 * count / 2)):
                self.assertLess(abs(found / expected - 1), 0.02)


def run_fp16(rank, size, config):
    """A rank's overflow makes every rank skip; masters keep what fp16 would lose."""
    smp.init(config)
    model = smp.DistributedModel(model_of(torch.float16))
    optimizer = smp.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-4),
                                         dynamic_loss_args={"init_scale": 1024, "scale_window": 3})
    assert all(g["params"][0].dtype == torch.float32 for g in optimizer.param_groups)
    start, events = values(model), []
    masters = [p.value.detach().clone() for p in optimizer._pieces]
    for step in range(8):
        x, y = batch(0)
        is_bad = step == 2 and rank == size - 1
        before = values(model)
        train_step(model, x, y * float("inf") if is_bad and not optimizer.shards else y)
        if is_bad and optimizer.shards:  # only in this rank's segment
            optimizer._pieces[0].value.grad[0] = float("inf")
        norm = optimizer.clip_master_grads(float("inf"))
        optimizer.step()
        optimizer.zero_grad()
        assert bool(norm.isfinite()) != optimizer.overflow
        if optimizer.step_was_skipped:
            assert all(torch.equal(value, before[name]) for name, value in values(model).items())
        events.append((optimizer.overflow, optimizer.loss_scale))
    # The reference: fp16 gradients at the initial values, which hardly change.
    plain = model_of(torch.float16)
    loss_of(plain, *batch(0)).backward()
    names = dict(plain.named_parameters())
    for piece, master in zip(optimizer._pieces, masters):
        gradient = names[piece.name].grad.float().reshape(-1)[piece.start:piece.end].view(master.shape)
        torch.testing.assert_close(master - piece.value.detach(), 7e-4 * gradient, rtol=0.02, atol=3e-6)
        assert piece.value.dtype == torch.float32 and piece.parameter.dtype == torch.float16
    assert all(torch.allclose(v.float(), start[n].float(), atol=1e-2) for n, v in values(model).items())
    return events


def run_scaler(rank, size, config):
    model, optimizer = begin(config, "sgd")
    scaler = amp.GradScaler(init_scale=256.0, growth_interval=2)

    @smp.step
    def scaled_step(model, x, y):
        loss = loss_of(model, x, y)
        model.backward(scaler.scale(loss))
        return loss

    start = values(model)
    x, y = batch(0)
    is_cut = "partitions" in config
    scaled_step(model, x, y * float("inf") if rank == size - 1 and not is_cut else y)
    if is_cut and rank == size - 1:  # only in the last stage
        next(model.local_parameters()).grad.view(-1)[0] = float("inf")
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    assert scaler.get_scale() == 128.0 and all(torch.equal(v, start[n]) for n, v in values(model).items())
    scaled_step(model, x, y)
    scaler.unscale_(optimizer)
    norm = float(nn.utils.clip_grad_norm_(model.parameters(), 1e9))
    scaler.step(optimizer)
    scaler.update()
    plain = model_of()
    plain_optimizer = optimizer_of(plain, "sgd")
    loss_of(plain, x, y).backward()
    assert abs(norm - float(nn.utils.clip_grad_norm_(plain.parameters(), 1e9))) < 1e-5 * norm
    plain_optimizer.step()
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(values(model)[name], value, rtol=1e-5, atol=1e-6)


def run_refused_scaler(rank, size, config, init_first):
    scaler = None if init_first else amp.GradScaler("cpu")
    model, optimizer = begin(config, "sgd")
    scaler = scaler or amp.GradScaler()
    scaler.scale(torch.ones(()))
    scaler.step(optimizer)


def run_loaded(rank, size, config):
    """Masters follow values that are loaded into the model later."""
    model, optimizer = begin(config, dtype=torch.bfloat16)
    loaded = {name: torch.full_like(value, 0.25) for name, value in values(model).items()}
    model.load_state_dict(loaded)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    train(model, optimizer, range(1))
    assert all(torch.equal(value, loaded[name]) for name, value in values(model).items())


class HalfPrecision(unittest.TestCase):
    def test_masters_follow_loaded_values(self):
        ranks.run(1, run_loaded, {"bf16": True})
        ranks.run(2, run_loaded, {**SHARDED, "bf16": True})

    def test_ranks_skip_together(self):
        # After the overflow of step 2 the scale halves. It doubles after three good updates in a row.
        expected = [(False, 1024.0), (False, 1024.0), (True, 512.0), (False, 512.0), (False, 512.0), (False, 1024.0),
                    (False, 1024.0), (False, 1024.0)]
        for config in ({"ddp": True, "fp16": True}, {**SHARDED, "fp16": True}):
            for events in ranks.run(2, run_fp16, config):
                self.assertEqual(events, expected)

    def test_loss_scale(self):
        rule = {"init_scale": 8.0, "scale_factor": 2.0, "scale_window": 2, "min_scale": 2.0, "delayed_shift": 2}
        scale = LossScale(None, rule)
        found = []
        for overflow in (True, True, True, False, True, False, False, True, True, True):
            scale.follow(overflow)
            found.append(scale.value)
        self.assertEqual(found, [8.0, 4.0, 2.0, 2.0, 2.0, 2.0, 4.0, 4.0, 2.0, 2.0])
        copy = LossScale(None, rule)
        copy.load_state_dict(scale.state_dict())
        self.assertEqual(copy.state_dict(), scale.state_dict())
        fixed = LossScale(64.0, rule)
        fixed.follow(True)
        self.assertEqual(fixed.value, 64.0)

    def test_scaler_of_torch_is_refused_beside_masters(self):
        for key in ("fp16", "bf16"):
            with self.assertRaisesRegex(ranks.Failed, f'GradScaler cannot be used with "{key}": true'):
                ranks.run(1, run_refused_scaler, {key: True}, True)
            with self.assertRaisesRegex(ranks.Failed, f'GradScaler cannot be used with "{key}": true'):
                ranks.run(1, run_refused_scaler, {key: True}, False)

    def test_scaler_of_torch(self):
        for size, config in ((2, {"ddp": True}), (2, SHARDED), (2, {"partitions": 2, "microbatches": 2})):
            ranks.run(size, run_scaler, config)


def run_refusals(rank, size):
    smp.init(SHARDED)
    try:
        smp.DistributedOptimizer(torch.optim.SGD([torch.zeros(1)], lr=1.0))
    except RuntimeError as problem:
        assert "DistributedModel first" in str(problem)
    model = smp.DistributedModel(model_of())
    with unittest.TestCase().assertLogs("shoal.torch.parallel", "WARNING") as logs:
        train_step(model, *batch(0))
        train_step(model, *batch(0))
    assert len(logs.output) == 1 and "shard_optimizer_state: no effect" in logs.output[0], logs.output
    texts = []
    for wrong in (torch.optim.Adafactor(model.parameters()), torch.optim.SGD([nn.Parameter(torch.zeros(7))], lr=1.0)):
        try:
            DistributedOptimizer(wrong)
        except ValueError as problem:
            texts.append(str(problem))
    return texts


class Refusals(unittest.TestCase):
    def test_by_name(self):
        for texts in ranks.run(2, run_refusals):
            self.assertIn("Adafactor cannot be used with shard_optimizer_state", texts[0])
            self.assertIn("not in the DistributedModel", texts[1])

        class Lamb(torch.optim.AdamW):
            pass

        with self.assertRaisesRegex(ValueError, "Lamb cannot be used"):
            sharding.check_elementwise(Lamb([torch.zeros(1)]), "shard_optimizer_state")


if __name__ == "__main__":
    unittest.main()
