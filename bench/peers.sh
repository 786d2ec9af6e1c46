#!/usr/bin/env bash
# Makes the environments of the systems that bench/compare.py measures against: bench/.envs/{ray,monarch,xoscar}.
#
#   bench/peers.sh              all of them
#   bench/peers.sh ray xoscar   some of them
#
# Safe to run again: an environment that already holds what it should is left as it is. PYTHON names the interpreter
# (default python3; the peers have wheels for 3.10 to 3.12). TORCH names the torch to install (default torch==2.13.0);
# it goes in first, since a bare "torch" pulls gigabytes of CUDA libraries that nothing here uses. Point pip at CPU
# builds of torch with PIP_FIND_LINKS or PIP_EXTRA_INDEX_URL.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
python=${PYTHON:-python3}
torch=${TORCH:-torch==2.13.0}

requirement() {
    case $1 in
    ray) echo "ray==2.60.*" ;;
    monarch) echo "torchmonarch==0.7.*" ;;
    xoscar) echo "xoscar==0.12.*" ;;
    *)
        echo "peers.sh: unknown system '$1'; known are ray, monarch and xoscar" >&2
        return 1
        ;;
    esac
}

[ $# -gt 0 ] || set -- ray monarch xoscar
for name in "$@"; do
    wanted=$(requirement "$name")
    env="$here/.envs/$name"
    mark="$env/.complete"
    stamp="$wanted $torch numpy"
    if [ -f "$mark" ] && [ "$(cat "$mark")" = "$stamp" ]; then
        echo "$name: already there ($wanted)"
        continue
    fi
    echo "$name: installing $wanted into bench/.envs/$name"
    [ -x "$env/bin/python" ] || "$python" -m venv "$env"
    rm -f "$mark"
    "$env/bin/python" -m pip install --quiet "$torch" numpy
    "$env/bin/python" -m pip install --quiet "$wanted"
    echo "$stamp" >"$mark"
    echo "$name: done"
done
