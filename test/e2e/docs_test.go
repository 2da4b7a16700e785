//go:build lab

package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"
)

// A block of commands in a document, with a text that its output must contain.
var labBlock = regexp.MustCompile("(?s)```lab\n(.*?)```\n(?:shows `([^\n]*)`\n)?")

// documentedCommandsWork runs the commands of the documents as a reader would.
func documentedCommandsWork(t *testing.T, l lab) {
	for _, name := range []string{"life-of-a-pod.md", "life-of-a-packet.md"} {
		text, err := os.ReadFile(filepath.Join("../../docs", name))
		if err != nil {
			t.Fatal(err)
		}
		blocks := labBlock.FindAllStringSubmatch(string(text), -1)
		if len(blocks) < 3 {
			t.Fatalf("%s: %d blocks of commands found", name, len(blocks))
		}
		for _, b := range blocks {
			cmd := exec.CommandContext(t.Context(), "bash", "-ec", b[1])
			cmd.Dir = filepath.Dir(l.bin)
			cmd.Env = append(os.Environ(), "TRUNKLINE_LAB="+l.name,
				"PATH="+l.bin+":"+os.Getenv("PATH"), "KUBECONFIG="+l.status(t).Endpoints.Kubeconfig)
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Errorf("%s: %v\n%s\n%s", name, err, b[1], out)
				continue
			}
			if b[2] != "" && !regexp.MustCompile(b[2]).Match(out) {
				t.Errorf("%s: nothing shows %q in the output of\n%s\n%s", name, b[2], b[1], out)
			}
		}
		t.Logf("%s: %d blocks", name, len(blocks))
	}
}
