package bench

import "fmt"

// Goal is the goal of a figure on two cores that are shared with Redis.
type Goal struct {
	Figure  string `json:"figure"`
	Want    string `json:"want"`
	Reached bool   `json:"reached"`
}

// reportGoals compares a report with the goals of the project. It leaves out goals of figures that were not measured.
func reportGoals(r *Report) []Goal {
	ofFloor := func(name string, ratio, want float64) Goal {
		return Goal{name, fmt.Sprintf(">= %.0f %% of floor", 100*want), ratio >= want}
	}
	atMost := func(name string, value, want float64) Goal {
		return Goal{name, fmt.Sprintf("<= %g", want), value <= want}
	}
	if r.ByMasters != nil {
		return r.ByMasters.listGoals()
	}
	all := streamGoals(r)
	if r.Only == OnlyStream {
		return all
	}
	all = append(all, []Goal{
		ofFloor("push_bulk_per_s", r.ToFloor.PushBulk, 0.60),
		{"push_single50_per_s", ">= 100,000", r.PushSingle50 >= 100_000},
		ofFloor("drain_batch1_per_s", r.ToFloor.Drain1, 0.35),
		ofFloor("drain_batch100_per_s", r.ToFloor.Drain100, 0.60),
		atMost("start_p50_ms", r.StartP50, 1),
		atMost("start_p99_ms", r.StartP99, 3),
		atMost("call_p50_ms", r.CallP50, 2),
		{"calls_per_s", ">= 15,000", r.CallsPer >= 15_000},
		atMost("redis_bytes_per_job", r.RedisBytes, 120),
		{"redis_us_per_job_journal", "<= 125 %", r.RedisJournal > 0 && r.RedisJournal <= 1.25*r.RedisDrain},
		atMost("journal_bytes_per_run", r.RunBytes, 120),
	}...)
	if r.Idle != nil {
		all = append(all,
			Goal{idleCommands, "< 5", r.Idle.Commands < 5},
			Goal{idleCPU, "< 2", r.Idle.CPUPercent < 2})
	}
	return all
}

// streamGoals returns the goals of a live stream.
func streamGoals(r *Report) (all []Goal) {
	atLeast := map[int]float64{50: 90_000, 500: 60_000} // jobs/s at saturation, by shards
	for i := range r.Stream {
		row := &r.Stream[i]
		atMost := func(name string, value, want float64) {
			all = append(all, Goal{row.figureName(name), fmt.Sprintf("<= %g", want), value <= want})
		}
		switch row.Load {
		case Saturation.Name:
			if want := atLeast[row.Shards]; want > 0 {
				all = append(all, Goal{row.figureName("per_s"), ">= " + formatNumber(want), row.PerSecond >= want})
			}
			atMost("p99_ms", row.P99, 5)
		case PerSecond(10_000).Name:
			atMost("p50_ms", row.P50, 0.25)
			atMost("p99_ms", row.P99, 3)
		}
	}
	return all
}
