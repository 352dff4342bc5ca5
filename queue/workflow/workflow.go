package workflow

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/internal/store/envelope"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// Workflow is a set of jobs in any queues, and the pushes at their end.
type Workflow struct {
	// ID has at most MaxID bytes of printable UTF-8 without spaces.
	ID string
	// Jobs are pushed as one. They have at most 600 KiB together, as they are stored; AddToWorkflow adds more.
	Jobs []Job
	// Done is pushed once when all jobs are done and no more can be added, and Dead once when nothing of the workflow can
	// run any more and some job has died, or when the deadline comes first. A job has died if it was buried, deleted, or has
	// expired. Jobs of a deleted queue never end, so set a Deadline if that may happen. Either may be nil. Both have the
	// header workflow with the id.
	Done, Dead *lowkiq.FollowUp
	// Deadline is the time from the start after which Dead is pushed if Done was not. 0 is none.
	Deadline time.Duration
	// Open says that jobs may be added until the workflow is closed. Done waits for that.
	Open bool
}

// Job is a push of a workflow. Urgent and ReplyTo must not be set, and its id must be UTF-8.
type Job struct {
	Queue string
	lowkiq.Push
	// Name is for people, and for After of other jobs. It has at most MaxName bytes of printable UTF-8. Without a name,
	// people see the queue and the id.
	Name string
	// After has names of jobs of the same call. The job is pushed when all of them are done.
	After []string
}

// Bounds of texts.
const (
	MaxID   = 80
	MaxName = 60
)

// Status is what is known of a workflow.
type Status struct {
	ID    string
	State State
	Total int // jobs, with those that wait for others
	Done  int
	Dead  int // jobs that were buried or deleted, or have expired, and were not requeued and done since
	// Waiting is the number of jobs that wait for others by After.
	Waiting int
	// Dropped is the number of jobs that waited for others when the workflow was cancelled.
	Dropped int
	Open    bool // jobs may be added
	// DeadNames are the names of the first ten dead jobs.
	DeadNames []string
	// DeadJobs and WaitingJobs are the first ten dead jobs, and the first ten jobs that wait. A list leaves them out.
	DeadJobs, WaitingJobs []Member
	Began                 time.Time // by Redis's clock; zero in StateStored
	Changed               time.Time
	Ended                 time.Time // zero until the workflow has ended
}

// Member is a job of a workflow.
type Member struct {
	Queue, ID string // "" if only the name of a dead job is known
	Name      string
	After     []string // names of the jobs that it waits for
}

// Running returns the number of jobs that were pushed and have not ended. It is 0 once the workflow has ended, because the ends
// of jobs are not counted any more.
func (s *Status) Running() int {
	if !s.Ended.IsZero() {
		return 0
	}
	return max(0, s.Total-s.Done-s.Dead-s.Waiting)
}

// State is the state of a workflow.
type State string

// The states of a workflow.
const (
	StateStored    State = "stored"    // no node has handled its start yet
	StateRunning   State = "running"   // Done and Dead were not pushed
	StateDone      State = "done"      // all jobs are done, and Done was pushed
	StateDead      State = "dead"      // Dead was pushed; a person may requeue the dead jobs
	StateLate      State = "late"      // Dead was pushed because of the deadline; the jobs go on
	StateCancelled State = "cancelled" // nothing will be pushed any more
)

// Errors of workflows. An error of a job that cannot be pushed is that of a push.
var (
	ErrInvalid  = errors.New("bad workflow")
	ErrTooLarge = errors.New("workflow is too large")
	ErrExists   = errors.New("another workflow has this id")
	ErrUnknown  = errors.New("no such workflow")
	ErrClosed   = errors.New("the workflow is not open")
)

func invalid(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrInvalid}, args...)...)
}

// CheckID returns an ErrInvalid if a text cannot be the id of a workflow.
func CheckID(id string) error {
	switch {
	case id == "":
		return invalid("the id is empty")
	case len(id) > MaxID:
		return invalid("the id has %d bytes, at most %d are allowed", len(id), MaxID)
	case !printable(id) || strings.ContainsFunc(id, unicode.IsSpace):
		return invalid("id %q: must be printable UTF-8 without spaces", id)
	}
	return nil
}

