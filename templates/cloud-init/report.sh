#!/bin/sh
# Runs inside the guest on every boot, started by gvm's part of cloud-init's bootcmd.
# Tells the host over the first serial line how far the boot has come, for any distribution with cloud-init.
line=/dev/ttyS0
dir=/run/cloud-init
say() { printf '\r\ngvm: %s\r\n' "$1" > "$line"; } 2> /dev/null

last=
tries=0
while [ ! -s "$dir/result.json" ]; do
    stage=$(sed -n 's/.*"stage": *"\([a-z-]*\)".*/\1/p' "$dir/status.json" 2> /dev/null | head -n 1)
    if [ -n "$stage" ] && [ "$stage" != "$last" ]; then
        say "stage $stage"
        last=$stage
    fi
    # An hour: drivers and toolkits are large.
    tries=$((tries + 1))
    if [ "$tries" -gt 3600 ]; then
        say "failed: cloud-init has not ended after an hour; last stage was ${last:-unknown}"
        exit 0
    fi
    sleep 1
done
errors=$(tr -d '\r\n' < "$dir/result.json" | sed -n 's/.*"errors": *\[\(.*\)\].*/\1/p' | tr -s ' ' | cut -c 1-400)
case $errors in
    '' | ' ') say ready ;;
    *) say "failed:$errors" ;;
esac
