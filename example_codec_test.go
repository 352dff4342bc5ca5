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

// secret has the keys of a number, 32 bytes each. key is for AES-GCM, nonceKey for the nonces.
type secret struct{ key, nonceKey []byte }

// encrypted returns a codec that encrypts with AES-GCM. A stored payload is the number of the key in a byte, a nonce of
// 12 bytes, and the sealed payload. The codec encodes with the secret of the number newest, and decodes with any of the
// secrets. To rotate keys, first give the new secret to all programs, and then make it the newest.
//
// The nonce is computed from the payload, so that equal payloads are stored as equal bytes and merge. A reader of
// Redis sees that they are equal, and how long they are. Payloads of different secrets do not merge.
func encrypted(newest byte, secrets map[byte]secret) (queue.Codec, error) {
	ciphers := map[byte]cipher.AEAD{}
	for number, s := range secrets {
		block, err := aes.NewCipher(s.key)
		if err != nil {
			return queue.Codec{}, fmt.Errorf("key %d: %w", number, err)
		}
		if ciphers[number], err = cipher.NewGCM(block); err != nil {
			return queue.Codec{}, fmt.Errorf("key %d: %w", number, err)
		}
	}
	if ciphers[newest] == nil {
		return queue.Codec{}, fmt.Errorf("key %d is the newest, so it must be among the keys", newest)
	}
	encode := func(payload []byte) ([]byte, error) {
		mac := hmac.New(sha256.New, secrets[newest].nonceKey)
		mac.Write(payload)
		stored := append([]byte{newest}, mac.Sum(nil)[:nonceBytes]...)
		return ciphers[newest].Seal(stored, stored[1:], payload, nil), nil
	}
	decode := func(stored []byte) ([]byte, error) {
		if len(stored) < 1+nonceBytes {
			return nil, errors.New("payload is not encrypted")
		}
		with := ciphers[stored[0]]
		if with == nil {
			return nil, fmt.Errorf("payload is encrypted with key %d, which this program does not have", stored[0])
		}
		return with.Open(nil, stored[1:1+nonceBytes], stored[1+nonceBytes:], nil)
	}
	return queue.Codec{Name: "aes-gcm", Encode: encode, Decode: decode}, nil
}

const nonceBytes = 12 // of AES-GCM

// Payloads are stored encrypted: the node takes the codec for its client and its API, and a program
// that only pushes gives the same rules to its own client. Payloads of a former key are handled, too.
func Example_encrypted() {
	secrets := map[byte]secret{ // real keys are secrets
		1: {key: bytes.Repeat([]byte("k"), 32), nonceKey: bytes.Repeat([]byte("n"), 32)},
		2: {key: bytes.Repeat([]byte("K"), 32), nonceKey: bytes.Repeat([]byte("N"), 32)},
	}
	before, err := encrypted(1, secrets)
	if err != nil {
		log.Fatal(err)
	}
	codec, err := encrypted(2, secrets)
	if err != nil {
		log.Fatal(err)
	}

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
	push := func(client *queue.Client, number string) {
		results, err := client.Push(ctx, "cards", lowkiq.Push{ID: "ann", Payload: []byte(number)})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("pushed %s, merged: %t\n", number, results[0].Merged)
	}
	if err := client.SetRules("cards", queue.PushRules{Codec: before}); err != nil {
		log.Fatal(err)
	}
	push(client, "4711")
	if err := client.SetRules("cards", queue.PushRules{Codec: codec}); err != nil {
		log.Fatal(err)
	}
	push(client, "4712")
	push(n.Client(), "4712")

	queueOfCards, err := client.Queue(ctx, "cards")
	if err != nil {
		log.Fatal(err)
	}
	job, _, err := browse.Of(queueOfCards.Protocol()).Job(ctx, "ann")
	if err != nil {
		log.Fatal(err)
	}
	for _, p := range job.Payloads {
		fmt.Printf("stored with key %d, readable in Redis: %t\n", p.Data[0], bytes.Contains(p.Data, []byte("471")))
	}

	if err := n.Run(ctx); err != nil {
		log.Fatal(err)
	}
	// Output:
	// pushed 4711, merged: false
	// pushed 4712, merged: false
	// pushed 4712, merged: true
	// stored with key 1, readable in Redis: false
	// stored with key 2, readable in Redis: false
	// handled: 4711
	// handled: 4712
}
