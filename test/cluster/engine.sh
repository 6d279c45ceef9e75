#!/bin/bash
# engine.sh DIR docker|podman — a private engine for tests. It serves DIR/docker.sock until its input ends, even if its
# parent was killed. Afterwards only DIR/data remains, the cache of images for the next run.
#
# The engine has a separate network, mounts and processes, so that the host's firewall, bridges and mounts do not change. It
# uses one control group that it creates. Containers have no external network. It prints "ready", or why it cannot start,
# with exit status 2. The input lines "restart" and "kill" restart the engine, gracefully or not; the response is "ready".
# Containers of Podman survive that. Exit status 3: another engine uses DIR.
set -euo pipefail
DIR=$(mkdir -p "${1:?usage: engine.sh DIR docker|podman}" && cd "$1" && pwd)
KIND=${2:?docker or podman}
NAME=cove-engine-$(printf %s "$DIR" | sha256sum | cut -c1-8)
exec 9>"$DIR/lock"
flock -n 9 || exit 3

# Engines write to these folders independently of their settings.
OWN_DIRS="/run/containerd /run/docker /run/runc /var/lib/containerd /var/lib/docker /opt/containerd /etc/docker"
[ "$KIND" = docker ] || OWN_DIRS="/run/containers /run/libpod /run/crun /var/lib/containers /etc/containers /etc/cni /dev/shm"

fail() { echo "$*"; exit 2; }

# groups lists the control groups of the engine: one in each hierarchy.
groups() {
  local dir
  if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    echo "/sys/fs/cgroup/$NAME"
    return
  fi
  for dir in /sys/fs/cgroup/*/; do
    ! grep -qE " ${dir%/} cgroup2? " /proc/mounts || echo "$dir$NAME"
  done
}

# end removes everything, including leftovers of a killed run.
end() {
  local init group try
  init=$(cat "$DIR/init.pid" 2>/dev/null || true)
  # All processes inside end with the first one. Its PID may have been reused.
  if [ -n "$init" ] && grep -qsF "$DIR/docker.sock" "/proc/$init/cmdline"; then
    kill -9 "$init" 2>/dev/null || true
    for try in $(seq 200); do [ -e "/proc/$init/ns/pid" ] || break; sleep 0.05; done
  fi
  for group in "/sys/fs/cgroup/$NAME" /sys/fs/cgroup/*/"$NAME"; do # including those that engines create
    for try in $(seq 100); do
      [ -d "$group" ] || break
      find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
      [ ! -d "$group" ] || sleep 0.05
    done
  done
  rm -rf "$DIR"/exec "$DIR"/docker.sock "$DIR"/*.pid
}

wait_ready() { # for a response of an engine with another PID than the argument
  local try
  for try in $(seq 1200); do
    kill -0 "$INIT" 2>/dev/null || break
    [ "$(cat "$DIR/engine.pid" 2>/dev/null)" = "${1:-}" ] ||
      ! curl -fs --unix-socket "$DIR/docker.sock" http://engine/_ping >/dev/null 2>&1 || return 0
    sleep 0.05
  done
  fail "the engine does not start: $(grep -v 'level=info' "$DIR/log" | tail -n 3 | tr '\n' ' ')"
}

end
trap end EXIT
OURS=$(groups)
trap 'exit 1' TERM INT HUP
for group in $OURS; do
  mkdir "$group" 2>/dev/null || fail "cannot create a control group"
  for file in cpus mems; do # a new cpuset of v1 is empty
    [ ! -e "$group/cpuset.$file" ] || [ -n "$(cat "$group/cpuset.$file")" ] || cat "${group%/*}/cpuset.$file" >"$group/cpuset.$file"
  done
done

# The first process inside reaps, and restarts the engine when it ends.
first='
  set -e
  mount --make-rshared /
  mount -t proc proc /proc
  for dir in $2; do mkdir -p "$dir"; mount -t tmpfs tmpfs "$dir"; done
  ip link set lo up
  echo 1 >/proc/sys/net/ipv4/ip_forward
  serve() {
    dockerd --data-root "$1/data" --exec-root "$1/exec" -H "unix://$1/docker.sock" -p "$1/engine.pid" --cgroup-parent "/$2" \
      --storage-driver overlay2 --exec-opt native.cgroupdriver=cgroupfs --bip 172.31.255.1/24 --log-level warn --shutdown-timeout 5
  }
'
# Podman has no setting for the parent group of containers, so this group is the root of its namespace. Groups of v2 that
# contain processes cannot limit their children.
podman='
  for group in $4; do mount --bind "$group" "${group%/*}"; done
  if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    mkdir /sys/fs/cgroup/first
    echo $$ >/sys/fs/cgroup/first/cgroup.procs
  fi
  echo "{\"default\": [{\"type\": \"insecureAcceptAnything\"}]}" >/etc/containers/policy.json
  printf "[[registry]]\nlocation = \"127.0.0.1\"\ninsecure = true\n" >/etc/containers/registries.conf
  mkdir -p "$1/exec"
  cd "$1/exec" # conmon leaves files there
  serve() {
    sh -c "echo \$\$ >\"\$0/engine.pid\"; exec \"\$@\"" "$1" podman --root "$1/data" --runroot "$1/exec" --tmpdir "$1/exec/tmp" \
      --storage-driver overlay --cgroup-manager cgroupfs --events-backend file --log-level warn \
      system service --time 0 "unix://$1/docker.sock"
  }
'
loop='
  while :; do
    rm -f "$1/engine.pid"
    serve "$1" "$3" &
    wait $! || sleep 0.2
  done
'
inside=$first$loop
[ "$KIND" = docker ] || inside='for group in $4; do echo $$ >"$group/cgroup.procs"; done; exec unshare --cgroup bash -c "$5" "$0" "$@"'
setsid setpriv --pdeathsig KILL unshare --mount --propagation slave --net --pid --fork --kill-child bash -c "$inside" \
  "$DIR/docker.sock" "$DIR" "$OWN_DIRS" "$NAME" "$OURS" "$first$podman$loop" >"$DIR/log" 2>&1 </dev/null 9>&- &
OUTER=$!
INIT=
for try in $(seq 6000); do
  read -r INIT _ 2>/dev/null <"/proc/$OUTER/task/$OUTER/children" || true
  [ -z "$INIT" ] || break
  kill -0 "$OUTER" 2>/dev/null || fail "cannot create namespaces: $(tail -n 1 "$DIR/log")"
  sleep 0.01
done
echo "$INIT" >"$DIR/init.pid"
wait_ready
echo ready
while read -r line; do
  old=$(cat "$DIR/engine.pid")
  case $line in
  restart) nsenter -t "$INIT" -p -m kill -TERM "$old" ;;
  kill) nsenter -t "$INIT" -p -m kill -KILL "$old" ;;
  *) continue ;;
  esac
  wait_ready "$old"
  echo ready
done
