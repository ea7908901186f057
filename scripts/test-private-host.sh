#!/usr/bin/env bash
# Two private hosts side by side: networks, guests, cgroups, a dying parent, nothing left on the machine.
# shellcheck disable=SC2016 # most of what is quoted here is expanded inside a private host
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
# shellcheck source-path=SCRIPTDIR source=lib/log.sh
. "$here/lib/log.sh"
# shellcheck source-path=SCRIPTDIR source=lib/check.sh
. "$here/lib/check.sh"

[ "$(id -u)" = 0 ] || die "this test needs root" "sudo $0"
host=$here/private-host.sh
work=$(mktemp -d "${TMPDIR:-/tmp}/gvm-private-host.XXXXXX")
a=$work/a b=$work/b

# The parent of a runner: it alone holds the runner's stdin open, as a test programme would.
parent() {
  # shellcheck disable=SC2034 # held, not used
  coproc RUNNER { exec "$host" run "$1" >"$1.out" 2>"$1.err"; }
  echo "$RUNNER_PID" >"$1.runner"
  wait "$RUNNER_PID" || true
}

start() {
  setsid bash -c "host='$host'; $(declare -f parent); parent '$1'" &
  echo "$!" >"$1.parent"
}

cleanup() {
  local dir pid
  for dir in "$a" "$b"; do
    cat "$dir.runner" "$dir.parent" 2>/dev/null | xargs -r kill 2>/dev/null || true
    within 20 no_pid_file "$dir" || true
  done
  rm -rf "$work"
}
trap cleanup EXIT

