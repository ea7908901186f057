#!/usr/bin/env bash
# The groups, the user and the folders of gvm, as sysusers.d/gvm.conf and tmpfiles.d/gvm.conf say, which are in their
# places already. The role gvm_host and scripts/quickstart.sh both run this. It needs no running systemd.
#   accounts.sh [MEMBER...]     members are put into the group that may reach the manager's socket
# Prints a line "added ..." for each thing it changes, and nothing when all is as it should be.
set -euo pipefail

for program in systemd-sysusers systemd-tmpfiles; do
  command -v "$program" >/dev/null || {
    echo "error: $program is not installed" >&2
    echo "  try: apt-get install systemd (it need not be what runs the machine)" >&2
    exit 1
  }
done

ensure_member() {
  local user=$1 group=$2
  id "$user" >/dev/null || return 1
  [[ " $(id -nG "$user") " == *" $group "* ]] || {
    usermod --append --groups "$group" "$user"
    echo "added $user to group $group"
  }
}

# What there is of them: a line each, with mode and owner.
folders() { awk '$1 == "d" { print $2 }' /etc/tmpfiles.d/gvm.conf | xargs stat -c '%n %F %a %U:%G' 2>/dev/null | sort; }

# "Creating group 'gvm' with GID 996.", and nothing of what is there.
systemd-sysusers gvm.conf 2>&1 | sed -E 's/^Creating /added /'
# An account from before may lack its group.
ensure_member gvm-gateway gvm
for member; do
  ensure_member "$member" gvm
done
before=$(folders || true)
systemd-tmpfiles --create gvm.conf
comm -13 <(echo "$before") <(folders || true) | sed 's/^/added folder /'
