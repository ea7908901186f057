# shellcheck shell=bash disable=SC2154 # $lab, $work and $key are build.sh's
# The kernel of the nested host, its modules and ours, and the initrd that mounts the root.

# What is copied of the distribution's modules, beside what these need. Decompressed: unpacking is slow under emulation.
LAB_MODULES=(virtio_blk virtio_net virtio_rng ext4 autofs4 loop button configfs
  vfio vfio_pci vfio_iommu_type1 mdev kvm_amd tun bridge br_netfilter vhost_net veth
  igb igbvf e1000 nvme snd-hda-intel snd-hda-codec-generic)
# Whole folders: libvirt's filters and limits use a bit of everything here.
LAB_MODULE_FOLDERS=(net/netfilter net/bridge/netfilter net/ipv4/netfilter net/ipv6/netfilter net/sched)
# In the initrd, in this order.
LAB_EARLY_MODULES=(virtio_blk crc32c_generic ext4 fakeid)

# lab_fetch_kernel RELEASE DIR   unpacks the kernel, its headers and a static busybox into DIR
lab_fetch_kernel() {
  local release=$1 dir=$2 deb
  local abi=${release%-amd64}
  mkdir -p "$dir/debs"
  (cd "$dir/debs" && apt-get -qq -o APT::Sandbox::User=root download "linux-image-$release" "linux-headers-$release" \
    "linux-headers-$abi-common" "linux-kbuild-$abi" busybox-static >&2) || die "apt cannot fetch the kernel $release" "apt-get update"
  for deb in "$dir"/debs/*.deb; do dpkg-deb -x "$deb" "$dir"; done
  rm -r "$dir/debs"
  # Debian 13 has everything below usr; a link gives both the same names.
  [ -e "$dir/lib" ] || ln -s usr/lib "$dir/lib"
}

# The field of the boot sector at OFFSET, a number of BYTES
_boot_field() { od -A n -t "u$3" -j "$2" -N "$3" "$1" | tr -d ' '; }

# lab_vmlinux BZIMAGE   the kernel inside, uncompressed: QEMU starts it by PVH and saves its decompressor's seconds.
# Where the payload lies is told by the boot protocol (setup_sects, payload_offset, payload_length).
lab_vmlinux() {
  local image=$1 start length magic
  start=$((($(_boot_field "$image" $((0x1f1)) 1) + 1) * 512 + $(_boot_field "$image" $((0x248)) 4)))
  length=$(_boot_field "$image" $((0x24c)) 4)
  magic=$(od -A n -t x1 -j "$start" -N 4 "$image" | tr -d ' ')
  # Behind the payload is its size, which a decompressor takes for rubbish; the caller looks at what came out.
  tail -c "+$((start + 1))" "$image" | head -c "$length" | case $magic in
    28b52ffd) zstd -dcq 2>/dev/null ;;
    fd377a58) xz -dcq --single-stream 2>/dev/null ;;
    1f8b*) gzip -dcq 2>/dev/null ;;
    *) die "the kernel is packed in a way that the lab does not know ($magic)" ;;
  esac || true
}

# lab_build_modules RELEASE TREE OUT   our modules, against the unpacked headers; nothing is installed for it
lab_build_modules() {
  local release=$1 tree=$2 out=$3
  local abi=${release%-amd64}
  mkdir -p "$out"
  cp "$lab"/mod/*.[ch] "$out/"
  printf '%s\n' 'obj-m += fakeid.o labnv.o' 'labnv-y := card.o vf.o mdev.o' >"$out/Makefile"
  # The package's own Makefile names a path from the root of a host.
  echo "include $tree/usr/src/linux-headers-$abi-common/Makefile" >"$tree/usr/src/linux-headers-$release/Makefile"
  # BTF would need pahole, and nobody here reads it.
  make -s -C "$tree/usr/src/linux-headers-$release" M="$out" CONFIG_DEBUG_INFO_BTF_MODULES= modules >&2 ||
    die "the lab's kernel modules could not be built"
  strip --strip-debug "$out"/*.ko
}

# _needs TREE RELEASE MODULE...   paths of the modules in the order in which they are loaded
_needs() {
  local tree=$1 release=$2 name
  shift 2
  for name; do modprobe -d "$tree" -S "$release" --show-depends "$name" 2>/dev/null || true; done |
    awk '$1 == "insmod" && !seen[$2]++ { print $2 }'
}

# lab_modules RELEASE TREE OURS OUT   what the nested host loads, as OUT/lib/modules/RELEASE
lab_modules() {
  local release=$1 tree=$2 ours=$3 out=$4 file folder target
  local from=$tree/lib/modules/$release
  depmod -b "$tree" "$release"
  mkdir -p "$out/lib/modules/$release/extra"
  {
    _needs "$tree" "$release" "${LAB_MODULES[@]}" crc32c_generic
    for folder in "${LAB_MODULE_FOLDERS[@]}"; do
      find "$from/kernel/$folder" -name '*.ko*' | sed -E 's,.*/,,; s/\.ko.*//'
    done | sort -u | while read -r file; do _needs "$tree" "$release" "$file"; done
  } | sort -u | while read -r file; do
    target=$out/lib/modules/$release/${file#*/lib/modules/"$release"/}
    mkdir -p "${target%/*}"
    case $file in
      *.xz) xz -dc "$file" >"${target%.xz}" ;;
      *.zst) zstd -dcq "$file" >"${target%.zst}" ;;
      *) cp "$file" "$target" ;;
    esac
  done
  cp "$ours"/*.ko "$out/lib/modules/$release/extra/"
  cp "$from"/modules.{builtin,builtin.modinfo,order} "$out/lib/modules/$release/"
  depmod -b "$out" "$release"
}

# lab_initrd RELEASE TREE MODULES FILE
lab_initrd() {
  local release=$1 tree=$2 modules=$3 file=$4 dir module busybox
  dir=$(mktemp -d "$work/initrd.XXXXXX")
  busybox=$(find "$tree" -type f -path '*bin/busybox' | head -n 1)
  mkdir -p "$dir"/{bin,dev,proc,sys,root,modules}
  cp "$busybox" "$dir/bin/busybox"
  _needs "$modules" "$release" "${LAB_EARLY_MODULES[@]}" | while read -r module; do
    cp "$module" "$dir/modules/"
    echo "${module##*/}" >>"$dir/modules/order"
  done
  install -m 0755 "$lab/host/initrd-init" "$dir/init"
  (cd "$dir" && find . | cpio -o -H newc --quiet -R 0:0) >"$file"
}
