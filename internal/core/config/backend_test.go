package config

import (
	"slices"
	"strings"
	"testing"
)

func TestTheBackendFollowsTheSettingThenTheProviderThenMetadata(t *testing.T) {
	for _, c := range []struct {
		setting, providerID, instance string
		metadata, asked               bool
		want, why                     string
	}{
		{"", "aws:///us-west-2a/i-1", "", false, false, BackendENI, "aws:///us-west-2a/i-1"},
		{"", "", "i-1", false, false, BackendENI, "the journal has the instance i-1"},
		{"", "", "", true, true, BackendENI, "metadata answers"},
		{"", "kind://docker/kind/node", "", true, true, BackendENI, "metadata answers"},
		{"", "", "", false, true, BackendPodCIDR, "does not answer"},
		{"", "kind://docker/kind/node", "", false, true, BackendPodCIDR, "does not begin with aws://"},
		{"podcidr", "aws:///us-west-2a/i-1", "i-1", true, false, BackendPodCIDR, "set by environment TRUNKLINE_BACKEND"},
		{"eni", "", "", false, false, BackendENI, "set by environment TRUNKLINE_BACKEND"},
	} {
		cfg, err := Load(Sources{Env: env(map[string]string{"TRUNKLINE_BACKEND": c.setting})})
		if err != nil {
			t.Fatal(err)
		}
		asked := false
		got, why := cfg.BackendFor(c.providerID, c.instance, func() bool { asked = true; return c.metadata })
		if got != c.want || !strings.Contains(why, c.why) || asked != c.asked {
			t.Errorf("%+v: %s (%s), metadata asked: %v", c, got, why, asked)
		}
	}
	if _, err := Load(Sources{Flags: map[string]string{"backend": "vxlan"}}); err == nil || !strings.Contains(err.Error(), "must be one of auto, eni, podcidr") {
		t.Errorf("%v", err)
	}
}

func TestSettingsOfTheWarmPoolHaveNoEffectWithoutEC2(t *testing.T) {
	cfg, err := Load(Sources{
		Env:   env(map[string]string{"WARM_IP_TARGET": "4", "IP_COOLDOWN_PERIOD": "10s"}), // sets headroom too, which is not a setting of the user's
		Flags: map[string]string{"max-enis": "2"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"warm-ips (environment WARM_IP_TARGET)", "max-enis (flag --max-enis)"}
	if got := cfg.Unused(BackendPodCIDR); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := cfg.Unused(BackendENI); got != nil {
		t.Errorf("with EC2: %q", got)
	}
	for _, name := range onlyENI() {
		if !slices.ContainsFunc(settings(), func(s Setting) bool { return s.Name == name }) {
			t.Errorf("%s is not a setting", name)
		}
	}
}
