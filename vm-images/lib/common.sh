# shellcheck shell=bash
# Shared by the image recipes. Sourced by build.sh, never run.

log() { printf '%s\n' "build: $*" >&2; }
die() { printf '%s\n' "build: error: $*" >&2; exit 1; }

sha256_of() { sha256sum -- "$1" | cut -d' ' -f1; }

# Release of this host, which is also the release of what is built.
os_id() { (. /etc/os-release && printf '%s' "${ID:-unknown}"); }
os_codename() { (. /etc/os-release && printf '%s' "${VERSION_CODENAME:-}"); }
os_version() { (. /etc/os-release && printf '%s' "${VERSION_ID:-}"); }

# write_sources FILE: the host's own apt sources, reduced to the release, its updates and its security suite.
# Third-party and backports entries stay out, so that the image holds the release and nothing else.
write_sources() {
    local out=$1 codename f
    codename=$(os_codename)
    [ -n "$codename" ] || die "this host's /etc/os-release names no release"
    : > "$out"
    for f in /etc/apt/sources.list.d/*.sources; do
        [ -e "$f" ] || continue
        # A comment line would end up inside a stanza; a stanza ends at an empty line.
        sed '/^#/d' "$f" | awk -v c="$codename" '
            BEGIN { RS = ""; FS = "\n"; want[c] = want[c "-updates"] = want[c "-security"] = 1 }
            {
                suites = ""; types = ""; main = 0; off = 0; rest = ""
                for (i = 1; i <= NF; i++) {
                    n = split($i, w, /[ \t]+/); key = tolower(w[1])
                    if (key == "types:")           { for (j = 2; j <= n; j++) if (w[j] == "deb") types = "deb" }
                    else if (key == "suites:")     { for (j = 2; j <= n; j++) if (w[j] in want) suites = suites " " w[j] }
                    else if (key == "components:") { for (j = 2; j <= n; j++) if (w[j] == "main") main = 1 }
                    else if (key == "enabled:")    { if (tolower(w[2]) ~ /^(no|false|0)$/) off = 1 }
                    else rest = rest $i "\n"
                }
                if (types != "" && suites != "" && main && !off)
                    printf "Types: deb\nSuites:%s\nComponents: main\n%s\n", suites, rest
            }' >> "$out"
    done
    for f in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
        [ -e "$f" ] || continue
        # deb [options] URI SUITE COMPONENT... as a stanza of its own
        awk -v c="$codename" '
            BEGIN { want[c] = want[c "-updates"] = want[c "-security"] = 1 }
            $1 != "deb" { next }
            {
                opts = ""; line = $0
                if (match(line, /\[[^]]*\]/)) {
                    opts = substr(line, RSTART + 1, RLENGTH - 2)
                    line = substr(line, 1, RSTART - 1) substr(line, RSTART + RLENGTH)
                }
                sub(/#.*/, "", line); n = split(line, w, /[ \t]+/)
                main = 0; for (j = 4; j <= n; j++) if (w[j] == "main") main = 1
                if (!(w[3] in want) || !main) next
                printf "Types: deb\nURIs: %s\nSuites: %s\nComponents: main\n", w[2], w[3]
                m = split(opts, o, /[ \t]+/)
                for (j = 1; j <= m; j++) {
                    if (o[j] ~ /^signed-by=/) { sub(/^signed-by=/, "", o[j]); gsub(/,/, " ", o[j]); print "Signed-By: " o[j] }
                    if (o[j] == "trusted=yes") print "Trusted: yes"
                }
                print ""
            }' "$f" >> "$out"
    done
    [ -s "$out" ] || die "no apt source of this host offers $codename main"
}

# apt_private DIR: an apt of our own below DIR, with the host's sources and proxy settings but with empty package state:
# it resolves whole dependency trees, and neither the host's lists nor its pins nor its installed packages matter.
apt_private() {
    APT_DIR=$1
    mkdir -p "$APT_DIR"/{sources.d,state/lists/partial,cache/archives/partial}
    : > "$APT_DIR/status"
    write_sources "$APT_DIR/sources.d/host.sources"
    APT_OPTS=(
        -qq
        -o "Dir::Etc::sourcelist=/dev/null" -o "Dir::Etc::sourceparts=$APT_DIR/sources.d"
        -o "Dir::Etc::preferences=/dev/null" -o "Dir::Etc::preferencesparts=/dev/null"
        -o "Dir::State=$APT_DIR/state" -o "Dir::State::status=$APT_DIR/status" -o "Dir::Cache=$APT_DIR/cache"
        -o "APT::Default-Release=" -o "APT::Sandbox::User=root" -o "APT::Architecture=amd64"
        -o "Acquire::Languages=none" -o "Acquire::Retries=3"
    )
    log "reading package lists"
    apt-get "${APT_OPTS[@]}" update >&2 || die "apt cannot read the package lists of this host's sources"
}

# fetch_tree DIR PACKAGE...: the packages and all they depend on, unpacked into DIR; no maintainer script runs.
fetch_tree() {
    local dir=$1 deb
    shift
    log "fetching $*"
    rm -f "$APT_DIR"/cache/archives/*.deb
    apt-get "${APT_OPTS[@]}" -y --no-install-recommends --download-only install "$@" >&2 || die "apt cannot fetch: $*"
    mkdir -p "$dir"
    for deb in "$APT_DIR"/cache/archives/*.deb; do dpkg-deb --fsys-tarfile "$deb" | tar -x -C "$dir" --keep-directory-symlink; done
}

# fetch_alone DIR PACKAGE: that package without its dependencies, unpacked into DIR.
fetch_alone() {
    local dir=$1 tmp
    log "fetching $2"
    tmp=$(mktemp -d "$APT_DIR/one.XXXXXX")
    (cd "$tmp" && apt-get "${APT_OPTS[@]}" download "$2" >&2) || die "apt cannot fetch: $2"
    mkdir -p "$dir"
    dpkg-deb -x "$tmp"/*.deb "$dir"
    rm -rf "$tmp"
}

# kernel_package: the package behind the release's cloud kernel.
kernel_package() {
    apt-cache "${APT_OPTS[@]}" depends linux-image-cloud-amd64 |
        awk '$1 == "Depends:" && $2 ~ /^linux-image-.*-cloud-amd64$/ { print $2; exit }'
}

# tree_ld TREE: the dynamic loader inside an unpacked tree, and its library path in TREE_LIBS.
tree_ld() {
    TREE_LIBS=$1/lib/x86_64-linux-gnu:$1/usr/lib/x86_64-linux-gnu
    local d
    TREE_LD=''
    # Before trixie in /lib, since then in /usr/lib.
    for d in lib usr/lib; do
        if [ -f "$1/$d/x86_64-linux-gnu/ld-linux-x86-64.so.2" ]; then TREE_LD=$1/$d/x86_64-linux-gnu/ld-linux-x86-64.so.2; fi
    done
    [ -n "$TREE_LD" ] || die "no dynamic loader among the fetched packages"
}

# tree_run TREE PROGRAM ARG...: runs a program of the tree with the tree's own libraries.
tree_run() {
    local tree=$1 prog=$2
    shift 2
    tree_ld "$tree"
    "$TREE_LD" --library-path "$TREE_LIBS" "$tree/$prog" "$@"
}
