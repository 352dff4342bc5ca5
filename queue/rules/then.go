package rules

import (
	"regexp"
	"strings"

	"github.com/lowkiq/lowkiq"
)

// Then names the queues that get the payloads of a queue at their end. The zero value passes nothing on.
type Then struct {
	Done string `rule:"done" max:"128" text:"the name of a queue"` // gets each payload that is done
	Dead string `rule:"dead" max:"128" text:"the name of a queue"` // gets each payload that is buried or has expired
}

// queueName matches the names that protocol.CheckName allows.
var queueName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

func (t *Then) checkParts() error {
	for part, name := range map[string]string{".done": t.Done, ".dead": t.Dead} {
		if name != "" && (len(name) > lowkiq.MaxQueueName || !queueName.MatchString(name)) {
			return valueError(part, "want the name of a queue, got %.60q", name)
		}
		if strings.HasPrefix(name, "lowkiq.") { // as protocol.CheckNotReserved
			return valueError(part, "names that begin with \"lowkiq.\" belong to lowkiq; want another queue, got %.60q", name)
		}
	}
	return nil
}
