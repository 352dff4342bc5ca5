package dashboard

import (
	"cmp"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq/internal/text/valuetext"
	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/changes"
	"github.com/lowkiq/lowkiq/queue/protocol"
	"github.com/lowkiq/lowkiq/queue/rules"
	"github.com/lowkiq/lowkiq/web"
	"github.com/lowkiq/lowkiq/web/actions"
	"github.com/lowkiq/lowkiq/web/auth"
)

// rulesBody is the page of a queue's rules.
type rulesBody struct {
	Queue     string
	Tabs      tabs
	Revision  int64
	Handled   bool
	Rules     []ruleLine
	Permits   []permitLine
	Allowed   int // maximum number of permits; 0 if the queue has no such limit
	Groups    []groupLine
	Holds     []rules.Hold
	Keys      []string // that may be changed
	Asked     ruleForm // the refused form
	Hold      string   // prefix that the form of holds begins with
	Trouble   string   // why it was refused
	MayChange bool
	Now       time.Time
	// MoreGroups means that some groups are not shown.
	MoreGroups bool
}

// permitsOf returns the number of permits that a limit allows, 0 if it does not bound calls.
func permitsOf(limit json.RawMessage) int {
	var l struct{ Concurrency int }
	_ = json.Unmarshal(limit, &l) // "none" is no object, and allows none
	return l.Concurrency
}

// Taken returns the number of permits that instances have.
func (b *rulesBody) Taken() (n int) {
	for _, p := range b.Permits {
		n += p.Permits
	}
	return n
}

// permitLine is an instance that has permits for calls of a queue with a limit.
type permitLine struct {
	Instance string
	Permits  int
}

// groupLine is a group of ids of a queue with a limit for each.
type groupLine struct {
	Name    string
	Holders []permitLine
	Again   time.Time // when the last waiting id is to ask again; zero if no id waits
	Till    time.Time // until when a handler holds the group back; zero if none does
}

// groupsShown bounds the groups of a page.
const groupsShown = 50

// readGroups returns the groups of a queue that have running or waiting ids, or are held back.
func (d *Dashboard) readGroups(ctx context.Context, queueName string, now time.Time) (lines []groupLine, more bool, err error) {
	groups, more, err := d.client.RecentGroups(ctx, queueName, groupsShown)
	for i := range groups {
		line := groupLineOf(&groups[i], now)
		if len(line.Holders) > 0 || !line.Again.IsZero() || !line.Till.IsZero() {
			lines = append(lines, line)
		}
	}
	return lines, more, err
}

func groupLineOf(g *protocol.Group, now time.Time) groupLine {
	line := groupLine{Name: g.Name, Holders: permitLines(g.Holders)}
	if g.Again.After(now) {
		line.Again = g.Again
	}
	if g.Till.After(now) {
		line.Till = g.Till
	}
	return line
}

// permitLines returns the instances with permits, by name.
func permitLines(holders map[string]int) (lines []permitLine) {
	for _, instance := range sortedKeys(holders) {
		lines = append(lines, permitLine{instance, holders[instance]})
	}
	return lines
}

// Node returns the node of the instance.
func (p permitLine) Node() string { return nodeOf(p.Instance) }

// ruleForm has the fields that a person fills in.
type ruleForm struct{ Key, Value, For, Why string }

// ruleLine is a rule as the page shows it.
type ruleLine struct {
	Key, Value, From, Otherwise, Why, Fixed string
	By                                      string
	At, Until                               time.Time
	Live                                    bool
}

func ruleLineOf(r *web.Rule) ruleLine {
	line := ruleLine{Key: r.Key, Value: valuetext.Format(r.Value), From: r.From, Why: r.Why, Fixed: r.Fixed, Otherwise: valuetext.Format(r.Otherwise), Live: r.From == rules.AtRunTime}
	if r.By != nil {
		line.By = changes.Who(*r.By).String()
	}
	if r.At != 0 {
		line.At = fromUnix(r.At)
	}
	if r.Until != 0 {
		line.Until = fromUnix(r.Until)
	}
	return line
}

func fromUnix(s float64) time.Time { return time.UnixMicro(int64(s * 1e6)).UTC() }

func (d *Dashboard) rulesPage(r *http.Request) (view, error) {
	q, err := d.queueOfPath(r)
	if err != nil {
		return view{}, err
	}
	return d.rulesView(r, q, ruleForm{Key: r.URL.Query().Get("key")}, "")
}

