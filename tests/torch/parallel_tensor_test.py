"""Layers that are split over tensor-parallel ranks equal one process; marks and registered modules."""
import unittest

import torch
import torch.distributed as dist
from torch import nn

import ranks
from shoal.torch.parallel import tensor
from shoal.torch.parallel.tensor.functions import TensorParallel, TensorSplit, own_random_numbers
from shoal.torch.parallel.tensor.layers import ColumnLinear, RowLinear, VocabularyHead, vocabulary_cross_entropy
from split_models import MODES, Comparison, begin, compare, mark

WIDTH = 8
HEADS = dict(num_attention_heads=4, attention_head_size=3, hidden_size=WIDTH)
QUIET = dict(attention_dropout_prob=0.0, hidden_dropout_prob=0.0)


class Mlp(nn.Module):
    """A pair of linear layers, by hand: column-parallel, row-parallel."""

    def __init__(self):
        super().__init__()
        up, down = nn.Linear(WIDTH, 12), nn.Linear(12, WIDTH)
        self.up = ColumnLinear(WIDTH, 12, enters=True, whole=up)
        self.down = RowLinear(12, WIDTH, whole=down)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))


class Words(nn.Module):
    """Embedding and head over one split vocabulary."""

    def __init__(self):
        super().__init__()
        words = nn.Embedding(11, WIDTH, padding_idx=2)
        self.words = tensor.nn.DistributedEmbedding(11, WIDTH, 2, split="vocabulary", whole=words)
        head = nn.Linear(WIDTH, 11)
        head.weight = words.weight
        self.head = VocabularyHead(WIDTH, 11, whole=head)

    def forward(self, ids):
        return self.head(torch.tanh(self.words(ids)))


class SplitLoss(Words):
    """The same with a loss from scores that no rank has whole."""

    def loss(self, ids):
        targets = ids.roll(1, 1).masked_fill(ids == 2, -100)
        scores = self.head(torch.tanh(self.words(ids)), gather=False)
        return vocabulary_cross_entropy(scores, targets, 11, self.head.tp)


class Pair(nn.Module):
    """A module of SMP's that takes a tuple."""

    def __init__(self, cls, cross=False, broadcast=None, **arguments):
        super().__init__()
        self.inner, self.cross, self.broadcast = cls(**arguments), cross, broadcast

    def forward(self, x):
        mask = torch.zeros(x.shape[0], 1, 1, x.shape[1], dtype=x.dtype)
        mask[0, ..., -2:] = -1e9
        if self.broadcast:  # one for all samples; otherwise each batch has its own
            mask = (x[0] @ x[0].t()).tanh().detach().view(*[1] * (self.broadcast - 2), x.shape[1], x.shape[1])
        out = self.inner((x, x.flip(1) * 2, mask, mask) if self.cross else (x, mask))
        return out[0] if isinstance(out, tuple) else out


def layer(name):
    torch.manual_seed(5)
    if name == "plain":
        return nn.Sequential(nn.Linear(WIDTH, 12), nn.Tanh(), nn.Linear(12, 5))
    if name == "embedding":
        return nn.Sequential(nn.Embedding(11, 7, padding_idx=2), nn.Linear(7, 3))
    return {
        "mlp": Mlp,
        "linear": lambda: tensor.nn.DistributedLinear(WIDTH, 5),
        "words": Words,
        "split_loss": SplitLoss,
        "attention": lambda: Pair(tensor.nn.DistributedAttentionLayer, **HEADS, **QUIET, pre_layernorm=True),
        "mask4": lambda: Pair(tensor.nn.DistributedAttentionLayer, broadcast=4, **HEADS, **QUIET),
        "mask2": lambda: Pair(tensor.nn.DistributedAttentionLayer, broadcast=2, **HEADS, **QUIET),
        "output": lambda: tensor.nn.DistributedTransformerOutputLayer(WIDTH, 12, 0.0, "relu"),
        "layer": lambda: Pair(tensor.nn.DistributedTransformerLayer, cross=True, add_cross_attention=True, **HEADS,
                              **QUIET, intermediate_size=12, causal_mask_size=32),
        "transformer": lambda: Pair(tensor.nn.DistributedTransformer, num_layers=2, **HEADS, **QUIET,
                                    intermediate_size=12, causal_mask_size=32, pre_layernorm=True),
        "lm_head": lambda: tensor.nn.DistributedTransformerLMHead(
            2, 4, 3, WIDTH, 12, 11, 32, 0.0, 0.0, causal_mask_size=32, num_token_types=2),
    }[name]()


