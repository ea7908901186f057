#!/bin/bash
# Boots a built image with plain QEMU under software emulation and checks what gvm relies on. See README.md.
#   test.sh NAME [--dir DIR]
# Network: QEMU's user mode, one forwarded port on 127.0.0.1. Ends with "N passed, N failed, N skipped".
set -euo pipefail
export LC_ALL=C

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
usage() { sed -n '2,4s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }

name='' dir=''
while [ $# -gt 0 ]; do
    case $1 in
        --dir) [ $# -ge 2 ] || usage; dir=$2; shift ;;
        -*) usage ;;
        *) [ -z "$name" ] || usage; name=$1 ;;
    esac
    shift
done
case $name in tiny|debian) ;; *) usage ;; esac
[ -n "$dir" ] || dir=$("$here/build.sh" "$name" | tail -n 1)

# Seconds the slow steps may take; a busy host may raise them.
: "${READY_LIMIT:=10}" "${POWERDOWN_LIMIT:=3}" "${BOOT_LIMIT:=360}"

for tool in qemu-system-x86_64 qemu-img genisoimage ssh scp sftp rsync script; do
    command -v "$tool" >/dev/null || { echo "test: $tool is missing" >&2; exit 2; }
done

tmp=$(mktemp -d "${TMPDIR:-/tmp}/gvm-image-test.XXXXXX")
qemu_pid='' reader_pid='' agent_pid=''
cleanup() {
    for p in "$qemu_pid" "$reader_pid" "$agent_pid"; do
        [ -z "$p" ] || kill "$p" 2>/dev/null || true
    done
    if [ -n "${KEEP:-}" ]; then echo "test: kept $tmp" >&2; else rm -rf "$tmp"; fi
}
trap cleanup EXIT
trap 'exit 130' INT TERM

passed=0 failed=0 skipped=0
ok() { passed=$((passed + 1)); echo "ok      $*"; }
bad() { failed=$((failed + 1)); echo "FAILED  $*"; }
skip() { skipped=$((skipped + 1)); echo "skipped $*"; }
# check WHAT COMMAND...: passes when the command succeeds
check() {
    local what=$1
    shift
    if "$@" > "$tmp/last" 2>&1; then ok "$what"; else bad "$what"; sed 's/^/        /' "$tmp/last" | tail -n 5; fi
}
finish() {
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" = 0 ]
    exit
}

# microseconds since the epoch, and the difference of two as seconds
now() { printf '%s' "${EPOCHREALTIME/./}"; }
secs() { local d=$(($2 - $1)); printf '%d.%01d' $((d / 1000000)) $((d % 1000000 / 100000)); }

# toml KEY [N]: the Nth value of that name in image.toml; [kernel] comes before [disk]
toml() { sed -n "s/^$1 = \"\{0,1\}\([^\"]*\)\"\{0,1\}$/\1/p" "$dir/image.toml" | sed -n "${2:-1}p"; }

ssh-keygen -q -t ed25519 -N '' -C member -f "$tmp/key"
ssh-keygen -q -t ed25519 -N '' -C host -f "$tmp/host"
member=eve
# The prepared known_hosts is the only place a host key may come from.
printf 'vm %s\n' "$(cut -d' ' -f1,2 "$tmp/host.pub")" > "$tmp/known_hosts"

# seed FILE MKISO_OPTION...: an ISO of the directory $tmp/seed
make_seed() {
    local out=$1
    shift
    genisoimage -quiet -V cidata "$@" -o "$out" "$tmp/seed" 2>/dev/null
}
fill_seed() {
    rm -rf "$tmp/seed"
    mkdir "$tmp/seed"
    printf 'instance-id: %s\nlocal-hostname: vm1\n' "$1" > "$tmp/seed/meta-data"
    {
        printf '#cloud-config\nhostname: vm1\nusers:\n  - name: %s\n    shell: /bin/bash\n' "$member"
        printf '    sudo: "ALL=(ALL) NOPASSWD:ALL"\n    lock_passwd: true\n    ssh_authorized_keys:\n      - %s\n' "$(cat "$tmp/key.pub")"
        printf 'ssh_deletekeys: true\nssh_keys:\n  ed25519_private: |\n'
        sed 's/^/    /' "$tmp/host"
        printf '  ed25519_public: %s\n' "$(cat "$tmp/host.pub")"
        printf 'ssh_pwauth: false\ndisable_root: true\n'
    } > "$tmp/seed/user-data"
    printf 'version: 2\nethernets:\n  nic0:\n    match: {macaddress: "52:54:00:12:34:56"}\n    set-name: eth0\n    dhcp4: true\n    dhcp-identifier: mac\n' \
        > "$tmp/seed/network-config"
    echo vm1 > "$tmp/seed/gvm-hostname"
    echo "$member" > "$tmp/seed/gvm-user"
    cp "$tmp/key.pub" "$tmp/seed/gvm-authorized-keys"
    cp "$tmp/host" "$tmp/seed/gvm-host-ed25519"
}

