package redisdb

import (
	"hash/crc32"
	"strconv"
	"sync"
)

// A Redis Cluster keeps what has one hash tag in the slot that is the tag's CRC16, and gives each
// master ranges of slots. Left to that, shards fall like dice: of 50 shards one of three masters
// had 21, of 10 one of six had none. So a tag ends in three letters, its place, for which its CRC16
// comes out as the slot that is wanted: that of a queue's next shard lies in the middle of the
// largest gap that those before it leave. Then any number of masters with equal ranges have about
// equally many of them, and also of any part of a queue's shards that comes first.

const hashSlots = 16384

// golden is 2^32 divided by the golden ratio: its multiples fall so.
const golden = 0x9E3779B9

// letters are all words of five bits but for bits that all have in common, so that three of them
// reach every slot: CRC16 is linear.
const letters = "hijklmnopqrstuvwHIJKLMNOPQRSTUVW"

const placeLength = 3

// places are what to append, by which bits of the slot it changes.
var places = sync.OnceValue(func() []string {
	found := make([]string, hashSlots)
	for _, a := range letters {
		for _, b := range letters {
			for _, c := range letters {
				place := string(a) + string(b) + string(c)
				found[crc16(0, place)%hashSlots] = place
			}
		}
	}
	return found
})

// placed is the hash tag of a shard. The first shards of queues lie apart, too.
func placed(layout string, index int) string {
	tag := layout + "/" + strconv.Itoa(index) + "/"
	slot := (crc32.ChecksumIEEE([]byte(layout)) + uint32(index)*golden) / (1 << 32 / hashSlots)
	bare := crc16(crc16(0, tag), "\x00\x00\x00")
	return tag + places()[(slot^uint32(bare))%hashSlots]
}

// crc16 is Redis's (XMODEM), continued.
func crc16(sum uint16, text string) uint16 {
	for i := range len(text) {
		sum = sum<<8 ^ crc16Table[byte(sum>>8)^text[i]]
	}
	return sum
}

var crc16Table = func() (table [256]uint16) {
	for i := range table {
		sum := uint16(i) << 8
		for range 8 {
			carry := sum&0x8000 != 0
			if sum <<= 1; carry {
				sum ^= 0x1021
			}
		}
		table[i] = sum
	}
	return table
}()
