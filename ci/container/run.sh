#!/usr/bin/env bash
# Run a command in the container of ci/container/Dockerfile, on this checkout and with this machine's GPUs:
#   ci/container/run.sh make executed PROFILE=paper
# The folder CACHE (by default ~/.cache/qkspectra) keeps packages and models between runs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
cache=${CACHE:-$HOME/.cache/qkspectra}
mkdir -p "$cache"
docker build --quiet --tag qkspectra-paper ci/container
exec docker run --rm --gpus all --ipc=host --user "$(id -u):$(id -g)" --env HOME=/cache \
    --env QKSPECTRA_DEVICE="${QKSPECTRA_DEVICE:-cuda}" \
    --volume "$cache:/cache" --volume "$PWD:/project" --security-opt no-new-privileges --cap-drop ALL \
    qkspectra-paper "$@"