# boot ARG...: starts QEMU. The monitor and the serial line are pipes; each line of the latter is stored with its time.
boot() {
    rm -f "$tmp"/{mon,ser,ga}.{in,out}
    mkfifo "$tmp"/{mon,ser,ga}.{in,out}
    : > "$tmp/serial"
    : > "$tmp/agent"
    started=$(now)
    qemu-system-x86_64 -machine q35 -accel tcg,thread=multi -cpu max -nodefaults -no-user-config -display none \
        -chardev "pipe,id=mon,path=$tmp/mon" -mon chardev=mon,mode=readline \
        -chardev "pipe,id=ser,path=$tmp/ser,logfile=$tmp/serial.raw,logappend=off" -serial chardev:ser \
        -netdev user,id=net,hostfwd=tcp:127.0.0.1:0-:22 \
        -device virtio-net-pci,netdev=net,mac=52:54:00:12:34:56,romfile= \
        -drive "if=none,id=seed,file=$tmp/seed.iso,format=raw,readonly=on" -device virtio-blk-pci,drive=seed \
        "$@" 2> "$tmp/qemu.err" &
    qemu_pid=$!
    (while IFS= read -r line || [ -n "$line" ]; do printf '%s %s\n' "$(now)" "${line%$'\r'}"; done < "$tmp/ser.out") > "$tmp/serial" 2>/dev/null &
    reader_pid=$!
    # Both ends stay open: the pipes must not close between two commands.
    exec 5<> "$tmp/mon.in" 6<> "$tmp/mon.out" 7<> "$tmp/ser.in"
    port=''
    echo 'info usernet' >&5
    local line tries=0
    while [ "$tries" -lt 200 ] && kill -0 "$qemu_pid" 2>/dev/null; do
        if IFS= read -r -t 1 -u 6 line; then
            port=$(printf '%s\n' "$line" | awk '/HOST_FORWARD/ { print $4 }')
            [ -z "$port" ] || break
        fi
        tries=$((tries + 1))
    done
    [ -n "$port" ] || { cat "$tmp/qemu.err" >&2; echo "test: QEMU does not start" >&2; exit 1; }
    ssh_opts=(-F none -i "$tmp/key" -o IdentitiesOnly=yes -o BatchMode=yes -o StrictHostKeyChecking=yes -o HostKeyAlias=vm
        -o "UserKnownHostsFile=$tmp/known_hosts" -o GlobalKnownHostsFile=none -o ConnectTimeout=20 -o LogLevel=ERROR)
}
vm() { timeout 60 ssh "${ssh_opts[@]}" -p "$port" "${who:-$member}@127.0.0.1" "$@"; }

