#!/usr/bin/env bash
# Makes the Debian packages gvm and gvm-client, by cargo-deb of the version below.
#
#   package.sh             into target/debian, from release builds
#   package.sh --check     into target/package/check, from the dev builds and quickly packed, for tests
#
# cargo-deb is built once, into ${XDG_CACHE_HOME:-~/.cache}/gvm. Prints the paths of the packages.
set -euo pipefail
self=$(readlink -f "$0")
root=$(dirname "$(dirname "$self")")
# shellcheck source-path=SCRIPTDIR source=lib/log.sh
. "$root/scripts/lib/log.sh"
# shellcheck source-path=SCRIPTDIR source=lib/setup.sh
. "$root/scripts/lib/setup.sh"

readonly CARGO_DEB=3.8.0
target=${CARGO_TARGET_DIR:-$root/target}
case "${1:-} $#" in
  ' 0') profile=release output=$target/debian pack=() ;;
  '--check 1') profile=dev output=$target/package/check pack=(--fast) ;;
  *)
    sed -n '2,/^set -e/{/^#/s/^# \{0,1\}//p}' "$0" >&2
    exit 2
    ;;
esac

# Sets cargo_deb, the program. Its own compression is left out: xz is there on every Debian.
find_cargo_deb() {
  local cache
  # shellcheck disable=SC2016 # of whoever builds
  cache=$(as_user sh -c 'echo "${XDG_CACHE_HOME:-$HOME/.cache}/gvm"')
  cargo_deb=$cache/cargo-deb-$CARGO_DEB/bin/cargo-deb
  [ -x "$cargo_deb" ] || stage "building cargo-deb $CARGO_DEB (a minute, once)" build_cargo_deb "${cargo_deb%/bin/*}"
}

build_cargo_deb() {
  as_user env CARGO_TARGET_DIR="$target/package/cargo-deb" \
    cargo install --quiet --locked --no-default-features --version "$CARGO_DEB" --root "$1" cargo-deb >&2 ||
    die "cargo-deb could not be built" "cargo install --locked --version $CARGO_DEB cargo-deb"
  rm -rf "$target/package/cargo-deb"
}

# package NAME [CARGO-ARG...]   builds the program, lets it print what goes with it, and packs it
package() {
  local name=$1 stuff=$target/package/$1/release folder=debug
  shift
  local -a args=(build --bin gvm --manifest-path "$root/Cargo.toml" --target-dir "$target" "$@")
  if [ "$profile" = release ]; then
    args+=(--release)
    folder=release
  fi
  stage "building $name, the $profile build" as_user cargo "${args[@]}" --quiet >&2
  as_user rm -rf "$stuff"
  as_user mkdir -p "$stuff"/{man,completions}
  as_user strip -o "$stuff/gvm" "$target/$folder/gvm"
  as_user "$stuff/gvm" -q man --output "$stuff/man" >&2
  as_user gzip -9n "$stuff"/man/*
  as_user "$stuff/gvm" completions bash >"$stuff/completions/gvm"
  as_user "$stuff/gvm" completions zsh >"$stuff/completions/_gvm"
  as_user "$stuff/gvm" completions fish >"$stuff/completions/gvm.fish"
  local -a variant=()
  [ "$name" = gvm-client ] || variant=(--variant host)
  stage "packing $name"
  # It takes the programs from a target folder of their own: it knows no dev build, and the two are different programs.
  (cd "$root" && as_user env CARGO_TARGET_DIR="$target/package/$name" "$cargo_deb" deb --quiet --no-build --no-strip \
    --locked "${variant[@]}" "${pack[@]}" --output "$output/") || die "cargo-deb could not pack $name"
  stage_end
}

as_user mkdir -p "$output"
as_user find "$output" -name '*.deb' -delete
find_cargo_deb
# In this order: what lies in target/debug is gvm whole when this is done.
package gvm-client --no-default-features
if [ "$profile" = dev ] && [ -n "${GVM_FEATURES:-}" ]; then
  package gvm --test it --features "$GVM_FEATURES"
else
  package gvm
fi
