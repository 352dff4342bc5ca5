#!/bin/sh
# Makes sure that PostgreSQL's initdb is there, for the tests of sqloutbox/. It installs Debian's package with apt-get when
# run as root, and leaves the packaged service off. Otherwise it fails.
set -eu
. "${0%/*}/apt.sh"

failed() {
	echo "make test-all needs PostgreSQL, and $1: apt-get install postgresql" >&2
	exit 1
}

command -v initdb >/dev/null && exit 0
ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 && exit 0
keep_services_off
install_or failed postgresql
