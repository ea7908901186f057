# gvm's part of cloud-init's bootcmd: runs on every boot before sshd starts. "$1" is the text of report.sh.
printf '\r\ngvm: stage cloud-init\r\n' > /dev/ttyS0 2> /dev/null
mkdir -p /run/gvm
printf '%s' "$1" > /run/gvm/report.sh
unit=/run/systemd/system/gvm-report.service
if [ -d /run/systemd/system ]; then
    printf '[Unit]\nDescription=Tell the host how far the boot has come\n[Service]\nType=exec\nExecStart=/bin/sh /run/gvm/report.sh\n' > "$unit"
    systemctl --no-block start gvm-report.service || setsid sh /run/gvm/report.sh < /dev/null > /dev/null 2>&1 &
    [ -z "$(systemctl list-unit-files qemu-guest-agent.service 2> /dev/null | grep qemu-guest-agent)" ] ||
        systemctl --no-block start qemu-guest-agent.service
else
    setsid sh /run/gvm/report.sh < /dev/null > /dev/null 2>&1 &
    [ ! -x /etc/init.d/qemu-guest-agent ] || /etc/init.d/qemu-guest-agent start < /dev/null > /dev/null 2>&1 &
fi
# All logins come from one address, the gateway's: no limit and no penalty may be counted per address.
conf=/etc/ssh/sshd_config.d/10-gvm.conf
if [ -d /etc/ssh ]; then
    mkdir -p /etc/ssh/sshd_config.d
    printf 'MaxStartups 200:30:400\nMaxSessions 100\n' > "$conf"
    # Only OpenSSH 9.8 and newer know it; an unknown word would keep sshd from starting.
    if sshd=$(command -v sshd || echo /usr/sbin/sshd) && "$sshd" -G -o PerSourcePenalties=no > /dev/null 2>&1; then
        printf 'PerSourcePenalties no\n' >> "$conf"
    fi
fi
exit 0
