#!/bin/sh
# Installs Oubliette from an archive, an unpacked archive or a URL, or removes it.
#
#   install.sh [--prefix DIR] [FROM]      FROM: directory, .tar.gz or URL; by default where this script is
#   install.sh [--prefix DIR] --uninstall
#
# Programs go to PREFIX/bin and manual pages to PREFIX/share/man/man1. PREFIX is /usr/local for root, else
# ~/.local. Nothing is installed unless every checksum fits. Data (~/.oubliette) is never touched.
set -eu

say() { printf '%s\n' "$*"; }
fail() { printf 'error: %s\n' "$*" >&2; exit 1; }

uninstall=
prefix=
from=
while [ $# -gt 0 ]; do
    case $1 in
        --prefix) [ $# -ge 2 ] || fail '--prefix needs a directory'; prefix=$2; shift ;;
        --prefix=*) prefix=${1#--prefix=} ;;
        --uninstall) uninstall=1 ;;
        -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit 0 ;;
        -*) fail "unknown option $1; see $0 --help" ;;
        *) [ -z "$from" ] || fail 'name one directory, archive or URL'; from=$1 ;;
    esac
    shift
done
if [ -z "$prefix" ]; then
    if [ "$(id -u)" = 0 ]; then
        prefix=/usr/local
    else
        [ -n "${HOME:-}" ] || fail 'HOME is not set; choose a directory with --prefix'
        prefix=$HOME/.local
    fi
fi
bin=$prefix/bin
man=$prefix/share/man/man1

if [ -n "$uninstall" ]; then
    removed=
    for file in "$bin/oubliette" "$bin/oubliette-server" "$bin/oubliette-client" "$man"/oubliette.1 "$man"/oubliette-*.1; do
        if [ -f "$file" ]; then
            rm -f "$file"
            removed=1
        fi
    done
    [ -n "$removed" ] || fail "there is no Oubliette in $prefix"
    say "Removed Oubliette from $prefix. Its data stays: remove ~/.oubliette yourself if you no longer need it."
    exit 0
fi

work=
new=
trap '[ -z "$work" ] || rm -rf "$work"; [ -z "$new" ] || rm -f "$new"' EXIT
trap 'exit 1' HUP INT TERM

sums() {
    if command -v sha256sum >/dev/null 2>&1; then
        sha256sum -c "$1"
    elif command -v shasum >/dev/null 2>&1; then
        shasum -a 256 -c "$1"
    else
        fail 'neither sha256sum nor shasum is installed, so the files cannot be checked'
    fi
}

# Whether SHA256SUMS has a checksum of this file. Lines that are none are not checked by `sums`.
listed() {
    awk -v name="$1" \
        'length($1) == 64 && $1 !~ /[^0-9a-f]/ && substr($0, 67) == name { found = 1 } END { exit !found }' \
        "$from/SHA256SUMS"
}

fetch() {
    if command -v curl >/dev/null 2>&1; then
        # A redirect never leads to a connection that others can change.
        curl -fsSL --proto-redir =https -o "$2" "$1"
    elif command -v wget >/dev/null 2>&1; then
        wget -q -O "$2" "$1"
    else
        fail 'neither curl nor wget is installed; download the archive yourself and name it'
    fi
}

[ -n "$from" ] || from=$(dirname "$0")
case $from in
    http://* | https://*)
        work=$(mktemp -d)
        name=${from##*/}
        say "Fetching $from"
        fetch "$from" "$work/$name" || fail "cannot fetch $from"
        fetch "$from.sha256" "$work/$name.sha256" || fail "cannot fetch $from.sha256, the checksum of the archive"
        (cd "$work" && sums "$name.sha256" >/dev/null) || fail 'the archive is damaged: its checksum does not fit'
        from=$work/$name
        ;;
esac
if [ -f "$from" ]; then
    [ -n "$work" ] || work=$(mktemp -d)
    mkdir "$work/unpacked"
    tar -xzf "$from" -C "$work/unpacked" || fail "$from is not a .tar.gz archive"
    from=$(dirname "$(find "$work/unpacked" -name SHA256SUMS | head -n 1)")
fi
[ -f "$from/SHA256SUMS" ] || fail "there is no SHA256SUMS in $from: it is not an archive of Oubliette"
(cd "$from" && sums SHA256SUMS >/dev/null) || fail 'a file is damaged: its checksum does not fit; nothing was installed'
for path in "$from/oubliette" "$from/oubliette-server" "$from/oubliette-client" "$from"/man/*.1; do
    [ -f "$path" ] || continue
    name=${path#"$from"/}
    listed "$name" || fail "$name is not in SHA256SUMS, so it could not be checked; nothing was installed"
done
# Of another system or processor, it does not start.
version=$("$from/oubliette" --version 2>/dev/null) ||
    fail "$from/oubliette does not start on this machine ($(uname -s) $(uname -m)); take the archive for it"

mkdir -p "$bin" "$man" || fail "cannot create $bin; choose another directory with --prefix, or use sudo"
old=$("$bin/oubliette" --version 2>/dev/null || true)
for name in oubliette oubliette-server oubliette-client; do
    [ -f "$from/$name" ] || continue
    # Renamed over the old file, which a running server still uses.
    new=$bin/.$name.new
    cp "$from/$name" "$new" && chmod 755 "$new" && mv -f "$new" "$bin/$name" || fail "cannot write $bin/$name"
done
new=
for page in "$from"/man/*.1; do
    [ -f "$page" ] && cp "$page" "$man/"
done

if [ -n "$old" ]; then
    say "Installed $version in $bin, in place of $old."
    say 'Restart a running server to use it: `oubliette serve` again, or `systemctl restart oubliette`.'
else
    say "Installed $version in $bin."
fi
case :$PATH: in
    *:$bin:*) ;;
    *) say "$bin is not in your PATH. Add it:"; say "    export PATH=\"$bin:\$PATH\"" ;;
esac
say 'Next: oubliette run "what can you do?"'
