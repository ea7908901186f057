#!/usr/bin/env bash
# From a fresh machine to a login in a virtual machine of your own.
#
#   quickstart.sh               installs what is missing, builds and starts gvm, makes a machine, logs in to it
#   quickstart.sh --binary FILE the same with a program that is built already
#   quickstart.sh --check       the same inside a private host made of namespaces, with the small image and the dev
#                               build: nothing is installed but packages, and nothing is left running or mounted
#   quickstart.sh --stop        stops gvm; machines run on
#   quickstart.sh --uninstall   takes away what quickstart.sh has put on this machine, but no packages and no machines
#
# Debian 12, Debian 13, Ubuntu 24.04 (written, not run); with systemd or without. Whoever calls it by sudo becomes a
# member. Run it again at any time: what is done already is left alone.
# shellcheck disable=SC2317 # functions are called by their name
set -euo pipefail
self=$(readlink -f "$0")
root=$(dirname "$(dirname "$self")")
# shellcheck source-path=SCRIPTDIR source=lib/log.sh
. "$root/scripts/lib/log.sh"
# shellcheck source-path=SCRIPTDIR source=lib/setup.sh
. "$root/scripts/lib/setup.sh"
# shellcheck source-path=SCRIPTDIR source=lib/install.sh
. "$root/scripts/lib/install.sh"
# shellcheck source-path=SCRIPTDIR source=lib/private.sh
. "$root/scripts/lib/private.sh"

readonly VM=dev
# The manager reads images there too; under systemd it sees no home folder.
readonly IMAGE_CACHE=/var/cache/gvm/images
begin=$SECONDS

usage() {
  sed -n '2,/^# shellcheck/{/^# shell/d; /^#/s/^# \{0,1\}//p}' "$self" >&2
  exit 2
}

need_root() {
  [ "$(id -u)" != 0 ] || return 0
  command -v sudo >/dev/null || die "this needs root, and there is no sudo here" "run this as root: $self $*"
  exec sudo -- "$self" "$@"
}

# --- parts ------------------------------------------------------------------------------------------------------------

# Packages that building an image needs, where they are missing.
image_packages() {
  local -a needed
  mapfile -t needed < <("$root/vm-images/build.sh" --needs "$1" | while read -r name; do
    dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null | grep -qx installed || echo "$name"
  done)
  [ ${#needed[@]} = 0 ] || stage "installing ${needed[*]}" install_packages "${needed[@]}"
}

# build_image NAME [OPTION...]   sets image_dir
build_image() {
  local log
  log=$(mktemp)
  image_dir=$("$root/vm-images/build.sh" "$@" 2>"$log") || {
    tail -n 20 "$log" >&2
    rm -f "$log"
    die "the image $1 could not be built" "$root/vm-images/build.sh $*"
  }
  rm -f "$log"
  image_dir=${image_dir##*$'\n'}
}

import_image() {
  if "$binary" -o json image list | grep -q "\"name\": *\"$1\""; then
    note "it is in the catalogue already"
  else
    "$binary" image import "$2" >&2
  fi
}

# Sets member, the one who is to use gvm, and member_home.
find_member() {
  member=${SUDO_USER:-root}
  member_home=$(getent passwd "$member" | cut -d: -f6)
  [ -n "$member_home" ] || die "there is no user $member"
}

# as_member CMD...   with the groups of the account as they are now, whatever those of the calling shell are
as_member() {
  if [ "$member" = root ]; then
    HOME=$member_home "$@"
  else
    (
      cd "$member_home" 2>/dev/null || cd /
      exec setpriv --reuid "$member" --regid "$(id -g "$member")" --init-groups \
        env -u SUDO_USER -u SUDO_UID -u SUDO_GID -u SUDO_COMMAND -u XDG_CACHE_HOME -u XDG_STATE_HOME -u XDG_CONFIG_HOME \
        HOME="$member_home" USER="$member" LOGNAME="$member" PATH="${binary%/*}:/usr/local/bin:/usr/bin:/bin" "$@"
    )
  fi
}

# What runs guest code, as far as the manager knows: prints kvm, untried or emulation. $why gets its words.
accelerator() {
  local finding
  finding=$("$binary" -o json doctor 2>/dev/null | tr '\n' ' ' | grep -o '{[^{}]*"check": *"kvm"[^{}]*}') || true
  why=$(sed -E 's/.*"message": *"(([^"\\]|\\.)*)".*/\1/' <<<"$finding")
  case $finding in
    *'"level": "ok"'*) found=kvm ;;
    *'no kernel to try'*) found=untried ;;
    *'not proven to work yet'* | '') found='' ;;
    *) found=emulation ;;
  esac
  [ -n "$found" ]
}

