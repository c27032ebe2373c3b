#!/usr/bin/env bash
# Trains a masked language model on wikitext-2 from random weights. Its loss must be below the entropy
# of the token frequencies. See README.md.
set -euo pipefail
# shellcheck source=examples/from_scratch/common.sh
. "$(dirname "$0")/common.sh"

# Entropy of the test text under its own token frequencies, in nats per token. No model that knows
# only token frequencies can do better.
entropy=$("$shoal" tokenizer encode -t "$out/tokenizer" -f "$data/wikitext2-test.txt" | tr ' ' '\n' |
  awk '{ count[$1]++ } END { for (id in count) h -= count[id] / NR * log(count[id] / NR); printf "%.4f", h }')
train words --task masked-lm --model_type bert --config_overrides \
  hidden_size=128,num_hidden_layers=2,num_attention_heads=2,intermediate_size=512,max_position_embeddings=128 \
  --train_file "$data/wikitext2-valid.txt" --validation_file "$data/wikitext2-test.txt" \
  --max_seq_length 128 --per_device_train_batch_size 16 --per_device_eval_batch_size 32 \
  --num_train_epochs 12 --learning_rate 2e-3 --warmup_ratio 0.1 --seed 1
verdict "$(number eval_loss "$out/words/eval_results.json")" below "$entropy" \
  "wikitext-2, loss of hidden words in the test text"
