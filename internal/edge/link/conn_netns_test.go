//go:build netns

package link

import (
	"errors"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/trunkline/trunkline/internal/core/hostnet"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Each request of a batch has its own outcome, in order, also where only some fail.
func TestABatchHasTheOutcomeOfEachRequest(t *testing.T) {
	h, _ := open(t)
	for n, succeed := range [][]bool{{true}, {false}, {true, false, true, true, false}, {false, false, true}, {true, true, true}} {
		var batch []message
		for i, succeeds := range succeed {
			rule := hostnet.Rule{
				Family: vpc.IPv4, Priority: hostnet.RuleToPod, To: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(n), byte(i)}), 32), Table: hostnet.TableMain,
			}
			if succeeds {
				batch = append(batch, ruleMessage(unix.RTM_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_EXCL, rule))
			} else {
				batch = append(batch, ruleMessage(unix.RTM_DELRULE, 0, rule))
			}
		}
		each, err := h.sockets.request(t.Context(), batch...)
		if err != nil || len(each) != len(succeed) {
			t.Fatalf("%v: %v, %v", succeed, each, err)
		}
		for i, succeeds := range succeed {
			if succeeds != (each[i] == nil) || !succeeds && !errors.Is(each[i], unix.ENOENT) {
				t.Errorf("%v: outcome %d: %v", succeed, i, each[i])
			}
		}
	}
}
