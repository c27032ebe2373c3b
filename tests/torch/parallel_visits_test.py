"""Work of microbatches on other ranks: runs of modules in one request, peers, buffers, sums of gradients."""
import threading
import time
import unittest

import torch
import torch._dynamo  # gradients.reduce() may import it, in 4 s; here once and not in each rank
from torch import nn
from torch.nn import functional as F

import ranks
from shoal.torch import parallel as smp
from shoal.torch.parallel import messages, pipeline

ROWS = 12
TIMEOUT = 8  # seconds, for a process group


class Course(nn.Module):
    """A chain of blocks whose course differs from step to step."""

    COURSES = [("plain", "plain", course, course, "plain")
               for course in ("plain", "early", "skips", "in place", "draws", "hooked", "keeps")]

    def __init__(self, norm=False):
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.blocks = nn.ModuleList(nn.Sequential(
            nn.BatchNorm1d(6) if norm and i == 4 else nn.LayerNorm(6), nn.Tanh(), nn.Dropout(0.2), nn.Linear(6, 6))
            for i in range(5))
        self.last = nn.Linear(6, 4)

    def forward(self, x, course):
        x, seen = self.first(x), []
        for i, block in enumerate(self.blocks):
            if course == "early" and i == 3 or course == "skips" and i == 2:
                if course == "early":
                    break
                continue
            x = block(x)
            seen.append(x)
            if course == "in place" and i == 1:
                with torch.no_grad():
                    x.mul_(0.5)
            if course == "draws":
                torch.rand(1)
            if course == "hooked" and i == 2:
                x.register_hook(lambda gradient: 2 * gradient)
        return self.last(sum(seen) if course == "keeps" else x)


def config(size, microbatches, assignment):
    """A pipeline with these modules on other ranks than the first."""
    return {"partitions": size, "microbatches": microbatches, "ddp": True, "auto_partition": False,
            "default_partition": 0, "partition_assignment": assignment if size > 1 else {}}


def ids():
    return torch.randint(10, (ROWS, 3), generator=torch.Generator().manual_seed(1))


def rows(step, *shape):
    return torch.randn(ROWS, *shape, generator=torch.Generator().manual_seed(step))


def courses(rank, size, norm):
    """For each course: losses and gradients of the steps, buffers, and how many requests rank 0 makes in a step."""
    smp.init(config(size, 3, {f"blocks.{i}": 1 for i in range(5)}))
    requests, depart = [], pipeline.Visit._depart

    def counted(visit, to, kind, *rest):
        requests.append(kind)
        depart(visit, to, kind, *rest)
    pipeline.Visit._depart = counted

    @smp.step
    def step(model, x, course):
        loss = model(x, course).square().mean()
        model.backward(loss)
        return loss

    found, counts = [], []
    for course in Course.COURSES:
        torch.manual_seed(1)
        model = smp.DistributedModel(Course(norm))
        torch.manual_seed(5)
        for number, kind in enumerate(course):
            model.zero_grad()
            requests.clear()
            values = {"losses": [loss.item() for loss in step(model, rows(number, 6), kind).outputs]}
            counts.append((requests.count(pipeline.CALL), requests.count(pipeline.BACKWARD)))
            values |= {name: p.grad.tolist() for name, p in model.local_named_parameters() if p.grad is not None}
            values |= {name: b.tolist() for name, b in model.named_buffers() if model.stage_of(name) == rank}
            found.append(values)
    smp.shutdown()
    return found, counts


