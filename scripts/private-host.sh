#!/usr/bin/env bash
# A private host: libvirtd with its networks, rules and guests in namespaces of their own. Several live side by side
# on one machine; when one ends, nothing of it is left but the files under its DIR.
#
#   private-host.sh run DIR                start; prints "ready PID" and stays until stdin ends, SIGTERM or SIGINT
#   private-host.sh exec DIR CMD...        run a command inside; passes on its exit code, signals and terminal
#   private-host.sh libvirtd DIR VERB      stop | kill | start | restart | freeze | thaw | status, each with a deadline
#
# PID is the private host's init as the caller sees it (for nsenter); kill -9 on it is a power cut.
# DIR is the host's disk: run it again with the same DIR and the private host has been rebooted.
#
#   inside                                         on DIR
#   /run (empty at each start)                     DIR/run        its sockets answer from outside too
#   /etc (a copy; /etc/gvm, /etc/libvirt fresh)    DIR/etc
#   /var/lib/{gvm,libvirt,swtpm-localca}           DIR/var/lib
#   /var/log/libvirt, /var/cache/libvirt           DIR/var/log, DIR/var/cache
#
# Everything else is the machine's own file system, so this is a test bench and no jail. Disks under the paths above
# need no care; a disk elsewhere must be reachable for the user libvirt-qemu (o+x on every folder of its path).
# shellcheck disable=SC2317 # many functions are called by a trap or by their name
set -euo pipefail

self=$(readlink -f "$0")
# shellcheck source-path=SCRIPTDIR source=lib/log.sh
. "${self%/*}/lib/log.sh"

readonly START_DEADLINE=60 # seconds from nothing to an answering libvirtd, on a busy machine
readonly ANSWER_DEADLINE=30
# libvirtd 11.3 mostly stops within 0.1 s, and about one time in fifty it hangs until its own 30 s are over.
readonly STOP_DEADLINE=5
readonly PRIVATE_LIB=(gvm libvirt swtpm-localca)
readonly CAPABILITIES=var/cache/libvirt/qemu/capabilities
kept=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/gvm/qemu-capabilities

usage() {
  sed -n '2,/^# shellcheck/{/^# shell/d; /^#/s/^# \{0,1\}//p}' "$self" >&2
  exit 2
}

# --- small facts --------------------------------------------------------------------------------------------------