// rulesView makes the page of a queue's rules. asked is the form as the person has filled it in. trouble is the reason
// why the form was refused, "" for a new form.
func (d *Dashboard) rulesView(r *http.Request, q *protocol.Queue, asked ruleForm, trouble string) (view, error) {
	now, err := web.RulesOf(r.Context(), d.node, q.Name)
	if err != nil {
		return view{}, err
	}
	b := rulesBody{Queue: q.Name, Tabs: tabs{Queue: q.Name, On: "rules"}, Revision: now.Revision, Handled: now.Handled, Keys: rules.Keys(), Hold: r.URL.Query().Get("hold"), Asked: asked, Trouble: trouble, MayChange: auth.MayChange(r)}
	for i := range now.Rules {
		rule := &now.Rules[i]
		b.Rules = append(b.Rules, ruleLineOf(rule))
		if rule.Key == b.Asked.Key && trouble == "" {
			b.Asked.Value = valuetext.Format(rule.Value) // so that a person can edit the present value
		}
		if rule.Key == "limit" {
			b.Allowed = permitsOf(rule.Value)
		}
	}
	if b.Holds, err = web.HoldsOf(r.Context(), d.client, q.Name); err != nil {
		return view{}, err
	}
	holders, err := d.client.Permits(q.Name).Holders(r.Context())
	if err != nil {
		return view{}, err
	}
	b.Permits = permitLines(holders)
	if b.Now, err = d.client.Time(r.Context()); err != nil {
		return view{}, err
	}
	if b.Groups, b.MoreGroups, err = d.readGroups(r.Context(), q.Name, b.Now); err != nil {
		return view{}, err
	}
	return view{Page: "rules", Title: "Rules of " + q.Name, Nav: "/", Queue: q.Name, Body: &b}, nil
}

// changeRules submits the form of that page. It sets a value or unsets it. The form carries the revision that the
// page has shown. If somebody else has changed the rules since, the change is refused, and the page shows the rules
// as they are now together with the refused form.
func (d *Dashboard) changeRules(w http.ResponseWriter, r *http.Request) {
	d.handlePage(func(r *http.Request) (view, error) {
		q, form, err := d.formOf(w, r)
		if err != nil {
			return view{}, err
		}
		revision, err := strconv.ParseInt(form.Get("revision"), 10, 64)
		if err != nil || revision < 0 {
			return view{}, web.NewProblem(http.StatusBadRequest, "revision: %.40q is no revision.", form.Get("revision"))
		}
		asked := ruleForm{form.Get("rule"), strings.TrimSpace(form.Get("value")), strings.TrimSpace(form.Get("for")), form.Get("why")}
		want := actions.RulesChange{For: asked.For, Why: asked.Why}
		if unset := form.Get("unset"); unset != "" {
			want = actions.RulesChange{Unset: []string{unset}}
		} else {
			value, err := valuetext.Parse(asked.Value)
			if err != nil {
				return d.refusedRules(r, q, asked, web.NewProblem(http.StatusBadRequest, "%v", err))
			}
			want.Set = map[string]json.RawMessage{asked.Key: value}
		}
		if _, err := d.operator.ChangeRules(r.Context(), auth.Who(r), q.Name, revision, want); err != nil {
			if code := web.ProblemOf(err).Status; code == http.StatusBadRequest || code == http.StatusPreconditionFailed {
				return d.refusedRules(r, q, asked, err)
			}
			return view{}, err
		}
		return view{Redirect: "/queues/" + url.PathEscape(q.Name) + "/rules"}, nil
	})(w, r)
}

// refusedRules returns the page again, with the refused form and the reason.
func (d *Dashboard) refusedRules(r *http.Request, q *protocol.Queue, asked ruleForm, why error) (view, error) {
	v, err := d.rulesView(r, q, asked, web.ProblemOf(why).Detail)
	v.Status = web.ProblemOf(why).Status
	return v, err
}

// formOf reads a form that is about the queue of the path.
func (d *Dashboard) formOf(w http.ResponseWriter, r *http.Request) (*protocol.Queue, url.Values, error) {
	q, err := d.queueOfPath(r)
	if err != nil {
		return nil, nil, err
	}
	form, err := readForm(w, r)
	return q, form, err
}

// changeHold holds an id or a prefix, or undoes that. It acts at once and without a question. A hold deletes nothing,
// and the page that follows offers to undo it.
func (d *Dashboard) changeHold(w http.ResponseWriter, r *http.Request) {
	d.handlePage(func(r *http.Request) (view, error) {
		q, form, err := d.formOf(w, r)
		if err != nil {
			return view{}, err
		}
		want := actions.HoldChange{Prefix: form.Get("prefix"), For: strings.TrimSpace(form.Get("for")), Undo: form.Get("undo") != "", Why: form.Get("why")}
		if want.Prefix == "" || form.Get("key") != "" || form.Get("id") != "" { // the operator refuses both together
			if want.ID, err = askedID(form); err != nil {
				return view{}, err
			}
		}
		if _, err := d.operator.Hold(r.Context(), auth.Who(r), q, want); err != nil {
			return view{}, err
		}
		back := jobLink(q.Name, want.ID)
		if form.Get("back") == "rules" || want.ID == "" {
			back = "/queues/" + url.PathEscape(q.Name) + "/rules#holds"
		}
		return view{Redirect: back}, nil
	})(w, r)
}

