#!/bin/sh
# Looks for a Chromium for the browser tests: uses the one that is on PATH, else installs
# Debian's with apt-get when run as root. Without one it says loudly that these tests are
# skipped: all others need no browser.
set -eu

for name in chromium chromium-browser google-chrome google-chrome-stable headless_shell; do
	command -v "$name" >/dev/null && exit 0
done

skipped() {
	echo "The browser tests of the dashboard are SKIPPED: no Chromium" >&2
	echo "on PATH, and $1." >&2
	echo "To run them: apt-get install chromium, or any of Chromium and" >&2
	echo "Google Chrome on PATH; then: make browser" >&2
	exit 0
}

command -v apt-get >/dev/null || skipped "this is no Debian"
[ "$(id -u)" -eq 0 ] || skipped "this is not root, who could install it"
export DEBIAN_FRONTEND=noninteractive
apt-get update -q </dev/null || skipped "apt-get update does not work"
apt-get install -q -y --no-install-recommends chromium </dev/null || skipped "apt-get install chromium does not work"
