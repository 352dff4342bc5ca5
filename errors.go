package lowkiq

import "errors"

// Errors for errors.Is.
var (
	// ErrLeaseLost is the cause of a handler's cancelled context after the node's lease has ended, or
	// Redis has refused it. Another node may own the shard soon.
	ErrLeaseLost = errors.New("lease lost")
	// ErrFenced means that Redis refused an operation, because the instance does not hold the claim of
	// the shard.
	ErrFenced = errors.New("fenced: the shard is claimed by another instance")
	// ErrShutdown is the cause of a handler's cancelled context after the node's shutdown timeout.
	ErrShutdown = errors.New("node is shutting down")
	// ErrTimeout is the cause of a handler's cancelled context after the queue's handler timeout.
	ErrTimeout = errors.New("handler timeout")
	// ErrCancelled is the cause of a handler's cancelled context after a person has cancelled the run of
	// an id of its batch.
	ErrCancelled = errors.New("cancelled by hand")
	// ErrOwnLane means that a handler calls a job that can only begin after the handler has returned.
	ErrOwnLane = errors.New("the handler would wait for itself")
	// ErrStuck is the cause of a handler's cancelled context after it has noted nothing for as long as
	// the queue's rules allow.
	ErrStuck = errors.New("stuck")
	// ErrEnded means that a job is not in the flight of its handler's batch any more.
	ErrEnded = errors.New("the handler's call for it has ended")
	// ErrNote means that a note is not valid. The error names the reason.
	ErrNote = errors.New("bad note")
	// ErrUnknownQueue means that the queue is not registered in Redis.
	ErrUnknownQueue = errors.New("unknown queue")
	// ErrShardCount means that the queue is registered with another shard count.
	ErrShardCount = errors.New("shard count differs from the registered one")
)
