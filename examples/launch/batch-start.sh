#!/usr/bin/env bash
# Runs on each node of an AWS Batch multi-node job: batch-start.sh RANKS_PER_NODE PROGRAM [ARGUMENT...]
# Nodes share /runs. The main node writes the ssh key and the job's token there, waits for the others' addresses, and
# starts mpirun. The other nodes serve it by ssh until it announces the end of the job.
set -euo pipefail
each=$1
shift
# Node N of job J has the id J#N. A retry uses its own folder, so it finds no file of the earlier attempt.
meet=/runs/meet-${AWS_BATCH_JOB_ID%%#*}-${AWS_BATCH_JOB_ATTEMPT:-1}
key=$meet/ssh-key
address=$(hostname -I | cut -d ' ' -f 1)

if [ "$AWS_BATCH_JOB_NODE_INDEX" = "$AWS_BATCH_JOB_MAIN_NODE_INDEX" ]; then
  (umask 077 && mkdir -p "$meet" && ssh-keygen -q -t ed25519 -N '' -f "$key" && shoal token "$meet/job-token")
  trap 'touch "$meet/over"' EXIT
  touch "$meet/ready"
  for ((waited = 0; $(find "$meet" -name 'node-*' | wc -l) < AWS_BATCH_JOB_NUM_NODES - 1; ++waited)); do
    [ "$waited" -lt 600 ] || { echo "not all of $AWS_BATCH_JOB_NUM_NODES nodes have come within 600 s" >&2; exit 1; }
    sleep 1
  done
  {
    echo "$address slots=$each"
    find "$meet" -name 'node-*' -exec cat {} + | sed "s/\$/ slots=$each/"
  } > "$meet/hosts"
  # mpirun forwards SIGUSR1: the ranks save a checkpoint and end.
  mpirun --allow-run-as-root --bind-to none -n "$((each * AWS_BATCH_JOB_NUM_NODES))" --hostfile "$meet/hosts" \
    --mca plm_rsh_args "-i $key -o StrictHostKeyChecking=accept-new" \
    -x PATH -x LD_LIBRARY_PATH -x FI_PROVIDER=efa -x MASTER_ADDR="$address" \
    -x SHOAL_JOB_TOKEN_FILE="$meet/job-token" "$@" &
  mpirun=$!
  trap 'kill -USR1 "$mpirun"' TERM
  status=0
  wait "$mpirun" || status=$?
  # A signal ends the first wait before mpirun has ended.
  if kill -0 "$mpirun" 2> /dev/null; then
    status=0
    wait "$mpirun" || status=$?
  fi
  exit "$status"
fi

until [ -e "$meet/ready" ]; do sleep 1; done
home=$(getent passwd "$(id -u)" | cut -d : -f 6) # sshd looks for keys there, whatever HOME is
mkdir -p "$home/.ssh" /run/sshd
chmod 700 "$home/.ssh"
cp "$key.pub" "$home/.ssh/authorized_keys"
ssh-keygen -A > /dev/null
/usr/sbin/sshd
echo "$address" > "$meet/.node-$AWS_BATCH_JOB_NODE_INDEX" && mv "$meet/.node-$AWS_BATCH_JOB_NODE_INDEX" "$meet/node-$AWS_BATCH_JOB_NODE_INDEX"
until [ -e "$meet/over" ]; do sleep 2; done
