package protocol_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/lowkiq/lowkiq/internal/store/redisdb"
)

// scriptCalls records which scripts clients call.
type scriptCalls struct{ shas sync.Map }

// listen records the calls of a client, also if it chooses the master itself.
func (s *scriptCalls) listen(client rdb) {
	client.AddHook(s)
	if cluster, ok := client.(*redis.ClusterClient); ok {
		cluster.OnNewNode(func(node *redis.Client) { node.AddHook(s) })
	}
}

func (s *scriptCalls) DialHook(next redis.DialHook) redis.DialHook { return next }

func (s *scriptCalls) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		s.note(cmd)
		return err
	}
}

func (s *scriptCalls) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		err := next(ctx, cmds)
		for _, cmd := range cmds {
			s.note(cmd)
		}
		return err
	}
}

func (s *scriptCalls) note(cmd redis.Cmder) {
	if cmd.Name() == "evalsha" && cmd.Err() == nil {
		s.shas.Store(cmd.Args()[1], true)
	}
}

// missing returns the scripts of nodes and producers that no client has called successfully.
func (s *scriptCalls) missing() (names []string) {
	for _, one := range redisdb.NewScripts().All() {
		if _, ok := s.shas.Load(one.SHA()); !ok {
			names = append(names, one.Name)
		}
	}
	return names
}

// fewCases returns cases that together call every script of the suite and use every channel.
func fewCases() []testCase {
	names := []string{
		"Call_ContextEnds", "Deliver_ToADeletedQueue", "FollowUp_ArrivesOnce", "FollowUp_OfTheRule", "Groups_ChangedRateIsKept", "Header_CutShortIsNamed", "Import_KeepsItsTime", "Journal_DoneJobs",
		"Late_InEveryLine", "Model", "Pages", "Permits_LateRequestsChangeNothing", "Rate_ChangedRateIsKept", "Remove_RefusesOldProducers",
		"Repeat_ClusterKeys", "Take_OpensAShard", "Reply_BadAddressStopsNoScript", "SearchRefuses", "Urgent_GoesFirst",
	}
	few := slices.DeleteFunc(suite(), func(c testCase) bool { return !slices.Contains(names, c.name) })
	return slices.Concat(few, protocolTests, wakeTests, eventTests)
}

// notOfTheSuite has scripts that only other tests call.
var notOfTheSuite = []string{"tick", "recur", "resume", "morgue_trim", "rules", "lease"}

// runFew runs the few cases and requires that each script is called, except those that are useless on this
// kind of Redis.
func runFew(t *testing.T, b *backend, useless ...string) {
	t.Helper()
	b.second = true
	b.shared, b.calls = true, &scriptCalls{}
	cases := fewCases()
	var ran atomic.Int64
	t.Cleanup(func() {
		missing := slices.DeleteFunc(b.calls.missing(), func(name string) bool { return slices.Contains(slices.Concat(notOfTheSuite, useless), name) })
		if int(ran.Load()) == len(cases) && len(missing) > 0 { // -run may ask for one of them
			t.Errorf("no case has called the scripts %q", missing)
		}
	})
	for i, c := range cases {
		cases[i].run = func(t *testing.T, b *backend) { ran.Add(1); c.run(t, b) }
	}
	runCases(t, b, cases)
}
