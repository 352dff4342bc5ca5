package main

import "io"

type morgueCommand struct {
	List    morgueList    `cmd:"" default:"withargs" help:"List buried jobs by the time of their burial."`
	Requeue morgueRequeue `cmd:"" help:"Bring jobs back: fresh and due now."`
	Delete  morgueDelete  `cmd:"" help:"Forget jobs."`
}

func (*morgueCommand) Help() string {
	return `Examples:

    lowkiq-node morgue orders
    lowkiq-node morgue orders --reverse --limit 10 -o json
    lowkiq-node morgue requeue orders 17 18
    lowkiq-node errors orders --state morgue
    lowkiq-node morgue requeue orders --kind 'no account #'
    lowkiq-node morgue delete orders --all --dry-run
    lowkiq-node morgue delete orders --all --yes

` + exitHelp
}

type morgueList struct {
	oneQueue   `embed:""`
	rangeFlags `embed:""`
	kindFlag   `embed:""`
	By         string `enum:",time,id,retries" default:"" help:"Order: time of the burial (default), id or retries."`
}

// Help shows how.
func (*morgueList) Help() string { return example("morgue orders --reverse --limit 10 -o json") }

// Run prints what the morgue holds.
func (c *morgueList) Run(s *streams) error {
	query := c.query(c.By, "")
	setAll(query, map[string]string{"kind": c.Kind})
	return c.list(s, c.oneQueue, "/morgue", query, func(with *conversation, w io.Writer, jobs []listedJob) {
		with.table(w, "ID BURIED SHARD PAYLOADS ERROR", func(row func(string, ...any)) {
			for _, j := range jobs {
				row("%s\t%s\t%d\t%d\t%s", j.name(), moment(j.BuriedAt), j.Shard, j.Payloads, short(j.Error, 80))
			}
		})
	})
}

type morgueRequeue struct {
	someJobs `embed:""`
	All      bool `help:"The whole morgue."`
}

// Help shows how.
func (*morgueRequeue) Help() string { return example("morgue requeue orders 17 18") }

// Run brings jobs back.
func (c *morgueRequeue) Run(s *streams) error {
	return c.act(s, deed{path: "/morgue/requeue", all: c.All, flag: "--all", done: "requeued"})
}

type morgueDelete struct {
	someJobs `embed:""`
	All      bool `help:"The whole morgue."`
}

// Help shows how.
func (*morgueDelete) Help() string { return example("morgue delete orders --all") }

// Run forgets jobs.
func (c *morgueDelete) Run(s *streams) error {
	return c.act(s, deed{path: "/morgue/delete", all: c.All, flag: "--all", done: "deleted", ask: "Delete for ever"})
}
