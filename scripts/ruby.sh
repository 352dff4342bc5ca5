#!/bin/sh
# Looks for Ruby, for the tests of examples/ruby. It uses a ruby on PATH, or installs Debian's with apt-get when run as
# root. Otherwise it says loudly that these tests are skipped.
set -eu
. "${0%/*}/apt.sh"

command -v ruby >/dev/null && exit 0

skipped() {
	echo "The tests of examples/ruby are SKIPPED: no ruby on PATH, and $1." >&2
	exit 0
}

install_or skipped ruby
