#!/usr/bin/env bash
# A run as a Slurm job, a process for each GPU, from a shared folder with an environment in .venv:
#   sbatch --nodes=2 --gpus-per-node=8 launch/slurm.sh train --gin_file=… --run_dir=/shared/runs/mine
# Two minutes before the end all processes are sent SIGTERM, at which they save a checkpoint, and the
# job is queued again.
#SBATCH --job-name=pretrax
#SBATCH --output=pretrax-%j.log
#SBATCH --open-mode=append
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
#SBATCH --time=24:00:00
set -euo pipefail

# shellcheck source=/dev/null
source .venv/bin/activate

again() { # To the processes, past srun, which would kill them at a SIGTERM of its own.
    scancel --signal=TERM "$SLURM_JOB_ID"
    wait "$step" || true
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
}
trap again USR1

# Each process sees all GPUs of its node, and JAX takes the one of its rank; without a number of
# CPUs, Slurm would bind each to a single one.
tasks="${SLURM_GPUS_ON_NODE:-1}"
srun --ntasks-per-node="$tasks" --cpus-per-task="$((${SLURM_CPUS_ON_NODE:-$(nproc)} / tasks))" \
    --gpu-bind=none --kill-on-bad-exit=1 \
    pretrax "$@" --gin.training.Run.distributed=True &
step=$!
wait "$step"
