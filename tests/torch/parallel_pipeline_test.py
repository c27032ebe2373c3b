"""A pipeline of any module gives the losses, gradients and buffers of one process, and the same bits each time."""
import dataclasses
import os
import signal
import tempfile
import time
import unittest

import torch
import torch._dynamo  # optimizers import it, in 4 s; here once and not in each rank
from torch import nn
from torch.nn import functional as F

import ranks
from shoal.torch import parallel as smp
from shoal.torch.parallel.partition import Trace

try:
    import transformers
except ImportError:
    transformers = None

STEPS, ROWS = 2, 12
DEADLINE = 5.0  # seconds, for the process groups


class Cnn(nn.Module):
    """Convolutions with BatchNorm; the stages of the second block are cut inside."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.blocks = nn.ModuleList(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
                                    for _ in range(3))
        self.head = nn.Linear(8, 4)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)  # around a remote child
        return self.head(x.mean((2, 3)))


class Shared(nn.Module):
    """One child called twice, and one under two names."""

    def __init__(self):
        super().__init__()
        self.first, self.twice, self.other, self.last = (nn.Linear(6, n) for n in (6, 6, 6, 4))
        self.again = self.first

    def forward(self, x):
        x = torch.tanh(self.first(x))
        x = torch.tanh(self.twice(x)) + torch.relu(self.twice(2 * x))
        return self.last(self.again(self.other(x)))


@dataclasses.dataclass
class Pair:
    left: torch.Tensor
    right: torch.Tensor
    note: str


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, parts, *, flip, note=None):
        left, right = (self.b, self.a) if flip else (self.a, self.b)
        parts["x"].mul_(1)
        out = left(parts["x"]) * self.scale, right(parts["x"] + parts["more"][0])
        return out, {"kept": parts["mask"], "note": note}


class Nested(nn.Module):
    """Dict and keyword inputs; tuple, dict and dataclass outputs; blocks whose own children are apart."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 6)
        self.inner = nn.ModuleDict({"one": Inner(), "two": Inner()})
        self.norm = nn.LayerNorm(6)

    def forward(self, ids=None, more=None):
        x = self.embed(ids)
        mask = (ids > 4).unsqueeze(-1)
        (left, right), rest = self.inner["one"]({"x": x, "more": (more, more), "mask": mask}, flip=False, note="n")
        left = torch.where(rest["kept"], left, right.transpose(0, 0))
        (up, down), rest = self.inner["two"]({"x": left.expand_as(left), "more": [x], "mask": mask}, flip=True)
        assert rest["note"] is None
        return Pair(self.norm(up + left), down, "note")


class Tied(nn.Module):
    """The head has the embedding's weight; the root reads parameters that live elsewhere."""

    def __init__(self, dropout=0.0):
        super().__init__()
        self.embed = nn.Embedding(10, 6)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(6, 24), nn.Dropout(dropout), nn.GELU(), nn.Linear(24, 6)) for _ in range(4))
        self.head = nn.Linear(6, 10, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        x = self.embed(ids)
        for block in self.blocks:
            x = x + block(x)
        x = x * self.blocks[3][3].bias.exp()
        return self.head(F.dropout(x, self.blocks[0][1].p, self.training))


def rows(step, *shape):
    return torch.randn(ROWS, *shape, generator=torch.Generator().manual_seed(step))


def ids(step, *shape):
    return torch.randint(10, (ROWS, *shape), generator=torch.Generator().manual_seed(step))


def cnn(model, batch):
    return F.cross_entropy(model(batch["x"]), batch["y"])


def nested(model, batch):
    out = model(ids=batch["ids"], more=batch["more"])
    return (out.left * out.right).square().mean()


def tied(model, batch):
    return F.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["ids"].flatten())


CASES = {
    "cnn": (Cnn, cnn, lambda step: {"x": rows(step, 3, 6, 6), "y": ids(step) % 4}),
    "shared": (Shared, cnn, lambda step: {"x": rows(step, 6), "y": ids(step) % 4}),
    "nested": (Nested, nested, lambda step: {"ids": ids(step, 3), "more": rows(step, 3, 6)}),
    "tied": (Tied, tied, lambda step: {"ids": ids(step, 3)}),
    "dropout": (lambda: Tied(0.3), tied, lambda step: {"ids": ids(step, 3)}),
}


def sequences(step):
    found = ids(step, 8)
    lengths = torch.randint(4, 9, (ROWS, 1), generator=torch.Generator().manual_seed(step))
    return {"input_ids": found, "labels": found.clone(), "attention_mask": (torch.arange(8) < lengths).long()}


def classes(step):
    batch = sequences(step)
    return {**batch, "labels": batch["input_ids"][:, 0] % 2}