in_a() { "$host" exec "$a" "$@"; }
in_b() { "$host" exec "$b" "$@"; }
virsh_a() { in_a virsh -q -c qemu:///system "$@"; }

is_ready() { grep -q '^ready [0-9]' "$1.out"; }
init_pid() { sed -n 's/^ready //p' "$1.out"; }
no_pid_file() { [ ! -e "$1/.host/pid" ]; }
is_alive() { kill -0 "$1" 2>/dev/null; }
is_dead() { ! is_alive "$1"; }
says() { [ "$("${@:2}")" = "$1" ]; }
no_cgroup() { [ -z "$(find /sys/fs/cgroup -maxdepth 2 -name "$1")" ]; }
processes_of() { pgrep --ns "$1" --nslist pid || true; }

# Looks for traces in the machine's own namespaces. Other private hosts may come and go there meanwhile, so it looks
# for what carries our names.
bridge=gvmt$$
no_trace() {
  local found
  found=$(
    ip -o link | grep -w "$bridge"
    nft list ruleset 2>/dev/null | grep -w "$bridge"
    grep -F "$work" /proc/mounts
    find /run /etc/gvm /etc/libvirt /var/lib/gvm /var/lib/libvirt /var/cache/libvirt /var/log/libvirt -newer "$work/born" \
      2>/dev/null | grep -E 'gvm|libvirt'
  ) || true
  [ -z "$found" ] || {
    echo "$found"
    return 1
  }
}
touch "$work/born"

network_xml='<network><name>lab</name><forward mode="nat"/><bridge name="'$bridge'"/>
  <ip address="10.77.0.1" netmask="255.255.255.0"><dhcp><range start="10.77.0.10" end="10.77.0.99"/>
  <bootp file="none" server="10.77.0.1"/></dhcp></ip></network>'
domain_xml='<domain type="qemu"><name>bios</name><memory unit="MiB">64</memory><vcpu>1</vcpu>
  <cputune><quota>50000</quota><period>100000</period></cputune>
  <os><type arch="x86_64" machine="q35">hvm</type><boot dev="network"/><bios useserial="yes"/></os>
  <devices><serial type="file"><source path="/var/lib/libvirt/images/serial.log"/></serial>
  <interface type="network"><source network="lab"/><model type="virtio"/></interface></devices></domain>'

bring_up() {
  "$host" exec "$1" bash -ec '
    virsh -q -c qemu:///system net-define /dev/stdin <<<"$0"
    virsh -q -c qemu:///system net-start lab
    virsh -q -c qemu:///system define /dev/stdin <<<"$1"
    virsh -q -c qemu:///system start bios' "$network_xml" "$domain_xml"
}

# The network card's boot firmware takes a lease and answers pings while it waits for a TFTP server that is not there.
ping_guest() {
  "$host" exec "$1" bash -ec '
    address=$(virsh -q -c qemu:///system net-dhcp-leases lab | grep -o "10\.77\.0\.[0-9]*" | head -n 1)
    busybox ping -c 1 -W 1 "$address"'
}

quota_in_cgroup() {
  "$host" exec "$1" bash -ec '
    v1=$(find /sys/fs/cgroup -path "*bios*" -name cpu.cfs_quota_us | head -n 1)
    v2=$(find /sys/fs/cgroup -path "*bios*" -name cpu.max | head -n 1)
    [ -n "$v1$v2" ]
    # One vCPU thread may have 50 ms in every 100 ms.
    grep -l -E "^50000( 100000)?$" $(find /sys/fs/cgroup -path "*bios*" \( -name cpu.cfs_quota_us -o -name cpu.max \))'
}

serial_shows_bios() { grep -qa SeaBIOS "$1/var/lib/libvirt/images/serial.log"; }

stage "two private hosts start"
start "$a"
start "$b"
check "host a is ready" within 60 is_ready "$a"
check "host b is ready" within 60 is_ready "$b"
note "$(date +%s%N >"$work/t0"; in_a true; echo "one exec takes $((($(date +%s%N) - $(<"$work/t0")) / 1000000)) ms")"
pid_a=$(init_pid "$a") pid_b=$(init_pid "$b")
check "their own pids, networks, mounts and names" bash -c "
  for ns in pid net mnt uts cgroup; do
    [ \"\$(readlink /proc/$pid_a/ns/\$ns)\" != \"\$(readlink /proc/$pid_b/ns/\$ns)\" ] || exit 1
    [ \"\$(readlink /proc/$pid_a/ns/\$ns)\" != \"\$(readlink /proc/self/ns/\$ns)\" ] || exit 1
  done"
check "a second run on the same folder is refused" bash -c "! '$host' run '$a' </dev/null 2>'$work/second' && grep -q 'already has' '$work/second'"

stage "exec"
check "exit code passes" bash -c "'$host' exec '$a' sh -c 'exit 7'; [ \$? = 7 ]"
check "a missing command is 127" bash -c "'$host' exec '$a' /no/such/command; [ \$? = 127 ]"
check "death by a signal shows" bash -c "'$host' exec '$a' sh -c 'kill -9 \$\$'; [ \$? = 137 ]"
check "SIGTERM reaches the command, its exit code comes back" bash -c "
  '$host' exec '$a' bash -c 'trap \"exit 9\" TERM; echo up; while :; do sleep 0.1; done' >'$work/up' &
  until [ -s '$work/up' ]; do sleep 0.05; done
  kill -TERM \$!; wait \$!; [ \$? = 9 ]"
check "kill -9 of exec ends the command" bash -c "
  '$host' exec '$a' sleep 54321 & sleep 0.5
  kill -KILL \$!; sleep 0.5
  ! '$host' exec '$a' pgrep -f 'sleep 5432[1]'"
check "stdin and folder pass" says "x $work" bash -c "cd '$work' && echo x | '$host' exec '$a' sh -c 'read -r l; echo \"\$l \$(pwd)\"'"
if command -v script >/dev/null; then
  check "a terminal passes" bash -c "script -qec \"'$host' exec '$a' tty\" /dev/null </dev/null | grep -q /dev/pts"
else
  skip "a terminal passes" "script (bsdutils) is not installed"
fi
check "default paths of gvm are there and empty" in_a bash -c \
  'for d in /etc/gvm /var/lib/gvm /run/gvm; do [ -d $d ] && [ -z "$(ls $d)" ] || exit 1; done; touch /etc/gvm/x'
check "and private" bash -c "[ -e '$a/etc/gvm/x' ] && [ ! -e '$b/etc/gvm/x' ] && [ ! -e /etc/gvm/x ]"

stage "the same network and domain in both"
check "a: network and domain start" bring_up "$a"
check "b: network and domain start" bring_up "$b"
check "a: its firmware speaks" within 30 serial_shows_bios "$a"
check "b: its firmware speaks" within 30 serial_shows_bios "$b"
check "a: its guest has a DHCP lease and answers pings" within 60 ping_guest "$a"
check "b: its guest has a DHCP lease and answers pings" within 60 ping_guest "$b"
check "a: the quota is in the domain's cgroup" quota_in_cgroup "$a"
check "b: the quota is in the domain's cgroup" quota_in_cgroup "$b"
check "rules exist inside" in_a bash -c 'nft list ruleset | grep -q 10.77.0'
check "and no trace on the machine" no_trace
check "a's sockets answer from outside" virsh -q -c "qemu:///system?socket=$a/run/libvirt/libvirt-sock" domstate bios

stage "libvirtd is stopped, killed, frozen"
verb() { "$host" libvirtd "$a" "$@"; }
check "freeze" verb freeze
check "frozen: no answer" bash -c "! timeout 2 '$host' exec '$a' virsh -q -c qemu:///system list"
check "status says so" says frozen verb status
check "thaw" verb thaw
check "answers again" virsh_a list
check "kill" verb kill
check "status says so" says stopped verb status
check "start" verb start
check "stop of a frozen one" bash -c "'$host' libvirtd '$a' freeze && '$host' libvirtd '$a' stop"
check "restart" verb restart
check "the guest ran on all the while" says running virsh_a domstate bios

stage "kill -9 of the parent of a"
all_a=$(processes_of "$pid_a")
check "guests, dnsmasq and daemons were counted" test "$(wc -w <<<"$all_a")" -ge 5
kill -KILL "$(<"$a.parent")"
check "the init of a dies" within 10 is_dead "$pid_a"
all_dead() {
  for pid in $all_a; do is_dead "$pid" || return 1; done
}
check "and with it all its processes" all_dead
check "its runner ends" within 10 is_dead "$(<"$a.runner")"
check "b lives, its guest runs" says running in_b virsh -q -c qemu:///system domstate bios
check "no cgroup of a is left" within 10 no_cgroup "$(<"$a/.host/cgroup")"
check "a's folder can be deleted" rm -r "$a"

stage "kill -9 of the runner of b, then its reboot"
cgroup_b=$(<"$b/.host/cgroup")
kill -KILL "$(<"$b.runner")"
check "the init of b dies" within 10 is_dead "$pid_b"
check "no cgroup of b is left" within 10 no_cgroup "$cgroup_b"
check "exec into a dead one is refused" bash -c "! '$host' exec '$b' true"
within 5 is_dead "$(<"$b.parent")" || true
rm "$b.out"
start "$b"
check "it comes up again on the same folder" within 60 is_ready "$b"
check "with its domain, which is off" says 'shut off' in_b virsh -q -c qemu:///system domstate bios
pid_b=$(init_pid "$b") cgroup_b=$(<"$b/.host/cgroup")
kill -TERM "$(<"$b.runner")"
check "SIGTERM ends it" within 10 is_dead "$pid_b"
check "its runner ends" within 10 is_dead "$(<"$b.runner")"
check "its folder can be deleted" rm -r "$b"
check "no trace on the machine" no_trace
check "no cgroup of b is left" no_cgroup "$cgroup_b"
stage_end
totals
