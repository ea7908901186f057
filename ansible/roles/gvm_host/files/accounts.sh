#!/usr/bin/env bash
# The groups, the user and the folders of gvm. The role gvm_host and scripts/quickstart.sh both run this.
#   accounts.sh [MEMBER...]     members are put into the group that may reach the manager's socket
# Prints a line "added ..." for each thing it changes, and nothing when all is as it should be.
set -euo pipefail

ensure_group() {
  getent group "$1" >/dev/null || {
    groupadd --system "$1"
    echo "added group $1"
  }
}

ensure_member() {
  local user=$1 group=$2
  id "$user" >/dev/null || return 1
  [[ " $(id -nG "$user") " == *" $group "* ]] || {
    usermod --append --groups "$group" "$user"
    echo "added $user to group $group"
  }
}

# ensure_folder PATH MODE OWNER GROUP
ensure_folder() {
  [ "$(stat -c '%F %a %U:%G' "$1" 2>/dev/null)" = "directory ${2#0} $3:$4" ] || {
    install -d -m "$2" -o "$3" -g "$4" "$1"
    echo "added folder $1"
  }
}

ensure_group gvm # members: may reach the manager's socket
ensure_group gvm-gateway

# The gateway reads bytes of strangers; it owns nothing but its host keys.
id gvm-gateway >/dev/null 2>&1 || {
  useradd --system --no-log-init --no-create-home --home-dir /var/lib/gvm-gateway --gid gvm-gateway --groups gvm \
    --shell /usr/sbin/nologin --comment 'gvm SSH gateway' gvm-gateway
  echo "added user gvm-gateway"
}
ensure_member gvm-gateway gvm
for member; do
  ensure_member "$member" gvm
done

ensure_folder /etc/gvm 0755 root root
# QEMU's user passes through to its disks, and nobody can list them.
ensure_folder /var/lib/gvm 0711 root root
ensure_folder /var/lib/gvm-gateway 0700 gvm-gateway gvm-gateway
