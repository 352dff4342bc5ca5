package lowkiq

import "errors"

// ReplyState says how the payload of a call ended.
type ReplyState string

// The ends of a payload. A failure that is retried is no end.
const (
	ReplyPending ReplyState = "pending" // the payload waits or runs
	ReplyDone    ReplyState = "done"
	ReplyBuried  ReplyState = "buried"  // the payload is in the morgue, with an error
	ReplyDeleted ReplyState = "deleted" // a person deleted the payload
	ReplyExpired ReplyState = "expired" // the payload expired before a handler got it
)

// Reply tells a caller about the end of its payload.
type Reply struct {
	ID     string
	Token  string // 128 random bits; whoever has it can read the reply again while it is kept
	State  ReplyState
	Result []byte // the handler's result, see [Answer.Result]; nil without a result
	Error  string // the reason of the burial
}

// ErrNoReply means that there is no reply for this token, and that none will come. The token never
// belonged to this id, the reply is no longer kept, or the payload is gone: its queue was deleted, its
// record was damaged and set aside, or Redis has lost it.
var ErrNoReply = errors.New("no reply")
