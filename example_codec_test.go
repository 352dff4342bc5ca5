package lowkiq_test

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"
	"log"
	"os"

	"github.com/lowkiq/lowkiq"
	"github.com/lowkiq/lowkiq/node"
	"github.com/lowkiq/lowkiq/queue"
	"github.com/lowkiq/lowkiq/queue/browse"
)

// encrypted is a codec with which Redis keeps AES-GCM: 12 bytes nonce, then what is sealed. The
// nonce is made of the payload, so that equal payloads are stored as equal bytes and merge; a
// reader of Redis sees that they are equal, and how long they are.
func encrypted(key, nonceKey []byte) (queue.Codec, error) {
	block, err := aes.NewCipher(key)
	if err != nil {
		return queue.Codec{}, err
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		return queue.Codec{}, err
	}
	encode := func(payload []byte) ([]byte, error) {
		mac := hmac.New(sha256.New, nonceKey)
		mac.Write(payload)
		nonce := mac.Sum(nil)[:gcm.NonceSize()]
		return gcm.Seal(nonce, nonce, payload, nil), nil
	}
	decode := func(stored []byte) ([]byte, error) {
		if len(stored) < gcm.NonceSize() {
			return nil, errors.New("payload is not encrypted")
		}
		return gcm.Open(nil, stored[:gcm.NonceSize()], stored[gcm.NonceSize():], nil)
	}
	return queue.Codec{Name: "aes-gcm", Encode: encode, Decode: decode}, nil
}

// Payloads are stored encrypted: the node takes the codec for its client and its API, and a program
// that only pushes gives the same rules to its own client.
func Example_encrypted() {
	codec, err := encrypted(bytes.Repeat([]byte("k"), 32), bytes.Repeat([]byte("n"), 32)) // real keys are secrets
	if err != nil {
		log.Fatal(err)
	}
	rules := queue.PushRules{Codec: codec}

	ctx, stop := context.WithCancel(context.Background())
	n, err := node.New(node.Config{Redis: os.Getenv("REDIS_URL"), Cluster: "encrypted"})
	if err != nil {
		log.Fatal(err)
	}
	cards := node.QueueConfig{Name: "cards", Codec: codec}
	err = n.Handle(cards, lowkiq.HandlerFunc(func(_ context.Context, batch *lowkiq.Batch) error {
		for _, p := range batch.Jobs[0].Payloads {
			fmt.Printf("handled: %s\n", p.Data)
		}
		stop()
		return nil
	}))
	if err != nil {
		log.Fatal(err)
	}
	if _, err := n.Client().Register(ctx, lowkiq.Queue{Name: "cards", Shards: 16}); err != nil {
		log.Fatal(err)
	}

	// A program that only pushes.
	client, err := queue.Open(queue.Config{Redis: os.Getenv("REDIS_URL"), Cluster: "encrypted"})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	if err := client.SetRules("cards", rules); err != nil {
		log.Fatal(err)
	}
	for _, c := range []*queue.Client{client, n.Client()} {
		results, err := c.Push(ctx, "cards", lowkiq.Push{ID: "ann", Payload: []byte("4711")})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("merged:", results[0].Merged)
	}
	queueOfCards, err := client.Queue(ctx, "cards")
	if err != nil {
		log.Fatal(err)
	}
	job, _, err := browse.Of(queueOfCards.Protocol()).Job(ctx, "ann")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("readable in Redis:", bytes.Contains(job.Payloads[0].Data, []byte("4711")))

	if err := n.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// merged: false
	// merged: true
	// readable in Redis: false
	// handled: 4711
}
