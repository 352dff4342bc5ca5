package browse

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/packed"
	"github.com/lowkiq/lowkiq/internal/store/redisdb"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// There is no index, because every push and pop would pay for it. A search makes Redis read through
// what it stores. It runs lua/search.lua again and again with rests between the runs
// (redisdb.DB.Slow), and decodes what the scripts find.

// Search selects jobs by their contents. All fields that are not "" must match one payload. Text is
// compared byte by byte with the stored text. JSON from the API or a command is stored without
// white space.
//
// A search reads the record of an id, the payloads that were pushed during a flight, and payloads
// in the spill, or all buried payloads of an id in the morgue. It does not read states, progress,
// results or the journal ([RunQuery.Contains]). It does not find damaged records; an audit reports
// them.
type Search struct {
	Contains string // in the id or in the data of a payload; an ErrQuery if the queue has a codec, because Redis does not have the text
	Tag      string // one of the payload's tags, see lowkiq.Header.Tags
	Error    string // in the last error
}

// MaxSearch is the maximum length of a searched text, in bytes.
const MaxSearch = 200

// Bounds of a search.
const (
	searchTime  = time.Second // then a page ends, full or not
	searchBytes = 512 << 10   // bytes that a script reads
	// copiesOfFind is how many copies of these bytes exist while they are compared. A script may
	// exceed searchBytes by a payload, which is safe because scripts of searches run one at a time.
	copiesOfFind    = 2
	maxSearchIDs    = 500 // ids that a script takes from a hash
	minSearchIDs    = 16
	maxSearchShards = 16 // shards in a pipeline; each script reads a few payloads, however large they are
)

func (query *Query) isSearch() bool { return query.Search != (Search{}) }

// isScan reports whether the query searches all records in stored order, and not those of a list.
func (query *Query) isScan() bool { return query.isSearch() && query.State == "" && query.By == ByID }

func (s *Search) checkTexts() error {
	for name, text := range map[string]string{"contains": s.Contains, "tag": s.Tag, "error": s.Error} {
		if len(text) > MaxSearch {
			return refuseQuery("%s has %d bytes, at most %d are allowed", name, len(text), MaxSearch)
		}
	}
	if strings.TrimSpace(s.Tag) != s.Tag || strings.Contains(s.Tag, ",") {
		return refuseQuery("tag %q: must be a single tag without commas, and without white space around it", s.Tag)
	}
	return nil
}

// checkReadable returns an error if payloads of the queue cannot be searched.
func (j *Jobs) checkReadable(query Query) error {
	if codec := j.q.Codec(); codec != "" && query.Contains != "" {
		return refuseQuery("contains: payloads of queue %q are stored in codec %q, so Redis does not have their text; search for a tag or an error, or list by id", j.q.Name, codec)
	}
	return nil
}

// runGently runs a request to Redis. After a request of a search, the following searches rest for
// the time that it took. Other queries do not wait.
func (j *Jobs) runGently(ctx context.Context, query Query, ask func() error) error {
	if !query.isSearch() {
		return ask()
	}
	return j.db.Slow.Owe(ask) // this search does not wait; the next search rests for it
}

// pendingID is an id that is still to be searched. With a key, it is searched from that key of its
// spill on.
type pendingID struct {
	ID  []byte `json:"i"`
	Key []byte `json:"k,omitempty"`
}

// searcher makes Redis search for a text. A hit may contain the text outside of the wanted part, so
// matchesHit checks it.
type searcher struct {
	jobs  *Jobs
	from  State
	bytes int       // bytes that its scripts read in a turn
	text  string    // part of an id or a payload; in text, tag and fault, "" means any
	tag   string    // tag of a payload as JSON has it
	fault string    // part of an error
	until time.Time // deadline for its turn at Redis; zero means that it waits
}

func (j *Jobs) newSearcher(query Query) searcher {
	text, err := json.Marshal(query.Tag)
	if err != nil {
		panic(err) // it is a string
	}
	return searcher{jobs: j, from: query.State, bytes: searchBytes, text: query.Contains, tag: string(text[1 : len(text)-1]), fault: query.Error}
}

// searchReply is the answer of lua/search.lua.
type searchReply struct {
	next   string      // HSCAN's cursor, "" if there was no scan
	looked int         // ids that were read
	left   []pendingID // ids that were not read to their end
	late   bool        // its turn did not come in time, so nothing was read
	finds  []searchHit
}

