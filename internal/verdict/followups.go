package verdict

import (
	"errors"
	"fmt"
	"strings"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/queue/protocol"
)

// Encoder returns the follow-ups of a job as their queues store them; see protocol.Client.EncodeFollowUps.
type Encoder func(hops int, all []lowkiq.FollowUp) ([]protocol.FollowUp, error)

// AddFollowUps adds the follow-ups of done jobs to the reports, in the form in which their queues store them. They come
// from the handler and from the rule then. AddFollowUps returns the answer with the failures of jobs whose follow-ups
// cannot be stored. A queue that is not registered fails the whole batch. So does ErrSlow, because each further job could
// wait as long. A chain of follow-ups that is too long buries its job, and so does a payload that the rule can never pass
// on. Another run of the handler would not help.
//
// It runs before the ack, because the ack stores the follow-ups. A job whose follow-ups cannot be stored must not be done.
func (r *Rules) AddFollowUps(batch *lowkiq.Batch, reports *Reports, answer error, encode Encoder) error {
	if r.Then.Done == "" && !anyFollowUps(reports.Answers) {
		return answer
	}
	failed, all := lowkiq.Failed{}, map[string][]protocol.FollowUp{}
	for i, err := range PerJob(batch.Jobs, answer) {
		job := &batch.Jobs[i]
		if err != nil {
			continue
		}
		stored, err := r.encodeFollowUps(batch.Shard.Queue, job, reports.Answers[job.ID].Then, encode)
		switch {
		case errors.Is(err, lowkiq.ErrUnknownQueue), errors.Is(err, ErrSlow), protocol.Transient(err):
			return joinErrors(answer, err)
		case errors.Is(err, protocol.ErrHops), errors.Is(err, errNotPassedOn):
			failed[job.ID] = lowkiq.Bury{Reason: err.Error()}
		case err != nil:
			failed[job.ID] = err
		case len(stored) > 0:
			all[job.ID] = stored
		}
	}
	reports.FollowUps = all
	return mergeFailures(batch, answer, failed)
}

func anyFollowUps(answers map[string]lowkiq.Answered) bool {
	for _, one := range answers {
		if len(one.Then) > 0 {
			return true
		}
	}
	return false
}

// encodeFollowUps encodes the follow-ups of a job of a queue that is done. asked are those of its handler.
func (r *Rules) encodeFollowUps(queue string, job *lowkiq.Job, asked []lowkiq.FollowUp, encode Encoder) (all []protocol.FollowUp, err error) {
	hops := protocol.HopsOf(job.Payloads)
	if len(asked) > 0 {
		if all, err = encode(hops, asked); err != nil {
			return nil, err
		}
		size := 0
		for i := range all {
			size += len(all[i].Payload)
		}
		// The follow-ups of a built-in queue are the contents of a flight, which has a bound of its own.
		if size > lowkiq.MaxFollowUpBytes && protocol.CheckNotReserved(queue) == nil {
			return nil, fmt.Errorf("its follow-ups are %d bytes, at most %d are allowed", size, lowkiq.MaxFollowUpBytes)
		}
	}
	if r.Then.Done == "" {
		return all, nil
	}
	ruled, err := r.passOnDone(job, hops, encode)
	if panicked := (*PanicError)(nil); errors.Is(err, protocol.ErrFollowUp) || errors.As(err, &panicked) {
		err = fmt.Errorf("%w: %w", errNotPassedOn, err)
	}
	return append(all, ruled...), err
}

var errNotPassedOn = errors.New("the rule then cannot pass a payload on")

// passOnDone encodes the follow-ups by the rule then for the payloads of a job that is done.
func (r *Rules) passOnDone(job *lowkiq.Job, hops int, encode Encoder) (_ []protocol.FollowUp, err error) {
	pushes := make([]lowkiq.FollowUp, len(job.Payloads))
	for i := range job.Payloads {
		if pushes[i], err = PassOn(r.Then.Done, job.ID, job.Payloads[i], r.Decode, map[string]string{"ended": "done"}); err != nil {
			return nil, err
		}
	}
	return encode(hops, pushes)
}

// PassOn returns the follow-up by which the rule then passes a payload on to a queue. The payload keeps its headers,
// except expires, and gets the headers of end. If the headers are too long together, PassOn drops the header error. If they
// are still too long, it drops the headers of the payload. decode may be nil. The error is a protocol.ErrFollowUp.
func PassOn(queue, id string, payload lowkiq.Payload, decode func([]byte) ([]byte, error), end map[string]string) (lowkiq.FollowUp, error) {
	data := payload.Data
	if decode != nil {
		var err error
		if data, err = decode(data); err != nil {
			return lowkiq.FollowUp{}, fmt.Errorf("%w: decode for queue %q: %w", protocol.ErrFollowUp, queue, err)
		}
	}
	if text := end["error"]; text != "" {
		text = protocol.Summary(text)
		end["error"] = strings.ToValidUTF8(text[:min(len(text), maxPassedError)], "")
	}
	push := lowkiq.Push{ID: id, Payload: data, Header: payload.Header.Map()}
	if push.Header == nil {
		push.Header = map[string]string{}
	}
	delete(push.Header, "expires")
	for name, value := range end {
		if value != "" {
			push.Header[name] = value
		}
	}
	push.Header["hops"] = "100" // room for the number
	if _, err := lowkiq.NewHeader(push.Header); err != nil {
		delete(push.Header, "error")
		if _, err := lowkiq.NewHeader(push.Header); err != nil {
			push.Header = map[string]string{"ended": end["ended"]}
		}
	}
	delete(push.Header, "hops")
	return lowkiq.FollowUp{Queue: queue, Push: push}, nil
}

// maxPassedError is the maximum length of the header error in bytes.
const maxPassedError = 1 << 10
