#!/bin/bash
# Builds one VM image from the distribution's packages. See README.md.
#   build.sh NAME [--output DIR] [--print-dir]
#   build.sh --needs NAME
# The last line on stdout is the image's directory; everything else goes to stderr.
set -euo pipefail
export LC_ALL=C
umask 022

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)

# What each recipe needs on this host, as COMMAND=PACKAGE. The scripts/setup step reads the packages with --needs.
# shellcheck disable=SC2034 # read by name
{
NEEDS_all=(apt-get=apt dpkg-deb=dpkg flock=util-linux sha256sum=coreutils awk=mawk)
NEEDS_tiny=(cpio=cpio zstd=zstd xz=xz-utils depmod=kmod modprobe=kmod)
NEEDS_debian=(mmdebstrap=mmdebstrap mke2fs=e2fsprogs mformat=mtools sfdisk=fdisk qemu-img=qemu-utils)
}

# shellcheck source=lib/common.sh
. "$here/lib/common.sh"

usage() { sed -n '2,5s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2; }

name='' output='' print_dir=0 needs=0
while [ $# -gt 0 ]; do
    case $1 in
        --output) [ $# -ge 2 ] || usage; output=$2; shift ;;
        --output=*) output=${1#*=} ;;
        --print-dir) print_dir=1 ;;
        --needs) needs=1 ;;
        -h|--help) usage ;;
        -*) usage ;;
        *) [ -z "$name" ] || usage; name=$1 ;;
    esac
    shift
done
case $name in
    tiny|debian) ;;
    '') usage ;;
    *) printf 'build: no recipe called %s; there are: tiny debian\n' "$name" >&2; exit 2 ;;
esac

declare -n own_needs=NEEDS_$name
all_needs=("${NEEDS_all[@]}" "${own_needs[@]}")
if [ "$needs" = 1 ]; then
    printf '%s\n' "${all_needs[@]#*=}" | sort -u
    exit 0
fi

# The key covers the recipe and the release it takes its packages from, and no clock: the same sources give the same
# directory name on every machine. tiny does not depend on debian's files, nor the other way round.
content_key() {
    (
        cd "$here"
        printf '%s %s\n' "$(os_id)" "$(os_codename)"
        find build.sh lib "$name" -type f | sort | while IFS= read -r f; do
            printf '%s %s\n' "$(sha256_of "$f")" "$f"
        done
    ) | sha256sum | cut -c1-12
}

[ "$(os_id)" = debian ] || die "the recipes take their packages from Debian; this host is $(os_id)"
key=$(content_key)
base=${output:-${XDG_CACHE_HOME:-$HOME/.cache}/gvm/images}
final=$base/$name-$key
if [ "$print_dir" = 1 ]; then
    printf '%s\n' "$final"
    exit 0
fi
if [ -e "$final/image.toml" ]; then
    log "$name is already built"
    printf '%s\n' "$final"
    exit 0
fi

missing=()
for need in "${all_needs[@]}"; do
    command -v "${need%%=*}" >/dev/null || missing+=("${need#*=}")
done
if [ "${#missing[@]}" -gt 0 ]; then
    printf 'build: missing on this host, install: %s\n' "$(printf '%s\n' "${missing[@]}" | sort -u | tr '\n' ' ')" >&2
    exit 2
fi
[ "$(id -u)" = 0 ] || die "run as root: the image's files belong to root"

mkdir -p "$base"
final=$(cd "$base" && pwd)/$name-$key
exec 9> "$base/.$name-$key.lock"
flock -n 9 || { log "another build of $name runs; waiting for it"; flock 9; }
if [ -e "$final/image.toml" ]; then
    log "$name was built meanwhile"
    printf '%s\n' "$final"
    exit 0
fi

# Whatever carries this name under the lock is the rest of a build that died.
rm -rf "$base/.$name-$key".tmp.* "$final"
tmp=$(mktemp -d "$base/.$name-$key.tmp.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/out" "$tmp/work"

# shellcheck source=/dev/null
. "$here/$name/recipe.sh"
started=$SECONDS
recipe "$tmp/work" "$tmp/out" "$key" >&2
chmod 0755 "$tmp/out"
sync -f "$tmp/out"
mv "$tmp/out" "$final"
log "$name built in $((SECONDS - started)) s, $(du -sh --apparent-size "$final" | cut -f1)"
printf '%s\n' "$final"