// searchHit is a piece of an id that contains the text.
type searchHit struct{ id, form, text string }

// searchShard runs a script. It searches the ids of todo, then about count ids from a cursor of
// HSCAN, if cursor is not "".
func (s searcher) searchShard(ctx context.Context, shard *protocol.Shard, todo []pendingID, cursor string, count int) (r searchReply, err error) {
	args := s.scriptArgs(s.bytes, cursor, count, todo)
	ran, err := s.jobs.db.Slow.By(ctx, s.until, func() error {
		reply, err := shard.Run(ctx, s.jobs.db.Scripts.Search, args...)
		if err == nil {
			r, err = decodeSearch(reply)
		}
		return err
	})
	r.late = !ran
	if err != nil {
		return r, fmt.Errorf("shard %s: %w", shard, err)
	}
	return r, nil
}

// scriptArgs returns the arguments of lua/search.lua.
func (s searcher) scriptArgs(bytes int, cursor string, count int, todo []pendingID) []any {
	from := "waiting"
	if s.from == StateMorgue {
		from = "morgue"
	}
	args := []any{from, s.text, s.tag, s.fault, bytes, cursor, count}
	for _, l := range todo {
		args = append(args, l.ID, l.Key)
	}
	return args
}

// searchShards searches ids of several shards in one turn. Together the scripts read no more than
// one script may, except for the first record of each. So a distant Redis costs a single round trip
// and a single rest.
func (s searcher) searchShards(ctx context.Context, todo []pendingID) (r searchReply, err error) {
	var shards []*protocol.Shard
	by := map[*protocol.Shard][]pendingID{}
	var rest []pendingID
	for _, l := range todo {
		shard := s.jobs.q.Of(string(l.ID))
		if by[shard] == nil {
			if len(shards) == maxSearchShards {
				rest = append(rest, l)
				continue
			}
			shards = append(shards, shard)
		}
		by[shard] = append(by[shard], l)
	}
	calls := make([]*redisdb.Call, len(shards))
	for i, shard := range shards {
		script := s.jobs.db.Scripts.Search
		calls[i] = &redisdb.Call{Script: script, Keys: shard.Keys().For(script), Args: s.scriptArgs(s.bytes/len(shards), "", 0, by[shard])}
	}
	ran, err := s.jobs.db.Slow.By(ctx, s.until, func() error {
		s.jobs.db.RunAll(ctx, calls)
		for i, call := range calls {
			one, err := decodeSearch(call.Reply)
			if err = cmp.Or(call.Err, err); err != nil {
				return fmt.Errorf("shard %s: %w", shards[i], err)
			}
			r.looked, r.left, r.finds = r.looked+one.looked, append(r.left, one.left...), append(r.finds, one.finds...)
		}
		return nil
	})
	r.late, r.left = !ran, append(r.left, rest...)
	return r, err
}

func decodeSearch(reply any) (r searchReply, err error) {
	parts := redisdb.List(reply)
	if len(parts) < 3 {
		return r, fmt.Errorf("search answered %.60v", reply)
	}
	left := int(redisdb.Int(parts[2]))
	r.next, r.looked = redisdb.Text(parts[0]), int(redisdb.Int(parts[1]))
	rest := redisdb.Texts(parts[3:])
	if left < 0 || len(rest) < 2*left || (len(rest)-2*left)%3 != 0 {
		return r, fmt.Errorf("search answered %d values, %d ids of them left", len(parts), left)
	}
	for one := range slices.Chunk(rest[:2*left], 2) {
		r.left = append(r.left, pendingID{[]byte(one[0]), []byte(one[1])})
	}
	for one := range slices.Chunk(rest[2*left:], 3) {
		r.finds = append(r.finds, searchHit{one[0], one[1], one[2]})
	}
	return r, nil
}

// decodePayloads returns the payloads of a hit, none if it cannot be decoded.
func (f searchHit) decodePayloads() []lowkiq.Payload {
	if f.form == "p" {
		var p lowkiq.Payload
		if _, err := packed.Open(f.text, &p); err != nil {
			return nil
		}
		return []lowkiq.Payload{p}
	}
	job, _, err := packed.Decode(f.id, f.text, nil)
	if err != nil {
		return nil
	}
	return job.Payloads
}

