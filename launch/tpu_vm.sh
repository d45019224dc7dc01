#!/usr/bin/env bash
# A run on a Cloud TPU VM, one host or a slice, from a checkout on your own machine:
#
#   launch/tpu_vm.sh start NAME ZONE TYPE train --gin_file=… --checkpoint_dir=gs://…
#   launch/tpu_vm.sh keep NAME ZONE TYPE train …   # spot: start it again whenever it is taken away
#   launch/tpu_vm.sh logs NAME ZONE                # follow the first host's
#   launch/tpu_vm.sh stop NAME ZONE                # delete the VM
#
# TYPE is such as v5litepod-8 or v5p-64. The command runs on every host, detached: it goes on when ssh
# drops, and its output is kept in ~/pretrax.log there. Checkpoints belong in a bucket: the disks go
# with the VM. Settings: VERSION, the VM's software (default: v2-alpha-tpuv5-lite); EXTRAS of pretrax,
# such as '[seqio]'; SPOT=1 for `start`; DRY_RUN=1 prints what gcloud would be called with.
set -euo pipefail

VERSION=${VERSION:-v2-alpha-tpuv5-lite}
EVERY=${EVERY:-60} # seconds between two looks at a spot VM

usage() {
    sed -n '2,/^set/{/^#/s/^# \{0,1\}//p}' "$0" >&2
    exit 2
}

gcloud_tpu() { # prints the command, and runs it unless DRY_RUN
    printf '+ gcloud compute tpus tpu-vm' >&2
    printf ' %q' "$@" >&2
    echo >&2
    [ -n "${DRY_RUN:-}" ] || gcloud compute tpus tpu-vm "$@"
}

on_hosts() { # COMMAND: on every host
    gcloud_tpu ssh "$NAME" --zone="$ZONE" --worker=all --command="$1"
}

create() {
    local spot=()
    [ -z "${SPOT:-}" ] || spot=(--spot)
    gcloud_tpu create "$NAME" --zone="$ZONE" --accelerator-type="$TYPE" --version="$VERSION" \
        "${spot[@]}"
}

install() { # Python by uv: the VM's own may be older than pretrax wants
    local archive
    archive=$(mktemp -d)/pretrax.tar.gz
    git archive --format=tar.gz --prefix=pretrax/ -o "$archive" HEAD &&
        gcloud_tpu scp "$archive" "$NAME:" --zone="$ZONE" --worker=all &&
        on_hosts "tar xzf pretrax.tar.gz && curl -LsSf https://astral.sh/uv/install.sh | sh &&
        ~/.local/bin/uv venv --allow-existing --python 3.11 ~/environment &&
        ~/.local/bin/uv pip install --python ~/environment './pretrax${EXTRAS:-}' 'jax[tpu]'"
}

begin() { # The command, on every host, whatever becomes of this connection.
    local command
    printf -v command ' %q' "$@"
    on_hosts "nohup ~/environment/bin/pretrax$command >> ~/pretrax.log 2>&1 < /dev/null &"
}

state() {
    gcloud_tpu describe "$NAME" --zone="$ZONE" --format='value(state)' 2> /dev/null || true
}

start() { # one list, since `until` below has `set -e` ignored in it
    create && install && begin "$@" &&
        echo "Started on $NAME. Next: $0 logs $NAME $ZONE" >&2
}

keep() { # A spot VM that is taken away is deleted and made anew: the run goes on from its checkpoint.
    SPOT=1 start "$@"
    while [ -z "${DRY_RUN:-}" ]; do
        sleep "$EVERY"
        case $(state) in
        PREEMPTED | TERMINATED | "")
            gcloud_tpu delete "$NAME" --zone="$ZONE" --quiet || true
            until SPOT=1 start "$@"; do
                gcloud_tpu delete "$NAME" --zone="$ZONE" --quiet || true
                sleep "$EVERY"
            done
            ;;
        esac
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
    "$VERB" "$@"
    ;;
logs) gcloud_tpu ssh "$NAME" --zone="$ZONE" --worker=0 --command='tail -n 100 -F ~/pretrax.log' ;;
stop) gcloud_tpu delete "$NAME" --zone="$ZONE" ;;
*) usage ;;
esac