make_machine() {
  if as_member "$binary" show "$VM" >/dev/null 2>&1; then
    note "you have a machine called $VM already"
    as_member "$binary" start "$VM" </dev/null >&2
  else
    # Nobody is asked: the first key in ~/.ssh is registered, or one is made.
    as_member "$binary" create "$VM" --profile "$1" </dev/null >&2
  fi
}

# --- on this machine ----------------------------------------------------------------------------------------------------

# quickstart [BINARY]
quickstart() {
  need_root ${1:+--binary "$1"}
  find_member
  if [ -n "${1:-}" ]; then
    built=$(readlink -f "$1")
    "$built" --version >&2 || die "$1 is not a gvm that runs here"
    stage "looking for what gvm needs" "$root/scripts/setup.sh"
  else
    stage "looking for what gvm needs, and what building it needs" "$root/scripts/setup.sh" --build
    stage "building gvm (minutes, the first time)" build_gvm release
  fi
  local is_new_member=''
  [ "$member" = root ] || [[ " $(id -nG "$member") " == *" gvm "* ]] || is_new_member=yes
  stage "installing gvm"
  if [ "$member" = root ]; then install_gvm "$built"; else install_gvm "$built" "$member"; fi
  stage "starting libvirt" start_libvirt
  stage "starting gvm and its SSH gateway" start_gvm
  choose_image
  image_packages "$image"
  stage "building the image $image from packages (a minute or two, the first time)" build_image "$image" --output "$IMAGE_CACHE"
  stage "importing the image $image" import_image "$image" "$image_dir"
  stage "making the machine $VM and waiting until one can log in" make_machine "$image"
  stage "logging in: gvm ssh $VM uname -a" as_member "$binary" ssh "$VM" uname -a </dev/null
  stage_end
  note "all done in $((SECONDS - begin)) s"
  say_next
  if [ -n "$is_new_member" ] && [ -t 0 ] && [ -t 1 ]; then
    printf '\nThis is a new shell of yours in which the group gvm is in effect already; exit leaves it.\n'
    as_member "$(getent passwd "$member" | cut -d: -f7)" -i || true
  fi
}

# The full image where hardware runs it; under emulation alone it takes minutes to boot.
choose_image() {
  local found='' why=''
  stage "finding out what runs guests"
  until_ok 30 accelerator || true
  accelerator || true
  if [ "$found" = untried ]; then
    note "trying needs a kernel: the image tiny brings one"
    image_packages tiny
    stage "building the image tiny from packages" build_image tiny --output "$IMAGE_CACHE"
    stage "importing the image tiny" import_image tiny "$image_dir"
    until_ok 30 has_verdict || true
    accelerator || true
  fi
  if [ "$found" = kvm ]; then
    image=debian
    note "hardware virtualisation works"
  else
    image=tiny
    warn "guests run in software emulation here, many times slower; therefore the image is tiny and not debian"
    note "$why"
  fi
  stage_end
}

has_verdict() { accelerator && [ "$found" != untried ]; }

say_next() {
  cat <<TEXT

Type next:
  gvm ssh $VM                       log in (so does: gvm ssh-config --write, then ssh $VM@localhost -p 2222)
  gvm console $VM                   the serial console; Ctrl-] leaves it
  gvm list                         your machines
  gvm stop $VM; gvm delete $VM       and away with it
  gvm create --profile $image       another one; gvm profile list shows what else there is
TEXT
  if [ "$member" = root ]; then
    cat <<TEXT
You are root here. People use gvm as members of a group:
  usermod -aG gvm NAME
TEXT
  else
    cat <<TEXT
Shells of yours that were open before this do not have the group gvm yet. In each of them, without a new login:
  newgrp gvm                       or for one command: sg gvm -c 'gvm list'
TEXT
  fi
  if has_systemd; then
    echo "Stop gvm: $self --stop, or systemctl stop ${UNITS[*]}. Its logs: journalctl -u gvm"
  else
    echo "Stop gvm: $self --stop. Its logs: $logs. There is no systemd here: after a boot, run $self again."
  fi
  echo "For a server that stays, see ansible/site.yml."
}

# --- the check ----------------------------------------------------------------------------------------------------------

check() {
  need_root --check
  local before
  stage "looking for what gvm needs" "$root/scripts/setup.sh" --build
  image_packages tiny
  stage "building gvm, the dev build (minutes, the first time)" build_gvm dev
  stage "building the image tiny from packages (a minute, the first time)" build_image tiny
  before=$(machine_state)
  trap 'private_down; exit 1' INT TERM HUP
  trap private_down EXIT
  stage "starting a private host: libvirtd in namespaces of its own" private_up
  # It comes with a libvirtd; on a fresh machine without systemd none runs.
  "$root/scripts/private-host.sh" libvirtd "$private_dir/host" stop
  inside env -i PATH="$PATH" HOME=/root LANG=C.UTF-8 GVM_BINARY=/run/bin/gvm GVM_LOGS=/run/log/gvm \
    "$self" __inside "$built" "$image_dir" || die "the check failed inside the private host (above)"
  stage "ending the private host and looking for what is left" private_down
  trap - EXIT
  same_state "$before" "$(machine_state)" || die "the machine itself is not as it was before (above)"
  note "nothing runs, nothing is mounted, the machine is as it was; all done in $((SECONDS - begin)) s"
}

