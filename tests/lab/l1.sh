# shellcheck shell=bash disable=SC2054 # commas are QEMU's
# The nested host as a process: starts it, speaks to it, ends it. Wants lib.sh, $built (the lab's folder), $run (a folder
# of this run).

: "${built:?}" "${run:?}"

# What the cards say they are: two vendors' models, an audio function, and a third card that shares its group.
readonly LAB_IDS=0000:01:00.0=10de:2230,0000:01:00.1=10de:1aef,0000:02:00.0=10de:2235,0000:07:01.0=10de:2235
# Cards that scenarios gave other names say the same after a power cut.
l1_ids=''
# One vCPU: with two, this QEMU loses timer interrupts or ends in an assertion. Features whose emulation is slow, or
# that a nested guest's firmware would only stumble over, are hidden.
readonly LAB_CPU=max,svm=on,npt=on,la57=off,erms=off,fsrm=off,pku=off,smap=off,smep=off,umip=off,vaes=off,avx2=off,avx=off
# Below 2.75 GiB: else a VF's BAR lies above 4 GiB, where this QEMU's igb decodes half of the address.
readonly LAB_MEMORY=2048
readonly LAB_CMDLINE="console=ttyS0 quiet loglevel=4 panic=-1 nokaslr mitigations=off tsc=reliable no_timer_check nohz=off highres=off
  intel_iommu=on iommu.strict=0 net.ifnames=0 apparmor=0 audit=0 random.trust_cpu=on systemd.show_status=0"

_ssh_options=(-F none -i "$built/id" -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR
  -o ConnectTimeout=10 -o BatchMode=yes -o ControlMaster=auto -o ControlPersist=yes -o "ControlPath=$run/ssh")

# _port ID NUMBER [MORE]   a root port of its own: a slot that cards are put into
_port() { _qemu+=(-device "pcie-root-port,id=$1,chassis=$2,slot=$2,addr=8.$(($2 - 1))$([ "$2" != 1 ] || echo ,multifunction=on)${3:-}"); }

_qemu_args() {
  _qemu=(-name gvm-lab -machine "q35,hpet=off,kernel-irqchip=off" -accel "tcg,thread=multi,tb-size=512" -cpu "$LAB_CPU"
    -smp 1 -m "$LAB_MEMORY" -nodefaults -no-user-config -display none -vga none -no-reboot
    # Before all that are behind it.
    -device intel-iommu,intremap=on,caching-mode=on,device-iotlb=on
    -kernel "$built/vmlinux" -initrd "$built/initrd" -append "$(echo $LAB_CMDLINE) fakeid.set=$LAB_IDS${l1_ids:+,$l1_ids}"
    -serial "file:$run/console" -monitor "unix:$run/monitor,server=on,wait=off" -pidfile "$run/pid"
    -drive "file=$run/disk.qcow2,format=qcow2,if=none,id=root,cache=unsafe"
    # The host's own screen, so that no card for guests is the one it boots with.
    -device VGA,romfile=,addr=1
    -device virtio-blk-pci,drive=root,addr=2
    -netdev "user,id=way,restrict=on,hostfwd=tcp:127.0.0.1:0-:22"
    -device virtio-net-pci,netdev=way,mac=52:54:00:1a:b0:01,addr=3,romfile=
    -drive "file=$run/run.ext4,format=raw,if=none,id=run,readonly=on" -device virtio-blk-pci,drive=run,addr=4
    -device virtio-rng-pci,addr=5)
  # A card with a display and an audio function in one slot, as real ones have.
  _port gpu0 1
  _qemu+=(-device "ati-vga,bus=gpu0,model=rv100,romfile=,addr=0.0,multifunction=on"
    -device ich9-intel-hda,id=gpu0sound,bus=gpu0,addr=0.1 -audiodev none,id=mute -device hda-duplex,bus=gpu0sound.0,audiodev=mute)
  _port gpu1 2
  _qemu+=(-device "ati-vga,id=gpu1card,bus=gpu1,model=rage128p,romfile=")
  # A card with virtual functions. Their BARs must lie below 4 GiB, as above.
  _port sriov 3 ,pref32-reserve=2M
  _qemu+=(-netdev user,id=sriovnet,restrict=on,net=10.9.1.0/24 -device igb,bus=sriov,netdev=sriovnet,mac=52:54:00:1a:b0:03,romfile=)
  _port disk 4
  _qemu+=(-drive "file=$run/nvme.img,format=raw,if=none,id=nvme" -device nvme,bus=disk,drive=nvme,serial=LAB0001)
  # Nothing yet; with room for a card's memory.
  _port spare 5 ,mem-reserve=32M,pref32-reserve=32M
  # A third display card and a network card of the host behind one conventional bridge: one group.
  _port shared 6
  _qemu+=(-device pcie-pci-bridge,id=bridge,bus=shared -device "ati-vga,bus=bridge,addr=1,model=rage128p,romfile="
    -netdev user,id=sharednet,restrict=on,net=10.9.2.0/24 -device e1000,bus=bridge,addr=2,netdev=sharednet,mac=52:54:00:1a:b0:04,romfile=)
}

