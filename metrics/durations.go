package metrics

// Durations are a queue's histograms since the process began.
type Durations struct{ Handler, Wait Buckets }

// Buckets are a histogram as it is scraped.
type Buckets struct {
	// Counts are how many durations were more than 2^((k-1)/8) and at most 2^(k/8) seconds, by k;
	// none is 0.
	Counts map[int]uint64
	Sum    float64 // seconds
}

// Durations reads what was observed of each queue.
func (m *Metrics) Durations() map[string]Durations {
	all := map[string]Durations{}
	for name, h := range m.handler.snapshot() {
		all[name] = Durations{Handler: h.read(), Wait: m.wait.queue(name).read()}
	}
	return all
}
