#!/usr/bin/env bash
# Acceptance test of Shoal on two hosts with GPUs and EFA: acceptance.sh [--dry-run] HOSTFILE OUT
# HOSTFILE is mpirun's; its first host runs this script. Both hosts see the folder OUT under the same path.
# README.md has the expected outcome, and the variables below for other machines. A second call continues the study.
set -euo pipefail
is_dry=false
if [ "${1:-}" = --dry-run ]; then
  is_dry=true
  shift
fi
[ $# -eq 2 ] || { echo "usage: acceptance.sh [--dry-run] HOSTFILE OUT" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$2"
hosts=$(realpath "$1") out=$(realpath "$2")
each=${RANKS_PER_NODE:-8}                # ranks of a host: its GPUs
provider=${PROVIDER-efa}                 # libfabric's; empty: Shoal chooses
backends=${BACKENDS:-native nccl}
most=${MOST:-1G}                         # the largest message
goodput=${GOODPUT:-50e9}                 # bytes a second that can leave a host: four links of 100 Gbit/s
config=$(realpath "${CONFIG:-$here/gpt2.json}") # options of shoal train
examples=${EXAMPLES:-196608} batch=${BATCH:-16} # of a run; of a rank in a step
export FAULT_AFTER=${FAULT_AFTER:-20}    # seconds
ranks=$((2 * each))

# Prints a command and carries it out.
run() {
  printf '%s\n' "$*" >&2
  $is_dry || "$@"
}

export MASTER_ADDR=${MASTER_ADDR:-$(awk '!/^#/ && NF { print $1; exit }' "$hosts")}
export SHOAL_JOB_TOKEN_FILE=$out/job-token
trap 'rm -f "$SHOAL_JOB_TOKEN_FILE"' EXIT
launch=(mpirun --bind-to none --hostfile "$hosts" -x PATH -x LD_LIBRARY_PATH -x MASTER_ADDR -x SHOAL_JOB_TOKEN_FILE
  -x FAULT_AFTER ${provider:+-x FI_PROVIDER="$provider"})
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}
rm -f "$SHOAL_JOB_TOKEN_FILE"
run shoal token "$SHOAL_JOB_TOKEN_FILE"

echo "== 1. the hosts" >&2
run "${launch[@]}" --npernode 1 shoal doctor | tee "$out/doctor.txt"

echo "== 2. collectives" >&2
for operation in all_reduce reduce_scatter all_gather; do
  for backend in $backends; do
    run "${launch[@]}" -n "$ranks" shoal-collective-perf "$operation" -b 8 -e "$most" -f 4 --backend "$backend" \
      --goodput "$goodput" | tee "$out/$operation-$backend.txt"
  done
done

echo "== 3. a rank dies" >&2
mkdir -p "$out/fault"
run "${launch[@]}" -n "$ranks" bash "$here/fault.sh" "$out/fault" "$ranks" | tee "$out/fault.txt"
$is_dry || awk -v last=$((ranks - 1)) '
  $1 == last { killed = $3; next }
  { ++survivors; if ($2 != 5) ++wrong; if ($3 > latest) latest = $3 }
  END {
    printf "survivors: %d, of these without exit status 5: %d, the last ended %.2f s after the kill\n",
      survivors, wrong, latest - killed
    exit survivors != last || wrong > 0 || latest - killed > 2
  }' "$out/fault.txt"

echo "== 4. one and two hosts" >&2
lines=200000
$is_dry && lines=2000
awk -v lines="$lines" 'BEGIN {
  srand(1)
  n = split("ba co di fu ga hy ji ko la mu ne po qui ra so ti vo wa xe zu shoal sea wind net", part, " ")
  for (i = 0; i < lines; ++i) {
    for (j = 0; j < 14; ++j) printf "%s%s ", part[int(rand() * n) + 1], part[int(rand() * rand() * n) + 1]
    print part[int(rand() * n) + 1] "."
  }
}' > "$out/text.txt"
shoal tokenizer train --vocab-size 1024 -o "$out/tokenizer" "$out/text.txt"
cat > "$out/study.json" <<END
{"name": "GPT-2 on one and two hosts", "config": "$config", "nodes": [1, 2], "ranks_per_node": $each,
 "workers": [0, 2], "batches": [$batch], "examples": $examples, "backends": ["${backends// /\", \"}"],
 "launch": "${launch[*]} -n {ranks}",
 "options": {"train_file": "$out/text.txt", "tokenizer_name": "$out/tokenizer"}}
END
if $is_dry; then
  shoal study "$out/study.json" -o "$out/study" --dry-run
else
  run shoal study "$out/study.json" -o "$out/study"
fi