func printable(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) })
}

// Start starts a workflow. created is false if the same workflow was started before under this id; then nothing is done. Due
// times of jobs do not make workflows different. The error is ErrExists if it was another workflow. A workflow is kept for a
// week after its end. After an error nothing is stored, unless it says that Redis did not answer. Starting it again is safe.
func Start(ctx context.Context, c *protocol.Client, w Workflow) (created bool, err error) {
	m, err := prepare(ctx, c, &w)
	if err != nil {
		return false, err
	}
	if err := c.SetRules(protocol.Workflows, protocol.PushRules{Push: Rules().Push}); err != nil {
		return false, err
	}
	q, err := c.FindQueue(ctx, protocol.Workflows)
	if q == nil && err == nil {
		q, err = c.RegisterWorkflows(ctx, Shards)
	}
	if err != nil {
		return false, err
	}
	s, err := read(ctx, c, w.ID)
	if err == nil && s == nil {
		m.Call = rand.Text()
		if _, err = pushMessage(ctx, q, w.ID, m); err == nil {
			s, err = read(ctx, c, w.ID)
			created = s == nil || s.Call == m.Call // else another call was first
		}
	}
	if err != nil {
		return false, err
	}
	if s != nil && s.Digest != m.Digest {
		return false, fmt.Errorf("workflow %q: %w, with other jobs, pushes, or another deadline; use another id", w.ID, ErrExists)
	}
	return created, nil
}

// read returns the state of a workflow, nil if there is none. If no node has handled its start yet, it is the state at the
// start, with Began 0. Adds that wait to be handled are in it, and it is not open if a close waits.
func read(ctx context.Context, c *protocol.Client, id string) (*state, error) {
	text, first, err := c.ReadID(ctx, protocol.Workflows, id)
	if err != nil {
		return nil, err
	}
	s, err := readState(text)
	if err != nil {
		return nil, err
	}
	for _, p := range first {
		e, err := parseEvent(p.Data)
		switch {
		case err != nil:
		case s == nil && e.Kind == kindStart:
			s = newState(&e.message, time.Time{})
			s.Began = 0
			(&outcome{}).addMembers(s, e.Jobs)
		case s != nil && e.Kind == kindAdd && checkEvent(s, &e) == nil:
			(&outcome{}).apply(s, &e, time.UnixMilli(s.Changed))
		case s != nil && (e.Kind == kindClose || e.Kind == kindCancel):
			s.Open = false
		}
	}
	return s, nil
}

// pushMessage pushes a message. isNew is false if an equal message was waiting.
func pushMessage(ctx context.Context, q *protocol.Queue, id string, m *message) (isNew bool, err error) {
	text, err := json.Marshal(m)
	if err != nil {
		return false, err
	}
	if len(text) > maxMessage {
		return false, fmt.Errorf("workflow %q: %w: its %d jobs have %d bytes as they are stored, at most %d are allowed at once; start it open, and add the others in parts",
			id, ErrTooLarge, len(m.Jobs), len(text), maxMessage)
	}
	results, err := q.PushAny(ctx, lowkiq.Push{ID: id, Payload: text})
	if err != nil {
		return false, fmt.Errorf("workflow %q: %w", id, err)
	}
	return !results[0].Merged, nil
}

// Add adds jobs to an open workflow: all of them or none. The same jobs again, among the last 200 calls, do nothing, so that
// a call without an answer may be repeated. After has names of jobs of this call. The error is ErrUnknown or ErrClosed if
// there is no open workflow.
func Add(ctx context.Context, c *protocol.Client, id string, jobs ...Job) error {
	if len(jobs) == 0 {
		return nil
	}
	w := Workflow{ID: id, Jobs: jobs}
	m, err := prepare(ctx, c, &w)
	if err != nil {
		return err
	}
	q, s, err := find(ctx, c, id)
	if err != nil {
		return err
	}
	if m.Kind = kindAdd; slices.Contains(s.Adds, m.Digest) {
		return nil
	}
	if err := checkEvent(s, &event{message: *m}); err != nil {
		return fmt.Errorf("workflow %q: %w, so it takes none of these jobs", id, err)
	}
	if _, err := pushMessage(ctx, q, id, m); err != nil {
		return err
	}
	if s, err = read(ctx, c, id); s == nil || err != nil {
		return err
	}
	if err := checkEvent(s, &event{message: *m}); err != nil { // another program was first
		return fmt.Errorf("workflow %q: %w: another program has changed it at the same moment, so the jobs are buried in queue %s", id, err, protocol.Workflows)
	}
	return nil
}

