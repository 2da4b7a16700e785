package podeni_test

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/trunkline/trunkline/internal/core/podeni"
	"github.com/trunkline/trunkline/internal/core/vpc"
)

// Texts as AWS's controller writes them.
const (
	one  = `[{"eniId":"eni-0bf8102e8bf0fa369","ifAddress":"02:78:59:8f:ee:b2","privateIp":"10.243.50.203","ipv6Addr":"","vlanId":1,"subnetCidr":"10.243.48.0/20","subnetV6Cidr":"","associationID":"trunk-assoc-0123456789abcdef0"}]`
	six  = `[{"eniId":"eni-0bf8102e8bf0fa369","ifAddress":"02:78:59:8f:ee:b2","privateIp":"","ipv6Addr":"2600:1f14:1::9","vlanId":120,"subnetCidr":"10.243.48.0/20","subnetV6Cidr":"2600:1f14:1::/64","associationID":""}]`
	both = `[{"eniId":"eni-0bf8102e8bf0fa369","ifAddress":"02:78:59:8f:ee:b2","privateIp":"10.243.50.203","ipv6Addr":"2600:1f14:1::9","vlanId":7,"subnetCidr":"10.243.48.0/20","subnetV6Cidr":"2600:1f14:1::/64","associationID":"trunk-assoc-0123456789abcdef0"}]`
	two  = `[{"eniId":"eni-0bf8102e8bf0fa369","ifAddress":"02:78:59:8f:ee:b2","privateIp":"10.243.50.203","ipv6Addr":"","vlanId":1,"subnetCidr":"10.243.48.0/20","subnetV6Cidr":"","associationID":"trunk-assoc-0123456789abcdef0"},{"eniId":"eni-0d8a3a3a7f2eb57ab","ifAddress":"06:20:0d:3c:5f:bc","privateIp":"10.243.50.204","ipv6Addr":"","vlanId":2,"subnetCidr":"10.243.48.0/20","subnetV6Cidr":"","associationID":"trunk-assoc-0123456789abcdef1"}]`
	// old is of a version without IPv6 and associations.
	old = `[{"eniId":"eni-0d8a3a3a7f2eb57ab","ifAddress":"06:20:0d:3c:5f:bc","privateIp":"192.168.47.64","vlanId":1,"subnetCidr":"192.168.32.0/19"}]`
)

func TestTextsOfAWSAreWrittenByteForByteAsTheyWere(t *testing.T) {
	for _, text := range []string{one, six, both, two} {
		entries, err := podeni.Decode(text)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := podeni.Encode(entries); err != nil || got != text {
			t.Errorf("%v\n%s\nwant\n%s", err, got, text)
		}
	}
}

