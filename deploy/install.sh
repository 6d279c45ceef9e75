#!/bin/sh
# install.sh slim|full — installs the missing packages of its packages file in an image, as root; "full" adds
# Python packages, VS Code and JupyterLab. Downloads nothing if everything is installed.
set -eu
here=$(dirname "$0")
missing=
while read -r package; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q '^install ok' || missing="$missing $package"
done <"$here/packages/$1"
if [ -n "$missing" ]; then
  apt-get update -q
  # shellcheck disable=SC2086
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $missing
  apt-get clean
  rm -rf /var/lib/apt/lists/*
fi
if [ "$1" = slim ]; then
  id gem >/dev/null 2>&1 || useradd -m -u 1000 -s /bin/bash gem
  mkdir -p /var/log/gem /etc/sudoers.d
  chown gem:gem /var/log/gem
  printf '%%gem ALL=(ALL) NOPASSWD: ALL\n' >/etc/sudoers.d/gem
  chmod 440 /etc/sudoers.d/gem
  exit
fi
if ! cmp -s "$here/requirements.txt" /opt/venv/requirements.txt; then
  python3 -m venv /opt/venv
  /opt/venv/bin/pip install --no-cache-dir --disable-pip-version-check -r "$here/requirements.txt"
  cp "$here/requirements.txt" /opt/venv/
fi
for recipe in "$here"/recipe/*.sh; do
  bash "$recipe" "/usr/local/lib/cove/components/$(basename "$recipe" .sh)"
done
rm -rf /root/.npm