# A pid alone may be reused; with its start time it names one process for as long as the machine is up.
start_time() {
  local stat
  { stat=$(<"/proc/$1/stat"); } 2>/dev/null || return 1
  stat=${stat##*) }
  # shellcheck disable=SC2086 # the fields are wanted apart
  set -- $stat
  echo "${20}"
}

process_state() {
  local stat
  { stat=$(<"/proc/$1/stat"); } 2>/dev/null || return 1
  stat=${stat##*) }
  echo "${stat%% *}"
}

# The pid of DIR's init, if that private host is alive.
live_pid() {
  local pid born
  { read -r pid born <"$1/.host/pid"; } 2>/dev/null || return 1
  [ "$(start_time "$pid")" = "$born" ] || return 1
  echo "$pid"
}

need_root() {
  [ "$(id -u)" = 0 ] || die "private hosts need root (namespaces, bridges, cgroups)" "sudo $0 ..."
}

need_tools() {
  local tool
  for tool in unshare nsenter setpriv setsid flock ip perl libvirtd virtlogd virsh; do
    command -v "$tool" >/dev/null || die "$tool is not installed" "scripts/setup.sh --test"
  done
}

# --- cgroups ------------------------------------------------------------------------------------------------------
# Domains of two private hosts may carry the same name and id, hence the same cgroup path. Each host gets a branch of
# its own in every hierarchy and sees it as the root. v1 and v2 alike.

# Mount points of all hierarchies, one a line.
hierarchies() {
  local mnt type
  while read -r _ mnt type _; do
    case $type:$mnt in
      cgroup:/sys/fs/cgroup/* | cgroup2:/sys/fs/cgroup*) echo "$mnt" ;;
    esac
  done </proc/self/mounts
}

make_cgroups() {
  local id=$1 mnt file
  while read -r mnt; do
    mkdir "$mnt/$id" || die "cannot make a cgroup in $mnt" "run as root where /sys/fs/cgroup is writable"
    # A new v1 cpuset has no CPU and no memory node, and refuses processes until it has.
    for file in cpuset.cpus cpuset.mems; do
      [ ! -f "$mnt/$file" ] || [ -f "$mnt/cgroup.controllers" ] || cat "$mnt/$file" >"$mnt/$id/$file"
    done
    # v2: processes live in a leaf, or the branch could not hand controllers down to domains.
    [ ! -f "$mnt/$id/cgroup.controllers" ] || mkdir "$mnt/$id/init"
  done < <(hierarchies)
}

# Moves the calling process into the branch ($2 = '' its root, else the leaf for processes).
enter_cgroups() {
  local id=$1 leaf=$2 mnt
  # No <(...), which bash does not wait for: what is exec'd next would have a child that it knows nothing of.
  while read -r mnt; do
    [ -n "$mnt" ] || continue
    [ -n "$leaf" ] && [ -d "$mnt/$id/init" ] && mnt+=/$id/init || mnt+=/$id
    echo "$BASHPID" >"$mnt/cgroup.procs"
  done <<<"$(hierarchies)"
}

delegate_controllers() {
  local id=$1 mnt controller
  while read -r mnt; do
    [ -f "$mnt/$id/cgroup.controllers" ] || continue
    for controller in $(<"$mnt/$id/cgroup.controllers"); do
      echo "+$controller" >"$mnt/$id/cgroup.subtree_control" || warn "no $controller controller for the private host"
    done
  done < <(hierarchies)
}

# Removes a branch whose processes are dying or dead.
remove_cgroups() {
  local id=$1 mnt end=$((SECONDS + 10))
  while read -r mnt; do
    while [ -d "$mnt/$id" ]; do
      find "$mnt/$id" -depth -type d -exec rmdir {} + 2>/dev/null || true
      [ -d "$mnt/$id" ] || break
      [ "$SECONDS" -lt "$end" ] || break
      sleep 0.05
    done
  done < <(hierarchies)
}

# Branches of runs that ended without their sweeper (power cut, kill -9 of a whole process group).
remove_stale_cgroups() {
  local mnt path pid born
  while read -r mnt; do
    for path in "$mnt"/gvm-private.*.*; do
      [ -d "$path" ] || continue
      IFS=. read -r _ pid born <<<"${path##*/}"
      [ "$(start_time "$pid")" != "$born" ] || continue
      find "$path" -depth -type d -exec rmdir {} + 2>/dev/null || true
    done
  done < <(hierarchies)
}

# Runs apart from the runner, so that even its kill -9 leaves no cgroup: stdin ends when the last of them is dead.
sweep() {
  trap '' INT TERM HUP
  cat >/dev/null
  remove_cgroups "$1"
}

# --- the disk of the private host -----------------------------------------------------------------------------------

checked_dir() {
  local dir
  mkdir -p "$1" || die "cannot make $1"
  dir=$(readlink -f "$1")
  case $dir/ in
    /run/* | /etc/* | /var/lib/* | /var/log/libvirt/* | /var/cache/libvirt/* | /sys/* | /proc/* | /dev/*)
      die "$dir lies under a path that the private host replaces" "give a folder under /tmp, /var/tmp or the build folder"
      ;;
    *[!A-Za-z0-9._/+,@-]*) die "$dir has a character that mount tables do not like" "use letters, digits and ._+,@- only" ;;
  esac
  echo "$dir"
}

# Copies folders of the machine (no files) with their owners and modes.
copy_folders() {
  local dir=$1
  shift
  find "$@" -maxdepth 2 -type d -print0 2>/dev/null |
    tar -C / --null --no-recursion -P -T - -c | tar -C "$dir" -P --transform 's,^/,,' -x
}

make_disk() {
  local dir=$1 conf
  rm -rf "$dir/run"
  mkdir -p "$dir/run/lock" "$dir/run/gvm"
  chmod 1777 "$dir/run/lock"
  [ ! -e "$dir/.host/disk" ] || return 0

  mkdir -p "$dir/etc" "$dir/var/lib" "$dir/var/log" "$dir/var/cache"
  # The machine's own gvm and libvirt settings stay outside: its domains and networks must not start in here.
  tar -C /etc --exclude=./gvm --exclude=./libvirt -c . | tar -C "$dir/etc" -x
  mkdir -p "$dir/etc/gvm" "$dir/etc/libvirt/hooks" "$dir/etc/libvirt/qemu/networks/autostart"
  chmod 0700 "$dir/etc/libvirt/qemu"
  cp -a /etc/libvirt/*.conf /etc/libvirt/nwfilter "$dir/etc/libvirt/"
  conf=$dir/etc/libvirt/libvirtd.conf
  # No polkit in here, and root is the only caller that counts.
  sed -i '/^ *auth_unix_rw *=/d; /^ *unix_sock_group *=/d; /^ *unix_sock_rw_perms *=/d' "$conf"
  printf '%s\n' 'auth_unix_rw = "none"' 'unix_sock_group = "libvirt"' 'unix_sock_rw_perms = "0770"' >>"$conf"
  [ ! -e /usr/share/libvirt/networks/default.xml ] ||
    cp /usr/share/libvirt/networks/default.xml "$dir/etc/libvirt/qemu/networks/"

  mkdir -m 0711 "$dir/var/lib/gvm"
  copy_folders "$dir" /var/lib/libvirt /var/lib/swtpm-localca /var/log/libvirt /var/cache/libvirt
  mkdir -p "$dir/$CAPABILITIES"
  cp "$kept"/*.xml "$dir/$CAPABILITIES/" 2>/dev/null || true
  : >"$dir/.host/disk"
}

# What QEMU can do costs libvirt 1.5 s of CPU to find out. It checks a kept answer against QEMU, itself and the kernel,
# so one that no longer holds does no harm.
keep_capabilities() {
  local file
  mkdir -p "$kept" 2>/dev/null || return 0
  for file in "$dir/$CAPABILITIES"/*.xml; do
    [ -s "$file" ] || continue
    # Several private hosts may do this at once: each file appears whole or not at all.
    cp "$file" "$kept/.$$" && mv "$kept/.$$" "$kept/${file##*/}"
  done
}