func TestATextIsReadIntoItsBranches(t *testing.T) {
	mac, err := vpc.ParseMAC("02:78:59:8f:ee:b2")
	if err != nil {
		t.Fatal(err)
	}
	want := podeni.Entry{
		ENI: "eni-0bf8102e8bf0fa369", MAC: mac, VLAN: 7, Association: "trunk-assoc-0123456789abcdef0",
		IPv4: netip.MustParseAddr("10.243.50.203"), Subnet4: netip.MustParsePrefix("10.243.48.0/20"),
		IPv6: netip.MustParseAddr("2600:1f14:1::9"), Subnet6: netip.MustParsePrefix("2600:1f14:1::/64"),
	}
	for name, text := range map[string]string{
		"as written":                       both,
		"with fields of a later version":   strings.Replace(both, `[{`, `[{"prefixCidr":"10.243.50.192/28","more":{"a":[1]},`, 1),
		"with the spellings of the daemon": strings.NewReplacer("vlanId", "vlanID", "associationID", "AssociationId").Replace(both),
		"with spaces":                      strings.ReplaceAll(both, ",", " ,\n"),
		"with its MAC in upper case":       strings.ReplaceAll(both, "02:78:59:8f:ee:b2", "02:78:59:8F:EE:B2"),
	} {
		if got, err := podeni.Decode(text); err != nil || !reflect.DeepEqual(got, []podeni.Entry{want}) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	entries, err := podeni.Decode(old)
	if err != nil || len(entries) != 1 || entries[0].VLAN != 1 || entries[0].IPv6.IsValid() || entries[0].Association != "" {
		t.Errorf("an old text: %+v, %v", entries, err)
	}
}

func TestATextThatNamesNoBranchesIsRefusedByName(t *testing.T) {
	change := func(from, to string) string {
		if !strings.Contains(both, from) {
			t.Fatalf("%q is not in the text", from)
		}
		return strings.Replace(both, from, to, 1)
	}
	for _, tt := range []struct {
		name, text string
		want       error
	}{
		{"an empty text", "", podeni.ErrTruncated},
		{"an empty list", "[]", podeni.ErrNoEntry},
		{"null", "null", podeni.ErrNoEntry},
		{"an object in place of a list", strings.Trim(both, "[]"), podeni.ErrSyntax},
		{"a list of strings", `["eni-0bf8102e8bf0fa369"]`, podeni.ErrSyntax},
		{"a list with null", `[null]`, podeni.ErrSyntax},
		{"no JSON", "eni-0bf8102e8bf0fa369", podeni.ErrSyntax},
		{"more after the list", both + "]", podeni.ErrSyntax},
		{"a text of a megabyte", "[" + strings.Repeat(" ", 1<<20) + "]", podeni.ErrSyntax},
		{"a field twice", change(`"vlanId":7`, `"vlanId":7,"vlanId":8`), podeni.ErrField},
		{"a field twice in two spellings", change(`"vlanId":7`, `"vlanId":7,"vlanID":8`), podeni.ErrField},
		{"a field that readers which ignore case would read", change(`"vlanId":7`, `"VLANID":7`), podeni.ErrField},
		{"a VLAN as a string", change(`"vlanId":7`, `"vlanId":"7"`), podeni.ErrField},
		{"half a VLAN", change(`"vlanId":7`, `"vlanId":7.5`), podeni.ErrField},
		{"null for a VLAN", change(`"vlanId":7`, `"vlanId":null`), podeni.ErrField},
		{"null for an address", change(`"privateIp":"10.243.50.203"`, `"privateIp":null`), podeni.ErrField},
		{"a number for an interface", change(`"eniId":"eni-0bf8102e8bf0fa369"`, `"eniId":1`), podeni.ErrField},
		{"no interface", change(`"eniId":"eni-0bf8102e8bf0fa369",`, ""), podeni.ErrIncomplete},
		{"an empty interface", change("eni-0bf8102e8bf0fa369", ""), podeni.ErrIncomplete},
		{"no MAC", change(`"ifAddress":"02:78:59:8f:ee:b2",`, ""), podeni.ErrIncomplete},
		{"an empty MAC", change("02:78:59:8f:ee:b2", ""), podeni.ErrIncomplete},
		{"no VLAN", change(`"vlanId":7,`, ""), podeni.ErrIncomplete},
		{"no address", strings.NewReplacer("10.243.50.203", "", "2600:1f14:1::9", "").Replace(both), podeni.ErrIncomplete},
		{"an address without its subnet", change("10.243.48.0/20", ""), podeni.ErrIncomplete},
		{"an interface that is none", change("eni-0bf8102e8bf0fa369", "eni-web"), podeni.ErrValue},
		{"a path in place of an interface", change("eni-0bf8102e8bf0fa369", "../eni-0bf8102e"), podeni.ErrValue},
		{"an association that is none", change("trunk-assoc-0123456789abcdef0", "a b"), podeni.ErrValue},
		{"VLAN 0", change(`"vlanId":7`, `"vlanId":0`), podeni.ErrValue},
		{"VLAN 4095", change(`"vlanId":7`, `"vlanId":4095`), podeni.ErrValue},
		{"a VLAN below zero", change(`"vlanId":7`, `"vlanId":-1`), podeni.ErrValue},
		{"a VLAN that no number holds", change(`"vlanId":7`, `"vlanId":99999999999999999999`), podeni.ErrField},
		{"a MAC of eight bytes", change("02:78:59:8f:ee:b2", "02:78:59:8f:ee:b2:00:00"), podeni.ErrValue},
		{"a MAC with dots", change("02:78:59:8f:ee:b2", "0278.598f.eeb2"), podeni.ErrValue},
		{"a MAC of zeroes", change("02:78:59:8f:ee:b2", "00:00:00:00:00:00"), podeni.ErrValue},
		{"a MAC of a group", change("02:78:59:8f:ee:b2", "03:78:59:8f:ee:b2"), podeni.ErrValue},
		{"an address that is none", change("10.243.50.203", "10.243.50"), podeni.ErrValue},
		{"an address with a length", change("10.243.50.203", "10.243.50.203/32"), podeni.ErrValue},
		{"an address of the other family", change("10.243.50.203", "2600:1f14:1::9"), podeni.ErrValue},
		{"an IPv4 address written as IPv6", change("2600:1f14:1::9", "::ffff:10.243.50.203"), podeni.ErrValue},
		{"the same in a subnet of its range", strings.NewReplacer("2600:1f14:1::9", "::ffff:10.243.50.203", "2600:1f14:1::/64", "::/64").Replace(both), podeni.ErrValue},
		{"an IPv4 subnet written as IPv6", strings.NewReplacer("2600:1f14:1::9", "", "2600:1f14:1::/64", "::ffff:0:0/96").Replace(both), podeni.ErrValue},
		{"an address of the other family, without its subnet", strings.NewReplacer("10.243.50.203", "2600:1f14:1::8", "10.243.48.0/20", "").Replace(both), podeni.ErrValue},
		{"an address with a zone, without its subnet", strings.NewReplacer("2600:1f14:1::9", "2600:1f14:1::9%eth0", "2600:1f14:1::/64", "").Replace(both), podeni.ErrValue},
		{"an address with a zone", change("2600:1f14:1::9", "2600:1f14:1::9%eth0"), podeni.ErrValue},
		{"an address outside its subnet", change("10.243.50.203", "10.243.64.1"), podeni.ErrValue},
		{"the address of the subnet's router", change("10.243.50.203", "10.243.48.1"), podeni.ErrValue},
		{"the last address of the subnet", change("10.243.50.203", "10.243.63.255"), podeni.ErrValue},
		{"a subnet with host bits", change("10.243.48.0/20", "10.243.50.0/20"), podeni.ErrValue},
		{"a subnet of the other family", change("2600:1f14:1::/64", "10.243.48.0/20"), podeni.ErrValue},
		{"a subnet of the other family, without an address", strings.Replace(one, `"subnetV6Cidr":""`, `"subnetV6Cidr":"10.243.48.0/20"`, 1), podeni.ErrValue},
		{"a subnet without a length", change("10.243.48.0/20", "10.243.48.0"), podeni.ErrValue},
		{"an interface in two entries", strings.Replace(two, "eni-0d8a3a3a7f2eb57ab", "eni-0bf8102e8bf0fa369", 1), podeni.ErrTwice},
		{"a MAC in two entries", strings.Replace(two, "06:20:0d:3c:5f:bc", "02:78:59:8f:ee:b2", 1), podeni.ErrTwice},
		{"an address in two entries", strings.Replace(two, "10.243.50.204", "10.243.50.203", 1), podeni.ErrTwice},
		{"a VLAN in two entries", strings.Replace(two, `"vlanId":2`, `"vlanId":1`, 1), podeni.ErrTwice},
		{"an association in two entries", strings.Replace(two, "abcdef1", "abcdef0", 1), podeni.ErrTwice},
	} {
		t.Run(tt.name, func(t *testing.T) {
			entries, err := podeni.Decode(tt.text)
			if !errors.Is(err, tt.want) || entries != nil {
				t.Errorf("%v, %v, want %q", entries, err, tt.want)
			}
		})
	}
}

// A user corrects what the error names: the first field that is wrong, with the value that it has.
func TestAnErrorNamesTheEntryTheFieldAndItsValue(t *testing.T) {
	for name, tt := range map[string]struct{ text, want string }{
		"a MAC with other characters":  {strings.Replace(one, "02:78:59:8f:ee:b2", "zz:78:59:8f:ee:b2", 1), `entry 0: ifAddress "zz:78:59:8f:ee:b2": invalid value`},
		"the second of two entries":    {strings.Replace(two, "06:20:0d:3c:5f:bc", "06:20", 1), `entry 1: ifAddress "06:20": invalid value`},
		"two wrong fields":             {strings.NewReplacer("eni-0bf8102e8bf0fa369", "", `"vlanId":1`, `"vlanId":"1"`).Replace(one), "entry 0: eniId is empty: incomplete entry"},
		"a field of another spelling":  {strings.Replace(one, "vlanId", "VLANID", 1), `entry 0: field "VLANID": it must be written "vlanId": invalid field`},
		"a VLAN that no trunk has":     {strings.Replace(one, `"vlanId":1`, `"vlanId":4095`, 1), "entry 0: vlanId 4095: must be from 1 to 4094: invalid value"},
		"a VLAN of two entries":        {strings.Replace(two, `"vlanId":2`, `"vlanId":1`, 1), "entries 0 and 1: VLAN 1: value of two entries"},
		"an address beside its subnet": {strings.Replace(one, "10.243.50.203", "10.243.64.1", 1), "entry 0: privateIp 10.243.64.1 is outside 10.243.48.0/20: invalid value"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := podeni.Decode(tt.text); err == nil || err.Error() != tt.want {
				t.Errorf("%v, want %s", err, tt.want)
			}
		})
	}
}

