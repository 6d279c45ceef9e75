#!/bin/bash
# rootfs.sh OUT.tar INSTALL slim|full [FROM.tar [COMPONENTS]] — creates the root filesystem of Debian with the packages of
# INSTALL/install.sh as a tar archive, without an image registry. It is based on FROM.tar, the archive of slim, if given, and
# contains the components in a folder. Requires root and a mirror of Debian.
set -euo pipefail
out=$1 install=$2 targets=$3 from=${4:-} components=${5:-}
dir=$(mktemp -d)
trap 'rm -rf --one-file-system "$dir" "$out.$$"' EXIT
if [ -f "$from" ]; then
  mkdir "$dir/root"
  tar -C "$dir/root" --numeric-owner -xf "$from"
else
  release=$(. /etc/os-release && [ "$ID" = debian ] && echo "$VERSION_CODENAME" || echo bookworm)
  # Use the mirror of this machine if it runs Debian.
  mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null | grep -m1 -v security | sed 's|/$||' || true)
  [ "$targets" = slim ] || targets="slim $targets"
  debootstrap --variant=minbase "$release" "$dir/root" ${mirror:+"$mirror"} >&2
fi
for file in /etc/apt/sources.list.d/debian.sources /etc/apt/apt.conf.d/*proxy* /etc/resolv.conf; do
  [ ! -f "$file" ] || { mkdir -p "$dir/root${file%/*}"; cp "$file" "$dir/root$file"; }
done
[ ! -f "$dir/root/etc/apt/sources.list.d/debian.sources" ] || rm -f "$dir/root/etc/apt/sources.list"
if [ -n "$components" ]; then
  mkdir -p "$dir/root/usr/local/lib/cove/components"
  cp -a "$components"/. "$dir/root/usr/local/lib/cove/components"
fi
mkdir "$dir/root/install"
cp -r "$install"/. "$dir/root/install"
# The certificates of this machine, whose network proxy may have a private one.
ca=/etc/ssl/certs/ca-certificates.crt
if [ -f "$ca" ] && [ -f "$dir/root$ca" ]; then mv "$dir/root$ca" "$dir/ca.crt"; cp "$ca" "$dir/root$ca"; fi
# A partial result is discarded after a power failure, so synchronous writes are unnecessary.
echo force-unsafe-io >"$dir/root/etc/dpkg/dpkg.cfg.d/unsafe-io"
for target in $targets; do
  chroot "$dir/root" env -u PIP_FIND_LINKS PIP_CERT="$ca" TMPDIR=/tmp /install/install.sh "$target" >&2
done
[ ! -f "$dir/ca.crt" ] || mv "$dir/ca.crt" "$dir/root$ca"
rm -rf "$dir"/root/{install,etc/dpkg/dpkg.cfg.d/unsafe-io,etc/resolv.conf,root/.cache} \
  "$dir"/root/etc/apt/apt.conf.d/*proxy* "$dir"/root/tmp/*
tar -C "$dir/root" --numeric-owner -cf "$out.$$" .
mv "$out.$$" "$out"
