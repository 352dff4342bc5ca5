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

# apt repeats a download that broke off, and waits for another apt-get that is at work.
apt() { apt-get -q -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 "$@" </dev/null; }

command -v apt-get >/dev/null || skipped "this is no Debian"
[ "$(id -u)" -eq 0 ] || skipped "this is not root, who could install it"
export DEBIAN_FRONTEND=noninteractive
apt update || skipped "apt-get update does not work"
apt install -y --no-install-recommends chromium || skipped "apt-get install chromium does not work"