func TestTheLargestValuesAreTaken(t *testing.T) {
	entries, err := podeni.Decode(strings.Replace(one, `"vlanId":1`, `"vlanId":4094`, 1))
	if err != nil || len(entries) != 1 || entries[0].VLAN != podeni.MaxVLAN {
		t.Errorf("the last VLAN: %+v, %v", entries, err)
	}
	const most = 256 << 10 // bytes of annotations
	if entries, err := podeni.Decode(one + strings.Repeat(" ", most-len(one))); err != nil || len(entries) != 1 {
		t.Errorf("the longest text: %+v, %v", entries, err)
	}
	if entries, err := podeni.Decode(one + strings.Repeat(" ", most-len(one)+1)); !errors.Is(err, podeni.ErrSyntax) || entries != nil {
		t.Errorf("a longer text: %+v, %v", entries, err)
	}
}

func TestATextThatIsCutAnywhereIsTruncated(t *testing.T) {
	for i := range len(two) {
		if entries, err := podeni.Decode(two[:i]); !errors.Is(err, podeni.ErrTruncated) || entries != nil {
			t.Errorf("%q: %v, want truncated", two[:i], err)
		}
	}
}

func TestMoreBranchesThanATrunkHasAreRefused(t *testing.T) {
	var list []string
	for i := range 121 {
		list = append(list, fmt.Sprintf(`{"eniId":"eni-%08x","ifAddress":"02:00:00:00:00:%02x","privateIp":"10.0.0.%d","vlanId":%d,"subnetCidr":"10.0.0.0/16"}`, i, i, i+4, i+1))
	}
	text := func(n int) string { return "[" + strings.Join(list[:n], ",") + "]" }
	if entries, err := podeni.Decode(text(120)); err != nil || len(entries) != 120 {
		t.Errorf("120 branches: %d, %v", len(entries), err)
	}
	if _, err := podeni.Decode(text(121)); !errors.Is(err, podeni.ErrValue) {
		t.Errorf("121 branches: %v", err)
	}
}

