#!/usr/bin/env bash
# Starts a run on a Cloud TPU VM, one host or a slice, from the folder of your project:
#
#   PATH_OF_PRETRAX/launch/tpu_vm.sh start NAME ZONE TYPE train --gin_file=my_run.gin --module=my_tasks.py
#   … keep NAME ZONE TYPE train …   # spot VM: start it again whenever it is preempted
#   … logs NAME ZONE                # follow the log of the first host
#   … stop NAME ZONE                # delete the VM
#
# TYPE is for example v5litepod-8 or v5p-64. Your folder is sent to ~/project on every host, and the
# command runs there. Relative paths to your modules and gin files are therefore the same as here. You
# need not commit anything. Data, run directories and hidden files are not sent: keep data in a bucket.
#
# The command runs detached on every host. It continues if ssh disconnects, and writes its output to
# ~/pretrax.log there. Keep checkpoints in a bucket, since the disks are deleted with the VM. On a slice of
# several hosts, `train` needs --gin.training.Run.distributed=True. `keep` continues until you stop it:
# delete the VM when the run is done.
#
# Settings, given before the script:
#   DRY_RUN=1        print what would be sent and run, and create nothing
#   EXTRAS='[seqio]' extras of pretrax to install (default: [all]; '' for none)
#   PRETRAX=PATH     another checkout of pretrax to install, or a wheel (default: this script's)
#   SPOT=1           a spot VM for `start`
#   VERSION=…        the VM's software version, if it is not the default of the type
set -euo pipefail

EVERY=${EVERY:-60} # seconds between two checks of a spot VM

usage() {
    sed -n '2,/^set/p' "$0" | sed -n 's/^# \{0,1\}//p' >&2
    exit 2
}

version_of() { # TYPE
    case $1 in
    v5lite*) echo v2-alpha-tpuv5-lite ;;
    v5p*) echo v2-alpha-tpuv5 ;;
    v6e*) echo v2-alpha-tpuv6e ;;
    v4*) echo tpu-ubuntu2204-base ;;
    *) echo "Set VERSION, the software of a VM of type $1." >&2 && return 2 ;;
    esac
}

gcloud_tpu() { # prints the command, and runs it unless DRY_RUN
    printf '+ gcloud compute tpus tpu-vm' >&2
    printf ' %q' "$@" >&2
    echo >&2
    [ -n "${DRY_RUN:-}" ] || gcloud compute tpus tpu-vm "$@"
}

on_hosts() { # COMMAND: on every host
    [ -z "${DRY_RUN:-}" ] || printf 'On every host, in ~:\n%s\n' "$1" >&2
    gcloud_tpu ssh "$NAME" --zone="$ZONE" --worker=all --command="$1"
}

create() {
    gcloud_tpu create "$NAME" --zone="$ZONE" --accelerator-type="$TYPE" --version="$VERSION" \
        ${SPOT:+--spot}
}

install() { # uv installs Python, since the VM's Python may be too old for pretrax
    gcloud_tpu scp "$ARCHIVE" "$NAME:" --zone="$ZONE" --worker=all &&
        on_hosts "tar xzf sent.tar.gz && curl -LsSf https://astral.sh/uv/install.sh | sh &&
        ~/.local/bin/uv venv --allow-existing --python 3.12 ~/environment &&
        ~/.local/bin/uv pip install --python ~/environment '$REQUIREMENT' 'jax[tpu]<0.11' gcsfs"
}

begin() { # runs the command on every host, also after this connection ends
    local command
    printf -v command ' %q' "$@"
    # `;` and not `&&`, since a list of both in the background would keep ssh's output open.
    on_hosts "cd ~/project || exit 1; nohup ~/environment/bin/pretrax$command >> ~/pretrax.log 2>&1 < /dev/null &"
}

start() { # a single && list, since `set -e` is ignored within `until` below
    create && install && begin "$@" &&
        echo "${DRY_RUN:+Nothing was run; without DRY_RUN: }Started on $NAME. Next: $0 logs $NAME $ZONE" >&2
}

is_gone() { # preempted or deleted; a check that fails for another reason is repeated
    local said
    if said=$(gcloud_tpu describe "$NAME" --zone="$ZONE" --format='value(state)' 2>&1); then
        [[ $said == *PREEMPTED* || $said == *TERMINATED* ]]
    else
        [[ $said == *NOT_FOUND* ]]
    fi
}

insist() { # like `start`, until a spot VM is available
    until start "$@"; do
        gcloud_tpu delete "$NAME" --zone="$ZONE" --quiet || true
        sleep "$EVERY"
    done
}

keep() { # deletes and recreates a preempted spot VM; the run continues from its checkpoint
    SPOT=1
    insist "$@"
    while [ -z "${DRY_RUN:-}" ]; do
        sleep "$EVERY"
        touch "$ARCHIVE" # keeps programs that clean /tmp from removing it
        is_gone || continue
        gcloud_tpu delete "$NAME" --zone="$ZONE" --quiet || true
        insist "$@"
    done
}

[ $# -ge 3 ] || usage
VERB=$1 NAME=$2 ZONE=$3
shift 3
case $VERB in
start | keep)
    [ $# -ge 2 ] || usage
    TYPE=$1
    shift
    VERSION=${VERSION:-$(version_of "$TYPE")}
    folder=$(mktemp -d)
    trap 'rm -rf "$folder"' EXIT
    # Before the first VM is created, and the same for every VM that `keep` makes.
    ARCHIVE=$folder/sent.tar.gz
    REQUIREMENT=$(python3 "$(dirname "$0")/pack.py" --archive="$ARCHIVE" --extras="${EXTRAS-[all]}" -- "$@")
    "$VERB" "$@"
    ;;
logs) gcloud_tpu ssh "$NAME" --zone="$ZONE" --worker=0 --command='tail -n 100 -F ~/pretrax.log' ;;
stop) gcloud_tpu delete "$NAME" --zone="$ZONE" ;;
*) usage ;;
esac
