#!/usr/bin/env bash
# Put together the whole site from what all releases on GitHub hold, newest or not: nothing but releases is published.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
site=${SITE:-site}
mkdir -p "$site"
for tag in $(gh release list --limit 1000 --json tagName --jq '.[].tagName'); do
    work=$(mktemp -d "$site/.part-XXXXXX")
    gh release download "$tag" --pattern 'site-*.tar.gz' --dir "$work"
    tar -xzf "$work"/site-*.tar.gz -C "$site"
    rm -r "$work"
done
if ! python3 -c 'import filelock, packaging, yaml' 2>/dev/null; then
    grep -E '^(filelock|packaging|pyyaml)==' requirements.lock | python3 -m pip install --quiet -r /dev/stdin
fi
python3 -m ci.publish --index --site "$site"
