#!/usr/bin/env bash
# Two nodes of eight GPUs; a task for each GPU. Submit it where all nodes see the current folder: sbatch slurm.sh
#SBATCH --job-name=shoal-gpt2
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --exclusive
#SBATCH --time=12:00:00
#SBATCH --signal=USR1@300
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=shoal-%j.log
set -euo pipefail

# Ranks authenticate each other with a secret that only the owner can read.
export SHOAL_JOB_TOKEN_FILE=$PWD/job-token-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}
shoal token "$SHOAL_JOB_TOKEN_FILE"
trap 'rm -f "$SHOAL_JOB_TOKEN_FILE"' EXIT

# At SIGUSR1 the ranks save a checkpoint and exit with status 138 (128 + 10). The script then requeues the job.
status=0
srun shoal train run.json --output_dir out/gpt2 --resume_from_checkpoint true || status=$?
if [ "$status" -eq 138 ]; then
  scontrol requeue "$SLURM_JOB_ID"
  exit 0
fi
exit "$status"
