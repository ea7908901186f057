# shellcheck shell=bash
# A private host for a script (scripts/private-host.sh), and the proof that nothing of it is left. Wants log.sh, $root.

: "${root:?}"
private_dir='' private_namespaces=()

# private_up   starts one in a fresh folder, $private_dir
private_up() {
  local word='' pid=''
  private_dir=$(mktemp -d /var/tmp/gvm-host.XXXXXX)
  mkfifo "$private_dir/in" "$private_dir/out"
  "$root/scripts/private-host.sh" run "$private_dir/host" <"$private_dir/in" >"$private_dir/out" 2>"$private_dir/err" &
  private_runner=$!
  exec {private_in}>"$private_dir/in" {private_out}<"$private_dir/out"
  read -r word pid <&"$private_out" || true
  [ "$word" = ready ] || {
    cat "$private_dir/err" >&2
    die "the private host did not start" "read what it says above"
  }
  mapfile -t private_namespaces < <(readlink "/proc/$pid/ns/"{mnt,net,pid,uts,cgroup})
}

# inside CMD...   runs a command in it
inside() {
  # Its way in must not be kept open by what is started there.
  "$root/scripts/private-host.sh" exec "$private_dir/host" "$@" {private_in}>&- {private_out}<&-
}

# private_down   ends it and fails when anything of it is left
private_down() {
  local left
  [ -n "$private_dir" ] || return 0
  exec {private_in}>&- {private_out}<&-
  wait "$private_runner" || true
  left=$(private_traces)
  rm -rf "$private_dir"
  [ ! -e "$private_dir" ] || left+=" $private_dir"
  private_dir=''
  [ -z "$left" ] || {
    printf '%s\n' "$left" >&2
    die "something of the private host is left (see above)"
  }
}

# Processes in its namespaces, mounts of its folder, cgroups.
private_traces() {
  # Processes come and go while one looks.
  { find /proc -maxdepth 3 -path '/proc/[0-9]*/ns/*' -printf '%p %l\n' 2>/dev/null || true; } |
    grep -F -f <(printf '%s\n' "${private_namespaces[@]}") || true
  grep -F "$private_dir/" /proc/self/mounts || true
  find /sys/fs/cgroup -maxdepth 2 -name "$(cat "$private_dir/host/.host/cgroup" 2>/dev/null || echo none)"
}
