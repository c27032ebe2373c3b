#!/usr/bin/env bash
# ./dev demo: trains a tokenizer and a model on two ranks from a text, and generates text. Run from the root of the
# tree.
set -euo pipefail
source tools/dev-common.sh

minutes=5 ranks=2
while [ $# -gt 0 ]; do
  [ $# -gt 1 ] || die "demo: $1 needs a value; there are --minutes M and --ranks R"
  case "$1" in
    --minutes) minutes=$2; shift 2 ;;
    --ranks) ranks=$2; shift 2 ;;
    *) die "demo: there is no option '$1'; there are --minutes M and --ranks R" ;;
  esac
done
out=out/demo
shoal=$PWD/build/release/apps/shoal
mkdir -p "$out"

# The King James Bible (public domain), one verse a line, without its reference. Every twentieth chapter is
# kept for validation.
if [ ! -s "$out/train.txt" ] || [ ! -s "$out/validation.txt" ]; then
  say "exporting the King James Bible (Debian's package bible-kjv)"
  bible -f "gen1:1-rev22:21" | awk -v train="$out/train.txt" -v validation="$out/validation.txt" '
    {
      split($1, place, ":")
      if (place[1] != chapter) { chapter = place[1]; ++chapters }
      sub(/^[^ ]+ /, "")
      print > (chapters % 20 == 0 ? validation : train)
    }'
fi
wc -lc "$out/train.txt" "$out/validation.txt" | sed '$d' >&2

if [ ! -s "$out/tokenizer/tokenizer.json" ]; then
  say "training a byte-level BPE tokenizer of 4,096 tokens"
  "$shoal" tokenizer train --vocab-size 4096 --output "$out/tokenizer" "$out/train.txt"
fi

prompts=("In the beginning" "And the LORD said unto")
say "training a GPT-2 of ten million parameters on $ranks ranks, for at most $minutes minutes"
mpirun -n "$ranks" --bind-to none "$shoal" train examples/gpt2-bible.json \
  --tokenizer_name "$out/tokenizer" --train_file "$out/train.txt" \
  --validation_file "$out/validation.txt" --output_dir "$out/run" \
  --max_train_minutes "$minutes" --sample_prompts "${prompts[@]}"

say "what it has learnt to say"
for prompt in "${prompts[@]}"; do
  "$shoal" generate --model "$out/run" --prompt "$prompt" --max-new-tokens 60 --temperature 0.8 --top-k 40 --seed 7
  echo
done

"$shoal" report "$out/run"
say "the checkpoint is in $out/run; Hugging Face opens it: AutoModelForCausalLM.from_pretrained(\"$out/run\")"
