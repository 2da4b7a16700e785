package agent

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestARefusalNamesEverythingThatIsMissingAndWhatToDo(t *testing.T) {
	two := errors.Join(errors.New(`nftables of this kernel refuses "snat ip to 192.0.2.1"`), errors.New("nftables of this kernel has no family arp"))
	problems := append(lacks(two, "load nf_tables"), lacks(fmt.Errorf("wire a pod for trial: %w", errors.New("operation not supported")), "load veth")...)
	err := refusal(problems)
	if err == nil {
		t.Fatal("not refused")
	}
	for _, line := range []string{
		`  nftables of this kernel refuses "snat ip to 192.0.2.1": load nf_tables`,
		"  nftables of this kernel has no family arp: load nf_tables",
		"  wire a pod for trial: operation not supported: load veth",
	} {
		if !strings.Contains(err.Error()+"\n", line+"\n") {
			t.Errorf("no line %q in\n%v", line, err)
		}
	}
	if refusal(lacks(nil, "nothing")) != nil {
		t.Error("a node that lacks nothing is refused")
	}
}

func TestAMachineWithoutTheKernelsFilesIsReported(t *testing.T) {
	said := strings.Join(probeMachine(t.TempDir()+"/"), "\n")
	for _, word := range []string{"CONFIG_NET_NS", "CONFIG_INET", "nf_conntrack"} {
		if !strings.Contains(said, word) {
			t.Errorf("%q is not in\n%s", word, said)
		}
	}
}

// The rules that are tried are those that are used: settings that change the rules
// change the trial.
func TestTheTrialFollowsTheSettings(t *testing.T) {
	cfg := defaults(t)
	usual := probeRules(cfg).String()
	cfg.ExternalSNAT = true
	if probeRules(cfg).String() == usual || !strings.Contains(usual, "snat") {
		t.Errorf("the trial does not follow the settings:\n%s", usual)
	}
}
