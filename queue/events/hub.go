package events

import (
	"context"
	"iter"
	"sync"
)

// Hub shares subscriptions among the readers of a process. It has one subscription for each queue,
// and one for all queues.
type Hub struct {
	maxStreams int
	listen     func(context.Context, Filter) iter.Seq[Event]

	mu      sync.Mutex // guards what follows
	feeds   map[string]*feed
	streams int
}

// feed is a subscription.
type feed struct {
	stop    context.CancelFunc
	readers map[*Backlog]bool // guarded by the hub's mu
}

// NewHub returns a hub with at most this many streams at once. listen subscribes, like
// Client.Events.
func NewHub(most int, listen func(context.Context, Filter) iter.Seq[Event]) *Hub {
	return &Hub{maxStreams: most, listen: listen, feeds: map[string]*feed{}}
}

// Join listens to a queue, or to all if queue is "". leave ends that. ok is false if the hub has
// its maximum number of streams.
func (h *Hub) Join(queue string) (backlog *Backlog, leave func(), ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.streams == h.maxStreams {
		return nil, nil, false
	}
	h.streams++
	one := h.feeds[queue]
	if one == nil {
		ctx, stop := context.WithCancel(context.Background())
		one = &feed{stop: stop, readers: map[*Backlog]bool{}}
		h.feeds[queue] = one
		go h.feedReaders(ctx, queue, one)
	}
	backlog = NewBacklog()
	one.readers[backlog] = true
	return backlog, func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.streams--
		delete(one.readers, backlog)
		if len(one.readers) == 0 {
			one.stop()
			delete(h.feeds, queue)
		}
	}, true
}

// feedReaders passes events to the readers of a feed until ctx ends.
func (h *Hub) feedReaders(ctx context.Context, queue string, to *feed) {
	for e := range h.listen(ctx, Filter{Queue: queue}) {
		e.rendering = &rendering{}
		h.mu.Lock()
		for backlog := range to.readers {
			backlog.Add(e)
		}
		h.mu.Unlock()
	}
}
