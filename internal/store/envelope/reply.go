package envelope

import (
	"fmt"
	"strings"

	"github.com/lowkiq/lowkiq"
)

// The first words of replies; see lua/lib/tell.lua.
const (
	Done   = "done"
	buried = "buried"
)

// ReadReply parses a stored reply: the state, then for some states a line break and the result or the error.
// decode is the function of the queue's codec, or nil.
func ReadReply(reply *lowkiq.Reply, text string, decode func([]byte) ([]byte, error)) (err error) {
	state, rest, more := strings.Cut(text, "\n")
	switch reply.State = lowkiq.ReplyState(state); {
	case state == buried:
		reply.Error = rest
	case more && decode == nil:
		reply.Result = []byte(rest)
	case more:
		if reply.Result, err = decode([]byte(rest)); err != nil {
			return fmt.Errorf("job %q: decode its result: %w", reply.ID, err)
		}
		if reply.Result == nil { // an empty result is a result
			reply.Result = []byte{}
		}
	}
	return nil
}
