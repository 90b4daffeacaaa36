#!/bin/sh
# Installs fsd-calib, editable, into .venv beside this file:
#     sh install.sh           to use it
#     sh install.sh test      to run its tests too
#     sh install.sh dev       to work on it
# PYTHON=... chooses the interpreter. On Linux the default build of torch carries gigabytes of CUDA libraries, so
# a Linux machine without an NVIDIA GPU gets the CPU build. A torch already in .venv is kept, if it is recent enough.
set -eu
cd "$(dirname "$0")"
torch="torch>=2.11"

fail() {
    echo "install.sh: $*" >&2
    exit 2
}

has_nvidia_gpu() {
    nvidia-smi >/dev/null 2>&1
}

install_default_torch() {
    .venv/bin/python -m pip install "$torch"
}

# pip alone cannot tell where CPU builds are kept: first what this machine itself offers pip, then uv, which knows.
install_cpu_torch() {
    .venv/bin/python -m pip install --quiet --no-index --no-deps "$torch" 2>/dev/null && return
    .venv/bin/python -m pip install uv
    .venv/bin/python -m uv pip install --python .venv/bin/python --torch-backend=cpu "$torch" ||
        fail "no CPU build of torch could be fetched; put any torch into .venv ('.venv/bin/pip install …') and run again"
}

case "${1-}" in
    "") what=".[report]" ;;
    test | dev) what=".[$1]" ;;
    *) fail "unknown extra '$1': give none, 'test' or 'dev'" ;;
esac

python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    fail "'$python' is not Python 3.11 or newer; name one that is: PYTHON=python3.11 sh install.sh"
[ -x .venv/bin/python ] || "$python" -m venv .venv

if [ "$(uname -s)" != Linux ] || has_nvidia_gpu; then
    install_default_torch
else
    install_cpu_torch
fi
.venv/bin/python -m pip install --editable "$what"
