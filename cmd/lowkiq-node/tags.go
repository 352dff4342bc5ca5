package main

import (
	"cmp"
	"net/url"
	"slices"
	"strings"

	"github.com/lowkiq/lowkiq/web"
)

type tagsCommand struct {
	oneQueue `embed:""`
	State    string `enum:",morgue" default:"" help:"morgue: the tags of buried jobs. Default: those of all others."`
}

// Run counts tags, part after part.
func (c *tagsCommand) Run(with *conversation) error {
	all, counts := web.Tags{Tags: []web.TagCount{}}, map[string]web.TagCount{}
	query := url.Values{"state": {c.State}}
	for {
		var part web.Tags
		if err := with.fetch(queuePath(c.Queue, "/tags?"+query.Encode()), &part); err != nil {
			return err
		}
		for _, t := range part.Tags {
			sum := counts[t.Tag]
			counts[t.Tag] = web.TagCount{Tag: t.Tag, Jobs: sum.Jobs + t.Jobs, Payloads: sum.Payloads + t.Payloads}
		}
		all.Examined, all.Through = all.Examined+part.Examined, part.Through
		if part.Next == "" {
			break
		}
		query.Set("cursor", part.Next)
	}
	for _, sum := range counts {
		all.Tags = append(all.Tags, sum)
	}
	slices.SortFunc(all.Tags, func(x, y web.TagCount) int { return cmp.Or(y.Jobs-x.Jobs, strings.Compare(x.Tag, y.Tag)) })
	return with.print(all, func() {
		with.table("TAG JOBS PAYLOADS", func(row func(string, ...any)) {
			for _, t := range all.Tags {
				row("%s\t%d\t%d", short(t.Tag, 80), t.Jobs, t.Payloads)
			}
		})
		with.say("%d looked at\n", all.Examined)
	})
}
