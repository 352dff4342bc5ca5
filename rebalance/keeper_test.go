package rebalance

import (
	"bytes"
	"context"
	"time"
)

// The keeper of record and mark, as each process reaches it.

type keeperRecord struct{ *process }

func (k keeperRecord) Load(context.Context) ([]byte, error) {
	k.world.mu.Lock()
	defer k.world.mu.Unlock()
	if k.noKeeper {
		return nil, errCut
	}
	return k.world.raw, nil
}

func (k keeperRecord) CompareAndSet(_ context.Context, old, new []byte) (bool, error) {
	done, err := k.compareAndSet(old, new)
	if next, _ := decodeRecord(new); done && k.dies != nil && k.dies(next) {
		k.kill()
		return false, errCut
	}
	return done, err
}

func (k keeperRecord) compareAndSet(old, new []byte) (bool, error) {
	k.world.mu.Lock()
	defer k.world.mu.Unlock()
	if k.noKeeper {
		return false, errCut
	}
	if !bytes.Equal(k.world.raw, old) {
		return false, nil
	}
	k.world.raw = new
	if k.lostReply {
		k.lostReply = false
		return false, errCut
	}
	return true, nil
}

func (k keeperRecord) Now(context.Context) (time.Time, error) { return time.Now(), nil }

type keeperMark struct{ *process }

func (k keeperMark) Load(context.Context) ([]byte, error) {
	k.world.mu.Lock()
	defer k.world.mu.Unlock()
	if k.noKeeper {
		return nil, errCut
	}
	if time.Since(k.world.marked) >= ttl {
		return nil, nil
	}
	return k.world.mark, nil
}

func (k keeperMark) Renew(_ context.Context, record, mark []byte) (bool, error) {
	k.world.mu.Lock()
	defer k.world.mu.Unlock()
	if k.noKeeper {
		return false, errCut
	}
	if !bytes.Equal(record, k.world.raw) {
		return false, nil
	}
	k.world.mark, k.world.marked = mark, time.Now()
	return true, nil
}