# line PATTERN SECONDS [COUNT]: waits for the COUNTth serial line that begins with a match; its time in line_at, its text in line_text
line() {
    local until=$(($(now) + $2 * 1000000)) hit
    while :; do
        hit=$(grep -a -E -- "^[0-9]+ $1" "$tmp/serial" | sed -n "${3:-1}p") || true
        if [ -n "$hit" ]; then line_at=${hit%% *} line_text=${hit#* }; return 0; fi
        [ "$(now)" -lt "$until" ] && kill -0 "$qemu_pid" 2>/dev/null || return 1
        sleep 0.05
    done
}

# cpu_time: microseconds of processor time QEMU has used
cpu_time() {
    local stat
    read -r -a stat < "/proc/$qemu_pid/stat"
    printf '%d' $(((stat[13] + stat[14]) * 1000000 / $(getconf CLK_TCK)))
}

# gone SECONDS: waits for QEMU to end by itself; the time it took in gone_after
gone() {
    local from until
    from=$(now)
    until=$((from + $1 * 1000000))
    while kill -0 "$qemu_pid" 2>/dev/null; do
        [ "$(now)" -lt "$until" ] || return 1
        sleep 0.05
    done
    gone_after=$(secs "$from" "$(now)")
    wait "$qemu_pid" 2>/dev/null || true
    qemu_pid=''
    wait "$reader_pid" 2>/dev/null || true
    reader_pid=''
    close_pipes
}
close_pipes() { exec 5>&- 6>&- 7>&-; }
halt() {
    [ -z "$qemu_pid" ] || kill "$qemu_pid" 2>/dev/null || true
    gone 10 || true
}
powerdown() { # LIMIT WHAT
    echo system_powerdown >&5
    if gone "$((${1%.*} + 60))"; then
        if [ "${gone_after%.*}" -lt "${1%.*}" ]; then ok "$2: off ${gone_after} s after the power button"; else bad "$2: off after ${gone_after} s, limit $1"; fi
    else
        bad "$2: still running after the power button"
        halt
    fi
}

# What every image must do over SSH.
ssh_checks() {
    local rc=0 i pids=() lost=0
    vm 'echo out; echo err >&2; exit 7' > "$tmp/o" 2> "$tmp/e" || rc=$?
    if [ "$rc:$(cat "$tmp/o"):$(cat "$tmp/e")" = 7:out:err ]; then ok "exec: output and exit code, host key from the seed"; else bad "exec: rc $rc"; fi
    check "login name and host name" test "$(vm 'echo $(id -un):$(id -u):$(hostname)')" = "$member:1000:vm1"
    rc=0
    ssh "${ssh_opts[@]}" -o BatchMode=no -o NumberOfPasswordPrompts=0 -o PubkeyAuthentication=no -v -p "$port" "$member@127.0.0.1" true > "$tmp/last" 2>&1 || rc=$?
    if [ "$rc" = 255 ] && ! grep -q 'can continue:.*password' "$tmp/last"; then ok "no password login"; else bad "no password login"; fi

    head -c 3000000 /dev/urandom > "$tmp/data"
    local sum scp=(-q "${ssh_opts[@]}" -P "$port")
    sum=$(sha256sum < "$tmp/data")
    check "scp" timeout 120 scp "${scp[@]}" "$tmp/data" "$member@127.0.0.1:a"
    check "scp, old protocol" timeout 120 scp -O "${scp[@]}" "$tmp/data" "$member@127.0.0.1:b"
    printf 'put %s c\nrename c d\n' "$tmp/data" > "$tmp/batch"
    check "sftp" timeout 120 sftp -q "${ssh_opts[@]}" -P "$port" -b "$tmp/batch" "$member@127.0.0.1"
    check "rsync" timeout 120 rsync -e "ssh ${ssh_opts[*]} -p $port" "$tmp/data" "$member@127.0.0.1:e"
    check "checksums in the guest" test "$(vm 'for f in a b d e; do sha256sum < $f; done' | sort -u)" = "$sum"
    timeout 120 scp "${scp[@]}" "$member@127.0.0.1:e" "$tmp/back" > /dev/null 2>&1 || true
    check "checksum of a file brought back" test "$(sha256sum < "$tmp/back")" = "$sum"
    check "binary output of a command" test "$(vm 'head -c 1000000 a' | sha256sum)" = "$(head -c 1000000 "$tmp/data" | sha256sum)"

    # script gives ssh a terminal; its size must arrive in the guest.
    timeout 60 script -qec "stty rows 33 cols 101; ssh -tt ${ssh_opts[*]} -p $port $member@127.0.0.1 'stty size; tty'" /dev/null < /dev/null > "$tmp/o" 2>&1 || true
    check "terminal with its size" grep -q '33 101' "$tmp/o"
    check "forwarding to the guest" test "$(vm -W 127.0.0.1:22 < /dev/null | head -c 4)" = "SSH-"
    check "forwarding from the guest" test "$(vm -R "127.0.0.1:2222:127.0.0.1:$port" "$1" < /dev/null | head -c 4)" = "SSH-"
    eval "$(ssh-agent -s)" > /dev/null
    agent_pid=$SSH_AGENT_PID
    # shellcheck disable=SC2016
    check "agent forwarding" vm -A 'test -S "$SSH_AUTH_SOCK"'
    kill "$agent_pid"
    agent_pid=''

    for i in 1 2 3 4 5 6 7 8 9 10 11 12; do
        (vm -o ConnectTimeout=60 "echo $i") > "$tmp/many.$i" 2>/dev/null &
        pids+=($!)
    done
    for i in "${!pids[@]}"; do wait "${pids[$i]}" || lost=$((lost + 1)); done
    check "12 logins at once from one address" test "$lost" = 0
}

check_files() {
    check "kernel's checksum" test "$(sha256sum < "$dir/$(toml file)" | cut -d' ' -f1)" = "$(toml sha256)"
    check "initrd's checksum" test "$(sha256sum < "$dir/$(toml initrd)" | cut -d' ' -f1)" = "$(toml initrd_sha256)"
}

test_tiny() {
    local size began wall used
    check_files
    size=$(cat "$dir"/* | wc -c)
    check "under 20 MB ($size bytes)" test "$size" -lt 20000000
    kernel=(-kernel "$dir/$(toml file)" -initrd "$dir/$(toml initrd)" -append "$(toml cmdline)" -m "${TINY_MEMORY:-192}")

    fill_seed i-1
    make_seed "$tmp/seed.iso" -r -J
    truncate -s 16M "$tmp/disk"
    boot "${kernel[@]}" -smp 2 -drive "if=none,id=d,file=$tmp/disk,format=raw" -device virtio-blk-pci,drive=d
    if line '.*Linux version' 60; then ok "kernel's first line $(secs "$started" "$line_at") s after QEMU's start"; else bad "kernel's first line"; finish; fi
    began=$line_at
    if ! line 'gvm: (ready|failed)' 90; then bad "no ready line within 90 s"; tail -n 20 "$tmp/serial"; finish; fi
    check "ready: $line_text" test "$line_text" = "gvm: ready"
    [ "$line_text" = "gvm: ready" ] || finish
    # On a busy host the wall clock measures the neighbours; the processor time QEMU used until now does not.
    wall=$((line_at - began)) used=$(cpu_time)
    check "ready $(secs 0 "$wall") s after the kernel's first line, $(secs 0 "$used") s of processor time (limit $READY_LIMIT)" \
        test $((wall < used ? wall : used)) -le $((READY_LIMIT * 1000000))
    check "stages in order" test "$(sed -n 's/^[0-9]* gvm: //p' "$tmp/serial" | tr '\n' ',')" = "stage modules,stage seed,stage network,stage sshd,ready,"
    ssh_checks 'nc 127.0.0.1 2222'
    who=root check "root by the same key" vm 'test "$(id -u)" = 0'
    check "member has no way to root" vm '! su -c true 2>/dev/null && ! command -v sudo'
    # The answer must differ from what is typed, which comes back as well.
    printf 'echo con-$((6*7)); stty rows 40 cols 120; stty size\n' >&7
    check "console: a shell that answers" line 'con-42' 15
    check "console: echoes what is typed" line '.*echo con-\$' 5
    check "console: takes a size" line '40 120' 5
    who=root vm reboot > /dev/null 2>&1 || true
    check "reboot" line 'gvm: ready' 90 2
    powerdown "$POWERDOWN_LIMIT" "power button"

    # No data disk, a fixed address, a seed without Rock Ridge names.
    fill_seed i-2
    echo '10.0.2.15/24 10.0.2.2' > "$tmp/seed/gvm-net"
    make_seed "$tmp/seed.iso" -J
    boot "${kernel[@]}" -smp 1
    if line 'gvm: (ready|failed)' 90 && [ "$line_text" = "gvm: ready" ]; then
        check "fixed address, Joliet seed, no disk" vm 'ip addr show dev eth0 | grep -q 10.0.2.15/24 && ! pidof udhcpc'
    else
        bad "fixed address, Joliet seed, no disk: $line_text"
    fi
    powerdown "$POWERDOWN_LIMIT" "second power button"

    rm "$tmp/seed/gvm-host-ed25519"
    make_seed "$tmp/seed.iso" -r -J
    boot "${kernel[@]}" -smp 1
    line 'gvm: (ready|failed)' 90 || line_text=nothing
    check "a seed without host key: $line_text" test "$line_text" = "gvm: failed: seed has no host key"
    powerdown "$POWERDOWN_LIMIT" "power button after a failed boot"
}

# await_ssh: waits until the member's login works; the seconds it took in up_after
await_ssh() {
    local until=$((started + BOOT_LIMIT * 1000000))
    until vm -o ConnectTimeout=5 true 2> "$tmp/last"; do
        [ "$(now)" -lt "$until" ] && kill -0 "$qemu_pid" 2>/dev/null || return 1
        sleep 1
    done
    up_after=$(secs "$started" "$(now)")
}

# agent REQUEST: the guest agent's answer
agent() {
    local answer=''
    printf '%s\n' "$1" >&8
    IFS= read -r -t 20 -u 9 answer || true
    printf '%s\n' "$answer"
}

# debian_checks WAY SIZE_MIB
debian_checks() {
    local answer
    if ! await_ssh; then
        bad "$1: no login within $BOOT_LIMIT s"
        tail -n 20 "$tmp/serial" | cut -d' ' -f2-
        sed 's/^/        /' "$tmp/last"
        halt
        return 1
    fi
    ok "$1: first login ${up_after} s after QEMU's start"
    check "$1: cloud-init done" test "$(timeout 240 ssh "${ssh_opts[@]}" -p "$port" "$member@127.0.0.1" 'cloud-init status --wait' | tr -d '.\n')" = "status: done"
    check "$1: system is up" test "$(vm 'timeout 60 systemctl is-system-running --wait; systemctl --failed --no-legend --plain')" = running
    check "$1: the seed is valid cloud-config" vm '! sudo grep -q "Invalid cloud-config" /var/log/cloud-init.log'
    check "$1: sudo without password" test "$(vm sudo -n id -u)" = 0
    check "$1: root file system grown" test "$(vm 'df --output=size -BM / | tail -n 1 | tr -dc 0-9')" -gt "$(($2 * 9 / 10))"
    exec 8<> "$tmp/ga.in" 9<> "$tmp/ga.out"
    answer=$(agent '{"execute":"guest-sync","arguments":{"id":4711}}')
    check "$1: guest agent answers" test "${answer//[[:space:]]/}" = '{"return":4711}'
    exec 8>&- 9>&-
    check "$1: only the seed's host key" test "$(vm 'sudo sh -c "cat /etc/ssh/ssh_host_*_key.pub"' | cut -d' ' -f1,2)" = "$(cut -d' ' -f1,2 "$tmp/host.pub")"
    check "$1: a machine id of its own" vm 'test "$(wc -c < /etc/machine-id)" = 33'
}

test_debian() {
    local fw code vars size
    check_files
    check "disk's checksum" test "$(sha256sum < "$dir/$(toml file 2)" | cut -d' ' -f1)" = "$(toml sha256 2)"
    check "disk's virtual size" test "$(qemu-img info "$dir/$(toml file 2)" | sed -n 's/^virtual size:.*(\([0-9]*\) bytes).*/\1/p')" = "$(($(toml virtual_size_mib) * 1048576))"
    # shellcheck disable=SC2054
    common=(-smp 2 -m 1024 -device virtio-rng-pci -device virtio-serial-pci -chardev "pipe,id=ga,path=$tmp/ga"
        -device virtserialport,chardev=ga,name=org.qemu.guest_agent.0)

    code='' vars=''
    for fw in /usr/share/OVMF/OVMF_CODE_4M.fd /usr/share/OVMF/OVMF_CODE.fd; do
        [ -e "$fw" ] && code=$fw vars=${fw/CODE/VARS} && break
    done
    if [ -n "$code" ]; then
        fill_seed i-uefi
        make_seed "$tmp/seed.iso" -r -J
        cp "$vars" "$tmp/vars.fd"
        size=5120
        qemu-img create -q -f qcow2 -F qcow2 -b "$dir/$(toml file 2)" "$tmp/disk.qcow2" "${size}M"
        boot "${common[@]}" -drive "if=pflash,unit=0,format=raw,readonly=on,file=$code" \
            -drive "if=pflash,unit=1,format=raw,file=$tmp/vars.fd" \
            -drive "if=none,id=d,file=$tmp/disk.qcow2,format=qcow2,discard=unmap" -device virtio-blk-pci,drive=d,bootindex=1
        if debian_checks UEFI "$size"; then
            ssh_checks 'exec 3<>/dev/tcp/127.0.0.1/2222; head -c 4 <&3'
            powerdown 60 UEFI
        fi
    else
        skip "UEFI boot: no OVMF firmware on this host"
    fi

    fill_seed i-kernel
    make_seed "$tmp/seed.iso" -r -J
    rm -f "$tmp/disk.qcow2"
    qemu-img create -q -f qcow2 -F qcow2 -b "$dir/$(toml file 2)" "$tmp/disk.qcow2"
    boot "${common[@]}" -kernel "$dir/$(toml file)" -initrd "$dir/$(toml initrd)" -append "$(toml cmdline)" \
        -drive "if=none,id=d,file=$tmp/disk.qcow2,format=qcow2,discard=unmap" -device virtio-blk-pci,drive=d
    if debian_checks kernel "$(($(toml virtual_size_mib) - 200))"; then
        check "kernel: booted with our arguments" vm 'grep -q mitigations=off /proc/cmdline'
        vm 'systemd-analyze; systemd-analyze blame | head -n 12' | sed 's/^/        /' || true
        powerdown 60 kernel
    fi
}

case $name in
    tiny) test_tiny ;;
    debian) test_debian ;;
esac
finish
