package queue_test

import "github.com/lowkiq/lowkiq/internal/model"

type (
	modelShard   = model.Shard
	modelJob     = model.Job
	modelPayload = model.Payload
)

var (
	storedOf  = model.StoredOf
	bareOf    = model.BareOf
	sketch    = model.Sketch
	failedJob = model.FailedJob
	freshJob  = model.FreshJob
)