// jobForm serves a form about an id, which acts at once and without a question. The browser goes back to the page of
// the id.
func (d *Dashboard) jobForm(submit func(ctx context.Context, by changes.Who, q *protocol.Queue, id string, form url.Values) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		d.handlePage(func(r *http.Request) (view, error) {
			q, form, err := d.formOf(w, r)
			if err != nil {
				return view{}, err
			}
			id, err := askedID(form)
			if err == nil {
				err = submit(r.Context(), auth.Who(r), q, id, form)
			}
			return view{Redirect: jobLink(q.Name, id)}, err
		})(w, r)
	}
}

func (d *Dashboard) cancelRun(ctx context.Context, by changes.Who, q *protocol.Queue, id string, form url.Values) error {
	return d.operator.Cancel(ctx, by, q, id, cmp.Or(protocol.Then(form.Get("then")), protocol.ThenRetry), form.Get("why"))
}

func (d *Dashboard) trackID(ctx context.Context, by changes.Who, q *protocol.Queue, id string, form url.Values) error {
	_, err := d.operator.Track(ctx, by, q.Name, id, form.Get("undo") != "", "")
	return err
}

// runsBody is the page of a queue's latest runs.
type runsBody struct {
	Queue    string
	Tabs     tabs
	Verdict  browse.Verdict // the selected verdict, "" for all
	Contains string
	Verdicts []browse.Verdict
	Runs     []runLine
	Older    bool
	Now      time.Time
}

func (d *Dashboard) runsPage(r *http.Request) (view, error) {
	q, err := d.queueOfPath(r)
	if err != nil {
		return view{}, err
	}
	b := runsBody{Queue: q.Name, Tabs: tabs{Queue: q.Name, On: "runs"}, Verdict: browse.Verdict(r.URL.Query().Get("verdict")), Contains: r.URL.Query().Get("contains"), Verdicts: browse.Verdicts()}
	query := browse.RunQuery{Contains: b.Contains}
	if b.Verdict != "" {
		if !slices.Contains(b.Verdicts, b.Verdict) {
			return view{}, web.NewProblem(http.StatusBadRequest, "verdict: %.40q is no verdict.", b.Verdict)
		}
		query.Verdicts = []browse.Verdict{b.Verdict}
	}
	found, err := browse.Of(q).Runs(r.Context(), query)
	if err != nil {
		return view{}, err
	}
	b.Runs, b.Older = runLines(found.List), !found.Oldest.IsZero()
	if b.Now, err = d.client.Time(r.Context()); err != nil {
		return view{}, err
	}
	return view{Page: "runs", Title: "Runs of " + q.Name, Nav: "/", Queue: q.Name, Body: b}, nil
}

// changesBody is the page of the changes by people and programs, or by the cluster itself.
type changesBody struct {
	By          changes.Origin
	Queue, User string // that the changes must have, "" for any
	Changes     []changeLine
	More        bool
	Now         time.Time
}

// changeLine is a change as pages show it.
type changeLine struct {
	changes.Line
	By       string
	Old, New string
}

func changeLines(lines []changes.Line) []changeLine {
	all := make([]changeLine, len(lines))
	for i, l := range lines {
		all[i] = changeLine{l, l.Who.String(), valuetext.Format(l.Old), valuetext.Format(l.New)}
	}
	return all
}

// shownChanges is the number of changes on a page.
const shownChanges = 100

func (d *Dashboard) changesPage(r *http.Request) (view, error) {
	b := changesBody{By: cmp.Or(changes.Origin(r.URL.Query().Get("by")), changes.People), Queue: r.URL.Query().Get("queue"), User: r.URL.Query().Get("user")}
	if b.By != changes.People && b.By != changes.Cluster {
		return view{}, web.NewProblem(http.StatusBadRequest, "by: got %.40q, must be people or cluster.", string(b.By))
	}
	lines, _, err := changes.In(d.client.DB()).Read(r.Context(), changes.Query{By: b.By, Queue: b.Queue, Name: b.User, Limit: shownChanges})
	if err != nil {
		return view{}, err
	}
	b.Changes, b.More = changeLines(lines), len(lines) == shownChanges
	if b.Now, err = d.client.Time(r.Context()); err != nil {
		return view{}, err
	}
	return view{Page: "changes", Title: "Changes", Nav: "/changes", Queue: b.Queue, Body: b}, nil
}
