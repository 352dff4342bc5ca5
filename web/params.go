package web

import (
	"slices"
	"strconv"

	"github.com/lowkiq/lowkiq/queue/browse"
	"github.com/lowkiq/lowkiq/queue/days"
	"github.com/lowkiq/lowkiq/queue/workflow"
)

// param is a parameter in the query or the path of a request, or a header.
type param struct {
	name     string
	about    string
	example  string
	required bool
	words    []string // allowed values; nil for any
	number   bool
	min, max int    // bounds of a number; a max of 0 means no bounds
	usual    string // the value of a request without it
	base64   bool
}

// The parameters of paths, by the wildcards of patterns.
var pathParams = map[string]param{
	"q":        {about: "name of a queue", example: "orders"},
	"id":       {about: "id of a job; escape all but letters and digits", example: "order-1"},
	"n":        {about: "name of a node", example: "n1"},
	"name":     {about: "a profile of package runtime/pprof, or profile, trace, symbol; the query is passed on", example: "goroutine"},
	"entry":    {about: "name of a recurring entry", example: "report"},
	"workflow": {about: "id of a workflow; escape all but letters and digits", example: "import-42"},
	"token":    {about: "the token that the push answered", example: "AAAAAAAAAAAAAAAAAAAAAA"},
}

// The parameters of lists of jobs.
var (
	listQuery = []param{
		{name: "from", about: "first id, retry count or time (unix seconds or RFC 3339), by the order", example: "1763600000"},
		{name: "to", about: "last id, retry count or time, by the order", example: "1763686400"},
		{name: "reverse", about: "largest first", example: "true", words: []string{"true", "false", "1", "0", ""}},
		limitOf("maximum number of jobs of a page"),
		{name: "cursor", about: "next of the previous page; all other parameters except the limit must stay the same", example: "eyJxIjoxfQ"},
	}
	searchQuery = []param{
		{name: "kind", about: "kind of the last error, as errors gives it; a space means jobs without an error", example: "no account #"},
		{name: "contains", about: "only jobs with this text, at most 200 bytes, in their id or in a stored payload; refused if the queue has a codec",
			example: "acme"},
		{name: "tag", about: "only jobs with a payload of this tag; with contains, a single payload must match both", example: "vip"},
		{name: "error", about: "only jobs with this text in their last error, at most 200 bytes", example: "no stock"},
	}
	flightQuery = slices.Concat([]param{flightLists.orderParam()}, listQuery)
	morgueQuery = slices.Concat(searchQuery, []param{morgueLists.orderParam()}, listQuery)
	jobsQuery   = slices.Concat([]param{
		{name: "id", about: "id of a single job", example: "order-1"},
		{name: "id_base64", about: "id of a single job, if it is not UTF-8", example: "/w==", base64: true},
		jobLists.stateParam("default: ready, scheduled and retry; by id also held, in_flight and blocked. " +
			"failed means all of retry, and the jobs of ready that have failed"),
	}, searchQuery, []param{jobLists.orderParam()}, listQuery)
	tagsQuery   = []param{tagLists.stateParam("morgue for buried jobs; default: all other jobs"), listQuery[len(listQuery)-1]}
	errorsQuery = []param{errorLists.stateParam("failed means jobs that have failed, and retry those whose next attempt is not due yet")}
)

