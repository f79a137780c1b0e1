#!/usr/bin/env bash
# Install what the PDF needs: from Debian, as root; anywhere else say how. Never fails: the build decides whether it can do without.
set -uo pipefail

packages=(latexmk texlive-latex-recommended texlive-latex-extra texlive-fonts-recommended texlive-xetex
    fonts-freefont-otf fonts-texgyre fonts-texgyre-math fonts-dejavu-core fontconfig poppler-utils)

installed() { dpkg-query -W -f '${db:Status-Status}\n' "${packages[@]}" 2>/dev/null | grep -c '^installed$'; }

if ! command -v apt-get >/dev/null; then
    command -v xelatex >/dev/null && command -v latexmk >/dev/null && command -v pdftotext >/dev/null && exit 0
    echo "no PDF: install TeX Live (latexmk, XeLaTeX, TeX Gyre and DejaVu fonts) and poppler-utils to get it" >&2
    exit 0
fi
[ "$(installed)" -eq "${#packages[@]}" ] && exit 0
if [ "$(id -u)" -ne 0 ]; then
    echo "no PDF unless these are installed: sudo apt-get install --no-install-recommends ${packages[*]}" >&2
    exit 0
fi
echo "installing LaTeX for the PDF …" >&2
export DEBIAN_FRONTEND=noninteractive
{ apt-get -qq -o DPkg::Lock::Timeout=300 update \
    && apt-get -qq -o DPkg::Lock::Timeout=300 install --no-install-recommends -y "${packages[@]}"; } >/dev/null \
    || echo "LaTeX could not be installed: the HTML is built without the PDF" >&2