# --- run ------------------------------------------------------------------------------------------------------------

run() {
  need_root
  need_tools
  local id lock status in word='' init_pid rc=0 end
  dir=$(checked_dir "$1") # not local, like sweeper, sweeper_pid, unshare_pid and cat_pid: the exit trap reads them
  mkdir -p "$dir/.host"
  exec {lock}>"$dir/.host/lock"
  flock -n "$lock" || die "$dir already has a running private host" "choose another folder"
  rm -f "$dir/.host/pid" "$dir/.host/status"
  make_disk "$dir"
  remove_stale_cgroups

  id=gvm-private.$$.$(start_time $$)
  echo "$id" >"$dir/.host/cgroup"
  mkfifo -m 0600 "$dir/.host/status"
  exec {status}<>"$dir/.host/status"

  trap 'exit 143' TERM
  trap 'exit 130' INT
  trap 'exit 129' HUP
  exec {sweeper}> >(exec setsid "$self" __sweep "$id" {lock}>&- {status}>&- >/dev/null 2>&1)
  sweeper_pid=$!
  trap stop EXIT
  make_cgroups "$id"
  (
    enter_cgroups "$id" ''
    exec setpriv --pdeathsig KILL unshare --cgroup -- "$self" __branch "$dir" "$id" "$$"
  ) </dev/null >"$dir/.host/log" 2>&1 &
  unshare_pid=$!

  end=$((SECONDS + START_DEADLINE))
  until [ "$word" = ready ]; do
    read -r -t 0.5 -u "$status" word || true
    kill -0 "$unshare_pid" 2>/dev/null || failed "the private host ended while it started"
    [ "$SECONDS" -lt "$end" ] || failed "libvirtd did not answer within $START_DEADLINE s"
  done
  init_pid=$(live_pid "$dir") || failed "the private host ended at once"
  keep_capabilities
  echo "ready $init_pid"

  # cat instead of read: wait is left at once when a signal comes, and when the private host dies.
  exec {in}<&0
  setpriv --pdeathsig KILL cat <&"$in" >/dev/null &
  cat_pid=$!
  wait -n "$cat_pid" "$unshare_pid" || rc=$?
  kill -0 "$unshare_pid" 2>/dev/null || die "the private host in $dir was killed from outside (exit $rc)"
}

failed() {
  tail -n 20 "$dir/.host/log" >&2
  tail -n 5 "$dir/var/log/libvirt/libvirtd.log" >&2 2>/dev/null || true
  die "$1" "read $dir/.host/log and $dir/var/log/libvirt/libvirtd.log"
}

# The kernel kills and reaps all of a pid namespace before its init can be waited for; so after the wait none is left.
stop() {
  local pid
  trap '' TERM INT HUP
  if [ -n "${unshare_pid:-}" ]; then
    pid=$(live_pid "$dir") || pid=$unshare_pid
    kill -KILL "$pid" 2>/dev/null || true
    wait "$unshare_pid" 2>/dev/null || true
  fi
  [ -z "${cat_pid:-}" ] || kill "$cat_pid" 2>/dev/null || true
  exec {sweeper}>&-
  wait "$sweeper_pid" 2>/dev/null || true
  rm -f "$dir/.host/pid" "$dir/.host/status"
}

