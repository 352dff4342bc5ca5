package browse

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/lowkiq/lowkiq/internal/process/memory"
	"github.com/lowkiq/lowkiq/queue/rules"
)

// GroupCount is the number of waiting jobs of a group.
type GroupCount struct {
	Group string
	Jobs  int
}

// GroupCounts counts the waiting jobs of groups, the largest group first.
type GroupCounts struct {
	Groups   []GroupCount
	Outside  int  // jobs in no group
	Examined int  // jobs that were counted, those that are due first
	All      bool // every waiting job was counted
}

// groupsPage is how many ids are read together.
const groupsPage = 500

// bytesOfGroup is the memory of a group without its name, while it is counted and answered.
const bytesOfGroup = 128

// Groups counts waiting jobs (ready, scheduled or retry) by the group of their id. by ends the prefix of an id that
// names its group. It reads the ids of 5,000 jobs at most.
func (j *Jobs) Groups(ctx context.Context, by string) (GroupCounts, error) {
	var answer GroupCounts
	counts, of := map[string]int{}, rules.Groups{By: by}
	w := j.newWalker(Query{}, &position{})
	for answer.Examined < MaxExamined/2 && !w.ended() {
		batch, err := w.next(ctx, groupsPage)
		if err != nil {
			return GroupCounts{}, err
		}
		if len(batch) == 0 {
			break
		}
		for _, c := range batch {
			group := of.Of(c.id)
			if _, known := counts[group]; !known {
				if err := memory.Take(ctx, bytesOfGroup+int64(len(group))); err != nil {
					return GroupCounts{}, err
				}
				group = strings.Clone(group)
			}
			counts[group]++
			w.advance(c)
		}
		answer.Examined += len(batch)
	}
	answer.All, answer.Outside = w.ended(), counts[""]
	delete(counts, "")
	for group, jobs := range counts {
		answer.Groups = append(answer.Groups, GroupCount{group, jobs})
	}
	slices.SortFunc(answer.Groups, func(x, y GroupCount) int {
		return cmp.Or(cmp.Compare(y.Jobs, x.Jobs), cmp.Compare(x.Group, y.Group))
	})
	return answer, nil
}
