# Functions of the recipes, which run after this text. They print their progress as "@STEP".
set -euo pipefail
system=$1 # yes: they may install Debian packages

step() { echo "@$*"; }
fail() { echo "$*" >&2; exit 1; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }

# debian PACKAGE: installs a Debian package.
debian() {
  [ "$system" = yes ] || fail "packages of the system are installed automatically only in a hub's sandboxes"
  command -v apt-get >/dev/null || fail "apt-get is not installed"
  as_root true 2>/dev/null || fail "the user cannot run sudo without a password"
  step "reading the lists of packages"
  as_root apt-get -qq update >/dev/null
  # Scripts of packages write to file 1, and sudo closes files from 3.
  local install='exec apt-get -qq -y --no-install-recommends -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 -o APT::Status-Fd=3 install "$1"'
  as_root env DEBIAN_FRONTEND=noninteractive sh -c "$install 3>&1 >/dev/null" sh "$1" </dev/null |
    while IFS=: read -r kind _ percent text; do # such as pmstatus:r-base-core:45.2:Unpacking r-base-core (amd64)
      case $kind in ??status) step "$text, ${percent%.*} %" ;; esac
    done
}
