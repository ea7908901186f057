# shellcheck shell=bash
# Words for scenarios, and how they are run. Wants l1.sh and scripts/lib/check.sh.

: "${run:?}" "${root:?}" "${lab:?}" "${built:?}"

# Beside ssh's own: the nested host is slow, and slower while others use this machine.
readonly LAB_SHORT=60 LAB_LONG=240
# It has virtual functions.
readonly LAB_L40S=0000:03:00.0

# in_lab SECONDS CMD...   as l1, but with the folder of helpers in the PATH
in_lab() { l1 "$1" "PATH=\$PATH:/lab/run/inside; ${*:2}"; }

# lab_says WANT CMD...   what the command prints there; for use with check
lab_says() { same "$1" "$(in_lab "$LAB_SHORT" "${@:2}" 2>&1 || true)"; }

# lab_matches REGEX SECONDS CMD...   some line of what it prints, whatever its exit
lab_matches() {
  local text
  text=$(in_lab "$2" "${@:3}" 2>&1 || true)
  grep -Eq -- "$1" <<<"$text" || {
    printf 'want: %s\ngot:  %s\n' "$1" "$text"
    return 1
  }
}

# lab_within SECONDS WANT CMD...   until the command prints that
lab_within() { _lab_until "$SECONDS" "$@"; }
_lab_until() {
  local begin=$1 limit=$2 want=$3 got=''
  shift 3
  while :; do
    got=$(in_lab "$LAB_SHORT" "$@" 2>&1 || true)
    [ "$got" != "$want" ] || return 0
    [ $((SECONDS - begin)) -lt "$limit" ] || break
    l1_lives || break
    # Each look costs the one CPU there a second; what is waited for wants it as well.
    sleep $((limit > 30 ? 4 : 1))
  done
  same "$want" "$got"
}

# --- the disk of this run -----------------------------------------------------------------------------------------------

# lab_run_disk GVM   what is tried: the program, the role's files, helpers, the guest's image
lab_run_disk() {
  local dir=$run/stuff
  mkdir -p "$dir/repo/scripts" "$dir/repo/ansible/roles"
  cp -r "$root/scripts/lib" "$dir/repo/scripts/"
  cp -r "$root/ansible/roles/gvm_host" "$dir/repo/ansible/roles/"
  cp -r "$lab/inside" "$dir/"
  cp -r "$built/image" "$dir/"
  strip -o "$dir/gvm" "$1"
  truncate -s 160M "$run/run.ext4"
  mke2fs -q -t ext4 -O ^has_journal -E root_owner=0:0 -d "$dir" "$run/run.ext4"
  rm -r "$dir"
}

# --- hosts and scenarios ------------------------------------------------------------------------------------------------

# lab_ready   waits until all of it is there
lab_ready() {
  # udev has bound every driver, libvirt knows its capabilities.
  l1 "$LAB_LONG" 'udevadm settle -t 120; until virsh -q version; do sleep 1; done; mountpoint -q /lab/run || mount /lab/run' >/dev/null 2>&1
}

# lab_boot   a fresh host, with a second try where the emulator fails
lab_boot() {
  local try why
  for try in first second; do
    stage "booting the nested host"
    l1_new
    if l1_start && lab_ready; then
      stage_end
      return
    fi
    why=$(l1_stall) || why="it did not come up; its console ends with: $(tail -n 3 "$run/console" | tr '\n\r' '  ')"
    warn "$try boot of the nested host failed: $why"
    l1_kill
    lab_put_away boot
  done
  return 1
}

# lab_scenario NAME FILE   its checks count; those of a run that the emulator spoiled do not
lab_scenario() {
  local name=$1 file=$2 try why before="$_passed $_failed $_skipped" begin=$SECONDS
  [ -n "${l1_process:-}" ] || lab_boot || die "the nested host did not come up again"
  for try in first second; do
    printf '==> %s: %s\n' "$name" "$(sed -n '2s/^# //p' "$file")"
    # shellcheck source=/dev/null
    . "$file"
    scenario
    if why=$(lab_spoiled); then
      printf 'the emulator failed (%s); the checks of %s above do not count\n' "$why" "$name"
      read -r _passed _failed _skipped <<<"$before"
      l1_kill
      lab_put_away "$name"
      lab_boot || die "the nested host did not come up again"
      [ "$try" = first ] || {
        skip "$name" "the emulator failed twice: $why"
        break
      }
    else
      break
    fi
  done
  printf '    %s took %d s\n' "$name" $((SECONDS - begin))
}

