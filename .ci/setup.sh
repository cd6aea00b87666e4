#!/usr/bin/env bash
# Sets up everything `make demo` and `make test` need: system packages (Debian, as root only), a virtual
# environment in the checkout, uv inside it by pip, the rest by uv. Does nothing that is already done.
# usage: setup.sh VENV EXTRA [uv options, for example --torch-backend cpu]     EXTRA: cuda13, cuda12 or empty
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1 extra=$2; shift 2
packages="python3-venv xvfb xdotool openbox libgl1 libgl1-mesa-dri libgomp1 g++"

missing=""
if command -v dpkg-query >/dev/null; then
    for package in $packages; do
        [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing="$missing $package"
    done
fi
if [ -n "$missing" ]; then
    if [ "$(id -u)" = 0 ]; then
        echo "Installing system packages:$missing"
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing >/dev/null
    else
        echo "Some system packages are not installed; run: sudo apt-get update && sudo apt-get install$missing" >&2
    fi
fi

python=""
for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
    if command -v "$candidate" >/dev/null && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        python=$candidate
        break
    fi
done
if [ -z "$python" ]; then
    echo "splatscope needs Python 3.11 or newer; python3 is $(python3 --version 2>&1 || echo 'not installed')." >&2
    exit 1
fi
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
[ -x "$venv/bin/uv" ] || "$venv/bin/pip" install --quiet --disable-pip-version-check uv
"$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --constraint constraints.txt "$@" --editable ".[test${extra:+,$extra}]"

# Type checkers do not follow the editable install's import hook; this link gives them the package tree.
mkdir -p build/links
ln -sfn ../.. build/links/splatscope
touch "$venv/ready"
