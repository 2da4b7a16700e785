package hostnet

import "testing"

// A bit that another program of the node acts on would have packets of pods masqueraded or dropped.
func TestNoMarkIsOneOfAnotherProgram(t *testing.T) {
	others := map[string]uint32{
		"portmap": 0x2000, "kube-proxy's masquerade": 0x4000, "kube-proxy's drop": 0x8000, "Tailscale": 0xff0000, "Calico": 0xffff0000,
	}
	for name, mark := range map[string]uint32{"MarkPending": MarkPending, "MarkJudged": MarkJudged, "MarkPrimary": MarkPrimary} {
		for other, bits := range others {
			if mark&bits != 0 {
				t.Errorf("%s %#x is a mark of %s, %#x", name, mark, other, bits)
			}
		}
	}
	if MarkPending&MarkJudged|MarkPending&MarkPrimary|MarkJudged&MarkPrimary != 0 {
		t.Error("two marks have a bit in common")
	}
}