def hugging_face(model, config, **options):
    """A model of two heads without dropout."""
    return lambda: getattr(transformers, model)(getattr(transformers, config)(
        vocab_size=10, bos_token_id=1, eos_token_id=2, pad_token_id=0, **options))


def loss_of_hugging_face(model, batch):
    return model(**batch).loss


GPT2 = dict(n_layer=4, n_embd=16, n_head=2, n_positions=8, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False)
BERT = dict(num_hidden_layers=4, hidden_size=16, num_attention_heads=2, intermediate_size=32,
            max_position_embeddings=8, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
T5 = dict(num_layers=2, d_model=16, d_kv=8, num_heads=2, d_ff=32, dropout_rate=0, use_cache=False,
          decoder_start_token_id=0)
LLAMA = dict(num_hidden_layers=4, hidden_size=16, num_attention_heads=2, num_key_value_heads=2, intermediate_size=32,
             max_position_embeddings=8, use_cache=False)
CASES |= {
    "gpt2": (hugging_face("GPT2LMHeadModel", "GPT2Config", **GPT2), loss_of_hugging_face, sequences),
    "bert": (hugging_face("BertForSequenceClassification", "BertConfig", **BERT), loss_of_hugging_face, classes),
    "t5": (hugging_face("T5ForConditionalGeneration", "T5Config", **T5), loss_of_hugging_face, sequences),
    "llama": (hugging_face("LlamaForCausalLM", "LlamaConfig", **LLAMA), loss_of_hugging_face, sequences),
}


def config(partitions, microbatches, **more):
    return {"partitions": partitions, "microbatches": microbatches, "ddp": True, **more}


def trained(rank, size, case, parameters):
    """Trains; returns the losses and this rank's values, gradients and buffers as lists."""
    make, loss_of, batch_of = CASES[case]
    smp.init(parameters)
    torch.manual_seed(1)
    model = smp.DistributedModel(make())
    optimizers = []
    model.on_partition(lambda model: optimizers.append(torch.optim.SGD(model.local_parameters(), 0.1)))

    @smp.step
    def step(model, batch):
        loss = loss_of(model, batch)
        model.backward(loss)
        return {"loss": loss}

    torch.manual_seed(5)
    losses = []
    for number in range(STEPS):
        for parameter in model.parameters():
            parameter.grad = None
        losses += [loss.item() for loss in step(model, batch_of(number))["loss"].outputs]
        optimizers[0].step()
    found = {"losses": losses}
    for name, parameter in model.local_named_parameters():
        found[name] = parameter.tolist()
        found[f"gradient of {name}"] = parameter.grad.tolist()
    for name, buffer in model.named_buffers():
        if model.stage_of(name) == rank:
            found[f"buffer {name}"] = buffer.tolist()
    whole = {name: value.tolist() for name, value in model.state_dict().items()}
    smp.shutdown()
    return found, whole


def merged(results):
    """The values of all ranks, each once; every rank has the same losses and state dict."""
    found = {}
    for part, whole in results:
        assert part["losses"] == results[0][0]["losses"] and whole == results[0][1]
        for name, value in part.items():
            assert name == "losses" or name not in found, f"{name} lives twice"
            found[name] = value
    for name, value in results[0][1].items():
        assert name not in found or found[name] == value
    return found


def pipelined(case, partitions, microbatches, **more):
    return merged(ranks.run(partitions, trained, case, config(partitions, microbatches, **more)))


def alone(case, microbatches):
    """One process of PyTorch alone. With dropout, one of smp, whose microbatches have random numbers of their own."""
    if case == "dropout":
        return merged(ranks.run(1, trained, case, config(1, microbatches)))
    make, loss_of, batch_of = CASES[case]
    torch.manual_seed(1)
    model, losses = make(), []
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for number in range(STEPS):
        optimizer.zero_grad()
        parts = {name: value.tensor_split(microbatches) for name, value in batch_of(number).items()}
        for index in range(microbatches):
            batch = {name: part[index] for name, part in parts.items()}
            loss = loss_of(model, batch)
            (loss * (len(next(iter(batch.values()))) / ROWS)).backward()
            losses.append(loss.item())
        optimizer.step()
    found = {"losses": losses, **{f"buffer {name}": buffer.tolist() for name, buffer in model.named_buffers()}}
    for name, parameter in model.named_parameters():
        found |= {name: parameter.tolist(), f"gradient of {name}": parameter.grad.tolist()}
    return found


class Failing(nn.Linear):
    how: str | None = None

    def forward(self, x):
        how, Failing.how = Failing.how, None
        if how == "raise":
            raise KeyError("the module failed")
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(x)


def failing(rank, size, how, microbatches=2):
    """One good step; one where a module of the last rank fails; after an exception another good one."""
    smp.init(config(size, microbatches, skip_tracing=True))
    layers = [nn.Linear(6, 6) for _ in range(size - 1)] + [Failing(6, 6)]
    model = smp.DistributedModel(nn.Sequential(*layers))

    @smp.step
    def step(model, x):
        model.backward(model(x).square().mean())

    step(model, rows(0, 6))
    Failing.how = how
    began = time.monotonic()
    try:
        step(model, rows(1, 6))
    except Exception as problem:
        text = f"{type(problem).__name__}: {problem}"
    else:
        raise AssertionError("nothing failed")
    took = time.monotonic() - began
    if how == "raise":
        step(model, rows(2, 6))
        smp.shutdown()
    return text, took


def outside(rank, size):
    smp.init(config(size, 2))
    model = smp.DistributedModel(Shared())
    for call in (lambda: model(rows(0, 6)), lambda: model.backward(torch.ones(()))):
        with ranks.raises(RuntimeError, "@smp.step"):
            call()
    smp.shutdown()


def batches_that_do_not_divide(rank, size):
    smp.init(config(size, 4))
    model = smp.DistributedModel(Shared())

    @smp.step
    def mean(model, x, y):
        loss = F.cross_entropy(model(x), y)
        model.backward(loss)
        return loss

    x, y = rows(0, 6)[:10], ids(0)[:10] % 4
    with ranks.raises(ValueError, "x has 10 entries", "y has 9"):
        mean(model, x, y[:9])
    loss = mean(model, x, y)
    assert len(loss.outputs) == 4
    assert len(mean(model, x[:3], y[:3]).outputs) == 3
    for parameter in model.parameters():
        parameter.grad = None
    loss = mean(model, x, y).reduce_mean().item()
    gradients = {name: p.grad.tolist() for name, p in model.local_named_parameters()}
    smp.shutdown()
    return loss, gradients


def evaluated(rank, size):
    """Without gradients, in a step that returns a dict, a tuple and None."""
    smp.init(config(size, 3))
    torch.manual_seed(1)
    model = smp.DistributedModel(Tied()).eval()
    seen = []

    @smp.step(non_split_inputs=["whole"], input_split_axes={"sideways": 1})
    def step(model, batch, whole, sideways, note="x"):
        logits = model(batch["ids"])
        seen.append((whole.shape[0], sideways.shape[1], note))
        return {"logits": logits, "parts": (logits.sum(), None), "requires": logits.requires_grad}

    with torch.no_grad():
        out = step(model, {"ids": ids(0, 3)}, torch.zeros(5), torch.zeros(2, 6), note="n")
    assert out["logits"].detach().concat().cpu().shape == (ROWS, 3, 10)
    assert out["parts"][0].stack().shape == (3,) and out["parts"][1].outputs == [None] * 3
    assert out["requires"].outputs == [False] * 3
    assert seen == ([(5, 2, "n")] * 3 if rank == 0 else [])
    smp.shutdown()
    return out["logits"].concat().tolist()


def by_hand(rank, size, file):
    """Modules where the script puts them; the file then repeats it. State dicts load before and after the cut."""
    parameters = config(size, 2, auto_partition=False, default_partition=1, partition_file=file)
    smp.init(parameters)
    torch.manual_seed(1)
    with smp.partition(0):
        last = nn.Linear(6, 4)
    net = Shared()
    net.last = last
    smp.set_partition(net.first, 0)
    model = smp.DistributedModel(net)
    assert smp.DistributedModel(net) is model and not model.partitioned
    before = {name: value.clone() for name, value in model.state_dict().items()}
    seen = []
    assert model.get_module() is net
    for register in (model.register_post_partition_hook, model.register_post_step_hook):
        register(lambda model, optimizer: seen.append("removed")).remove()
    model.register_post_step_hook(lambda model, optimizer: seen.append("step"))
    model.register_post_partition_hook(lambda model, optimizer: seen.append("partition"))
    parameters_before = list(model.parameters())

    @smp.step
    def step(model, x):
        model.backward(model(x).square().mean())

    step(model, rows(0, 6))
    step(model, rows(1, 6))
    assert seen == ["partition", "step"], seen
    stages = {name: model.stage_of(name) for name in ("first", "twice", "other.weight", "last.bias", "again.weight")}
    assert stages == {"first": 0, "twice": 1, "other.weight": 1, "last.bias": 0, "again.weight": 0}, stages
    local = dict(model.local_named_parameters())
    assert {model.stage_of(name) for name in local} == {rank}
    assert all(p.is_meta == (name not in local) for name, p in model.named_parameters())
    assert sum(p.untyped_storage().nbytes() for p in parameters_before) == sum(4 * p.numel() for p in local.values())
    whole = model.state_dict()
    assert list(whole) == list(before) and all(torch.equal(whole[name], before[name]) for name in whole)
    assert whole["again.weight"].data_ptr() == whole["first.weight"].data_ptr()
    own = {name: value + 1 for name, value in model.local_state_dict().items()}
    model.load_state_dict(own)
    assert all(torch.equal(model.state_dict()[name], before[name] + 1) for name in before)
    model.load_state_dict(before)
    assert all(torch.equal(model.state_dict()[name], before[name]) for name in before)
    with ranks.raises(RuntimeError, "more"):
        model.load_state_dict({**before, "more": torch.ones(1)})
    smp.shutdown()
    smp.init({**parameters, "load_partition": True})
    again = smp.DistributedModel(Shared())
    step(again, rows(0, 6))
    assert [again.stage_of(name) for name in stages] == list(stages.values())
    smp.shutdown()


def survivors(size, how):
    """Texts and times of the ranks that the last one leaves behind."""
    with tempfile.TemporaryDirectory() as directory:
        started = ranks.start(size, failing, how, timeout=DEADLINE, path=os.path.join(directory, "store"))
        return ranks.collect(started, 40)[:size - 1]


class Pipelines(unittest.TestCase):
    def close(self, found, wanted):
        self.assertLessEqual(wanted.keys() - found.keys(), {"gradient of head.weight", "head.weight"})
        for name in found:
            a, b = torch.tensor(found[name]), torch.tensor(wanted[name])
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6, msg=lambda text: f"{name}: {text}")

    def case(self, name, layouts=((2, 3, "interleaved"), (2, 1, "interleaved"), (4, 4, "simple"), (4, 3, "1f1b"))):
        for partitions, microbatches, kind in layouts:
            with self.subTest(case=name, partitions=partitions, microbatches=microbatches, pipeline=kind):
                self.close(pipelined(name, partitions, microbatches, pipeline=kind), alone(name, microbatches))

    def test_batch_norm(self):
        self.case("cnn")

    def test_shared_children(self):
        self.case("shared")

    def test_nested_structures(self):
        self.case("nested")

    def test_tied_weights(self):
        self.case("tied")

    def test_dropout(self):
        self.case("dropout")

    def test_same_bits(self):
        for name in ("cnn", "dropout"):
            self.assertEqual(pipelined(name, 2, 3), pipelined(name, 2, 3))

    def test_exception(self):
        for text, took in ranks.run(3, failing, "raise"):
            self.assertEqual(text, "RuntimeError: the step failed on pipeline rank 2: KeyError: 'the module failed'")

    def test_killed(self):
        for result in survivors(3, "kill"):
            self.assertIsNotNone(result)
            ok, value = result
            self.assertTrue(ok, value)
            self.assertIn("DistBackendError", value[0])
            self.assertIn("rank 2", value[0])
            self.assertLess(value[1], DEADLINE + 2)

    def test_outside(self):
        ranks.run(2, outside)

    def test_batches_that_do_not_divide(self):
        (loss, wanted), = ranks.run(1, batches_that_do_not_divide)
        for other, gradients in ranks.run(2, batches_that_do_not_divide):
            self.assertAlmostEqual(loss, other, delta=1e-6)
            for name, gradient in gradients.items():
                torch.testing.assert_close(torch.tensor(gradient), torch.tensor(wanted[name]), rtol=1e-5, atol=1e-6)

    def test_partition_by_hand(self):
        with tempfile.TemporaryDirectory() as directory:
            ranks.run(2, by_hand, os.path.join(directory, "partition.json"))

    def test_evaluation(self):
        wanted, = ranks.run(1, evaluated)
        for found in ranks.run(2, evaluated):
            torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted))

    def test_trace(self):
        """A trace keeps the time of a module's fastest forward, and the bytes of one."""
        class Delayed(nn.Linear):
            calls = 0

            def forward(self, x):
                self.calls += 1
                time.sleep(0.2 if self.calls % 2 == 0 else 0)
                return super().forward(x).relu()

        model, trace = nn.Sequential(Delayed(8, 8), nn.Linear(8, 8)), Trace()
        trace.run(list(model.modules()), lambda: model(torch.ones(4, 8)))
        self.assertLess(trace.seconds[1], 0.1)
        self.assertEqual(trace.bytes[1], 2 * 4 * 8 * 4)  # input and output
        self.assertEqual(trace.order, {0: 0, 1: 1, 2: 2})

    @unittest.skipIf(transformers is None, "this Python has no transformers")
    def test_hugging_face(self):
        for name in ("gpt2", "bert", "t5", "llama"):
            CASES[name][0]()  # imports the model here and not in each rank
            self.case(name, ((4, 3, "simple") if name == "gpt2" else (2, 3, "interleaved"),))


if __name__ == "__main__":
    unittest.main()
