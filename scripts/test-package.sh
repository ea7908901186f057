#!/usr/bin/env bash
# The Debian packages: what is in them, what lintian says of them, and their life on a machine with systemd that is booted in
# namespaces: installed, started, upgraded while a machine runs, removed, purged. Nothing of this machine changes.
# shellcheck disable=SC2016,SC2317 # expanded inside; checks are called by their name
set -euo pipefail
self=$(readlink -f "$0")
root=$(dirname "$(dirname "$self")")
# shellcheck source-path=SCRIPTDIR source=lib/log.sh
. "$root/scripts/lib/log.sh"
# shellcheck source-path=SCRIPTDIR source=lib/check.sh
. "$root/scripts/lib/check.sh"
# shellcheck source-path=SCRIPTDIR source=lib/booted.sh
. "$root/scripts/lib/booted.sh"
booted_main "$@"

readonly UNITS=(gvm.service gvm-gateway.service) MACHINE=steady
# The packages of this repository have no address; whoever gives them to others puts theirs in.
readonly NO_ADDRESS=bogus-mail-host,bogus-mail-host-in-debian-changelog

[ "$(id -u)" = 0 ] || die "this test needs root (namespaces)" "sudo $0"
mapfile -t packages < <("$root/scripts/package.sh" --check)
client='' host=''
for package in "${packages[@]}"; do
  case ${package##*/} in
    gvm-client_*) client=$package ;;
    gvm_*) host=$package ;;
  esac
done
[[ -n $client && -n $host ]] || die "scripts/package.sh --check made no packages" "scripts/package.sh --check"
work=$(mktemp -d "${TMPDIR:-/tmp}/gvm-package.XXXXXX")
trap 'rm -rf "$work"' EXIT

# --- what is in them ----------------------------------------------------------------------------------------------------

