"""Hugging Face's models split over tensor-parallel ranks equal one process, each family in each mode."""
import copy
import functools
import importlib.util
import os
import unittest

import torch

import ranks
from shoal.torch.parallel import tensor
from shoal.torch.parallel.tensor import families
from split_models import MODES, Comparison, begin, compare, mark

FULL = os.environ.get("SHOAL_TEST_FULL") == "1"
HAS_TRANSFORMERS = importlib.util.find_spec("transformers") is not None


def setUpModule():
    if HAS_TRANSFORMERS:
        _configurations()


def _sizes(**extra):
    return dict(vocab_size=53, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24,
                max_position_embeddings=32, pad_token_id=1, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
                **extra)


@functools.lru_cache
def _configurations():
    """Families by name: (class, configuration). Imported once, before ranks are forked."""
    import transformers as hf
    hf.logging.set_verbosity_error()
    decoder = dict(vocab_size=53, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                   intermediate_size=24, max_position_embeddings=32, head_dim=4)
    t5 = dict(vocab_size=53, d_model=16, d_kv=4, d_ff=24, num_layers=2, num_heads=4, dropout_rate=0.0,
              decoder_start_token_id=0, pad_token_id=1)
    bart = dict(vocab_size=53, d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
                decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=32,
                dropout=0.0, scale_embedding=True)
    gpt2 = dict(vocab_size=53, n_embd=16, n_layer=2, n_head=4, n_positions=32, resid_pdrop=0.0, embd_pdrop=0.0,
                attn_pdrop=0.0)
    return {
        "gpt2": (hf.GPT2LMHeadModel, hf.GPT2Config(**gpt2)),
        "bert": (hf.BertForMaskedLM, hf.BertConfig(**_sizes())),
        "bert_pair": (hf.BertForSequenceClassification, hf.BertConfig(**_sizes())),
        "roberta": (hf.RobertaForMaskedLM, hf.RobertaConfig(**_sizes())),
        "xlm_roberta": (hf.XLMRobertaForMaskedLM, hf.XLMRobertaConfig(**_sizes())),
        "electra": (hf.ElectraForMaskedLM, hf.ElectraConfig(**_sizes(embedding_size=8))),
        "modernbert": (hf.ModernBertForMaskedLM, hf.ModernBertConfig(
            vocab_size=53, hidden_size=16, num_hidden_layers=3, num_attention_heads=4, intermediate_size=24,
            max_position_embeddings=32, pad_token_id=1, local_attention=8, global_attn_every_n_layers=2,
            bos_token_id=0, eos_token_id=2, cls_token_id=0, sep_token_id=2)),
        "albert": (hf.AlbertForMaskedLM, hf.AlbertConfig(**_sizes(embedding_size=8))),
        "distilbert": (hf.DistilBertForMaskedLM, hf.DistilBertConfig(
            vocab_size=53, dim=16, n_layers=2, n_heads=4, hidden_dim=24, max_position_embeddings=32, dropout=0.0,
            attention_dropout=0.0)),
        "t5": (hf.T5ForConditionalGeneration, hf.T5Config(**t5)),
        "t5_gated": (hf.T5ForConditionalGeneration, hf.T5Config(**t5, feed_forward_proj="gated-gelu",
                                                                 tie_word_embeddings=False)),
        "bart": (hf.BartForConditionalGeneration, hf.BartConfig(**bart)),
        "gpt_neox": (hf.GPTNeoXForCausalLM, hf.GPTNeoXConfig(
            vocab_size=53, hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24,
            max_position_embeddings=32, use_parallel_residual=True)),
        "mistral": (hf.MistralForCausalLM, hf.MistralConfig(**decoder, sliding_window=6)),
        "gemma": (hf.GemmaForCausalLM, hf.GemmaConfig(**decoder | {"hidden_size": 24})),  # embeddings times 24^0.5
        "gemma2": (hf.Gemma2ForCausalLM, hf.Gemma2Config(  # a window in the first layer; capped scores and logits
            **decoder, sliding_window=6, query_pre_attn_scalar=4, attn_logit_softcapping=0.5,
            final_logit_softcapping=2.0)),
        "gemma3": (hf.Gemma3ForCausalLM, hf.Gemma3TextConfig(
            **decoder, sliding_window=6, layer_types=["sliding_attention", "full_attention"], query_pre_attn_scalar=4)),
        "llama": (hf.LlamaForCausalLM, hf.LlamaConfig(**decoder)),
        "qwen2": (hf.Qwen2ForCausalLM, hf.Qwen2Config(**decoder)),
        "qwen3": (hf.Qwen3ForCausalLM, hf.Qwen3Config(**decoder)),
    }