# l1_new   a nested host that has never run
l1_new() {
  rm -f "$run/disk.qcow2" "$run/nvme.img"
  l1_ids=''
  qemu-img create -q -f qcow2 -b "$built/root.ext4" -F raw "$run/disk.qcow2"
  truncate -s 16M "$run/nvme.img"
}

# l1_start   boots it with the disk that it has; returns when it lets one in
l1_start() {
  local -a _qemu
  rm -f "$run"/{monitor,pid,ssh}
  _qemu_args
  printf '%q ' qemu-system-x86_64 "${_qemu[@]}" >"$run/command"
  # Whatever ends the runner ends it.
  setpriv --pdeathsig KILL qemu-system-x86_64 "${_qemu[@]}" </dev/null >>"$run/qemu.log" 2>&1 &
  l1_process=$!
  _within 10 test -s "$run/pid" || {
    tail -n 5 "$run/qemu.log" >&2
    return 1
  }
  l1_port=$(l1_monitor "info usernet" | sed -nE 's/^ *TCP\[HOST_FORWARD\] +[0-9]+ +127\.0\.0\.1 +([0-9]+) .*/\1/p')
  [ -n "$l1_port" ] || return 1
  _within 120 _answers
}

_answers() { l1_lives && l1 20 true; }

# _within SECONDS CMD...   quietly, five times a second
_within() {
  local end=$((SECONDS + $1))
  shift
  until "$@" >/dev/null 2>&1; do
    [ "$SECONDS" -lt "$end" ] || return 1
    sleep 0.2
  done
}

# l1 SECONDS CMD   runs a line of shell in it
l1() { timeout --kill-after 2 "$1" ssh "${_ssh_options[@]}" -p "$l1_port" root@127.0.0.1 "${@:2}" </dev/null; }

# l1_monitor LINE   a word to its QEMU
l1_monitor() { { echo "$1"; sleep 0.5; } | socat -t 1 - "UNIX-CONNECT:$run/monitor" | tr -d '\r'; }

l1_lives() { kill -0 "$l1_process" 2>/dev/null; }

# l1_stall   says which of the emulator's known faults was met, or that the kernel in it died; fails when none was
l1_stall() {
  local word
  for word in iotlb_to_section Assertion 'assertion failed'; do
    ! grep -q "$word" "$run/qemu.log" 2>/dev/null || { echo "QEMU: $(grep -m 1 "$word" "$run/qemu.log")"; return; }
  done
  ! grep -Eqs 'detected stalls|self-detected stall|soft lockup' "$run/console" ||
    { grep -Em 1 'detected stalls|self-detected stall|soft lockup' "$run/console"; return; }
  ! grep -q 'Kernel panic' "$run/console" 2>/dev/null || { grep -m 1 'Kernel panic' "$run/console"; return; }
  [ -z "${l1_process:-}" ] || l1_lives || { echo "QEMU ended by itself"; return; }
  return 1
}

# l1_kill   the plug is pulled
l1_kill() {
  [ -n "${l1_process:-}" ] || return 0
  kill -KILL "$l1_process" 2>/dev/null || true
  wait "$l1_process" 2>/dev/null || true
  # The way in was its own process.
  ssh "${_ssh_options[@]}" -O exit root@127.0.0.1 2>/dev/null || true
  rm -f "$run/ssh"
  l1_process=''
}