# In the host's own cgroup namespace, still with the machine's mounts and pids.
branch() {
  local dir=$1 id=$2 runner=$3
  # pdeathsig was asked for too late if the runner is gone already.
  [ "$PPID" = "$runner" ] || exit 1
  enter_cgroups "$id" leaf
  delegate_controllers "$id"
  exec unshare --mount --net --pid --uts --fork --kill-child --propagation private -- "$self" __init "$dir" "$id"
}

# --- inside: pid 1 ----------------------------------------------------------------------------------------------------

bind() {
  printf '%s %s none bind 0 0\n' "${1// /\\040}" "${2// /\\040}"
}

# One mount call for all of it. /var/lib gets a new top, because the machine need not have a /var/lib/gvm to cover.
mount_disk() {
  local dir=$1 top=$1/.host/var-lib path name own
  rm -rf "$top"
  mkdir "$top"
  {
    bind "$top" "$top"
    for path in /var/lib/*; do
      name=${path##*/}
      for own in "${PRIVATE_LIB[@]}"; do
        [ "$name" != "$own" ] || continue 2
      done
      if [ -L "$path" ]; then
        cp -P "$path" "$top/"
      elif [ -d "$path" ]; then
        mkdir "$top/$name"
        bind "$path" "$top/$name"
      else
        : >"$top/$name"
        bind "$path" "$top/$name"
      fi
    done
    for own in "${PRIVATE_LIB[@]}"; do
      [ -d "$dir/var/lib/$own" ] || continue
      mkdir "$top/$own"
      bind "$dir/var/lib/$own" "$top/$own"
    done
    printf '%s %s none rbind 0 0\n' "$top" /var/lib
    bind "$dir/var/log/libvirt" /var/log/libvirt
    bind "$dir/var/cache/libvirt" /var/cache/libvirt
    bind "$dir/etc" /etc
    bind "$dir/run" /run
  } >"$dir/.host/fstab"
  mount --all --fstab "$dir/.host/fstab"
  umount --recursive "$top"
}