def hf_model(name, attention="sdpa", **changes):
    cls, config = _configurations()[name]
    config = copy.deepcopy(config)
    config.use_cache = False
    for key, value in changes.items():
        setattr(config, key, value)
    config._attn_implementation = "eager" if name == "gemma2" else attention  # no soft caps in sdpa
    torch.manual_seed(3)
    model = cls(config).double()
    with torch.no_grad():  # so that biases and norms are not 0 and 1
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def hf_batch(name, index, rows=2, length=12):
    """Batches differ: some have padding, others none, for which Hugging Face leaves the mask out."""
    generator = torch.Generator().manual_seed(index)
    ids = torch.randint(3, 53, (rows, length), generator=generator)
    mask = torch.ones_like(ids)
    if index % 2:
        mask[0, -3:] = 0
    batch = {"input_ids": ids, "attention_mask": mask}
    if name == "bert_pair":
        return batch | {"labels": torch.arange(rows) % 2}
    if name in ("t5", "t5_gated", "bart"):
        return batch | {"labels": torch.randint(3, 53, (rows, 8), generator=generator)}
    return batch | {"labels": ids.masked_fill(mask == 0, -100)}


def hf_loss(model, batch):
    return model(**batch).loss


def hf_case(rank, size, name, mode, attention):
    grouped = "num_key_value_heads" in _configurations()[name][1].to_dict()
    changes = {"num_key_value_heads": 4} if size == 4 and grouped else {}
    return compare(lambda: hf_model(name, attention, **changes), [hf_batch(name, index) for index in range(size)],
                   hf_loss, mode)


def _positions(batch, index):
    return batch | {"position_ids": torch.arange(12).expand(2, -1) + torch.tensor([[0], [index + 1]])}


def _one_sample(batch, index):
    return {key: value[1 - index % 2:2 - index % 2] for key, value in batch.items()}


def _cross(batch, index):
    states = torch.randn(2, 6, 16, generator=torch.Generator().manual_seed(index), dtype=torch.float64)
    return batch | {"encoder_hidden_states": states, "encoder_attention_mask": batch["attention_mask"][:, -6:]}


VARIANTS = {  # family, changes to its configuration and to a batch, a change to the model
    "explicit positions": ("llama", {}, _positions, None),
    "one sample": ("t5", {}, _one_sample, None),
    "cross-attention": ("gpt2", {"add_cross_attention": True}, _cross, None),
    "checkpointed": ("gpt2", {}, None, lambda model: model.activation_checkpointing_enable()),
    "checkpointed, reentrant": ("bart", {}, None, lambda model: model.activation_checkpointing_enable(
        {"use_reentrant": True})),
    "chunks": ("bert", {"chunk_size_feed_forward": 2}, None, None),
}


def variant_case(rank, size, variant, mode):
    name, changes, change_batch, change_model = VARIANTS[variant]

    def make():
        model = hf_model(name, **changes)
        if change_model:
            change_model(model)
        return model.train()

    batches = [hf_batch(name, index) for index in range(size)]
    if change_batch:
        batches = [change_batch(batch, index) for index, batch in enumerate(batches)]
    return compare(make, batches, hf_loss, mode)


def dropout_run(rank, size, mode, checkpointed):
    """Losses and gradients with dropout; the state of the random numbers behind the step."""
    begin(mode)
    model = hf_model("gpt2", resid_pdrop=0.3, embd_pdrop=0.3, attn_pdrop=0.3)
    model = tensor.distribute(mark(model)).train()
    if checkpointed:
        model.activation_checkpointing_enable()
    torch.manual_seed(7)
    loss = model(**hf_batch("gpt2", 0)).loss
    loss.backward()
    norm = model.transformer.ln_f.weight.grad.norm()  # replicated, after the blocks
    return loss.item(), norm.item(), torch.rand(3).tolist(), sum(p.grad.norm().item() for p in model.parameters())


def with_rows(rows):
    """Batches of other lengths on other ranks."""
    def body(rank, size, mode):
        begin(mode)
        model = tensor.distribute(mark(hf_model("gpt2")))
        model(**hf_batch("gpt2", rank, length=rows[rank]))
    return body


def split_model(rank, size, name, mode, changes, arguments):
    begin(mode)
    tensor.distribute(mark(hf_model(name, **changes)))(**hf_batch(name, 0), **arguments)


def partly(rank, size, mode):
    """One block stays whole."""
    def marked(model):
        mark(model)
        tensor.set_tensor_parallelism(model.transformer.h[0], False)
        return model
    begin(mode)
    transformer = tensor.distribute(marked(hf_model("gpt2"))).transformer
    blocks = transformer.h
    assert transformer.seq_layers is blocks and not any("seq_layers" in name for name in transformer.state_dict())
    assert [hasattr(block.mlp.c_fc.weight, "tp_split") for block in blocks] == [False, True]
    return compare(lambda: hf_model("gpt2"), [hf_batch("gpt2", i) for i in range(size)], hf_loss, mode, marked)


