#!/usr/bin/env bash
# Runs ansible/site.yml twice against a bare Debian root: the first run sets it up, the second finds nothing to do.
# The bare root is kept under ${XDG_CACHE_HOME:-~/.cache}/gvm. Nothing is started and nothing of the machine changes.
set -euo pipefail
self=$(readlink -f "$0")
root=$(dirname "$(dirname "$self")")
# shellcheck source-path=SCRIPTDIR source=lib/log.sh
. "$root/scripts/lib/log.sh"
# shellcheck source-path=SCRIPTDIR source=lib/check.sh
. "$root/scripts/lib/check.sh"

[ "$(id -u)" = 0 ] || die "this test needs root (chroot)" "sudo $0"
for tool in ansible-playbook mmdebstrap; do
  command -v "$tool" >/dev/null || die "$tool is not installed" "scripts/setup.sh --test"
done
# The root's /proc, and whatever a package might start in there, live and die with namespaces of our own.
[ "${1:-}" = inside ] ||
  exec unshare --mount --pid --fork --kill-child --mount-proc --propagation private -- "$self" inside

# shellcheck source=/dev/null
codename=$(. /etc/os-release && echo "$VERSION_CODENAME")
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/gvm
bare=$cache/bare-$codename.tar
work=$(mktemp -d "${TMPDIR:-/tmp}/gvm-ansible.XXXXXX")
target=$work/root
cleanup() {
  umount --lazy "$target/proc" 2>/dev/null || true
  rm -rf --one-file-system "$work"
}
trap cleanup EXIT

# The distribution's own entries of this machine, but not the backports that the role is to derive.
own_sources() {
  # shellcheck disable=SC2016 # variables of apt
  apt-get indextargets --format '$(ORIGIN) $(RELEASE) $(SOURCESENTRY)' 'Created-By: Packages' |
    sed -nE "s/^(Debian|Ubuntu) $codename(-updates|-security)? (.*):[0-9]+\$/\3/p" | sort -u
}

# shellcheck disable=SC2016 # the hook expands $1
make_bare() {
  local -a sources
  mapfile -t sources < <(own_sources)
  [ ${#sources[@]} -gt 0 ] || die "apt names no source of $codename on this machine" "apt-get update"
  mkdir -p "$cache"
  # policy-rc.d: packages start no daemon. unsafe-io: nobody misses this root after a power cut.
  mmdebstrap --quiet --variant=minbase --include=python3,python3-apt,systemd,ca-certificates \
    --dpkgopt='force-unsafe-io' --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
    --dpkgopt='path-exclude=/usr/share/locale/*' \
    --customize-hook='printf "#!/bin/sh\nexit 101\n" >"$1/usr/sbin/policy-rc.d"; chmod +x "$1/usr/sbin/policy-rc.d"' \
    "$codename" "$bare.new.tar" "${sources[@]}"
  mv "$bare.new.tar" "$bare"
}

play() {
  ANSIBLE_CONFIG=$root/ansible/ansible.cfg ansible-playbook -i "$work/inventory.yml" "$root/ansible/site.yml" \
    >"$work/$1.log" 2>&1
}
recap() { sed -n '/^PLAY RECAP/,$p' "$work/$1.log"; }
in_root() { chroot "$target" "$@"; }
mode_of() { in_root stat -c '%a %U:%G' "$1"; }
unit_is_sound() {
  # Without a running systemd it warns of units that only a booted one has; a word about ours is a mistake.
  ! in_root systemd-analyze verify --man=no --recursive-errors=no "/etc/systemd/system/$1" 2>&1 | grep -F "$1"
}
says() { same "$1" "$("${@:2}")"; }

# A root of a week ago would only make the package step slower.
[ -n "$(find "$bare" -mtime -7 2>/dev/null)" ] || stage "a bare root of $codename" make_bare
stage "unpacking it"
mkdir "$target"
tar -C "$target" -xf "$bare"
# The root has device nodes of its own: with the machine's, a package's script once changed the group of /dev/kvm. And
# none sets sysctls.
mount --bind /proc "$target/proc"
mount -o remount,bind,ro "$target/proc"
cp /etc/resolv.conf "$target/etc/resolv.conf"

printf '#!/bin/sh\necho gvm\n' >"$work/gvm"
echo 'a certificate and its key' >"$work/https"
cat >"$work/inventory.yml" <<END
gvm_hosts:
  hosts:
    $target:
      ansible_connection: community.general.chroot
      ansible_python_interpreter: /usr/bin/python3
      ansible_become: false
      gvm_host_binary: $work/gvm
      gvm_host_members: [games]
      gvm_host_https_certificate: $work/https
      gvm_host_https_key: $work/https
END

# The same list, read by the other reader.
setup_check() {
  rm -rf "$target/tmp/gvm"
  mkdir -p "$target/tmp/gvm/ansible/roles"
  cp -a "$root/scripts" "$target/tmp/gvm/"
  cp -a "$root/ansible/roles/gvm_host" "$target/tmp/gvm/ansible/roles/"
  in_root env -u HOME /tmp/gvm/scripts/setup.sh --check
}

check "setup.sh sees what the bare root lacks" bash -c "$(declare -f setup_check in_root); root='$root' target='$target'
  ! setup_check 2>'$work/missing' && grep -q '^libvirt-daemon-system' '$work/missing'"

stage "first run"
check "the play succeeds" play first
recap first
[ "$_failed" = 0 ] || tail -n 40 "$work/first.log"

stage "second run, on a configuration that its administrator has edited"
echo '# mine' >>"$target/etc/gvm/gvm.toml"
check "the play succeeds again" play second
recap second

stage "what it made"
check "the first run changed something" grep -Eq 'changed=[1-9][0-9]* .*failed=0' <(recap first)
check "the second run changed nothing" grep -Eq 'changed=0 .*failed=0' <(recap second)
check "the administrator's line is still there" grep -qx '# mine' "$target/etc/gvm/gvm.toml"
check "setup.sh finds every package there" setup_check
if [ "$codename" = bookworm ]; then
  check "libvirt is from backports" bash -c "chroot '$target' dpkg-query -W -f '\${Version}' libvirt-daemon-system | grep -q bpo12"
else
  skip "libvirt is from backports" "$codename has it in main"
fi
check "/etc/gvm" says "755 root:root" mode_of /etc/gvm
check "/var/lib/gvm" says "711 root:root" mode_of /var/lib/gvm
check "the binary" says "755 root:root" mode_of /usr/local/bin/gvm
check "/run/gvm" says "755 root:gvm" mode_of /run/gvm
check "the key of HTTPS is root's alone" says "600 root:root" mode_of /etc/gvm/https.key
check "others may not look at machines through libvirt" in_root test -s /etc/polkit-1/rules.d/50-gvm.rules
check "vfio-pci is loaded at boot" grep -qx vfio-pci "$target/etc/modules-load.d/gvm-vfio.conf"
check "the gateway's user may reach the socket and nothing else" says "gvm-gateway gvm" in_root id -Gn gvm-gateway
check "a member is in the group" grep -qw gvm <(in_root id -Gn games)
for unit in gvm gvm-gateway; do
  check "$unit.service holds no mistake" unit_is_sound "$unit.service"
  check "$unit.service starts at boot" says enabled in_root systemctl is-enabled "$unit.service"
done
stage_end
totals
