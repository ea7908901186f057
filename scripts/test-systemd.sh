#!/usr/bin/env bash
# quickstart.sh on a machine with systemd that is booted in namespaces, where the units run with all of their sandbox; and
# what that sandbox holds.
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
# shellcheck source-path=SCRIPTDIR source=lib/booted.sh
. "$root/scripts/lib/booted.sh"
booted_main "$@"

readonly MEMBER=quick RULE=/etc/polkit-1/rules.d/50-gvm.rules

[ "$(id -u)" = 0 ] || die "this test needs root (namespaces)" "sudo $0"
if [ -n "${1:-}" ]; then built=$(readlink -f "$1"); else stage "building gvm, the dev build" build_gvm dev; fi
stage "building the image tiny"
image=$("$root/vm-images/build.sh" tiny 2>/dev/null | tail -n 1)
[ -e "$image/image.toml" ] || die "the image tiny could not be built" "$root/vm-images/build.sh tiny"

as_member() { inside runuser -u "$MEMBER" -- env HOME="/home/$MEMBER" "$@" </dev/null; }
is() { same "$1" "$("${@:2}" 2>&1 || true)"; }

booted_up || {
  skip "quickstart under systemd" "$booted_why"
  totals
  exit
}
inside mkdir -p /var/cache/gvm/images
inside cp -a "$image" /var/cache/gvm/images/
inside useradd --create-home --shell /bin/bash "$MEMBER"

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


# sandboxed UNIT CMD   what a shell of that unit, with all of its sandbox, finds of CMD
sandboxed() {
  local try=/usr/local/bin/gvm-try
  printf '#!/bin/bash\n%s\n' "$2" | put_inside "$try"
  inside chmod +x "$try"
  inside bash -c "mkdir -p /run/systemd/system
    sed -E '/^(Exec|Restart|Type)/d; s,^\[Service\],&\nType=oneshot\nExecStart=$try,' /etc/systemd/system/$1.service >/run/systemd/system/gvm-try.service"
  inside systemctl daemon-reload
  inside systemctl start gvm-try.service || {
    inside journalctl --no-pager -o cat -u gvm-try.service | tail -n 5
    return 1
  }
}
looks() { inside runuser -u "$1" -- virsh -q -r -c qemu:///system list --all </dev/null; }
sees_nothing() {
  local said
  ! said=$(looks "$1" 2>&1) || return 1
  [[ $said == *'access denied'* || $said == *'not authorized'* || $said == *'authentication'* ]] || { echo "$said"; return 1; }
}

stage "quickstart, first run"
check "it succeeds" first
check "it logged in" grep -q '^Linux dev ' "$dir/first"
check "systemd runs the manager" is active inside systemctl is-active gvm.service
check "and the gateway, not as root" is gvm-gateway inside bash -c 'stat -c %U /proc/$(systemctl show --property MainPID --value gvm-gateway)'
check "both start at boot" is $'enabled\nenabled' inside systemctl is-enabled gvm.service gvm-gateway.service
check "the sandbox hinders neither: no fault" no_fault
check "no warning" no_warning
check "the member uses it" grep -q '^dev .*running' <(as_member gvm list)
stage "what the sandbox holds"
check "the manager writes where cards are bound" sandboxed gvm '[ -w /sys/bus ] && [ -w /sys/devices ]'
check "and to nothing else of the kernel's" sandboxed gvm '! [ -w /sys/kernel ] && ! [ -w /proc/sys/kernel ] && ! [ -w /sys/fs/cgroup ]'
check "it writes to no program and no setting" sandboxed gvm '! [ -w /usr ] && ! [ -w /etc/gvm ] && [ -w /var/lib/gvm ] && [ -w /run/gvm ]'
check "it mounts nothing" sandboxed gvm '! mount -t tmpfs none /tmp && ! unshare --mount true'
inside mknod /dev/gvm-disk b 7 0
check "it opens no disk of the host" sandboxed gvm 'head -c 1 /dev/gvm-disk 2>&1 | grep -q "Operation not permitted" && ! mknod /var/lib/gvm/disk b 7 0'
check "the gateway sees the manager's socket, and no other" sandboxed gvm-gateway '[ -S /run/gvm/api.sock ] && [ "$(find /run -type s)" = /run/gvm/api.sock ]'
check "nor machines, nor devices" sandboxed gvm-gateway '! ls /var/lib/gvm && ! [ -e /dev/kvm ] && ! ls /var/lib/libvirt'
check "root looks at machines through libvirt" looks root
check "a member does not" sees_nothing "$MEMBER"
check "nor does the gateway's account" sees_nothing gvm-gateway
inside mv "$RULE" /root/
check "it is gvm's rule for polkit that keeps them out" within 5 looks "$MEMBER"
inside mv "/root/${RULE##*/}" "$RULE"
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
check "the program is gone" inside test ! -e /usr/local/bin/gvm
check "no unit is left" is '' inside bash -c 'ls -d /etc/systemd/system/gvm* /etc/systemd/system/*/gvm* 2>/dev/null'
stage_end
totals
