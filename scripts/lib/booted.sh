# shellcheck shell=bash
# A machine with systemd for tests: this machine's own files under an overlay, booted in namespaces. Units run with all of
# their sandbox, and nothing of the machine changes. Wants log.sh, check.sh, $root, $self (the script), root's rights.
#
#   booted_main "$@"    first of all: the script is called again, to be the machine's first processes
#   booted_up           boots; where that cannot be, says why in $booted_why and fails
#   inside CMD...       runs in it
#   put_inside FILE     makes a file there

: "${root:?}" "${self:?}"
# What would reach beyond the namespaces, or has no work here.
readonly MASKED=(systemd-{sysctl,udevd,udev-trigger,modules-load,binfmt,timesyncd,resolved,networkd,random-seed,remount-fs}.service
  systemd-{update-utmp,tmpfiles-setup-dev}.service kmod-static-nodes.service apparmor.service nftables.service
  proc-sys-fs-binfmt_misc.automount systemd-udevd-{control,kernel}.socket
  {apt-daily,apt-daily-upgrade,dpkg-db-backup,fstrim,e2scrub_all,logrotate,man-db}.timer)

hierarchies() { awk '($3 == "cgroup" || $3 == "cgroup2") && $2 ~ "^/sys/fs/cgroup/" { print $2 }' /proc/self/mounts; }

# boot DIR   in a branch of its own in every cgroup hierarchy; becomes the parent of the machine's init
_booted_boot() {
  local id mnt file
  id=$(<"$1/cgroup")
  while read -r mnt; do
    mkdir "$mnt/$id"
    # A new v1 cpuset has no CPU and no memory node, and refuses processes until it has.
    for file in cpuset.cpus cpuset.mems; do
      [ ! -f "$mnt/$file" ] || [ -f "$mnt/cgroup.controllers" ] || cat "$mnt/$file" >"$mnt/$id/$file"
    done
    echo "$BASHPID" >"$mnt/$id/cgroup.procs"
  done < <(hierarchies)
  exec unshare --cgroup --mount --net --pid --uts --ipc --fork --kill-child --propagation private -- "$self" __init "$1"
}

# init DIR   mounts and becomes systemd
_booted_init() {
  local dir=$1 top=$1/root id pid mnt unit node
  id=$(<"$dir/cgroup")
  # This /proc is still the machine's, so it knows our pid out there.
  read -r pid _ </proc/self/stat
  mount -t overlay overlay -o "lowerdir=/,upperdir=$dir/upper,workdir=$dir/work" "$top"
  mount -t proc proc "$top/proc"
  mount -t sysfs sysfs "$top/sys"
  mount -t tmpfs -o mode=755 cgroups "$top/sys/fs/cgroup"
  while read -r mnt; do
    mkdir -p "$top$mnt"
    mount --bind "$mnt/$id" "$top$mnt"
  done < <(hierarchies)
  mount -t tmpfs -o mode=755 run "$top/run"
  mount -t tmpfs tmp "$top/tmp"
  # The checkout may itself lie in what was just covered.
  case $root in
    /tmp/* | /run/*)
      mkdir -p "$top$root"
      mount --bind "$root" "$top$root"
      ;;
  esac
  mount -t tmpfs -o mode=755 dev "$top/dev"
  mkdir "$top"/dev/{net,pts,shm}
  for node in null zero full random urandom tty kvm net/tun; do
    [ ! -e "/dev/$node" ] || cp -a "/dev/$node" "$top/dev/$node"
  done
  mount -t devpts -o newinstance,ptmxmode=0666,mode=620 devpts "$top/dev/pts"
  ln -s pts/ptmx "$top/dev/ptmx"
  ln -s /proc/self/fd "$top/dev/fd"
  mount -t tmpfs shm "$top/dev/shm"
  for unit in "${MASKED[@]}"; do ln -sf /dev/null "$top/etc/systemd/system/$unit"; done
  rm -rf "$top"/etc/{fstab,gvm} "$top"/var/lib/{gvm,gvm-gateway} "$top"/etc/systemd/system/gvm* "$top/usr/local/bin/gvm"
  # Where this machine is a container, packages may start nothing in it.
  rm -f "$top/usr/sbin/policy-rc.d"
  : >"$top/etc/machine-id"
  echo "$pid" >"$dir/pid"
  ip link set lo up
  cd "$top" || exit
  mkdir .old
  pivot_root . .old
  umount --lazy /.old
  rmdir /.old
  exec env -i container=gvm-test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --unit=basic.target
}

booted_main() {
  case "${1:-}" in
    __boot) _booted_boot "$2" ;;
    __init) _booted_init "$2" ;;
  esac
}

_booted_down() {
  local mnt
  trap '' INT TERM
  [ ! -s "$dir/pid" ] || kill -KILL "$(<"$dir/pid")" 2>/dev/null || true
  [ -z "$_booted_process" ] || wait "$_booted_process" 2>/dev/null || true
  while read -r mnt; do
    find "$mnt/$(<"$dir/cgroup")" -depth -type d -exec rmdir {} + 2>/dev/null || true
  done < <(hierarchies)
  rm -rf --one-file-system "$dir"
}

inside() { nsenter --target "$(<"$dir/pid")" --all -- env -i HOME=/root LANG=C.UTF-8 PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"; }
# put_inside FILE   what stdin says
put_inside() { inside tee "$1" >/dev/null; }
main_pid() { inside systemctl show --property MainPID --value "$1"; }
_booted_answers() { [ -s "$dir/pid" ] && [[ $(inside systemctl is-system-running 2>/dev/null) =~ running|degraded ]]; }

# booted_up   sets dir, its folder
booted_up() {
  booted_why=''
  [ -x /lib/systemd/systemd ] || {
    booted_why="systemd is not installed here"
    return 1
  }
  dir=$(mktemp -d /var/tmp/gvm-systemd.XXXXXX)
  mkdir "$dir"/{upper,work,root}
  # The name by which scripts/private-host.sh knows what a killed run has left.
  echo "gvm-private.$$.$(awk '{ print $22 }' "/proc/$$/stat")" >"$dir/cgroup"
  _booted_process=''
  trap _booted_down EXIT
  trap 'exit 130' INT TERM HUP
  stage "booting systemd"
  setpriv --pdeathsig KILL "$self" __boot "$dir" </dev/null >"$dir/log" 2>&1 &
  _booted_process=$!
  within 60 _booted_answers || {
    # shellcheck disable=SC2034 # of whoever sources this
    booted_why="systemd does not come up in namespaces here: $(tail -n 1 "$dir/log")"
    return 1
  }
  note "$(inside systemctl --version | head -n 1), $(inside systemctl is-system-running || true)"
}
