package verdict

import (
	"context"
	"fmt"
	"slices"

	"github.com/lowkiq/lowkiq"
)

// Decoded wraps a handler so that it gets decoded payloads and states. A payload that cannot be decoded
// fails its job only.
func Decoded(decode func([]byte) ([]byte, error), next lowkiq.Handler) lowkiq.Handler {
	return lowkiq.HandlerFunc(func(ctx context.Context, batch *lowkiq.Batch) error {
		failed := lowkiq.Failed{}
		good := *batch
		good.Jobs = nil
		for _, job := range batch.Jobs {
			payloads := slices.Clone(job.Payloads)
			var err error
			for i := range payloads {
				if payloads[i].Data, err = decode(payloads[i].Data); err != nil {
					break
				}
			}
			if err == nil && job.State != nil {
				if job.State, err = decode(job.State); err != nil {
					err = fmt.Errorf("its state: %w", err)
				}
				job.State = nonNil(job.State)
			}
			if err != nil {
				failed[job.ID] = err
				continue
			}
			job.Payloads = payloads
			good.Jobs = append(good.Jobs, job)
		}
		if len(good.Jobs) == 0 {
			return failed
		}
		return mergeFailures(&good, next.Handle(ctx, &good), failed)
	})
}

// DecodedHook wraps a hook so that it gets decoded payloads, as handlers do. A payload that cannot be decoded stays
// as it is stored. It returns a nil hook unchanged.
func DecodedHook(decode func([]byte) ([]byte, error), hook lowkiq.Hook) lowkiq.Hook {
	if hook == nil || decode == nil {
		return hook
	}
	return func(ctx context.Context, e *lowkiq.Event) error {
		for i := range e.Jobs {
			e.Jobs[i].Payloads = slices.Clone(e.Jobs[i].Payloads)
			for k, p := range e.Jobs[i].Payloads {
				if data, err := decode(p.Data); err == nil {
					e.Jobs[i].Payloads[k].Data = data
				}
			}
		}
		return hook(ctx, e)
	}
}

// mergeFailures joins the answer for the decoded part of a batch with the failures of the rest.
func mergeFailures(part *lowkiq.Batch, answer error, failed lowkiq.Failed) error {
	if len(failed) == 0 {
		return answer
	}
	for i, err := range PerJob(part.Jobs, answer) {
		if err != nil {
			failed[part.Jobs[i].ID] = err
		}
	}
	return failed
}
