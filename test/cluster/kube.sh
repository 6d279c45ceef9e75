#!/bin/bash
# kube.sh DIR PROGRAM LINK HOST BOX PODS SERVICES [control-plane] — a private Kubernetes node for tests: etcd, API server,
# controllers, scheduler, containerd, kubelet and the proxy of Services. It runs until its input ends, even if its parent was
# killed. Afterwards only DIR/log remains. Descriptor 3 is a lock of DIR; DIR/keys contains the certificates and kubeconfig
# files of all parts; PROGRAM contains the parts of Kubernetes; containerd, runc, runsc and their shims are on PATH.
# DIR/registry/NAME/hosts.toml is the address of the registry NAME.
#
# The cluster has a separate network, mounts and processes. On the host it uses one network link LINK (address HOST here, BOX
# inside), with routes to PODS and SERVICES, and one control group. Pods have no external network. It prints "ready" when all
# parts have started, or why they have not, with exit status 2. The input line "kill PART" kills a part, which is restarted;
# "csi PROGRAMS" starts a driver of volumes with snapshots and its controllers from that folder. The response is "ready".
# With control-plane there is no node: all addresses of PODS are in the network of the cluster, where tests can listen for
# simulated Pods.
set -euo pipefail
DIR=$1 PROGRAM=$2 LINK=$3 HOST=$4 BOX=$5 PODS=$6 SERVICES=$7 ONLY=${8:-}
NAME=$LINK

# These programs write to these folders independently of their settings.
OWN_DIRS="/run/containerd /run/runc /run/runsc /run/netns /var/lib/cni /var/lib/kubelet /var/log/containers /var/log/pods"
OWN_DIRS="$OWN_DIRS /opt/containerd /usr/libexec/kubernetes"

fail() { echo "$*"; exit 2; }

