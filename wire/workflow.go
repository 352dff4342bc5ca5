package wire

import (
	"fmt"
	"time"

	"github.com/lowkiq/lowkiq"
)

// Workflow is a workflow as JSON has it.
type Workflow struct {
	Jobs       []WorkflowJob
	Done, Dead *lowkiq.FollowUp
	Deadline   time.Duration
	Open       bool
}

// WorkflowJob is a job of a workflow.
type WorkflowJob struct {
	Queue string
	lowkiq.Push
	Name  string
	After []string
}

// ParseWorkflow parses the body that starts a workflow:
//
//	{"jobs":[{"queue":"files","id":"a","payload":1,"name":"first"},{"queue":"files","id":"b","after":["first"]}],
//	 "done":{"queue":"mail","id":"u7"},"dead":{"queue":"alerts","id":"w"},"deadline":"2h","open":true}
//
// There must be jobs, even if none are in the array, or done, or open. A job has the fields of a push.
func ParseWorkflow(text []byte) (w Workflow, err error) { return parseWorkflow(text, true) }

// ParseWorkflowJobs parses the body that adds jobs to a workflow, which has the field jobs alone.
func ParseWorkflowJobs(text []byte) ([]WorkflowJob, error) {
	w, err := parseWorkflow(text, false)
	return w.Jobs, err
}

func parseWorkflow(text []byte, starts bool) (w Workflow, err error) {
	d := decoder{lexer: lexer{src: text}}
	if d.skipSpace(); d.peek() != '{' {
		return w, d.locateFault(d.unexpected(`a workflow such as {"jobs":[{"queue":"files","id":"a"}]}`))
	}
	seen := map[string]bool{}
	wrong := d.walkObject(0, func(key []byte) *fault {
		name, at := string(key[1:len(key)-1]), d.pos
		if seen[name] {
			return &fault{d.keyPos, fmt.Sprintf("field %q given twice", name)}
		}
		seen[name] = true
		var err *fault
		switch {
		case name == "jobs":
			w.Jobs, err = d.decodeWorkflowJobs()
			return err
		case !starts:
			return &fault{d.keyPos, fmt.Sprintf("unknown field %q (known: jobs)", name)}
		case name == "done":
			w.Done, err = d.decodeCallback()
		case name == "dead":
			w.Dead, err = d.decodeCallback()
		case name == "deadline":
			d.field = name
			w.Deadline, err = d.decodeDuration()
		case name == "open":
			var open *bool
			d.field = name
			if err = d.decodeBool(&open); err == nil {
				w.Open = *open
			}
		default:
			return &fault{d.keyPos, fmt.Sprintf("unknown field %q (known: jobs, done, dead, deadline, open)", name)}
		}
		if err != nil {
			if name == "done" || name == "dead" {
				d.path = name
			}
			return &fault{max(at, err.pos), err.reason}
		}
		d.field = ""
		return nil
	})
	if d.skipSpace(); wrong == nil && d.pos < len(text) {
		wrong = d.unexpected("the end after the workflow")
	}
	switch {
	case wrong != nil || seen["jobs"]:
	case !starts:
		d.field, wrong = "jobs", &fault{0, "missing"}
	case w.Done == nil && !w.Open:
		d.field, wrong = "jobs", &fault{0, `missing, and so are "done" and "open":true, so the workflow would do nothing`}
	}
	if wrong != nil {
		return Workflow{}, d.locateFault(wrong)
	}
	return w, nil
}

// decodeWorkflowJobs decodes an array of jobs with their queues.
func (d *decoder) decodeWorkflowJobs() (all []WorkflowJob, err *fault) {
	if d.peek() != '[' {
		d.field = "jobs"
		return nil, d.wrongKind(`must be an array of jobs such as [{"queue":"files","id":"a"}]`)
	}
	err = d.walkArray(1, func(i int) *fault {
		var one WorkflowJob
		if i == MaxJobs {
			return &fault{d.pos, fmt.Sprintf("a body holds at most %d jobs; send it in parts", MaxJobs)}
		}
		at := d.pos
		var err *fault
		named := false
		one.Push, err = d.decodePushWith(&one.Queue, func(key string) (bool, *fault) {
			switch {
			case key == "name" && named, key == "after" && one.After != nil:
				return true, &fault{d.keyPos, fmt.Sprintf("field %q given twice", key)}
			case key == "name":
				named = true
				var err *fault
				one.Name, err = d.decodeText()
				return true, err
			case key == "after":
				var err *fault
				one.After, err = d.decodeTexts()
				return true, err
			}
			return false, nil
		})
		if err != nil {
			d.path = fmt.Sprintf("jobs[%d]", i)
			return &fault{max(at, err.pos), err.reason}
		}
		all = append(all, one)
		return nil
	})
	return all, err
}

// decodeTexts decodes an array of strings. It never returns nil without a fault.
func (d *decoder) decodeTexts() ([]string, *fault) {
	if d.peek() != '[' {
		return nil, d.wrongKind(`must be an array of names such as ["first"]`)
	}
	all := []string{}
	err := d.walkArray(2, func(int) *fault {
		at := d.pos
		text, err := d.decodeText()
		if err != nil {
			return &fault{max(at, err.pos), err.reason}
		}
		all = append(all, text)
		return nil
	})
	return all, err
}

// decodeCallback decodes a push with its queue.
func (d *decoder) decodeCallback() (*lowkiq.FollowUp, *fault) {
	var one lowkiq.FollowUp
	var err *fault
	one.Push, err = d.decodePushTo(&one.Queue)
	return &one, err
}

// decodeDuration decodes a duration, such as "1h30m".
func (d *decoder) decodeDuration() (time.Duration, *fault) {
	text, err := d.decodeText()
	if err != nil {
		return 0, err
	}
	length, bad := time.ParseDuration(text)
	if bad != nil {
		return 0, &fault{reason: fmt.Sprintf("%.40q must be a duration such as \"30s\" or \"2h\"", text)}
	}
	return length, nil
}
