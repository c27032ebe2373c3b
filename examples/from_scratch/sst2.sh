#!/usr/bin/env bash
# Trains a classifier of SST-2's sentences from random weights, with three seeds. See README.md.
set -euo pipefail
# shellcheck source=examples/from_scratch/common.sh
. "$(dirname "$0")/common.sh"

: >"$out/accuracies"
for seed in 1 2 3; do
  train "classes-$seed" --task_name sst2 --model_type bert --config_overrides \
    hidden_size=128,num_hidden_layers=2,num_attention_heads=2,intermediate_size=256,max_position_embeddings=64,hidden_dropout_prob=0.2 \
    --train_file "$data/sst2-train.tsv" --validation_file "$data/sst2-dev.tsv" --max_seq_length 64 \
    --group_by_length true --per_device_train_batch_size 32 --num_train_epochs 3 \
    --learning_rate 5e-4 --warmup_ratio 0.1 --seed "$seed"
  number eval_accuracy "$out/classes-$seed/eval_results.json" | tee -a "$out/accuracies"
done
verdict "$(sort -n "$out/accuracies" | sed -n 2p)" above 0.77 \
  "SST-2, validation accuracy, median of 3 seeds"