LAYERS = ("plain", "embedding", "mlp", "linear", "words", "split_loss", "attention", "mask4", "mask2", "output",
          "layer", "transformer", "lm_head")


def layer_loss(model, batch):
    x, ids = batch
    if isinstance(model, tensor.nn.DistributedTransformerLMHead):
        mask = torch.zeros_like(ids)
        mask[1, -2:] = 1
        return model((ids, mask, ids % 2, None, ids))
    if isinstance(model, SplitLoss):
        return model.loss(ids)
    takes_ids = isinstance(model, Words) or isinstance(getattr(model, "0", None), (nn.Embedding,
                                                                                   tensor.nn.DistributedEmbedding))
    return model(ids if takes_ids else x).square().mean()


def layer_case(rank, size, name, mode):
    generator = torch.Generator().manual_seed(1)
    batches = [(torch.randn(3, 8, WIDTH, generator=generator, dtype=torch.float64),
                torch.randint(0, 11, (3, 8), generator=generator)) for _ in range(size)]
    return compare(lambda: layer(name).double(), batches, layer_loss, mode)


def wrong_ids(rank, size, mode, name):
    begin(mode)
    model = layer(name)
    ids = torch.arange(8).view(1, 8)
    if rank == 0 or mode != "batch":  # with "batch" only this rank's batch has it
        ids[0, 3] = 11
    try:
        if name == "words":
            model(ids)
        else:
            scores = model.head(torch.zeros(1, 8, WIDTH), gather=False)
            vocabulary_cross_entropy(scores, ids, 11, model.head.tp)
    except IndexError as problem:
        return str(problem)


class Layers(Comparison):
    def test_ids_outside_a_split_vocabulary(self):
        for name, what in (("words", "token ids"), ("split_loss", "targets")):
            for mode in ("batch", "none"):
                for text in ranks.run(2, wrong_ids, mode, name):
                    self.assertRegex(text or "no error", f"{what} from 0 to 11 are outside of the vocabulary")

    def test_layers_equal_one_process(self):
        for size in (2, 4):
            self.check(size, [(name, mode) for name in LAYERS for mode in MODES], layer_case)

    def test_the_attention_layer_computes_what_smp_documents(self):
        begin(None)
        torch.manual_seed(5)
        made = tensor.nn.DistributedAttentionLayer(**HEADS, **QUIET, causal_mask_size=9, pre_layernorm=True).double()
        x = torch.randn(2, 6, WIDTH, dtype=torch.float64)
        mask = torch.zeros(2, 1, 1, 6, dtype=torch.float64)
        mask[1, ..., -1] = -1e9
        normed = made.pre_layernorm(x)
        query, key, value = (each(normed).view(2, 6, 4, 3).permute(0, 2, 1, 3)
                             for each in (made.query, made.key, made.value))
        scores = query @ key.transpose(-1, -2) / 3 ** 0.5 + mask
        scores = scores.masked_fill(torch.ones(6, 6).triu(1).bool(), -1e9)
        context = (scores.softmax(-1) @ value).permute(0, 2, 1, 3).reshape(2, 6, 12)
        expected = made.layernorm(made.dense(context) + x)
        torch.testing.assert_close(made((x, mask)), expected)

    def test_fused_blocks_and_uneven_parts_join_to_the_whole(self):
        for size, blocks, count in ((12, 3, 2), (12, 3, 4), (11, 1, 4), (3, 1, 4)):
            whole = torch.arange(2 * size).view(2, size)
            split = TensorSplit(1, size, blocks)
            self.assertTrue(torch.equal(split.join([split.take(whole, r, count) for r in range(count)]), whole))


