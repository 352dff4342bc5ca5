package main

type morgueCommand struct {
	List    morgueList `cmd:"" default:"withargs" help:"List buried jobs by the time of their burial."`
	Requeue buriedJobs `cmd:"" help:"Bring jobs back: fresh and due now."`
	Delete  buriedJobs `cmd:"" help:"Forget jobs."`
}

type morgueList struct {
	oneQueue   `embed:""`
	rangeFlags `embed:""`
	kindFlag   `embed:""`
	By         string `enum:",time,id,retries" default:"" help:"Order: time of the burial (default), id or retries."`
}

// Run prints what the morgue holds.
func (c *morgueList) Run(with *conversation) error {
	query := c.query(c.By, "")
	setAll(query, map[string]string{"kind": c.Kind})
	return c.list(with, c.oneQueue, "/morgue", query, func(jobs []listedJob) {
		with.table("ID BURIED SHARD PAYLOADS ERROR", func(row func(string, ...any)) {
			for _, j := range jobs {
				row("%s\t%s\t%d\t%d\t%s", j.name(), moment(j.BuriedAt), j.Shard, j.Payloads, short(j.Error, 80))
			}
		})
	})
}
