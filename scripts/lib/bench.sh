# shellcheck shell=bash
# What the benches share: a release build, a private host, python inside it. Wants $root, log.sh, setup.sh, private.sh.

: "${root:?}"
target=${CARGO_TARGET_DIR:-$root/target}

# bench_build   sets built. Numbers are only worth something of an optimised build; GVM_BENCH_BUILD=dev is for trying out.
bench_build() {
  local -a args=(build --bin gvm --manifest-path "$root/Cargo.toml" --target-dir "$target")
  if [ "${GVM_BENCH_BUILD:-release}" = dev ]; then
    built=$target/debug/gvm
    warn "this is a dev build; its numbers say little"
  else
    args+=(--release)
    built=$target/release/gvm
  fi
  [ -t 2 ] || args+=(--quiet)
  as_user cargo "${args[@]}" >&2 || die "gvm could not be built" "cargo ${args[*]}"
}

# bench MODULE ARG...   runs scripts/lib/MODULE.py in a private host, with the binary and a folder of its own
bench() {
  local module=$1 rc=0
  shift
  trap private_down EXIT
  trap 'exit 130' INT TERM HUP
  stage "starting a private host" private_up
  stage_end
  inside env -i PATH="$PATH" HOME=/run LANG=C.UTF-8 PYTHONDONTWRITEBYTECODE=1 \
    python3 "$root/scripts/lib/$module.py" "$built" "$@" || rc=$?
  private_down
  trap - EXIT
  return "$rc"
}
