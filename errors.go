package lowkiq

import "errors"

// Errors that callers may test for with errors.Is.
var (
	// ErrLeaseLost is the cause of a handler's cancelled context when the node's lease ran out, or
	// Redis refused it: another node may own the shard soon.
	ErrLeaseLost = errors.New("lease lost")
	// ErrFenced is Redis's answer to an operation of an instance that does not hold the shard's
	// claim.
	ErrFenced = errors.New("fenced: the shard is claimed by another instance")
	// ErrShutdown is the cause of a handler's cancelled context when the node's shutdown timeout is
	// over.
	ErrShutdown = errors.New("node is shutting down")
	// ErrTimeout is the cause of a handler's cancelled context when the queue's handler timeout is
	// over.
	ErrTimeout = errors.New("handler timeout")
	// ErrCancelled is the cause of a handler's cancelled context when a person ends the run of an id of its batch.
	ErrCancelled = errors.New("cancelled by hand")
	// ErrStuck is the cause of a handler's cancelled context when it has noted nothing for as long as the queue's rules
	// allow.
	ErrStuck = errors.New("stuck")
	// ErrEnded means that a job is not, or no longer, in the flight in which its handler got it.
	ErrEnded = errors.New("the handler's call for it has ended")
	// ErrNote is a note that cannot be taken. The error says why.
	ErrNote = errors.New("bad note")
	// ErrUnknownQueue means that the queue is neither registered in Redis nor configured here.
	ErrUnknownQueue = errors.New("unknown queue")
	// ErrShardCount means that the queue is registered with another shard count.
	ErrShardCount = errors.New("shard count differs from the registered one")
)
