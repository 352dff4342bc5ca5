# Sourced by the scripts that install packages of Debian for tests.
export DEBIAN_FRONTEND=noninteractive

# apt repeats a download that was interrupted, and waits while another apt-get runs.
apt() { apt-get -q -o Acquire::Retries=3 -o DPkg::Lock::Timeout=300 "$@" </dev/null; }

# install_or CALL PACKAGE installs the package. If that fails it calls CALL with the reason, and CALL ends the script.
install_or() {
	command -v apt-get >/dev/null || "$1" "this is no Debian"
	[ "$(id -u)" -eq 0 ] || "$1" "only root could install it"
	apt update || "$1" "apt-get update does not work"
	apt install -y --no-install-recommends "$2" || "$1" "apt-get install $2 does not work"
}

# keep_services_off lets packages start no service until the script ends. Debian's packages ask policy-rc.d whether they
# may. A service that was there before does not change.
keep_services_off() {
	policy=/usr/sbin/policy-rc.d
	if [ ! -e "$policy" ] && [ "$(id -u)" -eq 0 ]; then
		trap 'rm -f "$policy"' EXIT
		trap 'exit 130' INT TERM
		printf '#!/bin/sh\nexit 101\n' >"$policy"
		chmod +x "$policy"
	fi
}
