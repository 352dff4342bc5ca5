package lowkiq

import "errors"

// ReplyState is how the payload of a call ended.
type ReplyState string

// The ends of a payload. A failure that will be retried is none.
const (
	ReplyPending ReplyState = "pending" // it waits or runs: no end yet
	ReplyDone    ReplyState = "done"
	ReplyBuried  ReplyState = "buried"  // it went to the morgue, with an error
	ReplyDeleted ReplyState = "deleted" // a person deleted it
	ReplyExpired ReplyState = "expired" // its time was over before a handler had it
)

// Reply is what a caller gets to know of a payload's end.
type Reply struct {
	ID     string
	Token  string // 128 random bits: who has it may ask for the reply again, while it is kept
	State  ReplyState
	Result []byte // what the handler answered, see [Answer.Result]; nil if nothing
	Error  string // why it was buried
}

// ErrNoReply: there is no reply to a call under this token, and none to come. It never was a token of
// this id, the reply is no longer kept, or the payload is gone without an end: its queue was deleted, its
// record set aside as damaged, or Redis has lost it.
var ErrNoReply = errors.New("no reply")
