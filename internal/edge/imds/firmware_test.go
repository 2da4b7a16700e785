package imds_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/trunkline/trunkline/internal/core/vpc"
	"github.com/trunkline/trunkline/internal/edge/imds"
)

func TestTheFirmwareNamesTheInstanceOnlyByAValidID(t *testing.T) {
	for name, c := range map[string]struct {
		tag  string
		want vpc.InstanceID
	}{
		"a Nitro instance":         {"i-0af01c0123456789a\n", "i-0af01c0123456789a"},
		"an id of the short form":  {"i-0af01c01", "i-0af01c01"},
		"a vendor's own tag":       {"Not Specified\n", ""},
		"an id with a text behind": {"i-0af01c0123456789a spare", ""},
		"an empty tag":             {"", ""},
	} {
		root := t.TempDir()
		dir := filepath.Join(root, "sys/devices/virtual/dmi/id")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "board_asset_tag"), []byte(c.tag), 0o444); err != nil {
			t.Fatal(err)
		}
		if got := imds.FirmwareInstance(root); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if got := imds.FirmwareInstance(t.TempDir()); got != "" {
		t.Errorf("no file: %q", got)
	}
}
