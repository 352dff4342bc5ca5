package rebalance

import (
	"maps"
	"slices"
	"sync"

	"github.com/hashicorp/raft"
)

// logStore keeps a Raft log in memory. A snapshot may leave a gap in it. The cost of an operation grows with the number of
// entries, which is some dozens, and not with their indexes, which other processes choose.
type logStore struct {
	mu          sync.RWMutex // guards the following
	entries     map[uint64]*raft.Log
	first, last uint64 // 0 if the log is empty
}

var _ raft.LogStore = (*logStore)(nil)

func newLogStore() *logStore { return &logStore{entries: map[uint64]*raft.Log{}} }

// FirstIndex returns the lowest index, 0 of an empty log.
func (s *logStore) FirstIndex() (uint64, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.first, nil
}

// LastIndex returns the highest index, 0 of an empty log.
func (s *logStore) LastIndex() (uint64, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.last, nil
}

// GetLog reads an entry.
func (s *logStore) GetLog(index uint64, entry *raft.Log) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	found, ok := s.entries[index]
	if !ok {
		return raft.ErrLogNotFound
	}
	*entry = *found
	return nil
}

// StoreLog adds an entry.
func (s *logStore) StoreLog(entry *raft.Log) error { return s.StoreLogs([]*raft.Log{entry}) }

// StoreLogs adds entries.
func (s *logStore) StoreLogs(entries []*raft.Log) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range entries {
		s.entries[e.Index] = e
		s.last = max(s.last, e.Index)
		if s.first == 0 || e.Index < s.first {
			s.first = e.Index
		}
	}
	return nil
}

// DeleteRange deletes the entries with indexes from through to.
func (s *logStore) DeleteRange(from, to uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	maps.DeleteFunc(s.entries, func(index uint64, _ *raft.Log) bool { return from <= index && index <= to })
	s.first, s.last = 0, 0
	if left := slices.Collect(maps.Keys(s.entries)); len(left) > 0 {
		s.first, s.last = slices.Min(left), slices.Max(left)
	}
	return nil
}