// find returns a workflow that exists; see read.
func find(ctx context.Context, c *protocol.Client, id string) (q *protocol.Queue, s *state, err error) {
	if err := CheckID(id); err != nil {
		return nil, nil, err
	}
	if s, err = read(ctx, c, id); err != nil {
		return nil, nil, err
	}
	if s != nil {
		q, err = c.FindQueue(ctx, protocol.Workflows)
	}
	if q == nil && err == nil {
		err = fmt.Errorf("%w %q", ErrUnknown, id)
	}
	return q, s, err
}

// Close says that no more jobs will be added, so that Done may be pushed. It may be repeated. isNew is false if it was
// said before.
func Close(ctx context.Context, c *protocol.Client, id string) (isNew bool, err error) {
	q, s, err := find(ctx, c, id)
	if err != nil || !s.Open {
		return false, err
	}
	return pushMessage(ctx, q, id, &message{Kind: kindClose})
}

// Cancel ends a workflow without a push. Jobs that wait for others are dropped. The other jobs are left alone. It may be
// repeated. isNew is false if the workflow has ended, or if an equal cancel waits.
func Cancel(ctx context.Context, c *protocol.Client, id string) (isNew bool, err error) {
	q, s, err := find(ctx, c, id)
	if err != nil || s.Ended != 0 {
		return false, err
	}
	return pushMessage(ctx, q, id, &message{Kind: kindCancel})
}

// Get returns the status of a workflow. The error is ErrUnknown if there is none, or none any more.
func Get(ctx context.Context, c *protocol.Client, id string) (Status, error) {
	_, s, err := find(ctx, c, id)
	if err != nil {
		return Status{}, err
	}
	of := s.status(id)
	of.DeadJobs, of.WaitingJobs = s.shownMembers()
	return of, nil
}

// maxShown is the maximum number of members of a kind that people see.
const maxShown = 10

// shownMembers returns dead and waiting members as people see them.
func (s *state) shownMembers() (dead, waiting []Member) {
	known := map[int]Member{}
	for _, m := range slices.Concat(s.Left, s.Waiting) {
		known[m.Serial] = Member{Queue: m.Queue, ID: m.ID, Name: m.Name}
	}
	for i, label := range s.Names {
		serial := serialOf(label)
		one, there := known[serial]
		if !there {
			_, one.Name, _ = strings.Cut(label, " ")
			if q, id, ok := strings.Cut(one.Name, "/"); ok && protocol.CheckName("queue", q) == nil && !strings.HasSuffix(id, "…") { // as Job.label
				one.Queue, one.ID = q, id
			}
			known[serial] = one
		}
		if i < maxShown {
			dead = append(dead, one)
		}
	}
	for _, m := range s.Waiting[:min(maxShown, len(s.Waiting))] {
		one := known[m.Serial]
		for _, serial := range m.After[:min(maxShown, len(m.After))] {
			one.After = append(one.After, cmp.Or(known[serial].Name, fmt.Sprint("job ", serial)))
		}
		waiting = append(waiting, one)
	}
	return dead, waiting
}

// status returns a state as people see it.
func (s *state) status(id string) Status {
	of := Status{ID: id, Total: s.Total, Done: s.Done, Dead: s.dead(), Waiting: len(s.Waiting), Dropped: s.Dropped, Open: s.Open}
	for _, label := range s.Names[:min(maxShown, len(s.Names))] {
		_, name, _ := strings.Cut(label, " ")
		of.DeadNames = append(of.DeadNames, name)
	}
	at := func(ms int64) time.Time {
		if ms == 0 {
			return time.Time{}
		}
		return time.UnixMilli(ms)
	}
	of.Began, of.Ended = at(s.Began), at(s.Ended)
	switch of.State = StateRunning; {
	case s.Began == 0:
		of.State = StateStored
		return of
	case s.Cancelled:
		of.State = StateCancelled
	case s.Ended != 0:
		of.State = StateDone
	case s.Late && s.ToldDead:
		of.State = StateLate
	case s.ToldDead:
		of.State = StateDead
	}
	of.Changed = at(s.Changed)
	return of
}

