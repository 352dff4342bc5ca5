package main

type blockedCommand struct {
	Requeue blockedRequeue `cmd:"" help:"Let ids go on: fresh and due now."`
	Skip    blockedSkip    `cmd:"" help:"Bury the payload with the smallest score of each id, and go on."`
	Bury    blockedBury    `cmd:"" help:"Send ids to the morgue."`
}

func (*blockedCommand) Help() string {
	return `Examples:

    lowkiq-node jobs orders --state blocked
    lowkiq-node blocked requeue orders 17
    lowkiq-node blocked skip orders 17 18
    lowkiq-node blocked requeue orders --kind 'no account #'
    lowkiq-node blocked bury orders --all --yes

` + exitHelp
}

// blockedJobs names ids that wait for a person.
type blockedJobs struct {
	someJobs `embed:""`
	All      bool `help:"All blocked ids."`
}

func (c *blockedJobs) act(s *streams, path, done, ask string) error {
	return c.someJobs.act(s, deed{path: path, all: c.All, flag: "--all", done: done, ask: ask})
}

type blockedRequeue struct {
	blockedJobs `embed:""`
}

// Help shows how.
func (*blockedRequeue) Help() string { return example("blocked requeue orders 17") }

// Run lets ids go on.
func (c *blockedRequeue) Run(s *streams) error { return c.act(s, "/blocked/requeue", "requeued", "") }

type blockedSkip struct {
	blockedJobs `embed:""`
}

// Help shows how.
func (*blockedSkip) Help() string { return example("blocked skip orders 17 18") }

// Run buries the oldest payload of each id.
func (c *blockedSkip) Run(s *streams) error {
	return c.act(s, "/blocked/skip", "let go on", "Bury the oldest payload")
}

type blockedBury struct {
	blockedJobs `embed:""`
}

// Help shows how.
func (*blockedBury) Help() string { return example("blocked bury orders 17") }

// Run sends ids to the morgue.
func (c *blockedBury) Run(s *streams) error {
	return c.act(s, "/blocked/bury", "sent to the morgue", "Send to the morgue")
}