# A sysfs of this network namespace, with this host's branch of the cgroups where the machine has the whole.
mount_sys() {
  local dir=$1 id=$2 aside=$1/.host/cgroups mnt place
  mkdir -p "$aside"
  mount --rbind /sys/fs/cgroup "$aside"
  local all
  all=$(hierarchies)
  mount -t sysfs sysfs /sys
  if [ "$all" = /sys/fs/cgroup ]; then
    mount --bind "$aside/$id" /sys/fs/cgroup
  else
    mount -t tmpfs -o mode=755 cgroups /sys/fs/cgroup
    find "$aside" -maxdepth 1 -type l -exec cp -P {} /sys/fs/cgroup/ \;
    for mnt in $all; do
      place=${mnt#/sys/fs/cgroup}
      mkdir -p "$mnt"
      mount --bind "$aside$place/$id" "$mnt"
    done
  fi
  umount --lazy --recursive "$aside"
}

init() {
  local dir=$1 id=$2 pid name
  # This /proc is still the machine's, so it knows our pid out there.
  read -r pid _ </proc/self/stat
  echo "$pid $(start_time "$pid")" >"$dir/.host/pid.new"
  mv "$dir/.host/pid.new" "$dir/.host/pid"

  mount_disk "$dir"
  mount_sys "$dir" "$id"
  mount -t proc proc /proc
  cd /
  ip link set lo up
  name=host-$pid
  echo "$name" >/proc/sys/kernel/hostname
  echo "$name" >/etc/hostname
  sed -i '/ # private host$/d' /etc/hosts
  echo "127.0.1.1 $name # private host" >>/etc/hosts

  virtlogd -d -p /run/virtlogd.pid
  libvirtd_start
  echo ready >"$dir/.host/status"
  # Bash collects every orphan while it waits, as an init must: a dead guest left as a zombie would count as alive.
  while :; do
    sleep 1000 &
    wait $! || true
  done
}

# --- exec -------------------------------------------------------------------------------------------------------------

# nsenter alone dies of a signal and leaves its child behind; this hands signals to the child and waits for it.
# shellcheck disable=SC2016 # perl's variables
readonly FORWARD='
  my $pid = fork() // die "fork: $!\n";
  if (!$pid) { exec @ARGV or exit 127 }
  $SIG{$_} = sub { kill $_[0], $pid } for qw(TERM HUP USR1 USR2);
  # The terminal sends these to both of us.
  $SIG{$_} = -t STDIN ? "IGNORE" : sub { kill $_[0], $pid } for qw(INT QUIT);
  1 while waitpid($pid, 0) < 0 && $!{EINTR};
  exit($? & 127 ? 128 + ($? & 127) : $? >> 8);'

exec_inside() {
  need_root
  local dir pid id
  dir=$(readlink -f "$1")
  shift
  pid=$(live_pid "$dir") || die "no private host runs in $dir" "$0 run $dir"
  id=$(<"$dir/.host/cgroup")
  enter_cgroups "$id" leaf
  # shellcheck disable=SC2016 # expanded inside
  exec nsenter --target "$pid" --mount --net --pid --uts --cgroup --no-fork -- perl -e "$FORWARD" -- \
    setpriv --pdeathsig KILL bash -c 'cd "$0" 2>/dev/null || cd /; exec "$@"' "$PWD" "$@"
}

# --- libvirtd ---------------------------------------------------------------------------------------------------------

libvirtd_pid() {
  local pid
  pid=$(cat /run/libvirtd.pid 2>/dev/null) || return 1
  # The file outlives a kill -9; the pid may belong to another by now.
  [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = libvirtd ] || return 1
  [ "$(process_state "$pid")" != Z ] || return 1
  echo "$pid"
}

# until_deadline SECONDS CMD...   waits until CMD succeeds
until_deadline() {
  local end=$((SECONDS + $1))
  shift
  until "$@"; do
    [ "$SECONDS" -lt "$end" ] || return 1
    sleep 0.02
  done
}

libvirtd_answers() {
  [ -S /run/libvirt/libvirt-sock ] && timeout "$ANSWER_DEADLINE" virsh -q -c qemu:///system version >/dev/null 2>&1
}

libvirtd_is_gone() {
  ! libvirtd_pid >/dev/null
}

libvirtd_is_in_state() {
  local pid
  # shellcheck disable=SC2053 # $1 is a pattern
  pid=$(libvirtd_pid) && [[ $(process_state "$pid") == $1 ]]
}

libvirtd_start() {
  libvirtd_is_gone || return 0
  libvirtd -d -p /run/libvirtd.pid
  until_deadline "$ANSWER_DEADLINE" libvirtd_answers || die "libvirtd does not answer" "read /var/log/libvirt/libvirtd.log inside"
}

# libvirtd_end SIGNAL
libvirtd_end() {
  local pid
  pid=$(libvirtd_pid) || return 0
  kill "-$1" "$pid"
  # A frozen one hears SIGTERM only now.
  kill -CONT "$pid" 2>/dev/null || true
  until_deadline "$STOP_DEADLINE" libvirtd_is_gone || {
    warn "libvirtd ignored SIG$1 for $STOP_DEADLINE s; killing it"
    kill -KILL "$pid" 2>/dev/null || true
    until_deadline "$STOP_DEADLINE" libvirtd_is_gone || die "libvirtd $pid does not die"
  }
}

libvirtd_signal() {
  local pid
  pid=$(libvirtd_pid) || die "libvirtd does not run in this private host" "$0 libvirtd DIR start"
  kill "-$1" "$pid"
  until_deadline "$STOP_DEADLINE" libvirtd_is_in_state "$2" || die "libvirtd $pid did not take SIG$1"
}

libvirtd_inside() {
  case $1 in
    start) libvirtd_start ;;
    stop) libvirtd_end TERM ;;
    kill) libvirtd_end KILL ;;
    restart) libvirtd_end TERM && libvirtd_start ;;
    freeze) libvirtd_signal STOP T ;;
    thaw) libvirtd_signal CONT '[!T]' ;;
    status) if libvirtd_is_gone; then echo stopped; elif libvirtd_is_in_state T; then echo frozen; else echo running; fi ;;
    *) usage ;;
  esac
}

# One command with its own exit, so that bash never reads on in a file that was replaced meanwhile.
{
  case "${1:-} $#" in
    'run 2') run "$2" ;;
    exec\ [3-9] | exec\ [1-9][0-9]*) exec_inside "${@:2}" ;;
    'libvirtd 3') exec_inside "$2" "$self" __libvirtd "$3" ;;
    '__sweep 2') sweep "$2" ;;
    '__branch 4') branch "$2" "$3" "$4" ;;
    '__init 3') init "$2" "$3" ;;
    '__libvirtd 2') libvirtd_inside "$2" ;;
    *) usage ;;
  esac
  exit
}
