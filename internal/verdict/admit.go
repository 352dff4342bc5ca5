package verdict

import (
	"time"

	"github.com/lowkiq/lowkiq"
)

// GroupAnswer is the answer of an id's group to the question whether the id may begin.
type GroupAnswer struct {
	ID, Group string
	Wait      time.Duration // until the id must ask again; 0 if it may begin
	Again     bool          // the id was told before to ask now
}

// Admission is the decision about a batch by the answers of its groups.
type Admission struct {
	Refused lowkiq.Failed // jobs that go back
	Groups  []string      // of jobs that may begin
	New     int           // refused ids that were not told before to ask now
	Passed  bool          // an id may begin that was not told before to ask now
}

// Admit decides which jobs of a batch their groups let begin.
func Admit(answers []GroupAnswer) (a Admission) {
	a.Refused = lowkiq.Failed{}
	for _, answer := range answers {
		may := answer.Wait == 0
		if may {
			a.Groups = append(a.Groups, answer.Group)
		} else {
			a.Refused[answer.ID] = &AtLimit{answer.Wait}
		}
		switch {
		case answer.Again:
		case may:
			a.Passed = true
		default:
			a.New++
		}
	}
	return a
}
