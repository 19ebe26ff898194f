#!/usr/bin/env bash
# Prints apt's sources of a release of Debian or Ubuntu, one per line, with the mirrors of this machine's apt for its own
# Debian, or SLO_CTL_DEBIAN_MIRROR or SLO_CTL_UBUNTU_MIRROR. A mirror of Debian may also have Ubuntu.
#   scripts/debian-sources.sh trixie|bookworm|noble
# Exit codes: 0 printed, 2 no mirror is known.
set -euo pipefail

suite=$1
# shellcheck disable=SC1091 # of this machine
codename=$(. /etc/os-release && [ "$ID" = debian ] && echo "$VERSION_CODENAME") || codename=

mirror() { # mirror '' or -security: that of this machine's Debian
    # shellcheck disable=SC2016 # apt-get fills $(...) in
    [ -z "$codename" ] || apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' |
        sed -n "s/ $codename$1 main\$//p" | head -n 1
}

ubuntu() {
    local uri=${SLO_CTL_UBUNTU_MIRROR:-} trusted='' debian each probe
    debian=$(mirror '')
    debian=${debian%/}
    if [ -z "$uri" ] && [ "$debian" != "${debian%/debian}" ]; then
        uri=${debian%/debian}/ubuntu
        probe=$(mktemp)
        /usr/lib/apt/apt-helper download-file "$uri/dists/$suite/InRelease" "$probe" >/dev/null 2>&1 || uri=
        rm -f "$probe"
    fi
    [ -n "$uri" ] || return 0
    # Not all Debian releases have Ubuntu's keys. The root is temporary and only for tests.
    [ -e /usr/share/keyrings/ubuntu-archive-keyring.gpg ] || trusted="[trusted=yes] "
    for each in "$suite" "$suite-updates" "$suite-security"; do echo "deb $trusted$uri $each main universe"; done
}

debian() {
    local suffix uri
    if [ -n "${SLO_CTL_DEBIAN_MIRROR:-}" ]; then
        echo "deb $SLO_CTL_DEBIAN_MIRROR $suite main"
        return
    fi
    for suffix in '' -security; do
        uri=$(mirror "$suffix")
        [ -z "$uri" ] || echo "deb $uri $suite$suffix main"
    done
}

if [ "$suite" = noble ]; then distribution=Ubuntu; else distribution=Debian; fi
found=$("${distribution,,}")
if [ -z "$found" ]; then
    echo "apt's sources name no mirror of $distribution; SLO_CTL_${distribution^^}_MIRROR may name one" >&2
    exit 2
fi
printf '%s\n' "$found"
