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
	"github.com/lowkiq/lowkiq/internal/packed"
	"github.com/lowkiq/lowkiq/internal/redisdb"
	"github.com/lowkiq/lowkiq/queue"
)

// There is no index: pushes and pops would pay for it. A search has Redis look through what it
// stores, as lua/search.lua does, a script after another with rests between them (redisdb.DB.Slow),
// and reads what that finds.

// Search asks for jobs by what they say. All that is not "" must hold, of one payload. Text is compared byte by
// byte with what is stored: of JSON that came by the API or a command that is without white space.
//
// What is searched are the record of an id, what was pushed while it was in flight, and its payloads
// in the spill, or all that the morgue has of it; not its state, its progress, results or the journal
// ([RunQuery.Contains]). A record that is damaged is not found: an audit names it.
type Search struct {
	Contains string // in the id, or in the data of a payload. ErrQuery where the queue has a codec: its text is not in Redis
	Tag      string // one of the payload's tags, see lowkiq.Header.Tags
	Error    string // in the text of the last error
}

// MaxSearch is the longest text of a search, bytes.
const MaxSearch = 200

// Bounds of a search.
const (
	searchTime  = time.Second // after which a page is given, full or not
	searchBytes = 512 << 10   // that one script looks through
	searchMost  = 500         // ids that one script takes from a table
	searchLeast = 16
	searchFan   = 16 // shards that are asked together: each script reads a few payloads, however large
)

func (query *Query) searches() bool { return query.Search != (Search{}) }

// scans reports whether all records are searched, as they are stored, and not those of a list.
func (query *Query) scans() bool { return query.searches() && query.State == "" && query.By == ByID }

func (s *Search) check() error {
	for name, text := range map[string]string{"contains": s.Contains, "tag": s.Tag, "error": s.Error} {
		if len(text) > MaxSearch {
			return refuse("%s has %d bytes: want at most %d", name, len(text), MaxSearch)
		}
	}
	if strings.TrimSpace(s.Tag) != s.Tag || strings.Contains(s.Tag, ",") {
		return refuse("tag %q: want one tag, without commas and white space around it", s.Tag)
	}
	return nil
}

// readable says why payloads of the queue cannot be searched.
func (j *Jobs) readable(query Query) error {
	if codec := j.q.Codec(); codec != "" && query.Contains != "" {
		return refuse("contains: payloads of queue %q are stored in codec %q, so Redis does not have their text: search for a tag or an error, or list by id", j.q.Name, codec)
	}
	return nil
}

// gently is how what a search asks of Redis is asked; other queries ask at once.
func (j *Jobs) gently(ctx context.Context, query Query, ask func() error) error {
	if !query.searches() {
		return ask()
	}
	return j.db.Slow.Owe(ask) // what is found is shown at once: who searches next rests for it
}

// look is an id that is to be looked at, in the spill behind a key if there is one.
type look struct {
	ID  []byte `json:"i"`
	Key []byte `json:"k,omitempty"`
}

// seeker has Redis look for some text. What it finds may have it elsewhere than where it is wanted.
type seeker struct {
	jobs  *Jobs
	from  State
	bytes int       // that its scripts look through in one turn
	text  string    // of an id or a payload; "" = any, of all three
	tag   string    // of a payload, as JSON has it
	fault string    // of an error
	until time.Time // by which its turn at Redis must come; zero: it waits
}

func (j *Jobs) seeker(query Query) seeker {
	text, err := json.Marshal(query.Tag)
	if err != nil {
		panic(err) // it is a string
	}
	return seeker{jobs: j, from: query.State, bytes: searchBytes, text: query.Contains, tag: string(text[1 : len(text)-1]), fault: query.Error}
}

// sought is what one script has looked at.
type sought struct {
	next   string // HSCAN's cursor, "" if there was no scan
	looked int    // ids
	left   []look // that there was no room for
	late   bool   // its turn did not come in time: nothing was looked at
	finds  []find
}

// find is a piece of an id in which there is the text.
type find struct{ id, form, text string }

// seek has one script look at ids of a shard, then at about count from a cursor of HSCAN; "" = none.
func (s seeker) seek(ctx context.Context, shard *queue.Shard, todo []look, cursor string, count int) (r sought, err error) {
	args := s.args(s.bytes, cursor, count, todo)
	ran, err := s.jobs.db.Slow.By(ctx, s.until, func() error {
		reply, err := shard.Run(ctx, s.jobs.db.Scripts.Search, args...)
		if err == nil {
			r, err = decodeSought(reply)
		}
		return err
	})
	r.late = !ran
	if err != nil {
		return r, fmt.Errorf("shard %s: %w", shard, err)
	}
	return r, nil
}