# lab_put_away NAME   what a host that is no more has said
lab_put_away() {
  local file
  mkdir -p "$run/keep"
  for file in console qemu.log; do [ ! -e "$run/$file" ] || mv "$run/$file" "$run/keep/$1.$file.$SECONDS"; done
}

# lab_gone   its end was looked for: no reason to run anything again
lab_gone() {
  l1_kill
  lab_put_away gone
}

# lab_spoiled   says what befell the emulator, where something did
lab_spoiled() {
  [ -n "${l1_process:-}" ] || return 1
  l1_stall && return
  l1 60 true >/dev/null 2>&1 && return 1
  echo "the nested host does not answer any more"
}

# lab_logs   for whoever has to look into it
lab_logs() {
  local to=${CARGO_TARGET_DIR:-$root/target}/test-logs/lab
  mkdir -p "$to"
  [ ! -d "$run/keep" ] || cp -r "$run/keep/." "$to/"
  [ -n "${l1_process:-}" ] || return 0
  cp "$run/console" "$run/qemu.log" "$run/command" "$to/" 2>/dev/null || true
  in_lab "$LAB_SHORT" 'dmesg; journalctl --no-pager -b' >"$to/journal" 2>/dev/null || true
}

# --- gvm inside ---------------------------------------------------------------------------------------------------------

# lab_installed   gvm is on the nested host
lab_installed() {
  in_lab "$LAB_SHORT" '[ -x /usr/local/bin/gvm ] && systemctl -q is-active gvm' ||
    check "gvm is installed as its units, and takes the image" in_lab "$LAB_LONG" put-gvm
}

# lab_gvm NAME   gvm is on the nested host, with commands for cards; else the scenario NAME is skipped
lab_gvm() {
  lab_installed
  in_lab "$LAB_SHORT" 'gvm gpu list --help' >/dev/null 2>&1 || {
    skip "$1" "this gvm has no commands for cards yet"
    return 1
  }
}

# lab_holds NAME   it was built so that tests can stop it
lab_holds() {
  in_lab "$LAB_SHORT" 'grep -qa GVM_HOLD_AT /usr/local/bin/gvm' || {
    skip "$1" "this gvm was built without the cargo feature hold"
    return 1
  }
}

# lab_runs NAME   a machine with the first card runs; of the scenario before, or made
lab_runs() {
  in_lab "$LAB_LONG" "gvm -q show $1 >/dev/null 2>&1 || gvm -q create $1 --profile bare --gpu a6000 --no-wait >/dev/null" || true
  check "a machine runs with a card" lab_settled "$1" running in-use
}

# lab_l40s   the card with virtual functions says that it is an L40S, from now on and after each boot, and has its driver
lab_l40s() {
  # Not by check: that is a subshell.
  l1_ids=$LAB_L40S=10de:26b9:030200
  check "a card with virtual functions says that it is an L40S, and has its driver" lab_within 30 nvidia \
    "card driver $LAB_L40S | grep -qx nvidia || {
       echo 0 >/sys/bus/pci/devices/$LAB_L40S/sriov_numvfs; echo $LAB_L40S >/sys/bus/pci/devices/$LAB_L40S/driver/unbind
       echo 1 >/sys/bus/pci/devices/$LAB_L40S/sriov_drivers_autoprobe
       echo $l1_ids >/sys/module/fakeid/parameters/set; echo $LAB_L40S >/sys/bus/pci/drivers_probe; }; card driver $LAB_L40S"
}

# lab_functions   how many virtual functions of it are on, of how many, and how many are with its driver
lab_functions() {
  echo "cat /sys/bus/pci/devices/$LAB_L40S/sriov_numvfs /sys/bus/pci/devices/$LAB_L40S/sriov_totalvfs
        ls -d /sys/bus/pci/drivers/nvidia/*/physfn 2>/dev/null | wc -l"
}

# lab_type FUNCTION   what the driver has made it
lab_type() { echo "cat /sys/bus/pci/devices/$1/nvidia/current_vgpu_type"; }

# lab_settled VM STATE CARD-STATE   within its time: the machine's state, the first card's, never two leases
lab_settled() {
  lab_within "$LAB_LONG" "$2 $3" "echo \$(gvm -o json show $1 | jq -r .state) \$(gpu field 0000:01:00.0 state)"
}
