package protocol_test

import "github.com/lowkiq/lowkiq/internal/model"

type (
	modelShard   = model.Shard
	modelJob     = model.Job
	modelPayload = model.Payload
	modelState   = model.State
)

var (
	storedOf   = model.Envelope
	storedWith = model.EnvelopeTo
	bareOf     = model.ComparedPart
	sketch     = model.SketchRuns
	failedJob  = model.FailedJob
	freshJob   = model.FreshJob
)
