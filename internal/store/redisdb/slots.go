package redisdb

import (
	"hash/crc32"
	"strconv"
	"sync"
)

// A Redis Cluster puts all keys with the same hash tag into the slot given by the CRC16 of the tag,
// and gives each master ranges of slots. With plain tags, shards spread like dice. Of 50 shards on
// three masters, a master had 21. Of 10 shards on six masters, a master had none. So a tag ends with
// three letters, its place. The letters are chosen so that the CRC16 is the slot that we want. The
// next shard of a queue goes into the middle of the largest gap between the slots of the shards
// before it. So masters with equal ranges have about the same number of shards, whatever the number
// of masters is. That holds for the first shards of a queue, too.

const hashSlots = 16384

// golden is 2^32 divided by the golden ratio. Its multiples modulo 2^32 fall into the largest gaps.
const golden = 0x9E3779B9

// letters has all words of five bits, apart from bits that all letters share. CRC16 is linear, so
// three of them reach every slot.
const letters = "hijklmnopqrstuvwHIJKLMNOPQRSTUVW"

const placeLength = 3

// places returns the letters to append to a tag. The index is the exclusive or of the wanted slot
// and the slot of the tag without letters.
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

// shardTag returns the hash tag of a shard. The first shards of different queues lie apart too.
func shardTag(layout string, index int) string {
	tag := layout + "/" + strconv.Itoa(index) + "/"
	slot := (crc32.ChecksumIEEE([]byte(layout)) + uint32(index)*golden) / (1 << 32 / hashSlots)
	bare := crc16(crc16(0, tag), "\x00\x00\x00")
	return tag + places()[(slot^uint32(bare))%hashSlots]
}

// crc16 continues a CRC16 sum as Redis computes it (XMODEM).
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
