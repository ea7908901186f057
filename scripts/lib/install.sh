# shellcheck shell=bash
# Puts gvm on this machine and runs it, with systemd or without. Wants log.sh, $root (the top of the repository), root's
# rights. Accounts, units and configuration are the role gvm_host's own files. Every step may be repeated.

: "${root:?}"
role=$root/ansible/roles/gvm_host
binary=${GVM_BINARY:-/usr/local/bin/gvm}
# Where there is no systemd to keep the logs.
logs=${GVM_LOGS:-/var/log/gvm}
readonly RUN=/run/gvm UNITS=(gvm.service gvm-gateway.service) GATEWAY_USER=gvm-gateway

has_systemd() { [ -d /run/systemd/system ]; }

# until_ok SECONDS CMD...   waits until CMD succeeds
until_ok() {
  local end=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$end" ] || return 1
    sleep 0.1
  done
}

# --- files ------------------------------------------------------------------------------------------------------------

# put MODE FILE   makes FILE what stdin says, whole or not at all; fails when it was so already
put() {
  local new=$2.gvm-new
  cat >"$new"
  chmod "$1" "$new"
  if cmp -s "$new" "$2"; then
    rm "$new"
    return 1
  fi
  mv "$new" "$2"
  note "wrote $2"
}

# put_part NAME PLACE   one of the role's files
put_part() { put 0644 "$2" <"$role/files/$1"; }

# install_gvm BUILT MEMBER...   sets is_changed when what runs is no longer what is installed
install_gvm() {
  local built=$1 unit
  is_changed=
  shift
  [ ! -e /usr/bin/gvm ] || [ "$binary" = /usr/bin/gvm ] ||
    die "this machine has gvm from its Debian package, in /usr/bin" "apt-get remove gvm, or use what is installed"
  mkdir -p "${binary%/*}" /etc/{sysusers.d,tmpfiles.d,modules-load.d,logrotate.d,polkit-1/rules.d,systemd/system}
  if put 0755 "$binary" <"$built"; then is_changed=yes; fi
  put_part sysusers.d/gvm.conf /etc/sysusers.d/gvm.conf || true
  put_part tmpfiles.d/gvm.conf /etc/tmpfiles.d/gvm.conf || true
  "$role/files/accounts.sh" "$@" | while read -r line; do note "$line"; done
  # From its first writing on it is the administrator's.
  [ -e /etc/gvm/gvm.toml ] || put_part gvm.toml /etc/gvm/gvm.toml
  # Where it cannot be loaded, `gvm doctor` says why; a host without GPUs does well without.
  if put_part modules-load.d/gvm-vfio.conf /etc/modules-load.d/gvm-vfio.conf && has_systemd; then
    systemctl restart systemd-modules-load.service || true
  fi
  put_part logrotate.d/gvm /etc/logrotate.d/gvm || true
  put_part polkit-1/50-gvm.rules /etc/polkit-1/rules.d/50-gvm.rules || true
  for unit in "${UNITS[@]}"; do
    if put_part "systemd/$unit" "/etc/systemd/system/$unit"; then is_changed=yes; fi
  done
  "$binary" check-config >/dev/null || die "the configuration cannot be used" "$binary check-config"
}

# --- libvirt ------------------------------------------------------------------------------------------------------------