// The parameters of other lists.
var (
	verdictParam = param{name: "verdict", example: "failed,crashed",
		about: "only runs with these verdicts, separated by commas: " + joinWords(browse.Verdicts())}
	sinceParam   = param{name: "since", about: "only since this time: 2026-01-02T15:04:05Z, unix seconds, or a duration before now like 90m", example: "90m"}
	ofQueue      = param{name: "queue", about: "only of this queue", example: "orders"}
	historyQuery = []param{limitOf("maximum number of runs of an answer")}
	journalQuery = []param{
		verdictParam,
		{name: "node", about: "only runs on this node", example: "n1"},
		{name: "contains", about: "only runs with this text in their id, error or log", example: "stock"},
		sinceParam,
		{name: "after", about: "cursor of an answer; gives the runs written since, oldest first; 0 gives all", example: "0", number: true},
		limitOf("maximum number of runs of an answer"),
	}
	eventsQuery = []param{
		{name: "queue", about: "only events of this queue; default: of all", example: "orders"},
		{name: "id", about: "only runs of this job, and changes that name it", example: "a"},
		verdictParam,
		{name: "for", about: "length of the stream; default: until the client goes", example: "50ms"},
	}
	changesQuery = []param{
		ofQueue,
		{name: "action", about: "only this action, as in pause, rules, requeue", example: "rules"},
		{name: "user", about: "only by people of this name", example: "ann"},
		{name: "id", about: "only actions on jobs that name this id", example: "order-1"},
		sinceParam,
		{name: "after", about: "cursor of an answer; gives the changes made since, oldest first; 0 gives all", example: "0"},
		limitOf("maximum number of changes of an answer"),
	}
	workflowsQuery = []param{
		{name: "state", about: "only workflows in this state; then a page may be empty before the last page", example: "dead", words: wordsOf(workflow.ListedStates())},
		limitOf("number of workflows of a page, more or less"),
		{name: "cursor", about: "next of the previous page", example: "3-0"},
	}
	daysQuery = []param{
		ofQueue,
		{name: "days", about: "number of days, today included", example: "14", number: true, min: 1, max: days.Kept, usual: strconv.Itoa(DefaultDays)},
		{name: "hours", about: "number of hours, the current hour included; not together with days", example: "24", number: true, min: 1, max: days.HoursKept},
	}
	planQuery = []param{
		{name: "add", about: "names of nodes that would join, separated by commas", example: "n6"},
		{name: "remove", about: "names of nodes that would leave, separated by commas", example: "n2"},
	}
	whyQuery = []param{
		{name: "queue", about: "name of a queue", example: "orders", required: true},
		{name: "id", about: "id of a job", example: "order-1", required: true},
	}
	pushQuery = []param{
		{name: "wait", about: "answer once the payloads have ended, or after this time, 1ms to 5m", example: "50ms"},
		{name: "keep", example: "1h",
			about: "with wait: time for which a reply is kept after its payload has ended, 1s to 168h; default: wait and a minute"},
	}
	nextQuery = []param{{name: "limit", about: "number of times", example: "3", number: true, min: 1, max: maxLimit, usual: "10"}}
	anyQuery  = []param{{name: "*"}} // of a route that reads its parameters itself
)

// The headers of requests and answers.
var (
	noteHeaders = []param{
		{name: "Lowkiq-Fence", about: "that of the batch", example: "1", number: true, required: true},
		{name: "Lowkiq-Flight", about: "that of the batch", example: "1", number: true, required: true},
	}
	rulesHeaders = []param{
		{name: "If-Match", about: "the revision that was read, in quotes; * for any", example: `"7"`, required: true},
		{name: "X-Lowkiq-User", about: "name of the sender for the list of changes; not checked, and not used if a certificate has a name", example: "ann"},
	}
	revisionHeader = []param{{name: "ETag", about: "the revision in quotes"}}
)

func limitOf(about string) param {
	return param{name: "limit", about: about, example: "100", number: true, min: 1, max: maxLimit, usual: strconv.Itoa(defaultLimit)}
}

// stateParam returns the parameter state of lists.
func (l Lists) stateParam(about string) param {
	p := param{name: "state", about: about, usual: string(l.States[0])}
	p.words = wordsOf(l.States)
	p.example = p.words[len(p.words)-1]
	return p
}

// orderParam returns the parameter by of lists.
func (l Lists) orderParam() param {
	p := param{name: "by", about: "the order, and the unit of from and to", usual: string(l.Orders[0]), example: string(l.Orders[0])}
	for _, order := range l.Orders {
		p.words = append(p.words, string(order))
	}
	return p
}

// namesOf returns the names of parameters.
func namesOf(params []param) []string {
	names := make([]string, len(params))
	for i := range params {
		names[i] = params[i].name
	}
	return names
}
