#!/bin/sh
# Looks for Ruby, with which the scripts of examples/ruby are tested: uses the one that is on PATH, else installs
# Debian's with apt-get when run as root. Without one it says loudly that these tests are skipped.
set -eu

command -v ruby >/dev/null && exit 0

skipped() {
	echo "The tests of examples/ruby are SKIPPED: no ruby on PATH, and $1." >&2
	exit 0
}

# apt repeats a download that broke off, and waits for another apt-get that is at work.
apt() { apt-get -q -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 "$@" </dev/null; }

command -v apt-get >/dev/null || skipped "this is no Debian"
[ "$(id -u)" -eq 0 ] || skipped "this is not root, who could install it"
export DEBIAN_FRONTEND=noninteractive
apt update || skipped "apt-get update does not work"
apt install -y --no-install-recommends ruby || skipped "apt-get install ruby does not work"
