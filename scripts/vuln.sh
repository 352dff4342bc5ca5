#!/usr/bin/env bash
# Looks for calls of code with known vulnerabilities, and fails on findings. If the database cannot be
# read it says so and passes, because that is no fault of this change. Arguments go to govulncheck.
set -euo pipefail
cd "$(dirname "$0")/.."
go=${GO:-go}
limit=${VULN_LIMIT:-300} # seconds, for the database and the analysis

tool=$("$go" tool -n govulncheck) # built here, so that the limit is for the scan alone
log=$(mktemp)
trap 'rm -f "$log"' EXIT

status=0
timeout -k 5 "$limit" "$tool" "$@" ./... 2> >(tee "$log" >&2) || status=$?
wait
unchecked=
if [ "$status" -eq 124 ] || [ "$status" -eq 137 ]; then
	unchecked="no result after $limit s"
elif [ "$status" -ne 0 ] && grep -q 'fetching vulnerabilities' "$log"; then
	unchecked="the vulnerability database cannot be read"
fi
[ -n "$unchecked" ] || exit "$status"
cat >&2 <<END

**********************************************************************
make vuln: NOT CHECKED: $unchecked.
No known vulnerabilities were looked for.
**********************************************************************
END
