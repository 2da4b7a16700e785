package node

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestANodeOfAnotherNetworkHasItsConfiguration(t *testing.T) {
	c := Config{StateDir: t.TempDir()}
	path := c.dir().disk().path(filepath.Join(cniConfDir, "10-other.conflist"))
	if err := c.writeNetwork(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Errorf("%s exists on a node of Trunkline", path)
	}
	c.PodRange = netip.MustParsePrefix("10.0.0.32/28")
	if err := c.writeNetwork(); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !json.Valid(text) || !strings.Contains(string(text), `"subnet": "10.0.0.32/28"`) {
		t.Errorf("%s", text)
	}
}
