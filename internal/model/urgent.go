package model

import (
	"cmp"
	"slices"
)

// Urgent ids, in the model.

// urgency is the state of an urgent id.
type urgency struct {
	Lined bool  // it is due, and goes before all ids of Ready
	After int64 // us that its place in the line is behind its due time
	Again bool  // it is in flight, and has urgent payloads that are not in the flight
}

// MakeUrgent makes ids urgent after their payloads were stored by a push. ready is the length of Ready before the push.
func (m *Shard) MakeUrgent(ready int, ids ...string) {
	moved := int64(0)
	for _, id := range ids {
		_, busy := m.placeOf(id)
		_, suspect := m.Crashes[id]
		switch {
		case busy:
			m.Urgent[id] = &urgency{Again: true}
		case m.Scheduled[id] || m.Blocked[id] || suspect:
			m.Urgent[id] = &urgency{}
		case m.isLined(id):
		default:
			m.Urgent[id] = &urgency{Lined: true, After: moved}
			moved++
			if i := slices.Index(m.Ready[ready:], id); i >= 0 {
				m.Ready = slices.Delete(m.Ready, ready+i, ready+i+1)
			} else {
				m.Stale[id] = true
			}
		}
	}
}

func (m *Shard) isLined(id string) bool { return m.Urgent[id] != nil && m.Urgent[id].Lined }

// Line returns the due ids in the order of pops, except those in quarantine. It has tombstones, too. passed reports
// whether a pop passes over entry i.
func (m *Shard) Line() (ids []string, passed func(i int) bool) {
	for id := range m.Urgent {
		if m.isLined(id) {
			ids = append(ids, id)
		}
	}
	at := func(id string) int64 { return m.Waiting[id].At + m.Urgent[id].After }
	slices.SortFunc(ids, func(x, y string) int { return cmp.Or(cmp.Compare(at(x), at(y)), cmp.Compare(x, y)) })
	urgent := len(ids)
	ids = append(ids, m.Ready...)
	return ids, func(i int) bool { return i >= urgent && (m.Tombs[ids[i]] || m.Stale[ids[i]]) }
}

// takeSeat gives a due id its place in the line if it is urgent, or has an old entry there.
func (m *Shard) takeSeat(id string) bool {
	if m.Urgent[id] != nil {
		m.Urgent[id] = &urgency{Lined: true}
		return true
	}
	there := m.Stale[id]
	delete(m.Stale, id)
	return there
}

// endUrgency ends the urgency of an id without a job. Its entry in Ready, if there is one, becomes a tombstone.
func (m *Shard) endUrgency(id string) {
	delete(m.Urgent, id)
	if m.Stale[id] {
		delete(m.Stale, id)
		m.Tombs[id] = true
	}
}
