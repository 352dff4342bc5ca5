#!/bin/sh
# Looks for Ruby, with which the scripts of examples/ruby are tested: uses the one that is on PATH, else installs
# Debian's with apt-get when run as root. Without one it says loudly that these tests are skipped.
set -eu
. "${0%/*}/apt.sh"

command -v ruby >/dev/null && exit 0

skipped() {
	echo "The tests of examples/ruby are SKIPPED: no ruby on PATH, and $1." >&2
	exit 0
}

install_or skipped ruby
