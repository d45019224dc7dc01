#!/usr/bin/env bash
# A run as a Slurm job, a process for each GPU, from a shared folder with an environment in .venv:
#   sbatch --nodes=2 --gpus-per-node=8 launch/slurm.sh train --gin_file=… --run_dir=/shared/runs/mine
# Slurm sends SIGTERM two minutes before the end: a checkpoint is saved, and the job queued again.
#SBATCH --job-name=pretrax
#SBATCH --output=pretrax-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
#SBATCH --time=24:00:00
set -euo pipefail

# shellcheck source=/dev/null
source .venv/bin/activate

again() { # The time is up: end the processes as a preempted machine would, and queue the job again.
    kill -TERM "$step" && wait "$step" || true
    scontrol requeue "$SLURM_JOB_ID"
}
trap again USR1

srun --ntasks-per-node="${SLURM_GPUS_ON_NODE:-1}" --gpus-per-task=1 --kill-on-bad-exit=1 \
    pretrax "$@" --gin.training.Run.distributed=True &
step=$!
wait "$step"
