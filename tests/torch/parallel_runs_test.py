"""Runs of modules in one request, and visits of other lengths at each tensor-parallel rank (runs.py, pipeline.py)."""
import unittest

import torch
from torch import nn

import ranks
from shoal.torch import parallel as smp
from shoal.torch.parallel import pipeline

ROWS = 12


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


def rows(step, *shape):
    return torch.randn(ROWS, *shape, generator=torch.Generator().manual_seed(step))


def courses(rank, size, norm):
    """For each course: losses and gradients of the steps, buffers, and how many requests rank 0 makes in a step."""
    cut = {f"blocks.{i}": 1 for i in range(5)} if size > 1 else {}
    smp.init({"partitions": size, "microbatches": 3, "ddp": True, "auto_partition": False, "default_partition": 0,
              "partition_assignment": cut})
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


class Runs(unittest.TestCase):
    def test_runs(self):
        """One request calls a run of modules until the caller's course differs; the values never do."""
        for norm in (False, True):
            (wanted, _), = ranks.run(1, courses, norm)
            results = ranks.run(2, courses, norm)
            if not norm:
                counts = [results[0][1][i:i + 5] for i in range(0, len(results[0][1]), 5)]
                self.assertEqual(counts[0], [(15, 15)] + 4 * [(3, 3)])
                self.assertEqual(counts[1][2:4], 2 * [(3, 3)])  # the run ends where the caller did
                self.assertEqual([one[2] for one in counts[2:]], [(9, 9), (12, 12), (15, 15), (9, 9), (3, 3)])
            kinds = [f"{course}, step {i}" for course in Course.COURSES for i in range(5)]
            for kind, values, *parts in zip(kinds, wanted, *(found for found, _ in results), strict=True):
                with self.subTest(norm=norm, course=kind):
                    found = parts[0] | parts[1]
                    self.assertEqual(found.keys(), values.keys())
                    for name, value in values.items():
                        torch.testing.assert_close(torch.tensor(found[name]), torch.tensor(value), rtol=1e-5,
                                                   atol=1e-6, msg=lambda text: f"{name}: {text}")
            self.assertEqual(results, ranks.run(2, courses, norm))


if __name__ == "__main__":
    unittest.main()
