package rules

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/text/suggest"
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

// UnknownQueues returns warnings about queues in the rules then that are not registered. then has the rules by queue.
func UnknownQueues(then map[string]Then, registered []string) (warnings []string) {
	for _, queue := range slices.Sorted(maps.Keys(then)) {
		others := slices.DeleteFunc(slices.Clone(registered), func(name string) bool { return name == queue })
		warn := func(part, name, meanwhile string) {
			if name == "" || slices.Contains(registered, name) {
				return
			}
			text := fmt.Sprintf("the rule then.%s of queue %s names queue %q, which is not registered; until it is, %s", part, queue, name, meanwhile)
			if meant := suggest.NearestName(name, others, min(3, len(name))); meant != "" {
				text += fmt.Sprintf("; did you mean %q?", meant)
			}
			warnings = append(warnings, text)
		}
		warn("done", then[queue].Done, "its jobs fail and are retried")
		warn("dead", then[queue].Dead, "its dead payloads wait")
	}
	return warnings
}
