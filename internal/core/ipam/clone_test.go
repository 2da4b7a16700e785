package ipam

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/trunkline/trunkline/internal/core/cloud"
	"github.com/trunkline/trunkline/internal/core/endpoint"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// filled is a ledger with a row of every kind.
func filled(t testing.TB, addresses int, now time.Time) *Ledger {
	t.Helper()
	l := New(DefaultConfig().Settings())
	seen := Observed{Attached: true, ENI: ENI{ID: "eni-1", Type: vpc.TypeInterface, Primary: true}}
	for a := netip.MustParseAddr("10.0.0.7"); len(seen.Addresses) < addresses; a = a.Next() {
		seen.Addresses = append(seen.Addresses, a)
	}
	l.Observe([]Observed{seen}, now)
	claimed := seen.Addresses[0]
	l.Claim(map[netip.Addr]Claim{claimed: {Holder: ForeignHolder(endpoint.Pod{Name: "web", UID: "u1"}), Made: now}}, true, now)
	if _, _, err := l.Assign(Holder{Endpoint: 1}, now); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Begin(cloud.Action{ID: "a1", Kind: cloud.AssignAddresses, ENI: "eni-1"}, now); err != nil {
		t.Fatal(err)
	}
	err := l.Replay([]Record{
		{Op: PutBackoff, Backoff: &Backoff{Key: "interfaces", Until: now}},
		{Op: PutGone, Gone: &Gone{Addr: netip.MustParseAddr("10.0.9.9"), At: now}},
		{Op: PutGone, Gone: &Gone{ENI: "eni-9", At: now}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestACloneIsEqualAndSharesNoMapAndNoRow(t *testing.T) {
	l := filled(t, 4, time.Now())
	c := l.Clone()
	if !reflect.DeepEqual(c, l) {
		t.Errorf("the clone is\n%+v\nof\n%+v", c, l)
	}
	var shared func(at string, a, b reflect.Value)
	shared = func(at string, a, b reflect.Value) {
		switch k := a.Kind(); {
		case k == reflect.Struct:
			for i := range a.NumField() {
				shared(at+"."+a.Type().Field(i).Name, a.Field(i), b.Field(i))
			}
		case k != reflect.Map && k != reflect.Pointer && k != reflect.Slice, a.Type() == reflect.TypeFor[*time.Location]():
		case a.Pointer() == b.Pointer():
			t.Errorf("%s is shared, or is empty and not covered by this test", at)
		case k == reflect.Map:
			for _, key := range a.MapKeys() {
				if row := a.MapIndex(key).Kind(); row == reflect.Map || row == reflect.Pointer {
					shared(at+"[]", a.MapIndex(key), b.MapIndex(key))
				}
			}
		}
	}
	shared("Ledger", reflect.ValueOf(l).Elem(), reflect.ValueOf(c).Elem())
}

func BenchmarkClone(b *testing.B) {
	l := filled(b, 250, time.Now())
	for b.Loop() {
		l.Clone()
	}
}
