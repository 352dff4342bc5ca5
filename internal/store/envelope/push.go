package envelope

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/lowkiq/lowkiq"
)

// Errors of a job that cannot be stored.
var (
	ErrID           = errors.New("job id is empty or too long")
	ErrScore        = errors.New("score is not a finite number")
	ErrPerformAt    = errors.New("perform_in is out of range")
	ErrPayloadSize  = errors.New("payload is too large")
	ErrTooManyBytes = errors.New("too many bytes of payloads wait for this id")
	ErrReplyTo      = errors.New("reply address is none")
)

// All replaces the payloads of jobs with their stored forms. A job with invalid headers or an invalid address
// keeps them, and Check refuses it.
func All(jobs []lowkiq.Push) []lowkiq.Push { return wrapAll(jobs, mayReply) }

// Members is All for the pushes of workflows. Only these may have the addresses of members.
func Members(jobs []lowkiq.Push) []lowkiq.Push {
	return wrapAll(jobs, func(address string) bool {
		call, member, two := strings.Cut(address, partEnd)
		if !two && strings.HasPrefix(address, "f") {
			call, member = "", address
		}
		return len(address) <= MaxAddress && mayReply(call) && (member == "" && !two || memberRule.MatchString(member))
	})
}

func wrapAll(jobs []lowkiq.Push, may func(address string) bool) []lowkiq.Push {
	copied := false
	for i := range jobs {
		if jobs[i].Header == nil && jobs[i].ReplyTo == "" && !hasMark(jobs[i].Payload) {
			continue
		}
		header, err := lowkiq.NewHeader(jobs[i].Header)
		if err != nil || !may(jobs[i].ReplyTo) {
			continue
		}
		if !copied {
			jobs, copied = slices.Clone(jobs), true
		}
		jobs[i].Payload, jobs[i].Header, jobs[i].ReplyTo = Wrap(header, jobs[i].ReplyTo, jobs[i].Payload), nil, ""
	}
	return jobs
}

// CheckID returns an error if a text is not a valid id.
func CheckID(id string) error {
	switch {
	case id == "":
		return fmt.Errorf("%w: it is empty", ErrID)
	case len(id) > lowkiq.MaxIDBytes:
		return fmt.Errorf("%w: %d bytes, at most %d are allowed", ErrID, len(id), lowkiq.MaxIDBytes)
	}
	return nil
}

// Check returns why a job is refused before it is sent, or nil. All must have run. payloadBytes and idBytes
// are the limits of a payload and of all payloads of an id.
func Check(job *lowkiq.Push, payloadBytes, idBytes int) error {
	if err := CheckID(job.ID); err != nil {
		return err
	}
	switch {
	case !mayReply(job.ReplyTo):
		return fmt.Errorf("job %q: %w: got %.50q of %d bytes, want r<token> <ms> <channel>, a token of letters, digits, _ and -, 1 to %d ms, at most %d bytes",
			job.ID, ErrReplyTo, job.ReplyTo, len(job.ReplyTo), MaxKeep.Milliseconds(), MaxAddress)
	case job.Header != nil:
		_, err := lowkiq.NewHeader(job.Header)
		return fmt.Errorf("job %q: %w", job.ID, err)
	case len(job.Payload) > payloadBytes:
		return fmt.Errorf("job %q: %w: %d bytes, at most %d are allowed", job.ID, ErrPayloadSize, len(job.Payload), payloadBytes)
	case len(job.Payload) > idBytes:
		return fmt.Errorf("job %q: %w: %d is the limit", job.ID, ErrTooManyBytes, idBytes)
	case job.Score != nil && (math.IsNaN(*job.Score) || math.IsInf(*job.Score, 0)):
		return fmt.Errorf("job %q: %w: %v", job.ID, ErrScore, *job.Score)
	case !job.PerformAt.IsZero() && (job.PerformAt.Unix() < lowkiq.MinPerformAt || job.PerformAt.Unix() > lowkiq.MaxPerformAt):
		return fmt.Errorf("job %q: %w: %s is no time from %s to %s", job.ID, ErrPerformAt, job.PerformAt.UTC().Format(time.RFC3339),
			time.Unix(lowkiq.MinPerformAt, 0).UTC().Format(time.RFC3339), time.Unix(lowkiq.MaxPerformAt, 0).UTC().Format(time.RFC3339))
	}
	return nil
}

// mayReply reports whether an address is empty or valid.
func mayReply(address string) bool {
	if address == "" {
		return true
	}
	_, ok := ParseAddress(address)
	return ok && len(address) <= MaxAddress
}