@unittest.skipUnless(HAS_TRANSFORMERS, "transformers is not installed")
class Behaviour(Comparison):
    def test_dropout_is_shared_outside_regions_and_repeats(self):
        for mode in MODES:
            first = ranks.run(2, dropout_run, mode, False)
            with self.subTest(mode=mode):
                self.assertEqual(first[0][2], first[1][2])  # the random stream that ranks share
                if mode != "batch":
                    self.assertEqual(first[0][:2], first[1][:2])  # the same loss for the same batch
                self.assertEqual(first, ranks.run(2, dropout_run, mode, False))
                for plain, checkpointed in zip(first, ranks.run(2, dropout_run, mode, True)):
                    self.assertAlmostEqual(plain[0], checkpointed[0], 12)
                    self.assertAlmostEqual(plain[3], checkpointed[3], 9)

    def test_a_disabled_block_stays_whole(self):
        self.check(2, [("batch",), ("none",)], partly)

    def test_with_split_sequences_all_blocks_are_distributed_or_none(self):
        with self.assertRaisesRegex(ranks.Failed, "transformer.h: with .* all blocks are distributed or none"):
            ranks.run(2, partly, "sequence")

    def test_inputs_that_change_in_place_are_gathered_again(self):
        for losses in ranks.run(2, changed_in_place):
            (first, same_first), (second, same_second) = losses
            self.assertEqual((first, second), (same_first, same_second))
            self.assertNotEqual(first, second)

    def test_errors_name_the_cause(self):
        for name, mode, changes, arguments, text in (
                ("gpt2", "none", {"n_head": 1}, {}, "transformer.h.0.attn: num_heads = 1 does not divide by"),
                ("llama", "batch", {"num_key_value_heads": 1}, {}, "num_key_value_heads = 1 does not divide by"),
                ("bert", "none", {"intermediate_size": 25}, {}, "layer.0.intermediate.dense: .* = 25 does not"),
                ("bart", "sequence", {"encoder_layerdrop": 0.1}, {}, "encoder_layerdrop is not supported"),
                ("gpt2", "batch", {}, {"output_attentions": True}, "output_attentions is not supported"),
                ("gpt2", "sequence", {}, {"output_hidden_states": True}, '"optimize": "speed"')):
            with self.subTest(text=text):
                with self.assertRaises(ranks.Failed) as failed:
                    ranks.run(2, split_model, name, mode, changes, arguments)
                for problem in failed.exception.texts.values():
                    self.assertRegex(problem, text)

    def test_shapes_that_do_not_fit_are_errors_on_each_rank(self):
        for mode, rows, text in (("batch", (12, 10), r"rank 0: \[2, 12\]; rank 1: \[2, 10\]"),
                                 ("sequence", (11, 11), "a sequence of 11 tokens cannot be split over 2")):
            with self.subTest(mode=mode), self.assertRaises(ranks.Failed) as failed:
                ranks.run(2, with_rows(rows), mode)
            self.assertEqual(len(failed.exception.texts), 2)
            for problem in failed.exception.texts.values():
                self.assertRegex(problem, text)


def changed_in_place(rank, size):
    begin("batch")
    model = tensor.distribute(mark(hf_model("llama")))
    batch = _positions(hf_batch("llama", rank), rank)
    mask = torch.ones(2, 1, 12, 12, dtype=torch.bool).tril()
    losses = []
    for change in (0, 3):
        batch["position_ids"] += change * torch.arange(12)
        mask[..., :change] = False
        mask[..., 0] = True
        again = {key: value.clone() for key, value in batch.items()} | {"attention_mask": mask.clone()}
        losses.append((model(**batch | {"attention_mask": mask}).loss.item(), model(**again).loss.item()))
    return losses


@unittest.skipUnless(HAS_TRANSFORMERS, "transformers is not installed")
class Families(Comparison):
    def names(self):
        return list(_configurations())

    def test_each_family_is_in_the_table(self):
        for name in self.names():
            with self.subTest(name=name):
                model = hf_model(name)
                family = families.family_of(model)
                self.assertIsNotNone(family)  # else only single layers would be split
                self.assertTrue(any(type(module).__name__ in family.blocks for module in model.modules()))

    def test_each_family_equals_one_process(self):
        self.check(2, [(name, mode, "sdpa") for name in self.names() for mode in MODES], hf_case)

    def test_four_ranks_and_eager_attention(self):
        modes = list(MODES)
        self.check(4, [(name, modes[i % 3], "eager") for i, name in enumerate(self.names())], hf_case)

    def test_positions_one_sample_and_cross_attention(self):
        self.check(2, [(name, mode) for name in VARIANTS for mode in MODES], variant_case)

    @unittest.skipUnless(FULL, "every family in every mode on 4 ranks: SHOAL_TEST_FULL=1")
    def test_every_family_in_every_mode(self):
        for attention in ("sdpa", "eager"):
            self.check(4, [(name, mode, attention) for name in self.names() for mode in MODES], hf_case)


if __name__ == "__main__":
    unittest.main(verbosity=2)
