package main

import (
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"

	"github.com/trunkline/trunkline/internal/edge/cnirpc"
)

// The plugin accepts a name if and only if libcni does, and refuses it with the same code.
func FuzzNamesAreCheckedAsByLibcni(f *testing.F) {
	for _, name := range []string{
		"", "a", "Z9", "eth0", "a.b_c-d", ".a", "-a", "_a", "a/b", "a:b", "a b", "a\n", "\na", "a\x00", "é", "aé", "a\u2003b", "\x85", "a\x85", "a\xff", ".", "..", "...",
		strings.Repeat("x", 15), strings.Repeat("x", 16), strings.Repeat("é", 8),
	} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		for kind, errs := range map[string]struct {
			ours   *cnirpc.Error
			libcni *types.Error
		}{
			"container id":   {checkContainerID(name), utils.ValidateContainerID(name)},
			"network name":   {checkNetworkName(name), utils.ValidateNetworkName(name)},
			"interface name": {checkIfName(name), utils.ValidateInterfaceName(name)},
		} {
			switch ours, libcni := errs.ours, errs.libcni; {
			case (ours == nil) != (libcni == nil):
				t.Errorf("%s %q: %v, libcni: %v", kind, name, ours, libcni)
			case ours != nil && (ours.Code != libcni.Code || ours.Msg == ""):
				t.Errorf("%s %q: code %d %q, libcni: code %d", kind, name, ours.Code, ours.Msg, libcni.Code)
			}
		}
	})
}
