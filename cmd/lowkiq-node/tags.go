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
	State    string `enum:",morgue" default:"" help:"morgue: tags of buried jobs. Default: tags of all other jobs."`
}

// Run counts tags, part by part.
func (c *tagsCommand) Run(with *session) error {
	all, counts := web.Tags{Tags: []web.TagCount{}}, map[string]web.TagCount{}
	query := url.Values{"state": {c.State}}
	for {
		var part web.Tags
		if err := with.fetchJSON(queuePath(c.Queue, "/tags?"+query.Encode()), &part); err != nil {
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
	return with.printValue(all, func() {
		with.PrintTable("TAG JOBS PAYLOADS", func(row func(string, ...any)) {
			for _, t := range all.Tags {
				row("%s\t%d\t%d", shortLine(t.Tag, 80), t.Jobs, t.Payloads)
			}
		})
		with.Printf("%d jobs read\n", all.Examined)
	})
}