class InPlace(nn.Module):
    """Reads a value between two modules, the second of which changes it in place."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.act, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.ReLU(inplace=True), nn.Linear(6, 4)

    def forward(self, x):
        x = self.b(self.a(x))
        mean = x.mean()
        return self.c(self.act(x)).square().mean() + mean


def in_place(rank, size):
    """Losses and gradients of three steps; how many requests for a module rank 0 makes in the last one."""
    smp.init(config(size, 2, {"b": 1, "act": 1}))
    requests, call = [], pipeline.Visit._request
    pipeline.Visit._request = lambda *arguments: requests.append(1) or call(*arguments)
    torch.manual_seed(1)
    model = smp.DistributedModel(InPlace())

    @smp.step
    def step(model, x):
        loss = model(x)
        model.backward(loss)
        return loss

    found = []
    for number in range(3):
        model.zero_grad()
        requests.clear()
        values = {"losses": [loss.item() for loss in step(model, rows(number, 6)).outputs]}
        found.append(values | {name: p.grad.tolist() for name, p in model.local_named_parameters()})
    return found, len(requests)


class Marked(nn.Module):
    """Calls its split layers in another way where the mask hides something."""

    def __init__(self):
        super().__init__()
        self.enter, self.head = nn.Linear(8, 8), nn.Linear(8, 2)
        self.layers = nn.ModuleList(smp.nn.DistributedTransformerLayer(
            num_attention_heads=2, attention_head_size=4, hidden_size=8, intermediate_size=16,
            attention_dropout_prob=0.0, hidden_dropout_prob=0.0) for _ in range(3))

    def forward(self, x, mask):
        x, hides = self.enter(x), bool((mask != 0).any())
        for layer in self.layers:
            x = (layer(inputs=(x, mask)) if hides else layer((x, mask)))[0]
        return self.head(x)


def peers(rank, size, differs):
    """Losses of four steps with each tensor-parallel rank's own batch. If `differs`, the calls of rank 0 have another
    form in the third step, and the same values."""
    smp.init({**config(2, 2, {f"layers.{i}": 1 for i in range(3)}), "tensor_parallel_degree": 2})
    torch.manual_seed(1)
    model = smp.DistributedModel(Marked())

    @smp.step
    def step(model, x, mask):
        loss = model(x, mask).square().mean()
        model.backward(loss)
        return loss

    losses = []
    for number in range(4):
        mask = torch.zeros(ROWS, 1, 1, 4)
        if differs and number == 2 and smp.tp_rank() == 0:
            mask[:, :, :, 3] = -1e-30
        losses.append([loss.item() for loss in step(model, rows(10 * smp.tp_rank() + number, 4, 8), mask).outputs])
    return losses


def follower_fails(rank, size, prescaled):
    """Losses of a good step and of the same step after one that failed on the second tensor-parallel rank only, while
    the first one still had calls to make, and so learnt a run of modules; whether a thread is left."""
    smp.init({"partitions": 2, "tensor_parallel_degree": 2, "microbatches": 2, "ddp": True, "auto_partition": False,
              "default_partition": 0, "partition_assignment": {"0": 1, "1": 1}, "prescaled_batch": prescaled})
    torch.manual_seed(1)
    model = smp.DistributedModel(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)))

    @smp.step
    def step(model, x, fails):
        for _ in range(4):
            loss = model(x).square().mean()
            if fails and smp.tp_rank() == 1:
                raise KeyError("the step function failed")
            if fails:
                time.sleep(0.1)
        return loss

    losses, threads = [], []
    torch.set_grad_enabled(False)
    for number in range(4):
        model.train(number == 0)  # a call of a module in another mode begins another run
        try:
            losses.append([loss.item() for loss in step(model, rows(0, 8), number == 1).outputs])
        except RuntimeError as problem:
            assert "the step function failed" in str(problem), problem
            assert number == 1 and smp.tp_rank() == 1
        threads.append(threading.active_count())
    return losses[0], losses[-1], threads[-1] - threads[0]


class Counting(nn.Module):
    """Each call adds one to a buffer that is too large to travel inside a message's frame."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1 << 20))

    def forward(self, x):
        self.count.add_(1)
        return x


def fetched(rank, size):
    """The value of a buffer that the first microbatch reads. The second changes it before the message arrives."""
    smp.init(config(size, 2, {"0": 1}))
    model = smp.DistributedModel(nn.Sequential(Counting(), nn.Linear(6, 6)))
    take = messages.Channel._take
    messages.Channel._take = lambda channel, parts, source: time.sleep(0.3 if parts else 0) or take(
        channel, parts, source)

    @smp.step
    def step(model, x, reads):
        if reads[0]:
            return model.module[0].count.unique()
        return model(x)[0, :1]

    with torch.no_grad():
        return step(model, rows(0, 6), torch.arange(ROWS) < ROWS // 2).outputs[0].tolist()


def sleeps(linear, seconds):
    """Lets the backward of this layer begin later."""
    def hook(module, args, output):
        output.register_hook(lambda gradient: time.sleep(seconds[module]))
    linear.register_forward_hook(hook)


class Ends(nn.Module):
    """The head and the embedding share a weight; the block between them is on another rank."""

    def __init__(self):
        super().__init__()
        self.embed, self.block, self.head = nn.Embedding(10, 6), nn.Linear(6, 6), nn.Linear(6, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.block(self.embed(ids)))


def order_of_sums(rank, size):
    """Gradients of a tied weight whose two uses come in another order in time."""
    smp.init({**config(size, 4, {"embed": 1, "head": 1}), "pipeline": "simple"})
    torch.manual_seed(1)
    model, seconds = smp.DistributedModel(Ends()), {}
    for layer in (model.module.block, model.module.head):
        sleeps(layer, seconds)

    @smp.step
    def step(model, ids):
        model.backward(F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()))

    found = []
    for head, block in ((0, 0.05), (0.05, 0)):
        seconds |= {model.module.head: head, model.module.block: block}
        model.zero_grad()
        step(model, ids())
        found.append(model.module.embed.weight.grad.tolist() if rank == 1 else None)
    return found


