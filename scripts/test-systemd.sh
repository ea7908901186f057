#!/usr/bin/env bash
# quickstart.sh on a machine with systemd: this machine's own files under an overlay, booted in namespaces. The units
# run with all of their sandbox. Nothing of the machine changes.
#   test-systemd.sh [BINARY]     a built gvm; else the dev build is made
# shellcheck disable=SC2016,SC2317 # expanded inside; checks are called by their name
set -euo pipefail
self=$(readlink -f "$0")
root=$(dirname "$(dirname "$self")")
# shellcheck source-path=SCRIPTDIR source=lib/log.sh
. "$root/scripts/lib/log.sh"
# shellcheck source-path=SCRIPTDIR source=lib/check.sh
. "$root/scripts/lib/check.sh"
# shellcheck source-path=SCRIPTDIR source=lib/setup.sh
. "$root/scripts/lib/setup.sh"

readonly MEMBER=quick
# What would reach beyond the namespaces, or has no work here.
readonly MASKED=(systemd-{sysctl,udevd,udev-trigger,modules-load,binfmt,timesyncd,resolved,networkd,random-seed,remount-fs}.service
  systemd-{update-utmp,tmpfiles-setup-dev}.service kmod-static-nodes.service apparmor.service nftables.service
  proc-sys-fs-binfmt_misc.automount systemd-udevd-{control,kernel}.socket
  {apt-daily,apt-daily-upgrade,dpkg-db-backup,fstrim,e2scrub_all,logrotate,man-db}.timer)

hierarchies() { awk '($3 == "cgroup" || $3 == "cgroup2") && $2 ~ "^/sys/fs/cgroup/" { print $2 }' /proc/self/mounts; }

# --- the machine with systemd -------------------------------------------------------------------------------------------

# boot DIR   in a branch of its own in every cgroup hierarchy; becomes the parent of the machine's init
boot() {
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
init() {
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
  : >"$top/etc/machine-id"
  echo "$pid" >"$dir/pid"
  ip link set lo up
  cd "$top"
  mkdir .old
  pivot_root . .old
  umount --lazy /.old
  rmdir /.old
  exec env -i container=gvm-test PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --unit=basic.target
}

case "${1:-}" in
  __boot) boot "$2" ;;
  __init) init "$2" ;;
esac

# --- the test -----------------------------------------------------------------------------------------------------------

[ "$(id -u)" = 0 ] || die "this test needs root (namespaces)" "sudo $0"
[ -x /lib/systemd/systemd ] || {
  skip "quickstart under systemd" "systemd is not installed here"
  totals
  exit
}
if [ -n "${1:-}" ]; then built=$(readlink -f "$1"); else stage "building gvm, the dev build" build_gvm dev; fi
stage "building the image tiny"
image=$("$root/vm-images/build.sh" tiny 2>/dev/null | tail -n 1)
[ -e "$image/image.toml" ] || die "the image tiny could not be built" "$root/vm-images/build.sh tiny"

dir=$(mktemp -d /var/tmp/gvm-systemd.XXXXXX)
mkdir "$dir"/{upper,work,root}
# The name by which scripts/private-host.sh knows what a killed run has left.
echo "gvm-private.$$.$(awk '{ print $22 }' "/proc/$$/stat")" >"$dir/cgroup"
booted=''
cleanup() {
  local mnt
  trap '' INT TERM
  [ ! -s "$dir/pid" ] || kill -KILL "$(<"$dir/pid")" 2>/dev/null || true
  [ -z "$booted" ] || wait "$booted" 2>/dev/null || true
  while read -r mnt; do
    find "$mnt/$(<"$dir/cgroup")" -depth -type d -exec rmdir {} + 2>/dev/null || true
  done < <(hierarchies)
  rm -rf --one-file-system "$dir"
}
trap cleanup EXIT
trap 'exit 130' INT TERM HUP

inside() { nsenter --target "$(<"$dir/pid")" --all -- env -i HOME=/root LANG=C.UTF-8 PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"; }
answers() { [ -s "$dir/pid" ] && [[ $(inside systemctl is-system-running 2>/dev/null) =~ running|degraded ]]; }
as_member() { inside runuser -u "$MEMBER" -- env HOME="/home/$MEMBER" "$@" </dev/null; }
is() { same "$1" "$("${@:2}" 2>&1 || true)"; }
main_pid() { inside systemctl show --property MainPID --value "$1"; }

stage "booting systemd"
setpriv --pdeathsig KILL "$self" __boot "$dir" </dev/null >"$dir/log" 2>&1 &
booted=$!
within 60 answers || {
  skip "quickstart under systemd" "systemd does not come up in namespaces here: $(tail -n 1 "$dir/log")"
  totals
  exit
}
inside mkdir -p /var/cache/gvm/images
inside cp -a "$image" /var/cache/gvm/images/
inside useradd --create-home --shell /bin/bash "$MEMBER"
note "$(inside systemctl --version | head -n 1), $(inside systemctl is-system-running || true)"

quickstart() { inside SUDO_USER="$MEMBER" "$root/scripts/quickstart.sh" "$@" </dev/null; }
first() { quickstart --binary "$built" 2>&1 | tee "$dir/first"; }
second() { quickstart --binary "$built" 2>&1 | tee "$dir/second"; }
restarts() {
  local before
  before=$(main_pid gvm)
  inside systemctl kill --signal KILL --kill-whom main gvm
  within 30 is_new "$before"
}
is_new() { [[ $(main_pid gvm) != "$1" && $(main_pid gvm) != 0 ]] && inside systemctl is-active gvm; }
no_fault() { ! inside gvm doctor | grep '^fail'; }
no_warning() { is '-- No entries --' inside journalctl --no-pager --priority warning --unit gvm --unit gvm-gateway; }
domains() { inside virsh -q -c qemu:///system list --name; }

stage "quickstart, first run"
check "it succeeds" first
check "it logged in" grep -q '^Linux dev ' "$dir/first"
check "systemd runs the manager" is active inside systemctl is-active gvm.service
check "and the gateway, not as root" is gvm-gateway inside bash -c 'stat -c %U /proc/$(systemctl show --property MainPID --value gvm-gateway)'
check "both start at boot" is $'enabled\nenabled' inside systemctl is-enabled gvm.service gvm-gateway.service
check "the sandbox hinders neither: no fault" no_fault
check "no warning" no_warning
check "the member uses it" grep -q '^dev .*running' <(as_member gvm list)
stage "quickstart, second run"
pids="$(main_pid gvm) $(main_pid gvm-gateway)"
check "it succeeds" second
check "it changed nothing" bash -c "! grep -E '    (wrote|added) ' '$dir/second'"
check "it restarted nothing" is "$pids" echo "$(main_pid gvm) $(main_pid gvm-gateway)"
stage "ends"
check "a killed manager is started again" restarts
check "the machine ran on" is running as_member bash -c "gvm -o json show dev | sed -n 's/.*\"state\": *\"\([a-z]*\)\".*/\1/p' | head -n 1"
check "--stop" quickstart --stop
check "both are stopped" is $'inactive\ninactive' inside systemctl is-active gvm.service gvm-gateway.service
check "machines run on" grep -q '^gvm-' <(domains)
check "--uninstall" quickstart --uninstall
check "the program is gone" bash -c "[ ! -e '$dir/upper/usr/local/bin/gvm' ]"
check "no unit is left" is '' inside bash -c 'ls -d /etc/systemd/system/gvm* /etc/systemd/system/*/gvm* 2>/dev/null'
stage_end
totals
