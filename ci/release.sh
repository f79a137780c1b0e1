#!/usr/bin/env bash
# Publish site/VERSION as a release on GitHub: the version as one archive, and the PDF beside it.
#   ci/release.sh v0.2.0
# Asks for `gh`, signed in with leave to write the repository's contents.
set -euo pipefail
cd "${SITE:-site}"
tag=$1
version=${tag#v}
[ -d "$version" ] || { echo "there is no version $version in ${SITE:-site}: tag, then 'make publish'" >&2; exit 1; }
if grep -q '"name": "Build of profile rehearsal' "$version/ro-crate-metadata.json"; then
    echo "version $version is a rehearsal, whose models are not those it names: nothing of it is released" >&2
    exit 1
fi
archive=site-$version.tar.gz
tar --sort=name --owner=0 --group=0 --numeric-owner -czf "$archive" "$version"
gh release create "$tag" --verify-tag --title "Version $version" --generate-notes \
    "$archive" "$version/fingerprint-not-blueprint.pdf"
rm "$archive"