// matchesHit reports whether a hit is what the search selects.
func (s *Search) matchesHit(f searchHit) bool {
	if f.form == "" {
		return true
	}
	named := strings.Contains(f.id, s.Contains)
	return slices.ContainsFunc(f.decodePayloads(), func(p lowkiq.Payload) bool {
		return (named || bytes.Contains(p.Data, []byte(s.Contains))) && (s.Tag == "" || slices.Contains(p.Header.Tags(), s.Tag))
	})
}

// takeMatches returns the ids that the search selects, and drops them from the ids that are left to
// search.
func (s *Search) takeMatches(r *searchReply, found map[string]bool) (ids []string) {
	for _, f := range r.finds {
		if !found[f.id] && s.matchesHit(f) {
			found[f.id] = true
			ids = append(ids, f.id)
		}
	}
	r.left = slices.DeleteFunc(r.left, func(l pendingID) bool { return found[string(l.ID)] })
	return ids
}

// searchIn searches candidates one after the other until it has found want of them or the time is
// over. It marks those that do not match, and returns how many it has searched. If it stopped
// within an id, the cursor says where to continue.
//
// The time ends at until. If until is zero, the time begins once something was searched. Reading a
// list may take Redis so long that the rest for it exceeds the time of a page. So the first search
// waits for its turn; otherwise no page would ever search anything.
func (j *Jobs) searchIn(ctx context.Context, query Query, all []candidate, cur *cursor, want int, until *time.Time) (done int, err error) {
	s, found, few := j.newSearcher(query), 0, minSearchIDs
	begin := cur.Part
	for cur.Part = nil; done < len(all) && found < want; {
		some := all[done:min(len(all), done+few)]
		left := make([]pendingID, len(some))
		for i, c := range some {
			left[i].ID = []byte(c.id)
		}
		if done == 0 && begin != nil && string(begin.ID) == some[0].id {
			left[0].Key = begin.Key
		}
		n, part, turns, err := s.searchBatch(ctx, query, some, left, until)
		if err != nil {
			return 0, err
		}
		for i, c := range some[:n] {
			if c.mismatch {
				continue
			}
			if found++; found == want {
				n, part = i+1, nil
				break
			}
		}
		done += n
		if n < len(some) {
			cur.Part = part
			break
		}
		if done > 0 && time.Now().After(*until) {
			break
		}
		if few *= 4; turns > 1 { // candidates after the page are searched again on the next page
			few /= 8
		}
		few = min(max(1, few), maxSearchIDs)
	}
	return done, nil
}

// searchBatch searches a batch of candidates in their order. When the time is over it returns how
// many it has searched completely, what is left of the next candidate, and how many turns it took.
func (s searcher) searchBatch(ctx context.Context, query Query, some []candidate, todo []pendingID, until *time.Time) (done int, part *pendingID, turns int, err error) {
	found := map[string]bool{}
	for len(todo) > 0 {
		if !until.IsZero() {
			s.until = until.Add(searchTime) // after a long search the turn comes late
		}
		r, err := s.searchShards(ctx, todo)
		if err != nil {
			return 0, nil, 0, err
		}
		if r.late {
			break
		}
		turns++
		if until.IsZero() {
			*until = time.Now().Add(s.jobs.patience)
		}
		query.takeMatches(&r, found)
		if todo = r.left; time.Now().After(*until) {
			break
		}
	}
	for i := range some {
		k := slices.IndexFunc(todo, func(l pendingID) bool { return string(l.ID) == some[i].id })
		if k >= 0 {
			return i, &todo[k], turns, nil
		}
		some[i].mismatch = !found[some[i].id]
	}
	return len(some), nil, turns, nil
}

// scan searches the records of all shards.
type scan struct {
	searcher
	at    *position
	count int  // ids to take from a hash; small at first, and where large ids are left over
	ends  bool // only ids that were searched in part are still searched
}

func (s *scan) ended() bool { return s.at.Shard >= len(s.jobs.shards) && len(s.at.Look) == 0 }

// hasPartial reports whether an id was searched in part.
func (s *scan) hasPartial() bool {
	return slices.ContainsFunc(s.at.Look, func(l pendingID) bool { return len(l.Key) > 0 })
}

