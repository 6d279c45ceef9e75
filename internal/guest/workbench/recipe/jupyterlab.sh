#!/usr/bin/env bash
# Installs JupyterLab into its own Python environment: jupyterlab.sh DIR
# It prints its progress as "@PERCENT STEP". The folder exists only after a complete installation.
set -euo pipefail
dir=$1 version=4.6.6

step() { echo "@$1 $2"; }
fail() { echo "$*" >&2; exit 1; }

[ -e "$dir/bin/python" ] && exit 0
python=/usr/bin/python3
[ -x "$python" ] || python=$(command -v python3) || fail "python3 is missing; install it, for example with: apt-get install python3-venv"
mkdir -p "$(dirname "$dir")" || fail "cannot write to $(dirname "$dir")"
new=$(mktemp -d "$dir.XXXXXX")
trap 'rm -rf "$new"' EXIT

step 5 "Creating a Python environment"
"$python" -m venv "$new" >/dev/null || fail "$python cannot create environments; install the package python3-venv"
step 20 "Downloading JupyterLab $version"
"$new/bin/python" -m pip install -q --disable-pip-version-check --no-cache-dir --only-binary :all: \
  "jupyterlab==$version" "jupyter_server==2.21.1" "jupyter_client==8.10.0" "ipykernel==7.4.0"
step 90 "Removing unneeded files"
find "$new" -name '*.map' -path '*/labextensions/*' -delete -o -name '*.map' -path '*/lab/static/*' -delete
rm -rf "$new"/lib/python3*/site-packages/{pip,setuptools}{,-*}
chmod -R go+rX "$new"
rm -rf "$dir"
mv -T "$new" "$dir"
trap - EXIT
step 100 "Installed"