groups() { # the control groups of the cluster: one in each v1 hierarchy, or one in the v2 hierarchy
  local dir
  if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
    echo "/sys/fs/cgroup/$NAME"
    return
  fi
  for dir in /sys/fs/cgroup/*/; do
    ! grep -q " ${dir%/} cgroup " /proc/mounts || echo "$dir$NAME"
  done
}

# clear removes everything except the keys, including leftovers of a killed run.
clear() {
  local init group try
  init=$(cat "$DIR/init.pid" 2>/dev/null || true)
  # All processes inside end with the first one. Its PID may have been reused.
  if [ -n "$init" ] && grep -qsF "$DIR/containerd.sock" "/proc/$init/cmdline"; then
    kill -9 "$init" 2>/dev/null || true
    for try in $(seq 400); do [ -e "/proc/$init/ns/pid" ] || break; sleep 0.05; done
  fi
  ip link del "$LINK" 2>/dev/null || true
  for group in "/sys/fs/cgroup/$NAME" /sys/fs/cgroup/*/"$NAME"; do # including those that parts create
    for try in $(seq 100); do
      [ -d "$group" ] || break
      find "$group" -depth -type d -exec rmdir {} + 2>/dev/null || true
      [ ! -d "$group" ] || sleep 0.05
    done
  done
  rm -rf --one-file-system "$DIR"/{containerd,containerd.sock,containerd.sock.ttrpc,cni,csi,ipam,etcd,kubelet,pods,plugins} \
    "$DIR"/{registry,volumes,part} "$DIR"/*.pid "$DIR"/*.toml "$DIR"/*.yaml
}

clear
trap 'clear; rm -rf "$DIR/keys"' EXIT
trap 'exit 1' TERM INT HUP
rm -rf "$DIR/log"
mkdir -p "$DIR"/{log,part,etcd,cni,csi,kubelet/seccomp,registry,volumes}
for group in $(groups); do
  mkdir "$group" 2>/dev/null || fail "cannot create a control group"
  for file in cpus mems; do # a new cpuset of v1 is empty
    [ ! -e "$group/cpuset.$file" ] || [ -n "$(cat "$group/cpuset.$file")" ] || cat "${group%/*}/cpuset.$file" >"$group/cpuset.$file"
  done
done

cat >"$DIR/containerd.toml" <<CONTAINERD
version = 2
root = "$DIR/containerd"
state = "/run/containerd/state" # root of a user namespace can access it, unlike the home of the host's root
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs"]
[grpc]
  address = "$DIR/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "registry.test/pause:1"
  netns_mounts_under_state_dir = true
  restrict_oom_score_adj = true # lowering it requires a capability that root in a container may lack
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$DIR/cni"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "$DIR/registry"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runsc]
    runtime_type = "io.containerd.runsc.v1"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runsc.options]
      TypeUrl = "io.containerd.runsc.v1.options"
      ConfigPath = "$DIR/runsc.toml"
CONTAINERD
cat >"$DIR/runsc.toml" <<RUNSC
log_level = "warning"
[runsc_config]
  platform = "systrap"
RUNSC
cat >"$DIR/cni/10-bridge.conflist" <<CNI
{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "pods0", "isGateway": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": "$DIR/ipam", "ranges": [[{"subnet": "$PODS"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
CNI
cat >"$DIR/kubelet.yaml" <<KUBELET
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $DIR/keys/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $DIR/keys/kubelet.crt
tlsPrivateKeyFile: $DIR/keys/kubelet.key
containerRuntimeEndpoint: unix://$DIR/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /$NAME
failCgroupV1: false
failSwapOn: false
resolvConf: /etc/resolv.conf
maxPods: 400
podLogsDir: $DIR/pods
volumePluginDir: $DIR/plugins
readOnlyPort: 0
makeIPTablesUtilChains: false
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
serializeImagePulls: false
kubeAPIQPS: 200
kubeAPIBurst: 400
nodeStatusUpdateFrequency: 5s
KUBELET

# part NAME COMMAND… starts a part inside, and restarts it when it ends.
PART='part() {
    local name=$1
    shift
    while :; do
      "$@" >>"$DIR/log/$name" 2>&1 &
      echo $! >"$DIR/part/$name.new"
      mv "$DIR/part/$name.new" "$DIR/part/$name"
      wait $! || true
      sleep 0.1
    done &
  }'

# The first process inside reaps.
setsid setpriv --pdeathsig KILL unshare --mount --propagation slave --net --pid --fork --kill-child bash -c '
  set -e
  DIR=$2 PROGRAM=$3 BOX=$4 HOST=$5 PODS=$6 SERVICES=$7 ONLY=$9
  mount --make-rshared /
  mount -t proc proc /proc
  for dir in $8 "$DIR/etcd" "$DIR/csi"; do mkdir -p "$dir"; mount -t tmpfs tmpfs "$dir"; done
  ip link set lo up
  until ip link show dev eth0 >/dev/null 2>&1; do sleep 0.01; done
  ip addr add "$BOX/30" dev eth0
  ip link set eth0 up
  ip route add default via "$HOST" # it forwards nothing, but programs require a default route
  echo 1 >/proc/sys/net/ipv4/ip_forward

  '"$PART"'
  keys=$DIR/keys
  client="--kube-api-qps=200 --kube-api-burst=400 --profiling=false --secure-port=0 --leader-elect=false"
  more=
  if [ -n "$ONLY" ]; then
    ip route add local "$PODS" dev lo
    more=--node-monitor-grace-period=10m # simulated nodes report rarely
  fi
  [ -n "$ONLY" ] || part containerd containerd -c "$DIR/containerd.toml" --log-level warn
  part etcd "$PROGRAM" etcd --data-dir "$DIR/etcd/data" --unsafe-no-fsync --log-level warn \
    --listen-client-urls http://127.0.0.1:2379 --advertise-client-urls http://127.0.0.1:2379 --listen-peer-urls http://127.0.0.1:2380
  part apiserver "$PROGRAM" apiserver --etcd-servers http://127.0.0.1:2379 --secure-port 6443 --advertise-address "$BOX" \
    --service-cluster-ip-range "$SERVICES" --authorization-mode Node,RBAC --enable-admission-plugins NodeRestriction \
    --client-ca-file "$keys/ca.crt" --profiling=false \
    --tls-cert-file "$keys/apiserver.crt" --tls-private-key-file "$keys/apiserver.key" --kubelet-preferred-address-types InternalIP \
    --kubelet-certificate-authority "$keys/ca.crt" --kubelet-client-certificate "$keys/admin.crt" --kubelet-client-key "$keys/admin.key" \
    --service-account-issuer https://kubernetes.default.svc --service-account-key-file "$keys/accounts.pub" \
    --service-account-signing-key-file "$keys/accounts.key"
  part controllers "$PROGRAM" controllers --kubeconfig "$keys/controllers.kubeconfig" --use-service-account-credentials \
    --root-ca-file "$keys/ca.crt" --service-account-private-key-file "$keys/accounts.key" --cluster-signing-cert-file "$keys/ca.crt" \
    --cluster-signing-key-file "$keys/ca.key" $client $more
  part scheduler "$PROGRAM" scheduler --kubeconfig "$keys/scheduler.kubeconfig" $client
  [ -n "$ONLY" ] || part kubelet "$PROGRAM" kubelet --config "$DIR/kubelet.yaml" --kubeconfig "$keys/kubelet.kubeconfig" \
    --root-dir "$DIR/kubelet" --hostname-override node --node-ip "$BOX"
  [ -n "$ONLY" ] || part proxy "$PROGRAM" proxy --kubeconfig "$keys/proxy.kubeconfig" --hostname-override node \
    --cluster-cidr "$PODS" --conntrack-max-per-core 0
  while :; do wait -n || true; done
' "$DIR/containerd.sock" "$DIR/containerd.sock" "$DIR" "$PROGRAM" "$BOX" "$HOST" "$PODS" "$SERVICES" "$OWN_DIRS" "$ONLY" \
  >"$DIR/log/box" 2>&1 </dev/null 3>&- &
OUTER=$!
INIT=
for try in $(seq 6000); do
  read -r INIT _ 2>/dev/null <"/proc/$OUTER/task/$OUTER/children" || true
  [ -z "$INIT" ] || break
  kill -0 "$OUTER" 2>/dev/null || fail "cannot create namespaces: $(tail -n 1 "$DIR/log/box")"
  sleep 0.01
done
echo "$INIT" >"$DIR/init.pid"
ip link add "$LINK" type veth peer name eth0 netns "$INIT" || fail "cannot create a network link"
ip addr add "$HOST/30" dev "$LINK"
ip link set "$LINK" up
ip route replace "$PODS" via "$BOX" dev "$LINK"
ip route replace "$SERVICES" via "$BOX" dev "$LINK"
LAST=proxy
[ -z "$ONLY" ] || LAST=scheduler
for try in $(seq 3000); do
  [ ! -e "$DIR/part/$LAST" ] || break
  kill -0 "$INIT" 2>/dev/null || fail "the parts are not started: $(tail -n 1 "$DIR/log/box")"
  sleep 0.02
done
echo ready

# csi PROGRAMS starts the driver and its controllers. They end with the first process inside.
csi() {
  nsenter -t "$INIT" -m -n -p bash -c '
    set -e
    DIR=$1 PROGRAMS=$2
    '"$PART"'
    config="--kubeconfig $DIR/keys/admin.kubeconfig --kube-api-qps=100 --kube-api-burst=200"
    part csi-driver "$PROGRAMS/csi" "$DIR/csi" "$DIR/kubelet/plugins_registry"
    part csi-provisioner "$PROGRAMS/csi-provisioner" --csi-address "$DIR/csi/csi.sock" $config --retry-interval-max 5s
    # Only a resync finds objects that were deleted while the driver failed.
    part csi-snapshotter "$PROGRAMS/csi-snapshotter" --csi-address "$DIR/csi/csi.sock" $config --retry-interval-max 5s --resync-period 5s
    part snapshot-controller "$PROGRAMS/snapshot-controller" $config --retry-interval-max 5s --resync-period 5s
    wait
  ' "$DIR/containerd.sock" "$DIR" "$1" >"$DIR/log/csi" 2>&1 </dev/null 3>&- &
  disown # do not report its end
}

while read -r what part; do
  if [ "$what" = csi ]; then
    csi "$part"
    echo ready
  fi
  [ "$what" = kill ] || continue
  old=$(cat "$DIR/part/$part")
  nsenter -t "$INIT" -p -m kill -KILL "$old" || true # it may have ended
  until [ "$(cat "$DIR/part/$part")" != "$old" ]; do sleep 0.02; done
  echo ready
done
