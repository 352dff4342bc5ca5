#!/bin/sh
# A lowkiq handler in POSIX shell: appends each batch to a file, and says that it is done.
#
#   queues:
#     history:
#       shards: 16
#       handler: {exec: [sh, handler.sh]}
#
# The node starts this script once. Each line on stdin is one batch, a JSON object:
#
#   {"queue":"history","shard":3,"fence":1763600000123,"flight":17,"jobs":[{"id":"a",…}]}
#
# and each line on stdout is the answer to it: {"ok":true}, or {"ok":false,"error":"…"}
# to have the batch retried. Nothing else may go to stdout; stderr is logged by the node.
# A batch may arrive twice (at least once), so a reader of the file must expect it.

out=${HANDLER_OUT:-batches.ndjson}

while IFS= read -r batch; do
	if printf '%s\n' "$batch" >>"$out"; then
		echo '{"ok":true}'
	else
		echo "cannot write to $out" >&2
		echo '{"ok":false,"error":"cannot write the file"}'
	fi
done
