#!/usr/bin/env bash
# Installs VS Code for the browser, with its own Node.js, into a folder: code-server.sh DIR
# It prints its progress as "@PERCENT STEP". The folder exists only after a complete installation.
set -euo pipefail
dir=$1 version=4.139.1 node=24.21.0

step() { echo "@$1 $2"; }
fail() { echo "$*" >&2; exit 1; }
quiet() { "$@" --ignore-scripts --no-audit --no-fund --no-progress --loglevel=error >/dev/null; }

[ -e "$dir/node" ] && exit 0
command -v npm >/dev/null || fail "npm is missing; install it, for example with: apt-get install npm"
case $(uname -m) in
  x86_64) arch=x64 ;;
  aarch64) arch=arm64 ;;
  *) fail "unsupported architecture $(uname -m): there is no Node.js for it" ;;
esac
mkdir -p "$(dirname "$dir")" || fail "cannot write to $(dirname "$dir")"
new=$(mktemp -d "$dir.XXXXXX")
trap 'rm -rf "$new"' EXIT

step 5 "Downloading Node.js $node"
cd "$new"
quiet npm install --prefix "$new" "node-linux-$arch@$node"
mv "node_modules/node-linux-$arch/bin/node" node
rm -rf node_modules package.json package-lock.json

step 25 "Downloading code-server $version"
quiet npm install --prefix "$new" "code-server@$version"
step 55 "Downloading the parts of VS Code"
cd "$new/node_modules/code-server/lib/vscode"
quiet npm install --omit=dev
step 80 "Downloading the parts of extensions"
cd extensions
quiet npm install --omit=dev

step 90 "Removing unneeded files"
cd ..
rm -rf extensions/copilot node_modules/@github/copilot* node_modules/@microsoft/mxc-sdk/bin node_modules/@vscode/windows-process-tree/build
find node_modules/node-pty/prebuilds node_modules/@vscode/ripgrep-universal/bin -mindepth 1 -maxdepth 1 \
  ! -name "linux-$arch" -exec rm -rf {} +
find "$new/node_modules" -name '*.map' -delete
chmod -R go+rX "$new"
rm -rf "$dir"
mv -T "$new" "$dir"
trap - EXIT
step 100 "Installed"