// args are those of lua/search.lua.
func (s seeker) args(bytes int, cursor string, count int, todo []look) []any {
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

// seekAll looks at ids of several shards in one turn, which together look through no more than one script may, but for the first
// record of each. So a far Redis is asked once for them, and what it did is rested for once.
func (s seeker) seekAll(ctx context.Context, todo []look) (r sought, err error) {
	var shards []*queue.Shard
	by := map[*queue.Shard][]look{}
	var rest []look
	for _, l := range todo {
		shard := s.jobs.q.Of(string(l.ID))
		if by[shard] == nil {
			if len(shards) == searchFan {
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
		calls[i] = &redisdb.Call{Script: script, Keys: shard.Keys().For(script), Args: s.args(s.bytes/len(shards), "", 0, by[shard])}
	}
	ran, err := s.jobs.db.Slow.By(ctx, s.until, func() error {
		s.jobs.db.RunAll(ctx, calls)
		for i, call := range calls {
			one, err := decodeSought(call.Reply)
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

func decodeSought(reply any) (r sought, err error) {
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
		r.left = append(r.left, look{[]byte(one[0]), []byte(one[1])})
	}
	for one := range slices.Chunk(rest[2*left:], 3) {
		r.finds = append(r.finds, find{one[0], one[1], one[2]})
	}
	return r, nil
}

// payloads are those of a find; none if it cannot be read.
func (f find) payloads() []lowkiq.Payload {
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

// has reports whether a find is what is searched for.
func (s *Search) has(f find) bool {
	if f.form == "" {
		return true
	}
	named := strings.Contains(f.id, s.Contains)
	return slices.ContainsFunc(f.payloads(), func(p lowkiq.Payload) bool {
		return (named || bytes.Contains(p.Data, []byte(s.Contains))) && (s.Tag == "" || slices.Contains(p.Header.Tags(), s.Tag))
	})
}

// sift returns the ids that are what is searched for, and drops them from what is left to look at.
func (s *Search) sift(r *sought, found map[string]bool) (ids []string) {
	for _, f := range r.finds {
		if !found[f.id] && s.has(f) {
			found[f.id] = true
			ids = append(ids, f.id)
		}
	}
	r.left = slices.DeleteFunc(r.left, func(l look) bool { return found[string(l.ID)] })
	return ids
}

// searchIn looks at candidates one after the other, until so many are found or the time is over, and marks those that do not say what is
// searched for. It returns how many it looked at; if it stopped within an id, the cursor says where to go on.
//
// The time is until; zero: it begins when something was looked at. To read a list may take Redis so long that the rest for it is longer than
// a page has: it is waited for, or no page would ever look at anything.
func (j *Jobs) searchIn(ctx context.Context, query Query, all []candidate, cur *cursor, want int, until *time.Time) (done int, err error) {
	s, found, few := j.seeker(query), 0, searchLeast
	begin := cur.Part
	for cur.Part = nil; done < len(all) && found < want; {
		some := all[done:min(len(all), done+few)]
		left := make([]look, len(some))
		for i, c := range some {
			left[i].ID = []byte(c.id)
		}
		if done == 0 && begin != nil && string(begin.ID) == some[0].id {
			left[0].Key = begin.Key
		}
		n, part, turns, err := s.those(ctx, query, some, left, until)
		if err != nil {
			return 0, err
		}
		for i, c := range some[:n] {
			if c.silent {
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
		if few *= 4; turns > 1 { // what is looked at and not reached is looked at again
			few /= 8
		}
		few = min(max(1, few), searchMost)
	}
	return done, nil
}

// those looks at a few candidates, in their order. When the time is over it returns how many it has looked at wholly, and what is left of
// the next one, and how many turns it took.
func (s seeker) those(ctx context.Context, query Query, some []candidate, todo []look, until *time.Time) (done int, part *look, turns int, err error) {
	found := map[string]bool{}
	for len(todo) > 0 {
		if !until.IsZero() {
			s.until = until.Add(searchTime) // who has just searched much rests for a while
		}
		r, err := s.seekAll(ctx, todo)
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
		query.sift(&r, found)
		if todo = r.left; time.Now().After(*until) {
			break
		}
	}
	for i := range some {
		k := slices.IndexFunc(todo, func(l look) bool { return string(l.ID) == some[i].id })
		if k >= 0 {
			return i, &todo[k], turns, nil
		}
		some[i].silent = !found[some[i].id]
	}
	return len(some), nil, turns, nil
}

// scan goes through the records of all shards.
type scan struct {
	seeker
	at    *position
	count int  // ids to take from a table: few at first, and where much is left of them
	ends  bool // only ids of which a part was looked at are looked at still
}

func (s *scan) ended() bool { return s.at.Shard >= len(s.jobs.shards) && len(s.at.Look) == 0 }

// halfway reports whether a part of some id was looked at.
func (s *scan) halfway() bool {
	return slices.ContainsFunc(s.at.Look, func(l look) bool { return len(l.Key) > 0 })
}

// through is the share that was looked through. HSCAN counts with the bits of its cursor reversed,
// so that these are a share of its table.
func (s *scan) through() float64 {
	n, _ := strconv.ParseUint(s.at.Hash, 10, 64)
	return (float64(s.at.Shard) + float64(bits.Reverse64(n))/(1<<64)) / float64(len(s.jobs.shards))
}

// step looks at what is left, or at the next ids of a table. The place moves with advance: who has no
// room for so much calls fewer.
func (s *scan) step(ctx context.Context) (sought, error) {
	if shard, todo, _ := s.todo(); len(todo) > 0 {
		return s.seek(ctx, shard, todo, "", 0)
	}
	cursor := s.at.Hash
	if cursor == "" {
		cursor = "0"
	}
	return s.seek(ctx, s.jobs.shards[s.at.Shard], nil, cursor, s.count)
}

// todo is what is left to look at, first that of one shard.
func (s *scan) todo() (shard *queue.Shard, todo, rest []look) {
	for _, l := range s.at.Look {
		of := s.jobs.q.Of(string(l.ID))
		if shard == nil && (len(l.Key) > 0 || !s.ends) {
			shard = of
		}
		if of == shard && len(todo) < searchMost && (len(l.Key) > 0 || !s.ends) {
			todo = append(todo, l)
		} else {
			rest = append(rest, l)
		}
	}
	return shard, todo, rest
}

// advance moves the place beyond a step; back is what to look at once more.
func (s *scan) advance(r sought, back ...look) {
	if r.next == "" {
		_, _, s.at.Look = s.todo()
	}
	s.at.Look = append(append(s.at.Look, r.left...), back...)
	if r.next == "" {
		return
	}
	s.count = min(searchMost, 2*s.count)
	if s.at.Hash = r.next; r.next == "0" {
		s.at.Hash = ""
		s.at.Shard++
	}
}

// fewer reports whether the step is to be taken again with fewer ids, because of so many too many:
// what a step leaves over is in the cursor.
func (s *scan) fewer(r sought, tooMany int) bool {
	if r.next == "" || s.count <= searchLeast || max(tooMany, len(r.left)) <= searchLeast {
		return false
	}
	s.count = searchLeast
	return true
}

// searchedPage is a page of all jobs that say what is searched for, as they are stored.
func (j *Jobs) searchedPage(ctx context.Context, query Query, cur cursor) (Page, error) {
	if cur.Walk == nil {
		cur.Walk = &position{}
	}
	var page Page
	var found []candidate
	seen := map[string]bool{} // a scan may give an id twice
	s := &scan{seeker: j.seeker(query), at: cur.Walk, count: searchLeast}
	began := time.Now()
	s.until = began.Add(j.patience + searchTime)
	for steps := 0; !s.ended() && len(found) < query.Limit && (steps == 0 || time.Since(began) < j.patience); steps++ {
		r, err := s.step(ctx)
		if err != nil {
			return Page{}, err
		}
		if r.late {
			break
		}
		here := map[string]bool{}
		ids := slices.DeleteFunc(query.sift(&r, here), func(id string) bool { return seen[id] })
		tooMany := max(0, len(found)+len(ids)-query.Limit)
		if s.fewer(r, tooMany) {
			continue
		}
		var back []look
		for i, id := range ids {
			if i >= len(ids)-tooMany {
				back = append(back, look{ID: []byte(id)})
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
	page.Through = s.through()
	if err := j.lookAt(ctx, query, found); err != nil {
		return Page{}, err
	}
	found = slices.DeleteFunc(found, func(c candidate) bool { return !query.wants(c) })
	return page, j.present(ctx, query, &page, found)
}
