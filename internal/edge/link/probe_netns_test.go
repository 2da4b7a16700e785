//go:build netns

package link

import (
	"strings"
	"testing"
)

func TestThisKernelCanWirePods(t *testing.T) {
	for range 3 { // it leaves nothing that would make the next one fail
		if err := Probe(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAProbeNamesTheStepThatFailed(t *testing.T) {
	err := probe(t.Context(), trialEndpoint("a-name-that-no-link-can-have"))
	if err == nil || !strings.Contains(err.Error(), "link a-name-that-no-link-can-have") {
		t.Errorf("%v: names neither the step nor the link", err)
	}
}
