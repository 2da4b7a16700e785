package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAnInvalidConfigurationFileIsRefusedWithItsNameAndTheReason(t *testing.T) {
	for name, c := range map[string]struct{ text, want string }{
		"no mapping":         {"hello", "lines of 'name: value'"},
		"a list":             {"- mtu", "lines of 'name: value'"},
		"a key twice":        {"mtu: 1500\nmtu: 1600", `"mtu" already set`},
		"no value":           {"log-level:", "log-level: has no value; remove the line"},
		"a mapping inside":   {"pool: {warm-ips: 3}", "pool: must not be a mapping"},
		"a list of numbers":  {"exclude-snat-cidrs: [1, 2]", "exclude-snat-cidrs: list item 1 must be a string"},
		"a list of nonsense": {"exclude-snat-cidrs: [10.0.0.0/8, here]", `exclude-snat-cidrs: "10.0.0.0/8,here" from file`},
		"half a byte":        {"mtu: 1500.5", `mtu: "1500.5" from file`},
		"unknown key":        {"warm_ips: 3", "unknown setting"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "trunkline.yaml")
			if err := os.WriteFile(path, []byte(c.text), 0o600); err != nil {
				t.Fatal(err)
			}
			code, _, stderr := call("agent", "--node-name", "n1", "--config", path)
			if code == 0 || !strings.Contains(stderr, c.want) || !strings.Contains(stderr, path) {
				t.Errorf("exit %d, %q; want %q and the file's name", code, stderr, c.want)
			}
		})
	}
}

func TestAFileSetsValuesAsFlagsDo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trunkline.yaml")
	text := "exclude-snat-cidrs: [192.168.0.0/16, 100.64.0.0/10]\nmtu: 1500\ncool-down: 30\npod-metadata: true\nidle-after: 1h\nmin-ips: 1000\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := (&configured{file: filePath(path)}).load()
	if err != nil {
		t.Fatal(err)
	}
	if len(cfg.ExcludeSNATCIDRs) != 2 || cfg.MTU != 1500 || cfg.CoolDown.Seconds() != 30 || !cfg.PodMetadata || cfg.MinIPs != 1000 {
		t.Errorf("%+v", cfg)
	}
}

func TestAnInvalidEndpointIsRefusedAtStart(t *testing.T) {
	for _, command := range []string{"agent", "controller"} {
		for _, endpoint := range []string{"::::", "https://", "ftp://10.0.0.1", "https://10.0.0.1:port", "10.0.0.1 443"} {
			code, _, stderr := call(command, "--node-name", "n1", "--endpoint", endpoint)
			if code == 0 || !strings.Contains(stderr, `endpoint "`+endpoint+`" of the API server`) {
				t.Errorf("%s --endpoint %q: exit %d, %q", command, endpoint, code, stderr)
			}
		}
	}
}
