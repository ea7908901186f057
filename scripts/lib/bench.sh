# shellcheck shell=bash
# What the benches share: what they need, a release build, a private host, python inside it. Wants $root.

: "${root:?}"
# shellcheck source-path=SCRIPTDIR source=log.sh
. "$root/scripts/lib/log.sh"
# shellcheck source-path=SCRIPTDIR source=setup.sh
. "$root/scripts/lib/setup.sh"
# shellcheck source-path=SCRIPTDIR source=private.sh
. "$root/scripts/lib/private.sh"

# The rights and the programs that they need.
bench_begin() {
  [ "$(id -u)" = 0 ] || die "this needs root (a private host)" "sudo $0"
  stage "looking for what is needed" "$root/scripts/setup.sh" --build --test
}

# Numbers are worth something of an optimised build only; GVM_BUILD=dev is for trying a bench out.
bench_build() {
  [ "${GVM_BUILD:-release}" != dev ] || warn "this is a dev build; its numbers say little"
  built=''
  build_gvm "${GVM_BUILD:-release}"
}

# bench MODULE ARG...   runs scripts/lib/MODULE.py in a private host, with the binary and a folder of its own
bench() {
  local module=$1 rc=0
  shift
  trap private_down EXIT
  trap 'exit 130' INT TERM HUP
  stage "starting a private host" private_up
  stage_end
  inside env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/run LANG=C.UTF-8 \
    PYTHONDONTWRITEBYTECODE=1 \
    python3 "$root/scripts/lib/$module.py" "$built" "$@" || rc=$?
  private_down
  trap - EXIT
  return "$rc"
}
