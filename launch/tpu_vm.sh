#!/usr/bin/env bash
# A run on a Cloud TPU VM, one host or a slice, from a checkout on your own machine:
#
#   launch/tpu_vm.sh start NAME ZONE TYPE train --gin_file=… --gin.training.Run.checkpoint_dir=gs://…
#   launch/tpu_vm.sh keep NAME ZONE TYPE train …   # spot: start it again whenever it is taken away
#   launch/tpu_vm.sh logs NAME ZONE                # follow the first host's
#   launch/tpu_vm.sh stop NAME ZONE                # delete the VM
#
# TYPE is such as v5litepod-8 or v5p-64. The command runs on every host, detached: it goes on when ssh
# drops, and its output is kept in ~/pretrax.log there. Checkpoints belong in a bucket: the disks go
# with the VM. On a slice of several hosts `train` wants --gin.training.Run.distributed=True. `keep` goes
# on until you stop it: delete the VM when the run is done. Settings: VERSION, the VM's software, if it is
# not that of the type; EXTRAS of pretrax, such as '[seqio]'; SPOT=1 for `start`; DRY_RUN=1 prints what
# gcloud would be called with.
set -euo pipefail

EVERY=${EVERY:-60} # seconds between two looks at a spot VM

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
    gcloud_tpu ssh "$NAME" --zone="$ZONE" --worker=all --command="$1"
}

create() {
    gcloud_tpu create "$NAME" --zone="$ZONE" --accelerator-type="$TYPE" --version="$VERSION" \
        ${SPOT:+--spot}
}

install() { # Python by uv: the VM's own may be older than pretrax wants
    local archive
    archive=$(mktemp -d)/pretrax.tar.gz
    git archive --format=tar.gz --prefix=pretrax/ -o "$archive" "$COMMIT" &&
        gcloud_tpu scp "$archive" "$NAME:" --zone="$ZONE" --worker=all &&
        on_hosts "tar xzf pretrax.tar.gz && curl -LsSf https://astral.sh/uv/install.sh | sh &&
        ~/.local/bin/uv venv --allow-existing --python 3.12 ~/environment &&
        ~/.local/bin/uv pip install --python ~/environment './pretrax${EXTRAS:-}' 'jax[tpu]<0.11' gcsfs"
}

begin() { # The command, on every host, whatever becomes of this connection.
    local command
    printf -v command ' %q' "$@"
    on_hosts "nohup ~/environment/bin/pretrax$command >> ~/pretrax.log 2>&1 < /dev/null &"
}

start() { # one list, since `until` below has `set -e` ignored in it
    create && install && begin "$@" &&
        echo "${DRY_RUN:+Nothing was run; without DRY_RUN: }Started on $NAME. Next: $0 logs $NAME $ZONE" >&2
}

is_gone() { # taken away, or not there; a question that fails for another reason is asked again
    local said
    if said=$(gcloud_tpu describe "$NAME" --zone="$ZONE" --format='value(state)' 2>&1); then
        [[ $said == *PREEMPTED* || $said == *TERMINATED* ]]
    else
        [[ $said == *NOT_FOUND* ]]
    fi
}

insist() { # as `start`, until there is room for a spot VM
    until start "$@"; do
        gcloud_tpu delete "$NAME" --zone="$ZONE" --quiet || true
        sleep "$EVERY"
    done
}

keep() { # A spot VM that is taken away is deleted and made anew: the run goes on from its checkpoint.
    SPOT=1
    insist "$@"
    while [ -z "${DRY_RUN:-}" ]; do
        sleep "$EVERY"
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
    COMMIT=$(git rev-parse HEAD) # the same on every VM; before the first: none is made without it
    "$VERB" "$@"
    ;;
logs) gcloud_tpu ssh "$NAME" --zone="$ZONE" --worker=0 --command='tail -n 100 -F ~/pretrax.log' ;;
stop) gcloud_tpu delete "$NAME" --zone="$ZONE" ;;
*) usage ;;
esac
