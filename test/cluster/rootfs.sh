#!/bin/bash
# rootfs.sh OUT.tar PACKAGE… — the root filesystem of Debian with packages, as a tar archive, where no image registry
# can be reached. It needs root and a mirror of Debian; what it mounts ends with it.
set -euo pipefail
out=$1; shift
dir=$(mktemp -d)
trap 'rm -rf --one-file-system "$dir" "$out.$$"' EXIT
release=$(. /etc/os-release && [ "$ID" = debian ] && echo "$VERSION_CODENAME" || echo bookworm)
# With the mirror that this machine uses, if it is a Debian, too.
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 2>/dev/null | grep -m1 -v security | sed 's|/$||' || true)
debootstrap --variant=minbase "$release" "$dir/root" ${mirror:+"$mirror"} >&2
for file in /etc/apt/sources.list.d/debian.sources /etc/apt/apt.conf.d/*proxy*; do
  [ ! -f "$file" ] || { mkdir -p "$dir/root${file%/*}"; cp "$file" "$dir/root$file"; }
done
[ ! -f "$dir/root/etc/apt/sources.list.d/debian.sources" ] || rm -f "$dir/root/etc/apt/sources.list"
cp /etc/resolv.conf "$dir/root/etc/resolv.conf"
chroot "$dir/root" apt-get update -q >&2
chroot "$dir/root" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@" >&2
chroot "$dir/root" apt-get clean
rm -rf "$dir"/root/var/lib/apt/lists/* "$dir"/root/etc/apt/apt.conf.d/*proxy* "$dir/root/etc/resolv.conf"
tar -C "$dir/root" --numeric-owner -cf "$out.$$" .
mv "$out.$$" "$out"
