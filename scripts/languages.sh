#!/bin/sh
# Makes sure that python3, ruby and node are on PATH, for the tests of clients/ and examples/. It installs Debian's packages
# with apt-get when run as root, and otherwise fails.
set -eu
. "${0%/*}/apt.sh"

failed() {
	echo "make test-all needs $program on PATH, and $1: apt-get install $package" >&2
	exit 1
}

for pair in python3:python3 ruby:ruby node:nodejs; do
	program=${pair%:*} package=${pair#*:}
	command -v "$program" >/dev/null || install_or failed "$package"
done
