package cloud

import (
	"fmt"

	"github.com/trunkline/trunkline/internal/core/vpc"
)

// newID makes an id in EC2's form: the prefix and 17 hexadecimal digits.
func (ch *change) newID(prefix string) string {
	r := ch.cloud.rng
	return fmt.Sprintf("%s0%016x", prefix, r.Uint64())
}

// newMAC makes an unused, locally administered unicast address.
func (ch *change) newMAC() vpc.MAC {
	for {
		v := ch.cloud.rng.Uint64()
		mac := vpc.MAC{0x02, byte(v >> 32), byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}
		taken := false
		for _, i := range ch.Interfaces {
			taken = taken || i.MAC == mac
		}
		if !taken {
			return mac
		}
	}
}
