package queue_test

import "github.com/lowkiq/lowkiq/internal/model"

type (
	modelShard   = model.Shard
	modelJob     = model.Job
	modelPayload = model.Payload
	modelState   = model.State
)

var (
	storedOf   = model.StoredOf
	storedWith = model.StoredWith
	bareOf     = model.BareOf
	sketch     = model.Sketch
	failedJob  = model.FailedJob
	freshJob   = model.FreshJob
)
