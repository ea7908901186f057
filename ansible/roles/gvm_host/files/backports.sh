#!/usr/bin/env bash
# Lets Debian 12 take the hypervisor, and nothing else, from its backports suite.
# The suite's entry is the host's own one for bookworm, whatever mirror, key, options and components it has, under
# another name; apt itself says which entries count, so disabled files and stanzas do not. A pin names the source
# packages: installing with "-t" would take every new dependency from backports, and then curl, of main, cannot be
# installed any more. Prints "added FILE" for each file it writes, else "present" or "not needed".
set -euo pipefail

readonly SOURCES='src:qemu src:libvirt src:seabios'

parts="" pins="" # set by the next line
eval "$(apt-config shell parts Dir::Etc::sourceparts/d pins Dir::Etc::preferencesparts/d)"
# shellcheck source=/dev/null
codename=${1:-$(. /etc/os-release && echo "${VERSION_CODENAME:-}")}

[ "$codename" = bookworm ] || {
  echo "not needed"
  exit 0
}
suite=$codename-backports
umask 022

# "SUITE FILE:N" of each entry in use; N counts lines in a .list file and stanzas in a .sources file.
# shellcheck disable=SC2016 # variables of apt
entries=$(apt-get indextargets --no-release-info --format '$(RELEASE) $(SOURCESENTRY)' 'Created-By: Packages')

said=
pin=${pins%/}/gvm-backports.pref
pin_text="Package: $SOURCES
Pin: release n=$suite
Pin-Priority: 500"

add_pin() {
  [ "$(cat "$pin" 2>/dev/null)" != "$pin_text" ] || return 0
  mkdir -p "${pins%/}"
  echo "$pin_text" >"$pin"
  said="added $pin"
}

if grep -q "^$suite " <<<"$entries"; then
  add_pin
  echo "${said:-present}"
  exit 0
fi
entry=$(awk -v suite="$codename" '$1 == suite { sub(/^[^ ]* /, ""); print; exit }' <<<"$entries")
[ -n "$entry" ] || {
  echo "error: apt has no entry for $codename to derive $suite from" >&2
  echo "  try: add the suite $suite to your apt sources, then run this again" >&2
  exit 1
}
file=${entry%:*} number=${entry##*:}

new=${parts%/}/gvm-backports.${file##*.}
case $file in
  *.list)
    sed -nE "${number}{s/[[:space:]]*#.*//; s/^([[:space:]]*deb([[:space:]]+\[[^]]*\])?[[:space:]]+[^[:space:]]+[[:space:]]+)[^[:space:]]+/\1$suite/p}" \
      "$file" >"$new"
    ;;
  *)
    awk -v n="$number" -v suite="$suite" '
      BEGIN { RS = ""; FS = "\n" }
      # A paragraph of comments alone is no stanza.
      { real = 0; for (i = 1; i <= NF; i++) if ($i !~ /^#/) real = 1 }
      !real || ++stanza != n { next }
      {
        for (i = 1; i <= NF; i++) {
          field = tolower($i)
          if ($i ~ /^#/) continue
          if ($i ~ /^[ \t]/) { if (!skip) print $i; continue }
          skip = (field ~ /^(suites|types):/)
          if (field ~ /^suites:/) print "Suites: " suite
          else if (field ~ /^types:/) print "Types: deb"
          else print $i
        }
      }' "$file" >"$new"
    ;;
esac
[ -s "$new" ] || {
  rm -f "$new"
  echo "error: could not derive $suite from $entry" >&2
  exit 1
}
add_pin
echo "added $new${said:+
$said}"