is() { same "$1" "$("${@:2}" 2>&1 || true)"; }
needed() { readelf -d "$1" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p'; }
without_libvirt() { ! needed "$1" | grep -i virt; }
no_error() { ! lintian --suppress-tags "$NO_ADDRESS" --tag-display-limit 0 --allow-root "$1" 2>/dev/null | grep '^E:'; }
# Files with their modes: those of the package are the tree's.
listed() { (cd "$1" && find . -type f ! -path ./README.md ! -path ./test.sh -printf '%m %p\n' | sort); }
same_recipes() {
  diff <(listed "$root/vm-images") <(listed "$work/gvm/usr/share/gvm/vm-images") &&
    ! diff -r "$root/vm-images" "$work/gvm/usr/share/gvm/vm-images" | grep -v '^Only in .*/vm-images: \(README.md\|test.sh\)$'
}

stage "what is in them"
dpkg-deb -x "$host" "$work/gvm"
dpkg-deb -x "$client" "$work/client"
for package in "$host" "$client"; do
  if command -v lintian >/dev/null; then
    check "lintian finds no error in ${package##*/}" no_error "$package"
  else
    skip "lintian on ${package##*/}" "lintian is not installed"
  fi
done
check "gvm-client needs no libvirt" without_libvirt "$work/client/usr/bin/gvm"
check "and asks for no package of it" bash -c "! dpkg-deb -f '$client' Depends Recommends | grep -i virt"
check "gvm has it" bash -c "dpkg-deb -f '$host' Depends | grep -w libvirt0"
for one in gvm client; do
  check "$one has manual pages and completions" bash -c "cd '$work/$one/usr/share' &&
    ls man/man1/gvm{,-create}.1.gz bash-completion/completions/gvm zsh/vendor-completions/_gvm fish/vendor_completions.d/gvm.fish"
done
check "gvm-client has nothing else" is '' bash -c "cd '$work/client' && find . -type f | grep -v '^./usr/\(bin/gvm\|share/\(man\|doc\|bash-completion\|zsh\|fish\)/.*\)$'"
check "the recipes of images are all in gvm" same_recipes

# --- their life ---------------------------------------------------------------------------------------------------------

rm -rf "$work"
booted_up || {
  skip "the packages under systemd" "$booted_why"
  totals
  exit
}
# The next version of it: the same with another number.
dpkg-deb -R "$host" "$dir/next"
sed -i 's/^Version: .*/&.1/' "$dir/next/DEBIAN/control"
dpkg-deb --root-owner-group -Zgzip -z1 -b "$dir/next" "$dir/next.deb" >/dev/null
put_inside /var/tmp/next.deb <"$dir/next.deb"
put_inside /var/tmp/gvm.deb <"$host"
put_inside /var/tmp/client.deb <"$client"

# dpkg_inside ARG...   its words are in $dir/dpkg.log
dpkg_inside() { inside env DEBIAN_FRONTEND=noninteractive dpkg "$@" >"$dir/dpkg.log" 2>&1 </dev/null || { cat "$dir/dpkg.log"; return 1; }; }
installed() { inside dpkg-query -W -f '${db:Status-Status}\n' "$1" 2>/dev/null | grep -x installed; }
# The exit status of a command.
ended() { local code=0; "$@" >/dev/null 2>&1 || code=$?; echo "$code"; }
states() { inside systemctl "$1" "${UNITS[@]}"; }
modes() { inside stat -c '%a %U:%G' "$@"; }
no_word_of() { ! inside systemd-analyze verify --man=no --recursive-errors=no "${UNITS[@]}" 2>&1 | grep -E '^(gvm|/.*gvm)'; }
process() { inside pgrep -f "guest=gvm-"; }
runs() { inside gvm -q -o json show "$MACHINE" | tr -d ' \n' | grep -q '"state":"running"'; }

stage "installed"
check "gvm-client is installed" dpkg_inside -i /var/tmp/client.deb
check "it runs" inside gvm --version
check "it says that no manager answers" is 6 ended inside gvm list
check "gvm takes its place" dpkg_inside -i /var/tmp/gvm.deb
check "gvm-client is gone" is '' installed gvm-client
check "it says what comes next" grep -q 'systemctl enable --now gvm gvm-gateway' "$dir/dpkg.log"
check "neither runs before it is started" is $'inactive\ninactive' states is-active
check "nor at boot" is $'disabled\ndisabled' states is-enabled
check "installed again" dpkg_inside -i /var/tmp/gvm.deb
check "neither runs still" is $'inactive\ninactive' states is-active
check "no unit holds a mistake" no_word_of
check "the folders are there" is $'755 root:root\n711 root:root\n700 gvm-gateway:gvm-gateway\n755 root:gvm' \
  modes /etc/gvm /var/lib/gvm /var/lib/gvm-gateway /run/gvm
check "the gateway's account reaches the socket" is 'gvm-gateway gvm' inside id -Gn gvm-gateway

stage "used"
check "both start" inside systemctl enable --now "${UNITS[@]}"
check "the manager answers" within 30 inside gvm -q profile list
check "a machine is made" inside gvm -q create "$MACHINE" --profile firmware --no-wait
check "it runs" within 120 runs
check "the administrator edits the configuration" inside bash -c 'echo "# mine" >>/etc/gvm/gvm.toml'

stage "upgraded"
pids=$(process) manager=$(main_pid gvm)
check "the next version is installed" dpkg_inside -i /var/tmp/next.deb
check "the manager is another" bash -c "[ '$manager' != '$(main_pid gvm)' ]"
check "it answers" within 30 inside gvm -q profile list
check "both run" is $'active\nactive' states is-active
check "the machine has not noticed" is "$pids" process
check "the configuration is the administrator's" inside grep -qx '# mine' /etc/gvm/gvm.toml

stage "removed"
check "it is removed" dpkg_inside -r gvm
check "neither runs" is $'inactive\ninactive' states is-active
check "the program is gone" inside test ! -e /usr/bin/gvm
check "the machine runs on" is "$pids" process
check "the configuration stays" inside grep -qx '# mine' /etc/gvm/gvm.toml
check "it is purged" dpkg_inside -P gvm
check "it says that machines are kept" grep -q 'rm -r /var/lib/gvm' "$dir/dpkg.log"
check "no setting is left" is '' inside bash -c 'ls -d /etc/gvm /etc/logrotate.d/gvm /etc/systemd/system/*/gvm* /etc/systemd/system/gvm* 2>/dev/null'
check "machines are" inside test -s /var/lib/gvm/gvm.db
check "and run on" is "$pids" process
stage_end
totals
