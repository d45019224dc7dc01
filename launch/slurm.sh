#!/usr/bin/env bash
# Submits a run as a Slurm job, with a process for each GPU, from the folder of your project:
#
#   PATH_OF_PRETRAX/launch/slurm.sh --nodes=2 --gpus-per-node=8 -- \
#       train --gin_file=my_run.gin --module=my_tasks.py --run_dir=/shared/runs/mine
#
# Options of sbatch come before --, the command comes after it. The command is checked before anything is
# queued. It runs in your folder, which all nodes must share. Relative paths to your modules and gin files
# are therefore the same as here. The environment is .venv of this folder, or else the active environment.
# `sbatch --nodes=2 … slurm.sh train …` queues the same job without the checks.
#
# Two minutes before the time limit, all processes are sent SIGTERM. They save a checkpoint, and the job
# is queued again.
#
# Settings, given before the script:
#   DRY_RUN=1        print what would be queued and run, and queue nothing
#   EXTRAS='[seqio]' extras of pretrax that the environment must have
#SBATCH --job-name=pretrax
#SBATCH --output=pretrax-%j.log
#SBATCH --open-mode=append
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --signal=B:USR1@120
#SBATCH --time=24:00:00
set -euo pipefail

# shellcheck source=/dev/null
[ ! -e .venv/bin/activate ] || source .venv/bin/activate

say() { # a command
    printf '+' >&2
    printf ' %q' "$@" >&2
    echo >&2
}

submit() { # OPTIONS -- COMMAND
    local options=() requirement
    while [ "$1" != -- ]; do
        options+=("$1")
        shift
    done
    shift
    requirement=$(python3 "$(dirname "$0")/pack.py" --installed --extras="${EXTRAS:-}" -- "$@")
    echo "Nothing is installed: the job uses $requirement of this environment." >&2
    say sbatch "${options[@]}" "$0" "$@"
    if [ -n "${DRY_RUN:-}" ]; then
        echo "In the job, in $PWD:" >&2
        run "$@"
    else
        sbatch "${options[@]}" "$0" "$@"
    fi
}

again() { # signals the processes and not srun, which would kill them
    scancel --signal=TERM "$SLURM_JOB_ID"
    wait "$step" || true
    scontrol requeue "$SLURM_JOB_ID"
    exit 0
}

run() { # COMMAND
    # Each process sees all GPUs of its node, and JAX uses the GPU of the process's rank. Without a number
    # of CPUs, Slurm would bind each process to a single CPU.
    local tasks="${SLURM_GPUS_ON_NODE:-1}" cpus="${SLURM_CPUS_ON_NODE:-$(nproc)}"
    local words=(srun --ntasks-per-node="$tasks" --cpus-per-task="$((cpus / tasks))"
        --gpu-bind=none --kill-on-bad-exit=1
        pretrax "$@" --gin.training.Run.distributed=True)
    if [ -n "${DRY_RUN:-}" ]; then
        say "${words[@]}"
        echo "(Slurm says in the job how many GPUs and CPUs a node has.)" >&2
        return
    fi
    "${words[@]}" &
    step=$!
    wait "$step"
}

for word in "$@"; do
    if [ "$word" = -- ]; then
        submit "$@"
        exit
    fi
done
if [ -z "${SLURM_JOB_ID:-}" ]; then # not in a job, and no --
    sed -n '2,/^#SBATCH/p' "$0" | sed -n 's/^# \{0,1\}//p' >&2
    exit 2
fi
trap again USR1
run "$@"
