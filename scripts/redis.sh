#!/bin/sh
# Makes sure that a redis-server >= 6.2 is on PATH. If there is none, it installs it with
# apt-get when run as root, and otherwise says what to install.
set -eu
. "${0%/*}/apt.sh"

# new_enough succeeds if redis-server is there and at least 6.2.
new_enough() {
	version=$(redis-server --version 2>/dev/null | sed -n 's/.* v=\([0-9]*\)\.\([0-9]*\).*/\1 \2/p')
	[ -n "$version" ] || return 1
	major=${version% *} minor=${version#* }
	[ "$major" -gt 6 ] || { [ "$major" -eq 6 ] && [ "$minor" -ge 2 ]; }
}

fail() {
	echo "redis-server >= 6.2 not found on PATH: $1" >&2
	exit 1
}

# install leaves the packaged service off. It does not change a service that was there before.
install() {
	keep_services_off
	had_one=$(command -v redis-server || true)
	apt update
	apt install -y --no-install-recommends redis-server
	[ -z "$had_one" ] || return 0
	# Disable it for the next boot, and stop it if another policy let it start.
	if [ -d /run/systemd/system ]; then
		systemctl disable --quiet --now redis-server.service || true
	else
		service redis-server stop >/dev/null 2>&1 || true
	fi
}

if new_enough; then exit 0; fi
command -v apt-get >/dev/null || fail "install Redis, for example from https://redis.io/docs/latest/operate/oss_and_stack/install/"
[ "$(id -u)" -eq 0 ] || fail "sudo apt-get install redis-server (and switch its service off), or run make as root"
install
new_enough || fail "apt-get installed an older Redis; install a newer one"