libvirt_answers() { timeout 10 virsh -q -c qemu:///system version; }

start_libvirt() {
  if libvirt_answers >/dev/null 2>&1; then
    note "libvirtd runs already"
    return
  fi
  if has_systemd; then
    systemctl enable --now virtlogd.socket libvirtd.socket libvirtd.service
  else
    # A second one says so and goes.
    virtlogd -d 2>/dev/null || true
    libvirtd -d
  fi
  until_ok 60 libvirt_answers || die "libvirtd does not answer" "journalctl -u libvirtd, or /var/log/libvirt/libvirtd.log"
}

# --- services -----------------------------------------------------------------------------------------------------------

# service_pid NAME   of a service started without systemd, while it lives
service_pid() {
  local pid
  pid=$(cat "$RUN/$1.pid" 2>/dev/null) && [ -n "$pid" ] || return 1
  # The file may be older than the process that has its number now.
  [ "$(readlink "/proc/$pid/exe" | sed 's/ (deleted)$//')" = "$binary" ] || return 1
  echo "$pid"
}

# spawn NAME CMD...   a service without systemd: its own session, its log, its pid file
spawn() {
  local name=$1
  shift
  mkdir -p "$logs"
  # Nothing of ours stays open in it: whoever waits for this script's output must not wait for the service.
  # shellcheck disable=SC2016 # expanded by the new shell
  setsid -- bash -c 'echo $$ >"$0"; exec "$@"' "$RUN/$name.pid" "$@" </dev/null >>"$logs/$name.log" 2>&1 &
  until_ok 5 service_pid "$name" || {
    tail -n 5 "$logs/$name.log" >&2
    die "the $name did not start" "read $logs/$name.log"
  }
}

# stop_service NAME   as systemd would: asks, and ends it when it does not go
stop_service() {
  local pid
  pid=$(service_pid "$1") || return 0
  kill "$pid"
  until_ok 35 is_gone "$pid" || {
    warn "the $1 does not end; killing it"
    kill -KILL "$pid" 2>/dev/null || true
  }
  rm -f "$RUN/$1.pid"
}

is_gone() { [ ! -e "/proc/$1" ]; }
manager_answers() { timeout 10 "$binary" -q profile list; }
gateway_answers() {
  local port banner=
  port=$("$binary" -o json check-config 2>/dev/null | sed -n 's/.*"listen": *"[^"]*:\([0-9]*\)".*/\1/p')
  exec {ssh}<>"/dev/tcp/127.0.0.1/${port:-2222}" || return 1
  read -r -t 5 -u "$ssh" banner || true
  exec {ssh}>&-
  [[ $banner == SSH-2.0-* ]]
}

# start_gvm   anew where is_changed says so
start_gvm() {
  if has_systemd; then
    systemctl daemon-reload
    systemctl enable "${UNITS[@]}"
    # shellcheck disable=SC2046 # one word or none
    systemctl $([ -n "${is_changed:-}" ] && echo restart || echo start) "${UNITS[@]}"
  else
    install -d -m 0755 -o root -g gvm "$RUN"
    if [ -n "${is_changed:-}" ]; then
      stop_service gateway
      stop_service manager
    fi
    service_pid manager >/dev/null || spawn manager "$binary" serve
    until_ok 30 manager_answers || true
    service_pid gateway >/dev/null ||
      spawn gateway setpriv --reuid "$GATEWAY_USER" --regid "$GATEWAY_USER" --init-groups --no-new-privs "$binary" gateway
  fi
  until_ok 30 manager_answers || die "the manager does not answer" "$(log_hint manager gvm)"
  until_ok 30 gateway_answers || die "the SSH gateway does not answer" "$(log_hint gateway gvm-gateway)"
}

log_hint() {
  if has_systemd; then echo "journalctl -u $2"; else echo "tail $logs/$1.log"; fi
}

# Machines run on: they belong to libvirtd.
stop_gvm() {
  if has_systemd; then
    systemctl stop "${UNITS[@]}"
  else
    stop_service gateway
    stop_service manager
  fi
}

# What this machine keeps when it is gone: people's machines and the settings.
uninstall_gvm() {
  stop_gvm
  local unit
  if has_systemd; then systemctl disable "${UNITS[@]}"; fi
  for unit in "${UNITS[@]}"; do rm -f "/etc/systemd/system/$unit"; done
  rm -f /etc/{sysusers.d,tmpfiles.d}/gvm.conf /etc/modules-load.d/gvm-vfio.conf /etc/logrotate.d/gvm \
    /etc/polkit-1/rules.d/50-gvm.rules "$binary"
  if has_systemd; then systemctl daemon-reload; fi
}
