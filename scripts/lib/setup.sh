# shellcheck shell=bash
# Finding and installing what gvm needs from the distribution. Wants log.sh and $root (the top of the repository).
# The lists of packages and the way to backports are the role gvm_host's own files, so both install the same.

: "${root:?}"
role_files=$root/ansible/roles/gvm_host/files

# as_root CMD...   through sudo where needed
as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo -- "$@"
  else
    die "installing packages needs root, and there is no sudo here" "run this as root: $0 ${setup_args[*]:-}"
  fi
}

# as_user CMD...   as whoever called sudo: a toolchain belongs to the one who builds
as_user() {
  local home=${HOME:-/root}
  if [ "$(id -u)" = 0 ] && [ -n "${SUDO_USER:-}" ] && [ "$SUDO_USER" != root ]; then
    home=$(getent passwd "$SUDO_USER" | cut -d: -f6)
    set -- runuser -u "$SUDO_USER" -- env "HOME=$home" "USER=$SUDO_USER" "PATH=$PATH:$home/.cargo/bin" "$@"
  fi
  # rustup puts itself there, and only new shells know.
  PATH=$PATH:$home/.cargo/bin "$@"
}

# Sets distribution (debian-12, ...) and distribution_name; ends on one that we do not know.
find_distribution() {
  distribution=$(sed -n 's/^ID=//p' /etc/os-release)-$(sed -n 's/^VERSION_ID="\{0,1\}\([^"]*\)"\{0,1\}$/\1/p' /etc/os-release)
  distribution_name=$(sed -n 's/^PRETTY_NAME="\{0,1\}\([^"]*\)"\{0,1\}$/\1/p' /etc/os-release)
  case $distribution in
    debian-12 | debian-13 | ubuntu-24.04) ;;
    *) die "gvm knows Debian 12, Debian 13 and Ubuntu 24.04; this is $distribution_name" \
      "install what $role_files/packages/*.txt name, by hand" ;;
  esac
}

# packages LIST...   "NAME" or "NAME backports" a line
packages() {
  local list
  for list in "$@"; do
    sed -E 's/#.*//; s/[[:space:]]+/ /g; s/^ | $//g; /^$/d' "$role_files/packages/$list.txt"
  done
}

# missing LIST...   the lines of those lists that this host does not fulfil
missing() {
  local -A version=()
  local name status found suite
  # shellcheck disable=SC2016 # fields of dpkg-query
  while read -r name status found; do
    [ "$status" != installed ] || version[$name]=$found
  done < <(packages "$@" | cut -d' ' -f1 |
    xargs dpkg-query -W -f '${Package} ${db:Status-Status} ${Version}\n' 2>/dev/null)
  while read -r name suite; do
    found=${version[$name]:-}
    # An older one from the main suite does not count on Debian 12.
    [ -n "$found" ] && { [ "$suite" != backports ] || [ "$distribution" != debian-12 ] || [[ $found == *~bpo* ]]; } ||
      echo "$name $suite"
  done < <(packages "$@")
}

apt_get() {
  as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@"
}

# install_packages NAME...
install_packages() {
  local log
  # Now, where its question or its error can be seen.
  as_root true
  log=$(mktemp)
  {
    as_root "$role_files/backports.sh" && apt_get update && apt_get install --no-install-recommends "$@"
  } </dev/null >"$log" 2>&1 || {
    tail -n 15 "$log" >&2
    rm -f "$log"
    die "apt could not install $*" "sudo apt-get update, then read what it says"
  }
  rm -f "$log"
}

# The version that rust-toolchain.toml asks for.
rust_channel() {
  sed -n 's/^channel *= *"\(.*\)".*/\1/p' "$root/rust-toolchain.toml"
}

has_rustup() { as_user sh -c 'command -v rustup' >/dev/null; }

# has_rust CHANNEL
has_rust() {
  if has_rustup; then
    as_user rustup run "$1" cargo clippy --version >/dev/null 2>&1 &&
      as_user rustup run "$1" cargo fmt --version >/dev/null 2>&1
  else
    [[ $(as_user cargo --version 2>/dev/null) == "cargo $1 "* ]]
  fi
}

install_rust() {
  local channel=$1
  if ! has_rustup; then
    apt-cache policy rustup 2>/dev/null | grep -q 'Candidate: [0-9]' ||
      die "Rust $channel is not installed, and $distribution_name has no package of rustup" \
        "curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal --default-toolchain $channel -c clippy -c rustfmt"
    install_packages rustup
  fi
  as_user rustup toolchain install "$channel" --profile minimal --component clippy --component rustfmt >&2 ||
    die "rustup could not install Rust $channel" "rustup toolchain install $channel"
}

has_node() { command -v node >/dev/null && command -v npm >/dev/null; }

# The folder is that of the lock file: npm leaves no mark of its own that says so.
has_modules() { cmp -s "$root/package-lock.json" "$root/node_modules/.from-lock"; }

# What only tests use, from the registry that the host's npm is set to. No package's own scripts are run.
install_modules() {
  (cd "$root" && as_user npm ci --ignore-scripts --no-audit --no-fund --loglevel=error) >&2 || {
    # The tests that want it are skipped then, with a word.
    warn "npm could not install what package-lock.json names: cd $root && npm ci --ignore-scripts"
    return 0
  }
  as_user cp "$root/package-lock.json" "$root/node_modules/.from-lock"
}

# build_gvm dev|release   sets built, the program; one that is up to date costs a second. Wants log.sh.
build_gvm() {
  local target=${CARGO_TARGET_DIR:-$root/target}
  local -a args=(build --bin gvm --manifest-path "$root/Cargo.toml" --target-dir "$target")
  [ "$1" = dev ] || args+=(--release)
  # test.sh builds everything with the same features, so that it is built once; what only tests depend on has features too.
  [ "$1" != dev ] || [ -z "${GVM_FEATURES:-}" ] || args+=(--test it --features "$GVM_FEATURES")
  # On a terminal cargo shows how far it is.
  [ -t 2 ] || args+=(--quiet)
  (cd "$root" && as_user cargo "${args[@]}") >&2 || die "gvm could not be built" "cargo ${args[*]}"
  # shellcheck disable=SC2034 # of whoever sources this
  if [ "$1" = dev ]; then built=$target/debug/gvm; else built=$target/release/gvm; fi
}
