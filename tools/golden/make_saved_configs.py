#!/usr/bin/env python3
"""Writes tests/golden/saved_configs.json: config.json files of each family with fields that Shoal does not know, and
the results of transformers' from_pretrained() and save_pretrained() for them. PyTorch is not needed.
"""
import json
import tempfile
from pathlib import Path

import transformers

OUT = Path(__file__).resolve().parents[2] / "tests" / "golden" / "saved_configs.json"
UNKNOWN = {"a_field_of_tomorrow": {"list": [1, None, 2.5], "text": "as it was"}, "eos_token_id": [2, 3, 5],
           "task_specific_params": {"text-generation": {"do_sample": True}}}
ENCODER = dict(hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20, vocab_size=37,
               max_position_embeddings=20, pad_token_id=1)
LLAMA = dict(model_type="llama", hidden_size=12, intermediate_size=20, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=4, vocab_size=37, max_position_embeddings=32)
SCALING = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64,
           "rope_type": "llama3", "a_factor_of_tomorrow": 7}
T5 = dict(model_type="t5", vocab_size=37, d_model=12, d_kv=5, d_ff=20, num_layers=2, num_heads=3,
          relative_attention_num_buckets=8, dropout_rate=0.2, decoder_start_token_id=0)
BART = dict(vocab_size=37, d_model=12, encoder_layers=2, encoder_attention_heads=3, decoder_attention_heads=2,
            encoder_ffn_dim=20, max_position_embeddings=20, dropout=0.2)
READ = {
    "gpt2": dict(model_type="gpt2", n_embd=12, n_layer=2, n_head=3, n_positions=24, vocab_size=37, torch_dtype="bfloat16"),
    "llama_4": dict(LLAMA, rope_theta=500.0, rope_scaling=SCALING, torch_dtype="bfloat16"),
    "llama_5": dict(LLAMA, rope_parameters=dict(SCALING, rope_theta=500.0), dtype="bfloat16"),
    "mistral": dict(LLAMA, model_type="mistral", sliding_window=None, rope_theta=500.0),
    "qwen2": dict(LLAMA, model_type="qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=1,
                  rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}),
    "qwen3": dict(LLAMA, model_type="qwen3", layer_types=["full_attention", "sliding_attention"], sliding_window=8,
                  use_sliding_window=True, rope_parameters={"rope_type": "default", "rope_theta": 500.0},
                  dtype="bfloat16"),
    "gpt_neox_4": dict(model_type="gpt_neox", hidden_size=24, intermediate_size=20, num_hidden_layers=2,
                       num_attention_heads=3, vocab_size=37, max_position_embeddings=32, rotary_pct=0.5,
                       rotary_emb_base=500, use_parallel_residual=False, torch_dtype="float16"),
    "gpt_neox_5": dict(model_type="gpt_neox", hidden_size=24, intermediate_size=20, num_hidden_layers=2,
                       num_attention_heads=3, vocab_size=37, max_position_embeddings=32, dtype="bfloat16",
                       rope_parameters=dict(rope_type="default", rope_theta=500.0, partial_rotary_factor=0.5)),
    "gemma": dict(LLAMA, model_type="gemma", rope_theta=500.0, torch_dtype="bfloat16"),
    "gemma2": dict(LLAMA, model_type="gemma2", sliding_window=8, query_pre_attn_scalar=8, rope_theta=500.0,
                   hidden_activation="gelu_pytorch_tanh", attn_logit_softcapping=20.0, final_logit_softcapping=None,
                   cache_implementation="hybrid", torch_dtype="bfloat16"),
    "gemma3_text": dict(LLAMA, model_type="gemma3_text", sliding_window=8, query_pre_attn_scalar=8, dtype="bfloat16",
                        layer_types=["sliding_attention", "full_attention"],
                        rope_parameters=dict(sliding_attention=dict(rope_type="default", rope_theta=20.0),
                                             full_attention=dict(rope_type="linear", factor=2.0, rope_theta=500.0))),
    "bert": dict(ENCODER, model_type="bert", classifier_dropout=None,
                 id2label={"0": "bad", "1": "so so", "2": "good"}, label2id={"bad": 0, "so so": 1, "good": 2}),
    "roberta": dict(ENCODER, model_type="roberta", type_vocab_size=1),
    "distilbert": dict(model_type="distilbert", dim=12, n_layers=2, n_heads=3, hidden_dim=20, vocab_size=37,
                       max_position_embeddings=20, pad_token_id=0, tie_weights_=True),
    "albert": dict(ENCODER, model_type="albert", embedding_size=8, num_hidden_groups=2, down_scale_factor=1),
    "xlm_roberta": dict(ENCODER, model_type="xlm-roberta", type_vocab_size=1),
    "electra": dict(ENCODER, model_type="electra", embedding_size=8, summary_type="first"),
    "t5": dict(T5, feed_forward_proj="relu", n_positions=512, torch_dtype="float32"),
    "t5_v1_1": dict(T5, feed_forward_proj="gated-gelu", tie_word_embeddings=False, num_decoder_layers=3,
                    relative_attention_max_distance=10, dtype="bfloat16"),
    "bart": dict(BART, model_type="bart", decoder_layers=3, decoder_ffn_dim=28, activation_dropout=0.1,
                 classifier_dropout=0.25, normalize_before=False, forced_bos_token_id=0, torch_dtype="float32",
                 id2label={"0": "bad", "1": "so so", "2": "good"}, label2id={"bad": 0, "so so": 1, "good": 2}),
    "mbart": dict(BART, model_type="mbart", scale_embedding=True, add_final_layer_norm=True, dtype="bfloat16"),
    "modernbert_4": dict(ENCODER, model_type="modernbert", hidden_size=24, global_attn_every_n_layers=2, local_attention=6,
                         global_rope_theta=500.0, local_rope_theta=20.0, reference_compile=False, torch_dtype="bfloat16"),
    "modernbert_5": dict(ENCODER, model_type="modernbert", hidden_size=24, norm_bias=True, classifier_pooling="mean",
                         layer_types=["sliding_attention", "full_attention"], dtype="bfloat16",
                         rope_parameters=dict(sliding_attention=dict(rope_type="default", rope_theta=20.0),
                                              full_attention=dict(rope_type="default", rope_theta=500.0))),
}


def saved(config):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        again = Path(folder) / "again"
        transformers.AutoConfig.from_pretrained(folder).save_pretrained(again)
        return json.loads((again / "config.json").read_text())


cases = {}
for name, fields in READ.items():
    config = dict(fields, transformers_version="4.40.0", **UNKNOWN)
    cases[name] = {"read": config, "saved": saved(config)}
OUT.write_text(json.dumps({"transformers": transformers.__version__, "cases": cases}, indent=1, sort_keys=True) + "\n")
