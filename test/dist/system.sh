# The first process of a system. It runs in new namespaces of processes, mounts and network, and ends with its input.
# ROOT is the root filesystem, WORK a folder for what is written.
set -e
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
mount -t proc proc proc
pivot_root . old
cd /
umount -l old
rmdir old
echo ready
while read -r _; do :; done # bash reaps orphans meanwhile
