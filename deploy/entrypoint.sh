#!/bin/sh
# entrypoint.sh — prepares the user and the workspace of the sandbox from the environment, and executes its server.
#   USER, USER_UID, USER_GID   the user, if started as root (gem, 1000, 1000)
#   WORKSPACE                  working directory of commands (the user's home)
#   PUBLIC_PORT, LOG_DIR       the port (8080) and the folder of log files (/var/log/gem)
#   TZ, SANDBOX_API_KEY, RUN_HOOK_*, BROWSER_*, …   settings of the server: aio serve --help lists them
# Without credentials, the server accepts all clients that reach the port: publish it on 127.0.0.1 only.
set -eu
fail() { echo "entrypoint: $*" >&2; exit 64; }
[ $# = 0 ] || exec "$@"
# Quotes around the value in a Compose file may be part of the value.
case ${WORKSPACE:-} in '"'*'"') WORKSPACE=${WORKSPACE#?} && WORKSPACE=${WORKSPACE%?} && export WORKSPACE ;; esac
as_user=
if [ "$(id -u)" = 0 ]; then
  name=${USER:-gem} uid=${USER_UID:-1000} gid=${USER_GID:-1000}
  [ "$name" != root ] || name=gem
  case $name in *[!a-z0-9_-]* | [!a-z_]*) fail "USER '$name': use lower-case letters, digits, _ and -" ;; esac
  case $uid$gid in *[!0-9]*) fail "USER_UID '$uid' and USER_GID '$gid': use numbers" ;; esac
  if [ "$(id -u "$name" 2>/dev/null)" != "$uid" ] || [ "$(id -g "$name" 2>/dev/null)" != "$gid" ]; then
    id "$name" >/dev/null 2>&1 || usermod -l "$name" gem || fail "cannot rename the user gem to '$name'; is the root filesystem read-only?"
    groupmod -o -g "$gid" gem && usermod -o -u "$uid" -g "$gid" "$name" ||
      fail "cannot give '$name' the IDs $uid and $gid; is the root filesystem read-only?"
    chown "$uid:$gid" /home/gem /var/log/gem
  fi
  home=$(getent passwd "$name" | cut -d: -f6)
  [ "$(stat -c %u "$home" 2>/dev/null)" = "$uid" ] || { mkdir -p "$home" && chown "$uid:$gid" "$home"; }
  workspace=${WORKSPACE:-$home}
  [ -d "$workspace" ] || { mkdir -p "$workspace" && chown "$uid:$gid" "$workspace"; }
  [ -z "${LOG_DIR:-}" ] || [ -d "$LOG_DIR" ] || { mkdir -p "$LOG_DIR" && chown "$uid:$gid" "$LOG_DIR"; }
  chown "$uid:$gid" /var/log/gem 2>/dev/null || : # read-only: no log files
  set -- --user "$name"
  as_user="setpriv --reuid $uid --regid $gid --clear-groups"
fi
if command -v chromium >/dev/null && ! $as_user unshare --user true 2>/dev/null; then
  echo "entrypoint: Chromium will run without its own sandbox, because this container cannot create user namespaces." \
    "Start it with --security-opt seccomp=seccomp.json, the profile next to the image's Dockerfile." >&2
fi
if [ -x /opt/venv/bin/python ]; then AIO_VENV=${AIO_VENV:-/opt/venv}; export AIO_VENV; fi
if [ -z "${SANDBOX_API_KEY:-}${AIO_API_KEY:-}${JWT_PUBLIC_KEY:-}${AUTH_TOKEN:-}" ]; then set -- --insecure "$@"; fi
if [ -w /var/log/gem ]; then LOG_DIR=${LOG_DIR:-/var/log/gem}; export LOG_DIR; fi
exec /usr/local/bin/aio serve --listen "${AIO_LISTEN:-0.0.0.0:${PUBLIC_PORT:-8080}}" "$@"
