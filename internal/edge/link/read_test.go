package link

import (
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
)

func TestAnInterruptedDumpIsRepeatedAndNeverReturned(t *testing.T) {
	interrupted := func(times int) ([]int, error) {
		dumps := 0
		return again(t.Context(), func() ([]int, error) {
			if dumps++; dumps <= times {
				return []int{1}, netlink.ErrDumpInterrupted
			}
			return []int{1, 2}, nil
		})
	}
	if list, err := interrupted(10); len(list) != 2 || err != nil {
		t.Errorf("ten times: %v, %v", list, err)
	}
	if list, err := interrupted(1000); list != nil || !errors.Is(err, netlink.ErrDumpInterrupted) {
		t.Errorf("each time: %v, %v", list, err)
	}
}