// shareDone returns the share of all records that was searched. HSCAN counts with the bits of its
// cursor reversed, so the reversed cursor is a share of its hash table.
func (s *scan) shareDone() float64 {
	n, _ := strconv.ParseUint(s.at.Hash, 10, 64)
	return (float64(s.at.Shard) + float64(bits.Reverse64(n))/(1<<64)) / float64(len(s.jobs.shards))
}

// nextStep searches the ids that are left, or the next ids of a hash. It does not move the place,
// so a caller without room for the results can repeat the step.
func (s *scan) nextStep(ctx context.Context) (searchReply, error) {
	if shard, todo, _ := s.nextTodo(); len(todo) > 0 {
		return s.searchShard(ctx, shard, todo, "", 0)
	}
	cursor := s.at.Hash
	if cursor == "" {
		cursor = "0"
	}
	return s.searchShard(ctx, s.jobs.shards[s.at.Shard], nil, cursor, s.count)
}

// nextTodo returns the ids of a shard that are left to search, and the rest.
func (s *scan) nextTodo() (shard *protocol.Shard, todo, rest []pendingID) {
	for _, l := range s.at.Look {
		of := s.jobs.q.Of(string(l.ID))
		if shard == nil && (len(l.Key) > 0 || !s.ends) {
			shard = of
		}
		if of == shard && len(todo) < maxSearchIDs && (len(l.Key) > 0 || !s.ends) {
			todo = append(todo, l)
		} else {
			rest = append(rest, l)
		}
	}
	return shard, todo, rest
}

// advance moves the place beyond a step. The ids of back are searched once more.
func (s *scan) advance(r searchReply, back ...pendingID) {
	if r.next == "" {
		_, _, s.at.Look = s.nextTodo()
	}
	s.at.Look = append(append(s.at.Look, r.left...), back...)
	if r.next == "" {
		return
	}
	s.count = min(maxSearchIDs, 2*s.count)
	if s.at.Hash = r.next; r.next == "0" {
		s.at.Hash = ""
		s.at.Shard++
	}
}

// shrinkStep reports whether to repeat the step with a smaller count, because it found tooMany ids
// more than the page has room for. The cursor carries the ids that a step leaves over.
func (s *scan) shrinkStep(r searchReply, tooMany int) bool {
	if r.next == "" || s.count <= minSearchIDs || max(tooMany, len(r.left)) <= minSearchIDs {
		return false
	}
	s.count = minSearchIDs
	return true
}

// searchedPage reads a page of all jobs that match a search, in stored order.
func (j *Jobs) searchedPage(ctx context.Context, query Query, cur cursor) (Page, error) {
	if cur.Walk == nil {
		cur.Walk = &position{}
	}
	var page Page
	var found []candidate
	seen := map[string]bool{} // a scan may return an id twice
	s := &scan{searcher: j.newSearcher(query), at: cur.Walk, count: minSearchIDs}
	began := time.Now()
	s.until = began.Add(j.patience + searchTime)
	for steps := 0; !s.ended() && len(found) < query.Limit && (steps == 0 || time.Since(began) < j.patience); steps++ {
		r, err := s.nextStep(ctx)
		if err != nil {
			return Page{}, err
		}
		if r.late {
			break
		}
		here := map[string]bool{}
		ids := slices.DeleteFunc(query.takeMatches(&r, here), func(id string) bool { return seen[id] })
		tooMany := max(0, len(found)+len(ids)-query.Limit)
		if s.shrinkStep(r, tooMany) {
			continue
		}
		var back []pendingID
		for i, id := range ids {
			if i >= len(ids)-tooMany {
				back = append(back, pendingID{ID: []byte(id)})
				continue
			}
			seen[id] = true
			found = append(found, candidate{shard: j.q.Of(id).Index, id: id})
		}
		page.Examined += r.looked - len(back)
		s.advance(r, back...)
	}
	if !s.ended() {
		page.Next = cur.String()
	}
	page.Through = s.shareDone()
	if err := j.loadHeads(ctx, query, found); err != nil {
		return Page{}, err
	}
	found = slices.DeleteFunc(found, func(c candidate) bool { return !query.wantsCandidate(c) })
	return page, j.loadPage(ctx, query, &page, found)
}