func TestEntriesThatNoReaderAcceptsAreNotWritten(t *testing.T) {
	entries, err := podeni.Decode(two)
	if err != nil {
		t.Fatal(err)
	}
	entries[1].VLAN = entries[0].VLAN
	if text, err := podeni.Encode(entries); !errors.Is(err, podeni.ErrTwice) || text != "" {
		t.Errorf("a VLAN of two branches: %q, %v", text, err)
	}
	entries[0].ENI = ""
	if text, err := podeni.Encode(entries[:1]); !errors.Is(err, podeni.ErrIncomplete) || text != "" {
		t.Errorf("a branch without an interface: %q, %v", text, err)
	}
	if text, err := podeni.Encode(nil); !errors.Is(err, podeni.ErrNoEntry) || text != "" {
		t.Errorf("no branches: %q, %v", text, err)
	}
}

// Whatever the text is, Decode does not panic, names the error, and returns branches that can be
// written and read again, with no value twice.
func FuzzDecode(f *testing.F) {
	for _, text := range []string{one, six, both, two, old, "", "[]", "null", one[:40]} {
		f.Add(text)
	}
	named := []error{podeni.ErrTruncated, podeni.ErrSyntax, podeni.ErrField, podeni.ErrNoEntry, podeni.ErrIncomplete, podeni.ErrValue, podeni.ErrTwice}
	f.Fuzz(func(t *testing.T, text string) {
		entries, err := podeni.Decode(text)
		if err != nil {
			if entries != nil || !slices.ContainsFunc(named, func(e error) bool { return errors.Is(err, e) }) {
				t.Fatalf("%v with %v", entries, err)
			}
			return
		}
		vlans := map[int]bool{}
		for _, e := range entries {
			if e.VLAN < 1 || e.VLAN > podeni.MaxVLAN || vlans[e.VLAN] {
				t.Errorf("VLAN %d", e.VLAN)
			}
			vlans[e.VLAN] = true
			if e.IPv4.IsValid() && !e.Subnet4.Contains(e.IPv4) || e.IPv6.IsValid() && !e.Subnet6.Contains(e.IPv6) {
				t.Errorf("addresses of %+v", e)
			}
		}
		written, err := podeni.Encode(entries)
		if err != nil {
			t.Fatalf("encode: %v", err)
		}
		if again, err := podeni.Decode(written); err != nil || !reflect.DeepEqual(again, entries) {
			t.Errorf("%s: %v, %v", written, again, err)
		}
	})
}
