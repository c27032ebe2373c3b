"""smp.save() and smp.load(): files of earlier saves and of other layouts under the same name."""
import os
import shutil
import tempfile
import unittest

import ranks
import torch

from shoal.torch import parallel as smp


def run_saves(rank, size, config, file, step, v3=False, only=None):
    """One save of each rank, or of pipeline rank `only`."""
    smp.init({"ddp": True, **config})
    if only in (None, smp.pp_rank()):
        smp.save({"step": step}, file, v3=v3)


def run_loads(rank, size, config, file):
    """What each rank loads: the step, or why not."""
    smp.init({"ddp": True, **config})
    try:
        return smp.load(file)["step"]
    except FileNotFoundError as problem:
        return str(problem)


class StaleFiles(unittest.TestCase):
    def setUp(self):
        folder = tempfile.mkdtemp()
        self.addCleanup(shutil.rmtree, folder)
        self.file = os.path.join(folder, "state.pt")

    def loaded(self, size, config, *wanted):
        for found, one in zip(ranks.run(size, run_loads, config, self.file), wanted, strict=True):
            self.assertEqual(found, one) if isinstance(one, int) else self.assertIn(one, str(found))

    def test_other_layout(self):
        """Two stages' files, then one stage's under the same name: the old second file is not taken."""
        ranks.run(2, run_saves, {"partitions": 2}, self.file, 1)
        ranks.run(1, run_saves, {}, self.file, 2)
        self.loaded(2, {"partitions": 2}, *["it was saved with other ranks"] * 2)
        self.loaded(1, {}, 2)
        self.loaded(2, {}, 2, 2)  # replicas share the file

    def test_other_names(self):
        """A file of each replica, then one for all of them."""
        ranks.run(2, run_saves, {}, self.file, 3, True)
        ranks.run(1, run_saves, {}, self.file, 4)
        self.loaded(2, {}, 4, 4)
        ranks.run(2, run_saves, {}, self.file, 5, True)
        self.loaded(2, {}, 5, 5)
        self.loaded(1, {}, "it was saved with other ranks")

    def test_save_that_ended_early(self):
        ranks.run(2, run_saves, {"partitions": 2}, self.file, 1)
        ranks.run(2, run_saves, {"partitions": 2}, self.file, 2, False, 0)
        self.loaded(2, {"partitions": 2}, 2, "a rank did not save")

    def test_name_that_ends_like_a_suffix(self):
        """The file state_1_0_0 is the save "state_1" of one rank, not a replica's file of "state"."""
        name = os.path.splitext(self.file)[0]
        for file, value in ((name, 7), (f"{name}_1", 8)):
            ranks.run(1, run_saves, {}, file, value)
        self.assertEqual(ranks.run(1, run_loads, {}, name), [7])

    def test_file_of_torch_save(self):
        torch.save({"step": 6}, self.file + "_0_0")
        self.loaded(1, {}, 6)


if __name__ == "__main__":
    unittest.main()
