package cache

import "testing"

func TestTheKernelPackageIsTheOneOfTheMetaPackage(t *testing.T) {
	const meta = "linux-image-cloud-amd64\n"
	for depends, want := range map[string]string{
		meta + "  Depends: linux-image-6.1.0-56-cloud-amd64\n":                         "linux-image-6.1.0-56-cloud-amd64",
		meta + "  Suggests: grub\n  Depends: linux-image-6.1.0-9-cloud-amd64\n":        "linux-image-6.1.0-9-cloud-amd64",
		meta + "  Depends: linux-image-6.12.95+deb13-cloud-amd64\n":                    "",
		meta + "  Recommends: linux-image-6.1.0-56-cloud-amd64\n  Depends: firmware\n": "",
		meta: "",
	} {
		got, err := kernelImage(depends, "6.1.")
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", depends, got, err, want)
		}
	}
}
