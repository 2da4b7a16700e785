package config

import (
	"maps"
	"strings"
	"testing"
)

func TestSizesOfMaps(t *testing.T) {
	const name = "network-policy-map-sizes"
	c, err := Load(Sources{Flags: map[string]string{name: " tl_rows=524288, tl_connections = 262144,"}})
	if want := map[string]uint32{"tl_rows": 524288, "tl_connections": 262144}; err != nil || !maps.Equal(c.PolicyMapSizes, want) {
		t.Errorf("%v, %v; want %v", c.PolicyMapSizes, err, want)
	}
	if c, err := Load(Sources{Flags: map[string]string{name: "az=67108864,_=1"}}); err != nil || c.PolicyMapSizes["az"] != 67108864 || c.PolicyMapSizes["_"] != 1 {
		t.Errorf("the largest map: %v, %v", c.PolicyMapSizes, err)
	}
	for _, wrong := range []string{"tl_rows", "tl_rows=", "=5", "tl_rows=0", "tl_rows=-1", "tl_rows=67108865", "tl_rows=1;tl_sets=2", "tl_rows=1,tl_rows=2", "tl_rows=many", "tl rows=1", "TL_ROWS=1", "tl-rows=1", "tl_rows2=1", "tl{=1"} {
		if _, err := Load(Sources{Flags: map[string]string{name: wrong}}); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}