// prepare checks a workflow and encodes its jobs for their queues.
func prepare(ctx context.Context, c *protocol.Client, w *Workflow) (*message, error) {
	if err := CheckID(w.ID); err != nil {
		return nil, err
	}
	m, err := w.plan()
	if err != nil {
		return nil, fmt.Errorf("workflow %q: %w", w.ID, err)
	}
	all := make([]lowkiq.FollowUp, 0, len(w.Jobs)+2)
	longest := envelope.MemberAddress(w.ID, strings.Repeat("x", maxWords), "") // so that a member with its address is not too large
	for i := range w.Jobs {
		one := lowkiq.FollowUp{Queue: w.Jobs[i].Queue, Push: w.Jobs[i].Push}
		if one.Push.ReplyTo != "" {
			return nil, fmt.Errorf("workflow %q: job %.300q: %w: a job of a workflow must have none", w.ID, one.Push.ID, protocol.ErrReplyTo)
		}
		one.Push.ReplyTo = longest
		all = append(all, one)
	}
	for _, back := range []*lowkiq.FollowUp{w.Done, w.Dead} {
		if back == nil {
			continue
		}
		if back.Push.ReplyTo != "" {
			return nil, fmt.Errorf("workflow %q: job %.300q: %w: a push of a workflow must have none", w.ID, back.Push.ID, protocol.ErrReplyTo)
		}
		one := *back
		one.Push.Header = map[string]string{}
		for name, value := range back.Push.Header {
			one.Push.Header[name] = value
		}
		one.Push.Header["workflow"] = w.ID
		all = append(all, one)
	}
	stored, err := c.EncodeMembers(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("workflow %q: %w", w.ID, err)
	}
	pushes := make([]push, len(stored))
	for i, one := range stored {
		content, ok := envelope.Open(string(one.Payload))
		if !ok {
			return nil, fmt.Errorf("workflow %q: job %.300q: %w", w.ID, one.ID, protocol.ErrDamaged)
		}
		pushes[i] = push{one.Queue, one.ID, envelope.Wrap(content.Header, "", []byte(content.Data)), one.Score, one.At}
		if !utf8.ValidString(one.ID) {
			return nil, fmt.Errorf("workflow %q: job %.300q: %w", w.ID, one.ID, invalid("the id of a job must be UTF-8"))
		}
	}
	var waiting []member
	for i := range m.Jobs {
		m.Jobs[i].push = pushes[i]
		if len(m.Jobs[i].After) > 0 {
			waiting = append(waiting, m.Jobs[i])
		}
	}
	pushes = pushes[len(w.Jobs):]
	if w.Done != nil {
		m.Done, pushes = &pushes[0], pushes[1:]
	}
	if w.Dead != nil {
		m.Dead = &pushes[0]
	}
	if err := checkWaiting(waiting, m.Done, m.Dead); err != nil {
		return nil, fmt.Errorf("workflow %q: %w", w.ID, err)
	}
	return m, nil
}

// maxWords is the maximum length of a member's words in its address: serial, beginning of the workflow, name.
const maxWords = 8 + 10 + MaxName

// maxJobs is the number of jobs above which a message has more than maxMessage bytes. It bounds the work of a plan.
const maxJobs = maxMessage / len(`{"q":"a","i":"a","n":"a/a"},`)

