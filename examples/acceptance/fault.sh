#!/usr/bin/env bash
# One rank of the fault test, started by mpirun: fault.sh FOLDER RANKS
# The ranks repeat an all_reduce until the last rank is killed after FAULT_AFTER seconds. Each rank prints its number,
# exit status, time of its end, and last words. All end with status 0 here, so that mpirun ends none of them.
set -u
rank=$OMPI_COMM_WORLD_RANK
said=$1/rank-$rank.txt
shoal-collective-perf all_reduce -b 16M -e 16M -N 0 -T 60 --backend native > /dev/null 2> "$said" &
perf=$!
if [ "$rank" -eq $(($2 - 1)) ]; then
  sleep "$FAULT_AFTER"
  kill -9 "$perf"
fi
wait "$perf" 2> /dev/null
status=$?
printf '%s %s %s %s\n' "$rank" "$status" "$(date +%s.%N)" "$(tail -n 1 "$said")"
