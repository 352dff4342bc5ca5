package envelope

import (
	"fmt"
	"strings"

	"github.com/lowkiq/lowkiq"
)

// What a reply begins with; see lua/lib/tell.lua.
const (
	Done   = "done"
	buried = "buried"
)

// ReadReply takes a reply apart as Redis keeps it: the state, then perhaps a line break and the result, or the
// error of a burial. decode is the codec's; nil: none.
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
		if reply.Result == nil { // an empty one is there, too
			reply.Result = []byte{}
		}
	}
	return nil
}