class Ours(nn.Module):
    """A model with layers of its own, for marks and registration."""

    def __init__(self):
        super().__init__()
        with tensor.tensor_parallelism():
            self.first = nn.Linear(WIDTH, 12)
            with tensor.tensor_parallelism(False):
                self.second = nn.Linear(12, 12)
            self.third = OurMlp(12, hidden=20)
            self.tied = nn.Linear(12, 12)
        self.last = nn.Linear(12, 12)
        self.last.weight = self.tied.weight

    def forward(self, x):
        return self.last(self.tied(self.third(torch.tanh(self.second(self.first(x))), scale=2.0)["y"]))


class OurMlp(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x, scale):
        return {"y": self.down(torch.tanh(self.up(x))) * scale}


class SplitMlp(tensor.nn.DistributedModule):
    def __init__(self, size, inner, name="default"):
        super().__init__()
        self.up, self.down, self.name = ColumnLinear(size, inner, enters=True), RowLinear(inner, size), name

    def forward(self, inputs):
        x, scale = inputs
        return self.down(torch.tanh(self.up(x))) * scale


def registered_case(rank, size, mode):
    tensor.tp_register_with_module(OurMlp, SplitMlp, lambda width, hidden: ((width,), {"inner": hidden}),
                                   lambda x, scale: (((x, scale),), {}), lambda y: {"y": y})
    begin(mode)
    torch.manual_seed(2)
    model = Ours()
    tensor.set_tensor_parallelism(model.third, True, name="ours")
    with unittest.TestCase().assertLogs("shoal", "WARNING") as logs:
        tensor.distribute(model)
    assert "tied stays whole on each tensor-parallel rank: another module shares its weight" in logs.output[0]
    kinds = {name: isinstance(module, tensor.nn.DistributedModule) for name, module in model.named_children()}
    assert kinds == {"first": True, "second": False, "third": True, "tied": False, "last": False}, kinds
    assert isinstance(model.third, SplitMlp) and model.third.name == "ours"

    def make():
        torch.manual_seed(2)
        return Ours().double()

    generator = torch.Generator().manual_seed(1)
    batches = [torch.randn(3, 8, WIDTH, generator=generator, dtype=torch.float64) for _ in range(size)]
    return compare(make, batches, lambda model, x: model(x).square().mean(), mode, lambda model: model)


def other_seeds(rank, size):
    begin("none")
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 5), nn.BatchNorm1d(5))
    nn.init.normal_(model[1].weight)
    model[3].running_mean.normal_()
    rank0 = {key: value.clone() for key, value in model.state_dict().items()}
    for value in rank0.values():
        dist.broadcast(value, 0)
    tensor.distribute(mark(model))
    whole = tensor.whole_state_dict(model)
    return all(torch.equal(whole[key], value) for key, value in rank0.items())


def late_registration(rank, size):
    begin("none")
    model = Ours()
    tensor.tp_register_with_module(OurMlp, SplitMlp)
    tensor.distribute(model)


class Registry(Comparison):
    def test_marked_and_registered_modules_are_replaced_and_keep_their_values(self):
        self.check(2, [("batch",), ("none",)], registered_case)

    def test_all_ranks_take_the_first_ones_values(self):
        self.assertEqual(ranks.run(2, other_seeds), [True, True])

    def test_registration_errors(self):
        with self.assertRaisesRegex(TypeError, "not a subclass of smp.nn.DistributedModule"):
            tensor.tp_register(nn.Linear)(OurMlp)
        with self.assertRaisesRegex(ranks.Failed, "made before tp_register knew its class"):
            ranks.run(2, late_registration)

    def test_random_numbers_differ_between_ranks_only_inside_regions(self):
        def body(rank, size):
            tp = TensorParallel(dist.group.WORLD, rank, size)
            torch.manual_seed(4)
            own_random_numbers.begin(tp, torch.device("cpu"), True)
            inside = torch.rand(3).tolist()
            own_random_numbers.end()
            return inside, torch.rand(3).tolist()
        (inside0, after0), (inside1, after1) = ranks.run(2, body)
        self.assertNotEqual(inside0, inside1)
        self.assertEqual(after0, after1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
