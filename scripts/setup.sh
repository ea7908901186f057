#!/usr/bin/env bash
# Installs what gvm needs on this machine, and only what is missing.
#
#   setup.sh             what a gvm host runs on
#   setup.sh --build     and what building it needs, with the Rust toolchain of rust-toolchain.toml
#   setup.sh --test      and what the tests need, with the packages of package-lock.json from npm
#   setup.sh --check     installs nothing: names what is missing, and fails if anything is
set -euo pipefail
root=$(dirname "$(dirname "$(readlink -f "$0")")")
# shellcheck source-path=SCRIPTDIR source=lib/log.sh
. "$root/scripts/lib/log.sh"
# shellcheck source-path=SCRIPTDIR source=lib/setup.sh
. "$root/scripts/lib/setup.sh"

lists=(runtime)
check='' rust='' modules=''
setup_args=("$@")
for arg in "$@"; do
  case $arg in
    --build) lists+=(build) rust=$(rust_channel) ;;
    --test) lists+=(test) modules=yes ;;
    --check) check=yes ;;
    *)
      sed -n '2,/^set -e/{/^#/s/^# \{0,1\}//p}' "$0" >&2
      exit 2
      ;;
  esac
done

find_distribution
[ -z "$modules" ] || has_node || lists+=(node)
[ -z "$modules" ] || ! has_modules || modules=
wanted=$(missing "${lists[@]}")
[ -z "$rust" ] || ! has_rust "$rust" || rust=

if [ -z "$wanted$rust$modules" ]; then
  note "everything is there (${lists[*]})"
elif [ -n "$check" ]; then
  [ -z "$wanted" ] || printf '%s\n' "$wanted" >&2
  [ -z "$rust" ] || printf 'Rust %s with clippy and rustfmt\n' "$rust" >&2
  [ -z "$modules" ] || echo "node_modules as package-lock.json says" >&2
  die "this machine lacks what is listed above" "$0 ${setup_args[*]/--check/}"
else
  mapfile -t names < <(cut -d' ' -f1 <<<"$wanted")
  [ -z "$wanted" ] || stage "installing ${names[*]}" install_packages "${names[@]}"
  [ -z "$rust" ] || stage "installing Rust $rust" install_rust "$rust"
  [ -z "$modules" ] || stage "installing what package-lock.json names" install_modules
  # apt may be content with less than we are.
  wanted=$(missing "${lists[@]}")
  [ -z "$wanted" ] || die "still missing after the installation: $(xargs <<<"$wanted")" "apt-cache policy ${wanted%% *}"
fi
