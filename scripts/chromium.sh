#!/bin/sh
# Looks for a Chromium for the browser tests. It uses a Chromium on PATH, or installs Debian's
# with apt-get when run as root. Otherwise it says loudly that these tests are skipped. All
# other tests need no browser.
set -eu
. "${0%/*}/apt.sh"

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

install_or skipped chromium