# What the check must not change on the machine itself.
machine_state() {
  ip -o link | cut -d: -f2 | sort
  ls -d /etc/gvm /var/lib/gvm /var/lib/gvm-gateway /run/gvm /usr/local/bin/gvm /var/log/gvm /etc/systemd/system/gvm* \
    /etc/{sysusers.d,tmpfiles.d,modules-load.d,logrotate.d,polkit-1/rules.d}/*gvm* 2>/dev/null
  getent group gvm
  getent passwd gvm-gateway quick
  nft list tables 2>/dev/null | grep -iE 'gvm|libvirt'
  true
}

same_state() { [ "$1" = "$2" ] || ! diff <(echo "$1") <(echo "$2") >&2; }

# Inside, as root of the private host.
check_inside() {
  local built=$1 image_dir=$2 out
  trap 'failed_inside $?' EXIT
  export HOME=/run/root
  mkdir -p "$HOME"
  member=quick member_home=/run/home/quick
  stage "making an ordinary user, $member"
  mkdir -p "${member_home%/*}"
  useradd --no-log-init --create-home --home-dir "$member_home" --shell /bin/bash "$member" 2>&1
  stage "installing gvm"
  install_gvm "$built" "$member"
  stage "installing it again changes nothing"
  out=$(install_gvm "$built" "$member" 2>&1; echo "changed:$is_changed")
  [ "$out" = changed: ] || die "the second installation was not idle: $out"
  stage "starting libvirt" start_libvirt
  stage "starting gvm and its SSH gateway" start_gvm
  stage "importing the image tiny" import_image tiny "$image_dir"
  stage "making the machine $VM as $member and waiting until one can log in" make_machine tiny
  stage "logging in: gvm ssh $VM uname -a" login "$binary" ssh "$VM" uname -a
  as_member "$binary" ssh-config --write >/dev/null </dev/null
  stage "logging in by OpenSSH alone: ssh -p 2222 $VM@localhost uname -a" login ssh -p 2222 -o BatchMode=yes "$VM@localhost" uname -a
  stage "logging in by OpenSSH alone: ssh $VM.gvm uname -a" login ssh -o BatchMode=yes "$VM.gvm" uname -a
  stage "the group takes effect in a shell from before: sg gvm -c 'gvm list'"
  setpriv --reuid "$member" --regid "$(id -g "$member")" --clear-groups env HOME="$member_home" \
    sg gvm -c "$binary list" >&2
  stage "gvm stop $VM" as_member "$binary" stop "$VM" </dev/null >&2
  stage "gvm delete --now $VM" as_member "$binary" delete --now --yes "$VM" </dev/null >&2
  [ -z "$(virsh -q -c qemu:///system list --all --name)" ] || die "a domain is left: $(virsh -c qemu:///system list --all)"
  [ -z "$(ls /var/lib/gvm/vms 2>/dev/null)" ] || die "files are left: $(ls -R /var/lib/gvm/vms)"
  stage "stopping gvm" stop_gvm
  ! pgrep -f "^$binary" >/dev/null || die "gvm still runs"
}

login() {
  local said
  said=$(as_member timeout 120 "$@" </dev/null) || die "the login failed"
  printf '%s\n' "$said"
  [[ $said == "Linux $VM "* ]] || die "that is not the guest's uname -a"
}

failed_inside() {
  stage_end "$1"
  [ "$1" != 0 ] || return 0
  tail -n 15 "$logs"/*.log /var/lib/gvm/vms/*/serial.log >&2 2>/dev/null || true
}

# One command with its own exit, so that bash never reads on in a file that was replaced meanwhile.
{
  case "${1:-} $#" in
    ' 0') quickstart ;;
    '--binary 2') quickstart "$2" ;;
    '--check 1') check ;;
    '__inside 3') check_inside "$2" "$3" ;;
    '--stop 1')
      need_root --stop
      stop_gvm
      ;;
    '--uninstall 1')
      need_root --uninstall
      uninstall_gvm
      echo "gvm is stopped and taken away. What is left, and how to remove it:
  people's machines (virsh list --all) and images    rm -r /var/lib/gvm; virsh undefine --nvram NAME for each
  settings, host keys, logs                          rm -r /etc/gvm /var/lib/gvm-gateway $logs
  built images                                       rm -r ${IMAGE_CACHE%/*}
  accounts                                           userdel gvm-gateway; groupdel gvm-gateway; groupdel gvm"
      ;;
    *) usage ;;
  esac
  exit
}
