# The first process of a system. It runs in new namespaces of processes, mounts and network, and ends with its input.
# SCRIPT is this script, NAME the name of the system's control groups, ROOT the root filesystem, WORK a folder for what is
# written. It prints the control groups.
set -e
if [ -z "${INSIDE:-}" ]; then
  groups=()
  while read -r _ dir type _; do
    group=$dir/$NAME
    [[ $type == cgroup* ]] && mkdir "$group" 2>/dev/null || continue
    for file in cpuset.cpus cpuset.mems; do # a new group of v1 is empty
      [ ! -e "$dir/$file" ] || [ ! -e "$group/$file" ] || cat "$dir/$file" >"$group/$file"
    done
    echo 0 >"$group/cgroup.procs"
    groups+=("$group")
  done </proc/mounts
  INSIDE=1 exec unshare --cgroup bash -c "$SCRIPT" system "${groups[@]}"
fi
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=$ROOT,upperdir=$WORK/upper,workdir=$WORK/work" "$WORK/root"
cd "$WORK/root"
mkdir -p old exchange
mount --bind "$WORK/exchange" exchange
for dir in home root tmp var/lib/cove; do # disks of sandboxes are overlays, which cannot be on another overlay
  mkdir -p "$dir" "$WORK/disk/$dir"
  mount --bind "$WORK/disk/$dir" "$dir"
done
chmod 1777 tmp
mount --rbind /dev dev
mount --rbind /sys sys
for group; do
  if [ -e "$group/cgroup.subtree_control" ]; then # of v2, where a group with groups below has no processes
    mkdir "$group/first"
    echo 0 >"$group/first/cgroup.procs"
    for controller in $(cat "$group/cgroup.controllers"); do echo "+$controller" >"$group/cgroup.subtree_control"; done
  fi
  mount --bind "$group" ".${group%/*}" # each system has its own: hubs name groups after their state folder
done
mount -t proc proc proc
pivot_root . old
cd /
umount -l old
rmdir old
echo "$*"
while read -r _; do :; done # bash reaps orphans meanwhile