// plan returns the message that starts a workflow, with its digest and the order of its jobs. Its jobs have no pushes yet.
func (w *Workflow) plan() (*message, error) {
	if w.Deadline < 0 || w.Deadline > 0 && w.Deadline < time.Second || w.Deadline > maxDeadline {
		return nil, invalid("deadline %s: must be between 1s and %s, or 0 for none", w.Deadline, maxDeadline)
	}
	if len(w.Jobs) > maxJobs {
		return nil, fmt.Errorf("%w: it has %d jobs, at most %d are allowed at once; start it open, and add the others in parts", ErrTooLarge, len(w.Jobs), maxJobs)
	}
	places := map[string]int{}
	for i := range w.Jobs {
		name := w.Jobs[i].Name
		if name == "" {
			continue
		}
		if before, twice := places[name]; twice {
			return nil, invalid("jobs %d and %d have the same name %q", before+1, i+1, name)
		}
		if len(name) > MaxName || !printable(name) {
			return nil, invalid("name %.80q: must have at most %d bytes of printable UTF-8", name, MaxName)
		}
		places[name] = i
	}
	m := &message{Kind: kindStart, Done: nil, DeadlineMs: w.Deadline.Milliseconds(), Open: w.Open, Jobs: make([]member, len(w.Jobs))}
	for i := range w.Jobs {
		job := &w.Jobs[i]
		m.Jobs[i].Name = job.label()
		for _, name := range job.After {
			place, known := places[name]
			switch {
			case !known:
				return nil, invalid("job %d, %s, comes after %q, and no job of this call has that name", i+1, job.label(), name)
			case !slices.Contains(m.Jobs[i].After, place):
				m.Jobs[i].After = append(m.Jobs[i].After, place)
			}
		}
	}
	if circle := findCircle(m.Jobs); circle != nil {
		names := make([]string, len(circle))
		for i, place := range circle {
			names[i] = m.Jobs[place].Name
		}
		return nil, invalid("jobs wait for each other in a circle: %s", strings.Join(names, " after "))
	}
	var err error
	m.Digest, err = w.digest()
	return m, err
}

const maxDeadline = 365 * 24 * time.Hour

// label returns the name of a job for people.
func (j *Job) label() string {
	if j.Name != "" {
		return j.Name
	}
	label := strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			return '?'
		}
		return r
	}, j.Queue+"/"+j.ID)
	if len(label) > MaxName {
		label = strings.ToValidUTF8(label[:MaxName-3], "") + "…"
	}
	return label
}

// findCircle returns the places of jobs that wait for each other, the first also at the end, or nil.
func findCircle(jobs []member) []int {
	const entered, left = 1, 2
	seen := make([]byte, len(jobs))
	var way []int
	var visit func(place int) []int
	visit = func(place int) []int {
		if seen[place] == left {
			return nil
		}
		way = append(way, place)
		if seen[place] == entered {
			return slices.Clone(way[slices.Index(way, place):])
		}
		seen[place] = entered
		for _, before := range jobs[place].After {
			if circle := visit(before); circle != nil {
				return circle
			}
		}
		seen[place], way = left, way[:len(way)-1]
		return nil
	}
	for place := range jobs {
		if circle := visit(place); circle != nil {
			return circle
		}
	}
	return nil
}

// digest returns a text that equal workflows have in common. Due times of jobs are left out, because a program that starts a
// workflow again often counts them from now.
func (w *Workflow) digest() (string, error) {
	type part struct {
		Queue, Name, ID string
		After           []string
		Payload         []byte
		Header          map[string]string
		Score           *float64
	}
	partOf := func(queue string, p *lowkiq.Push) part {
		return part{Queue: queue, ID: p.ID, Payload: p.Payload, Header: p.Header, Score: p.Score}
	}
	parts := make([]part, 0, len(w.Jobs)+2)
	for i := range w.Jobs {
		one := partOf(w.Jobs[i].Queue, &w.Jobs[i].Push)
		one.Name, one.After = w.Jobs[i].Name, w.Jobs[i].After
		parts = append(parts, one)
	}
	for _, back := range []*lowkiq.FollowUp{w.Done, w.Dead} {
		if back == nil {
			back = &lowkiq.FollowUp{}
		}
		parts = append(parts, partOf(back.Queue, &back.Push))
	}
	text, err := json.Marshal(struct {
		Parts    []part
		Deadline time.Duration
		Open     bool
	}{parts, w.Deadline, w.Open})
	sum := sha256.Sum256(text)
	return base64.RawURLEncoding.EncodeToString(sum[:9]), err
}