def cut_later(rank, size):
    """Gradients of a tied weight with its two uses in one process, then in a pipeline that has the same module."""
    torch.manual_seed(1)
    net, found = Ends(), []

    @smp.step
    def step(model, ids):
        model.backward(F.cross_entropy(model(ids).flatten(0, 1), ids.flatten()))

    for parameters in ({"ddp": True}, config(size, 1, {"embed": 1, "head": 1})):
        smp.init(parameters)
        model = smp.DistributedModel(net)
        model.zero_grad()
        step(model, ids())
        found.append(dict(model.local_named_parameters()).get("embed.weight"))
        found[-1] = found[-1] if found[-1] is None else found[-1].grad.tolist()
        smp.shutdown()
    return found


def sum_of_outputs(rank, size):
    """The gradient of another rank's output is one number for all elements."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6))
    net(rows(1, 6)).sum().backward()
    wanted = {name: p.grad.clone() for name, p in net.named_parameters()}
    net.zero_grad()
    smp.init(config(size, 1, {"1": 1}))
    model = smp.DistributedModel(net)

    @smp.step
    def step(model, x):
        model.backward(model(x).sum())
    step(model, rows(1, 6))
    for name, parameter in model.local_named_parameters():
        torch.testing.assert_close(parameter.grad, wanted[name])
    smp.shutdown()


class Sleeps(nn.Linear):
    def forward(self, x):
        time.sleep(TIMEOUT + 2)
        return super().forward(x)


def long_visit(rank, size):
    smp.init(config(size, 1, {"1": 1}))
    model = smp.DistributedModel(nn.Sequential(nn.Linear(6, 6), Sleeps(6, 6)))

    @smp.step
    def step(model, x):
        model.backward(model(x).sum())
    step(model, rows(1, 6))
    smp.shutdown()


class Visits(unittest.TestCase):
    def same(self, found, wanted):
        self.assertEqual(found.keys(), wanted.keys())
        for name, value in wanted.items():
            torch.testing.assert_close(torch.tensor(found[name]), torch.tensor(value), rtol=1e-5, atol=1e-6,
                                       msg=lambda text: f"{name}: {text}")

    def test_runs(self):
        """One request calls a run of modules until the caller's course differs; the values never do."""
        for norm in (False, True):
            (wanted, _), = ranks.run(1, courses, norm)
            results = ranks.run(2, courses, norm)
            if not norm:
                counts = [results[0][1][i:i + 5] for i in range(0, len(results[0][1]), 5)]
                self.assertEqual(counts[0], [(15, 15)] + 4 * [(3, 3)])
                self.assertEqual(counts[1][2:4], 2 * [(3, 3)])  # the run ends where its caller's did
                self.assertEqual([one[2] for one in counts[2:]], [(9, 9), (12, 12), (15, 15), (9, 9), (3, 3)])
            kinds = [f"{course}, step {i}" for course in Course.COURSES for i in range(5)]
            for kind, values, *parts in zip(kinds, wanted, *(found for found, _ in results), strict=True):
                with self.subTest(norm=norm, course=kind):
                    self.same(parts[0] | parts[1], values)
            self.assertEqual(results, ranks.run(2, courses, norm))

    def test_modules_that_work_in_place(self):
        """A run gives the caller what an earlier module returned, not what a later one made of it."""
        (wanted, _), = ranks.run(1, in_place)
        (one, requests), (other, _) = ranks.run(2, in_place)
        for number, values in enumerate(wanted):
            with self.subTest(step=number):
                self.same(one[number] | other[number], values)
        self.assertEqual(requests, 2)  # one for each microbatch

    def test_peers_call_in_other_ways(self):
        """Tensor-parallel ranks make the same visits though their batches lead to other calls."""
        self.assertEqual(ranks.run(4, peers, True), ranks.run(4, peers, False))

    def test_step_that_fails_on_one_peer(self):
        for prescaled in (False, True):
            for before, after, threads in ranks.run(4, follower_fails, prescaled):
                self.assertEqual(after, before)
                self.assertEqual(threads, 0)

    def test_fetched_buffer_is_that_of_the_visit(self):
        for found in ranks.run(2, fetched):
            self.assertEqual(found, [0])

    def test_sums_do_not_depend_on_time(self):
        first, second = ranks.run(2, order_of_sums)[1]
        self.assertEqual(first, second)

    def test_gradient_of_a_sum(self):
        ranks.run(2, sum_of_outputs)

    def test_a_visit_may_take_longer_than_the_time_out(self):
        ranks.run(3, long_visit, timeout=TIMEOUT)  # rank 2 has nothing to do

    def test_module_that_was_whole_before(self):
        whole, cut = ranks.run(2, cut_later)[1]
        torch.testing.assert_close(torch.tensor(cut), torch.tensor(whole), rtol=1e-5, atol=1e-7)


if __name__ == "__main__":
    unittest.main()
