#!/bin/sh
# Makes a package of Debian and Ubuntu from what `make install` put into a folder: deb.sh FOLDER VERSION TARGET-FOLDER.
# One package, without Python: the package for Python comes by the wheel. It needs dpkg-deb, objdump, strip and gzip; no
# debhelper. DEBFULLNAME and DEBEMAIL say who makes it, as for Debian's own tools.
set -eu
folder=$1
version=$2
target=$3
usr=$folder/usr
doc=$usr/share/doc/cableway
umask 022

# The archive is for those who build with the library from source; programs link the shared one.
rm -f "$usr/lib/libcableway.a"
chmod 644 "$usr/lib/libcableway.so.$version"
mkdir -p "$usr/lib/$(uname -m)-linux-gnu"
mv "$usr/lib/pkgconfig" "$usr/lib/$(uname -m)-linux-gnu/pkgconfig"
strip --remove-section=.comment --remove-section=.note "$usr"/bin/*
strip --strip-unneeded --remove-section=.comment --remove-section=.note "$usr/lib/libcableway.so.$version"
gzip -9 --no-name "$usr"/share/man/man*/*

# The newest symbol version of the C library that any of it needs.
glibc=$(objdump -T "$usr"/bin/* "$usr/lib/libcableway.so.$version" | sed -n 's/.*(\{0,1\}GLIBC_\([0-9.]*\).*/\1/p' | sort -V | tail -n 1)
architecture=$(dpkg --print-architecture)
maintainer="${DEBFULLNAME:-The cableway developers} <${DEBEMAIL:-cableway@packages.invalid}>"
moment=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}

mkdir -p "$doc" "$folder/DEBIAN" "$usr/share/lintian/overrides"
{
    printf 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: cableway\n\n'
    printf 'Files: *\nCopyright: 2026 the cableway developers\nLicense: Apache-2.0\n On Debian systems, the license is in /usr/share/common-licenses/Apache-2.0.\n'
    printf 'Comment:\n cableway-bridge has OpenSSL (Apache-2.0) and liburing (MIT) in it; cableway has jansson\n (MIT) and ncurses (MIT); cablewayd has inih (BSD-3-Clause).\n'
} >"$doc/copyright"
printf 'cableway (%s) unstable; urgency=medium\n\n  * What changed is told in CHANGELOG.md of the source.\n\n -- %s  %s\n' \
    "$version" "$maintainer" "$(LC_ALL=C date -u -R -d "@$moment")" | gzip -9 --no-name >"$doc/changelog.gz"
# One package holds the programs, the library and its header: they speak one protocol. OpenSSL, ncurses and the others are
# linked from their archives, so that one package serves all releases of Debian and Ubuntu from the one that built it on.
cat >"$usr/share/lintian/overrides/cableway" <<OVERRIDES
cableway: package-name-doesnt-match-sonames
cableway: link-to-shared-library-in-wrong-package
cableway: embedded-library
OVERRIDES
cat >"$folder/DEBIAN/control" <<CONTROL
Package: cableway
Version: $version
Architecture: $architecture
Maintainer: $maintainer
Installed-Size: $(du -sk "$usr" | cut -f1)
Depends: libc6 (>= $glibc)
Section: utils
Priority: optional
Description: arrays in shared memory, by name and without copies
 The broker cablewayd, the command cableway, and the library libcableway with
 its header: processes of one user share arrays of numbers in host and GPU
 memory, on one machine without a copy and with other machines by a bridge.
 .
 The package for Python comes as a wheel, which has its own broker in it.
CONTROL
echo "libcableway 0 cableway (>= $version)" >"$folder/DEBIAN/shlibs"
echo "activate-noawait ldconfig" >"$folder/DEBIAN/triggers"
(cd "$folder" && find usr -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum) >"$folder/DEBIAN/md5sums"
find "$folder" -exec touch --no-dereference --date="@$moment" {} +
mkdir -p "$target"
package=$target/cableway_${version}_$architecture.deb
SOURCE_DATE_EPOCH=$moment dpkg-deb --root-owner-group -Zxz --build "$folder" "$package" >/dev/null
if command -v lintian >/dev/null; then
    lintian --fail-on error,warning --allow-root "$package"
else
    echo "cableway: lintian is not installed, so the package was not checked by it"
fi
echo "$package"
