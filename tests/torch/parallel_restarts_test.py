"""Runs that are saved in one layout and go on in another have the losses of one process that never stopped.

A restart is a pair of layouts (rdp, pp, tp), each with or without shard_optimizer_state or
sharded_data_parallel_degree, and a partial or full checkpoint. The normal run takes layouts of 1, 2 and 4 ranks, and a
subset of their pairs in which each pair of values occurs. SHOAL_TEST_FULL=1 takes each pair of (rdp, pp, tp) of 4 ranks
at most, and such a subset of layouts of 8 ranks at most. parallel_native_checkpoint_test.py has restarts as runs of
Shoal's own engine.
"""
import itertools
import math
import os
import random
import tempfile
import unittest
from typing import NamedTuple

import parallel_layouts_test as layouts
import ranks
from parallel_layouts_test import Layout
from torch import nn

from shoal.torch import parallel as smp

FAMILIES = ("gpt2", "bert", "llama")
KINDS = {"partial": "saved", "full": "saved.safetensors"}  # and their tags
BEFORE, STEPS = 2, 4


class Restart(NamedTuple):
    family: str
    kind: str
    rdp: int
    pp: int
    tp: int
    sharding: str
    schedule: str
    placement: str
    new_rdp: int
    new_pp: int
    new_tp: int
    new_sharding: str
    new_schedule: str
    new_placement: str

    @property
    def before(self):
        return Layout(self.family, self.rdp, self.pp, self.tp, self.sharding, "kept", "own", self.schedule,
                      self.placement)

    @property
    def after(self):
        return Layout(self.family, self.new_rdp, self.new_pp, self.new_tp, self.new_sharding, "kept", "own",
                      self.new_schedule, self.new_placement)

    @property
    def ranks(self):
        return self.before.ranks + self.after.ranks

    @property
    def model(self):
        """The batch has at least four samples for each batch of either layout."""
        return layouts.sizes_of(self.family, math.lcm(self.tp, self.new_tp),
                                4 * math.lcm(self.before.batches, self.after.batches))


def all_restarts(most):
    """Each pair of layouts of `most` ranks at most, in a mixed order. Schedules and placements take turns."""
    ends = [(*each, sharding) for each in layouts.degrees(most) for sharding in layouts.shardings(*each[:2])]
    others = itertools.cycle(itertools.product(layouts.SCHEDULES, layouts.PLACEMENTS, layouts.SCHEDULES,
                                               layouts.PLACEMENTS))
    found = [Restart(family, kind, *before, *other[:2], *after, *other[2:])
             for before, after, family, kind in itertools.product(ends, ends, FAMILIES, KINDS)
             for other in [next(others)]]
    return random.Random(1).sample(found, len(found))


def chosen_restarts():
    small = all_restarts(4)
    if not layouts.FULL:
        return layouts.covering([each for each in small if 3 not in (each.before.ranks, each.after.ranks)])
    of_shapes = {(restart.before[1:4], restart.after[1:4]): restart for restart in small}
    return [*of_shapes.values(), *layouts.covering(all_restarts(8))]


def run_first(case):
    return run(*case, case[0].before, range(BEFORE))


def run_second(case):
    return run(*case, case[0].after, range(BEFORE, STEPS))


def run(restart, folder, layout, steps):
    """Trains one half of a run, which it loads or saves. Returns the losses."""
    model, optimizer = layouts.begin(layout, restart.model)
    tag, partial = KINDS[restart.kind], restart.kind == "partial"
    if steps.start:
        found = smp.resume_from_checkpoint(folder, tag=tag, partial=partial)
        assert found == steps.start, f"the checkpoint's content is {found}"
    losses = []
    for step in steps:
        losses.append(layouts.train(model, optimizer, restart.model, step))
        nn.utils.clip_grad_norm_(model.parameters(), layouts.CLIP)
        optimizer.step()
    if not steps.start:
        smp.save_checkpoint(folder, tag=tag, partial=partial, model=model, optimizer=optimizer, user_content=steps.stop)
    smp.shutdown()
    return losses


@unittest.skipUnless(layouts.HAS_TRANSFORMERS, "transformers is not installed")
class Restarts(unittest.TestCase):
    def test_losses_go_on(self):
        restarts = chosen_restarts()
        for restart in restarts:
            layouts.expected(*restart.model, steps=STEPS)  # once, and not in each rank
        with tempfile.TemporaryDirectory() as scratch:
            cases = [(restart, os.path.join(scratch, str(number))) for number, restart in enumerate(restarts)]
            self.check(run_first, cases, lambda case: case[0].before.ranks, slice(0, BEFORE))
            self.check(run_second, cases, lambda case: case[0].after.ranks, slice(BEFORE, STEPS))

    def check(self, half, cases, size_of, steps):
        for (restart, _), by_rank in ranks.run_cases(half, cases, size_of, layouts.TIMEOUT):
            wanted = [loss for loss, *_ in layouts.expected(*restart.model, steps=STEPS)[steps]]
            with self.subTest(restart=restart, half=half.__name__):
                for found in by_rank:
                    self.assertLess(max(abs(a / b - 1) for a, b in zip(found, wanted, strict=True)),
                                    layouts.TOLERANCE, (found, wanted))


if __name__ == "__main__":
    unittest.main()
