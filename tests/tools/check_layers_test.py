"""tools/check_layers finds words about several ranks in the code of a header, and only there."""
import importlib.machinery
import importlib.util
import pathlib
import unittest

PROGRAM = pathlib.Path(__file__).resolve().parents[2] / "tools" / "check_layers"
LOADER = importlib.machinery.SourceFileLoader("check_layers", str(PROGRAM))
check_layers = importlib.util.module_from_spec(importlib.util.spec_from_loader(LOADER.name, LOADER))
LOADER.exec_module(check_layers)

HEADER = """// Ranks may have parts of it.
#include "shoal/nn/layers/kinds.h"
struct GatheredByRanks {};  // a rank's
std::int64_t max_shard_bytes = 0, rows = x.shape().rank() - 1;
int tensor_rank = 0; ShardedWeights* weights = nullptr;
void gather(Communicator& pipeline);
"""


class WordsOfRanks(unittest.TestCase):
    def test_are_found_in_code(self):
        self.assertEqual(check_layers.words_of_ranks(HEADER),
                         [(3, "GatheredByRanks"), (5, "tensor_rank"), (5, "ShardedWeights"), (6, "Communicator"),
                          (6, "pipeline")])


if __name__ == "__main__":
    unittest.main()
