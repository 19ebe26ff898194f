#!/usr/bin/env bash
# Prints apt's sources of a Debian release, one a line, at the mirrors that this machine's apt has for its own Debian, or
# at SLO_CTL_DEBIAN_MIRROR.
#   scripts/debian-sources.sh trixie
# Exit codes: 0 printed, 2 no mirror is known.
set -euo pipefail

suite=$1
if [ -n "${SLO_CTL_DEBIAN_MIRROR:-}" ]; then
    echo "deb $SLO_CTL_DEBIAN_MIRROR $suite main"
    exit
fi
# shellcheck disable=SC1091 # of this machine
codename=$(. /etc/os-release && [ "$ID" = debian ] && echo "$VERSION_CODENAME") || codename=
found=
[ -z "$codename" ] || for suffix in '' -security; do
    # shellcheck disable=SC2016 # apt-get fills $(...) in
    uri=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' |
        sed -n "s/ $codename$suffix main\$//p" | head -n 1)
    [ -z "$uri" ] || found+="deb $uri $suite$suffix main"$'\n'
done
if [ -z "$found" ]; then
    echo "apt's sources name no mirror of Debian; SLO_CTL_DEBIAN_MIRROR may name one" >&2
    exit 2
fi
printf '%s' "$found"
