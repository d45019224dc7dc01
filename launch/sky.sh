#!/usr/bin/env bash
# Starts a run on any cloud with SkyPilot, from the folder of your project. Its run directory is in a
# bucket:
#
#   BUCKET=gs://my-bucket/runs/mine PATH_OF_PRETRAX/launch/sky.sh launch -- \
#       train --gin_file=my_run.gin --module=my_tasks.py --gin.mesh.make_mesh.data=-1
#   BUCKET=… PATH_OF_PRETRAX/launch/sky.sh jobs launch -- train …   # a preempted spot machine is replaced
#
# `launch` or `jobs launch` and their options come before --, the command comes after it. Your folder is
# sent to ~/project, and the command runs there. Relative paths to your modules and gin files are
# therefore the same as here. You need not commit anything. Data, run directories and hidden files are
# not sent: keep data in a bucket. sky.yaml describes the machine.
#
# Settings, given before the script:
#   BUCKET=gs://…    the run directory
#   DRY_RUN=1        print what would be sent and run, and create nothing
#   EXTRAS='[seqio]' extras of pretrax to install (default: [all]; '' for none)
#   PRETRAX=PATH     another checkout of pretrax to install, or a wheel (default: this script's)
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
words=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    words+=("$1")
    shift
done
if [ ${#words[@]} -eq 0 ] || [ $# -lt 2 ] || [[ ${BUCKET:-} != *://* ]]; then
    sed -n '2,/^set/p' "$0" | sed -n 's/^# \{0,1\}//p' >&2
    exit 2
fi
shift

# SkyPilot copies the folder, or uploads it, before `sky` ends.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
requirement=$(python3 "$here/pack.py" --archive="$folder/sent.tar.gz" --extras="${EXTRAS-[all]}" -- "$@")
cat >"$folder/setup.sh" <<END
set -e
rm -rf ~/pretrax
tar xzf sent.tar.gz -C ~
cd ~
export PATH="\$HOME/.local/bin:\$PATH"
command -v uv || curl -LsSf https://astral.sh/uv/install.sh | sh
uv venv --allow-existing --python 3.12 ~/environment
uv pip install --python ~/environment --reinstall-package pretrax '$requirement' 'jax[cuda12]<0.11' gcsfs
END
{
    echo 'cd ~/project || exit 1'
    printf 'exec ~/environment/bin/pretrax'
    printf ' %q' "$@" --run_dir="$BUCKET"
    echo
} >"$folder/run.sh"

words=(sky "${words[@]}" --workdir="$folder" "$here/sky.yaml")
if [ -n "${DRY_RUN:-}" ]; then
    echo 'Installed there by setup.sh:' >&2
    cat "$folder/setup.sh" >&2
    echo 'Run there by run.sh:' >&2
    cat "$folder/run.sh" >&2
fi
printf '+' >&2
printf ' %q' "${words[@]}" >&2
echo >&2
[ -n "${DRY_RUN:-}" ] || "${words[@]}"
