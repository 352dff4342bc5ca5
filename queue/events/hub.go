package events

import (
	"context"
	"iter"
	"sync"
)

// Hub shares what a process hears among those who listen by it: one subscription for each queue, and one for all queues.
type Hub struct {
	most   int
	listen func(context.Context, Filter) iter.Seq[Event]

	mu      sync.Mutex // guards what follows
	feeds   map[string]*feed
	streams int
}

// feed is one subscription.
type feed struct {
	stop    context.CancelFunc
	readers map[*Backlog]bool // guarded by the hub's mu
}

// NewHub makes one for so many streams at once, which listens by listen, as Client.Events is.
func NewHub(most int, listen func(context.Context, Filter) iter.Seq[Event]) *Hub {
	return &Hub{most: most, listen: listen, feeds: map[string]*feed{}}
}

// Join listens to a queue, "" for all. leave ends that. ok is false if there are as many streams as there may be.
func (h *Hub) Join(queue string) (backlog *Backlog, leave func(), ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.streams == h.most {
		return nil, nil, false
	}
	h.streams++
	one := h.feeds[queue]
	if one == nil {
		ctx, stop := context.WithCancel(context.Background())
		one = &feed{stop: stop, readers: map[*Backlog]bool{}}
		h.feeds[queue] = one
		go h.hear(ctx, queue, one)
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

// hear passes on what is heard, until ctx ends.
func (h *Hub) hear(ctx context.Context, queue string, to *feed) {
	for e := range h.listen(ctx, Filter{Queue: queue}) {
		e.form = &form{}
		h.mu.Lock()
		for backlog := range to.readers {
			backlog.Add(e)
		}
		h.mu.Unlock()
	}
}
