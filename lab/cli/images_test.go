package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/trunkline/trunkline/lab/daemon"
	"github.com/trunkline/trunkline/lab/image"
	"github.com/trunkline/trunkline/lab/spec"
)

func TestImagesOfTheFileAreImportedBesideThoseOfTheLab(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "program")
	if err := os.WriteFile(program, []byte("x"), 0o755); err != nil {
		t.Fatal(err)
	}
	write := func(file, ref string) string {
		path := filepath.Join(dir, file)
		if err := (image.Recipe{Files: map[string]string{"/program": program}}).Write(path, ref); err != nil {
			t.Fatal(err)
		}
		return path
	}
	app, again, taken := write("app.tar", "own.example/app:1"), write("again.tar", "own.example/app:1"), write("taken.tar", "trunkline.dev/pause:dev")
	own, err := ownImages([]string{app})
	if err != nil {
		t.Fatal(err)
	}
	_, p := samplePlan(t)
	p.own = own
	r, err := spec.Default().Resolve()
	if err != nil {
		t.Fatal(err)
	}
	want, err := plan(r, p, "/var/lib/trunkline-lab/lab", false)
	if err != nil {
		t.Fatal(err)
	}
	last := want.Images[len(want.Images)-1]
	if diff := cmp.Diff(daemon.Image{Path: app, Refs: []string{"own.example/app:1"}}, last); diff != "" {
		t.Errorf("the last image to import (-want +got):\n%s", diff)
	}
	_, err = ownImages([]string{app, again, taken, filepath.Join(dir, "absent.tar")})
	for _, text := range []string{
		`again.tar": has own.example/app:1, which is also in images[0]`,
		`taken.tar": has trunkline.dev/pause:dev; names below trunkline.dev/ are those of the lab's own images`,
		`images[3]: "` + filepath.Join(dir, "absent.tar") + `": no such file or directory`,
	} {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v does not contain %q", err, text)
		}
	}
}
