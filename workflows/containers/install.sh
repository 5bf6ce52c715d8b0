#!/bin/bash
# What both recipes of this folder install, in three steps of which each changes more often than the one before:
#
#   install.sh system    Debian's packages: Python, what environments draw with, what the workflow calls
#   install.sh torch     /opt/venv with torch alone, the largest; TORCH_OPTIONS goes to pip, for a build other than its regular one
#   install.sh project   the packages of constraints.txt, ddrl as it stands in this checkout, and the wheels of wheels/
set -euo pipefail
cd "$(dirname "$0")/../.."

pip_install() {
    /opt/venv/bin/python -m pip --disable-pip-version-check install --no-cache-dir --constraint constraints.txt "$@"
}

case "${1:?one of: system, torch, project}" in
system)
    export DEBIAN_FRONTEND=noninteractive
    apt-get update
    apt-get install --yes --no-install-recommends \
        ca-certificates git libegl1 libgl1 libgl1-mesa-dri libglu1-mesa libosmesa6 procps python3 python3-venv zip
    rm -rf /var/lib/apt/lists/*
    # A checkout there may be another user's; git says its commit, which runs note, only where that is allowed.
    git config --system --add safe.directory /work
    ;;
torch)
    read -r -a options <<<"${TORCH_OPTIONS:-}"
    python3 -m venv /opt/venv
    pip_install "$(grep -x 'torch==[0-9.]*' constraints.txt)" "${options[@]}"
    ;;
project)
    shopt -s nullglob
    pip_install --editable . workflows/containers/wheels/*.whl
    /opt/venv/bin/python -m pip check
    ;;
*)
    echo "install.sh: '$1' is none of: system, torch, project" >&2
    exit 2
    ;;
esac
