package cniconf

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
)

const aws = `{"cniVersion":"0.4.0","name":"aws-cni","disableCheck":true,"plugins":[{"type":"aws-cni"},{"type":"egress-cni"},{"type":"portmap"}]}`

func TestAFileIsRecognisedByItsContent(t *testing.T) {
	for _, c := range []struct {
		name, content string
		owner         Owner
		why           string // part of it
	}{
		{"10-aws.conflist", aws, AWS, ""},
		{"05-renamed.conflist", aws, AWS, ""},
		{"10-trunkline.conflist", `{"name":"trunkline","plugins":[{"type":"trunkline-cni"}]}`, Ours, ""},
		{"10-aws.conflist", `{"name":"trunkline","plugins":[{"type":"trunkline-cni"},{"type":"portmap"}]}`, Ours, ""},
		{"00-multus.conf", `{"name":"multus","type":"multus","delegates":[{"type":"aws-cni"}]}`, Other, ""},
		{"10-flannel.conflist", `{"name":"cbr0","plugins":[{"type":"flannel"},{"type":"aws-cni"}]}`, Other, ""},
		{"a.conflist", ``, Invalid, "not valid JSON"},
		{"a.conflist", `{"name":"a","plugins":[]}`, Invalid, "no plugins"},
		{"a.conflist", `{"plugins":[{"type":"x"}]}`, Invalid, "no name"},
		{"a.conflist", `{"name":"a","plugins":[{"type":"x"},{}]}`, Invalid, "no type"},
		{"a.conf", aws, Invalid, "no type"}, // a list in a file for one plugin
		{"a.json", `{"type":"bridge"}`, Other, ""},
	} {
		got := Parse(c.name, []byte(c.content))
		if got.Owner != c.owner || !strings.Contains(got.Why, c.why) || (got.Why == "") != (c.why == "") {
			t.Errorf("%s %s: %+v, want owner %d and %q", c.name, c.content, got, c.owner, c.why)
		}
	}
}

func TestOnlyFilesThatTheRuntimeUsesInsteadOfOursMatter(t *testing.T) {
	other := `{"name":"x","plugins":[{"type":"bridge"}]}`
	for _, c := range []struct {
		what, name, content string
		keep, refresh       bool
		problem             string // part of it
	}{
		{"AWS's", "10-aws.conflist", aws, true, false, ""},
		{"AWS's, sorted after ours", "20-aws.conflist", aws, false, false, ""},
		{"AWS's, kept", "10-aws.conflist.before-trunkline", aws, false, false, ""},
		{"AWS's with a mesh's plugin", "10-aws.conflist", strings.Replace(aws, `{"type":"portmap"}`, `{"type":"istio-cni"}`, 1), true, false, ""},
		{"AWS's for one plugin", "10-aws.conf", `{"name":"aws-cni","type":"aws-cni"}`, false, false, "a single plugin"},
		{"ours in the place of AWS's", "10-aws.conflist", `{"name":"trunkline","plugins":[{"type":"trunkline-cni"}]}`, false, true, ""},
		{"a copy of ours", "05-copy.conflist", `{"name":"trunkline","plugins":[{"type":"trunkline-cni"}]}`, false, false, "did not write it"},
		{"a copy of ours for one plugin", "10-aws.conf", `{"name":"trunkline","type":"trunkline-cni"}`, false, false, "did not write it"},
		{"another's", "05-bridge.conflist", other, false, false, "call bridge for new pods"},
		{"another's, sorted after ours", "87-podman.conflist", other, false, false, ""},
		{"a broken one", "05-broken.conflist", "{", false, false, "refuses every pod"},
		{"a broken one after ours", "87-broken.conflist", "{", false, false, ""},
		{"a file of another extension", "05-README", other, false, false, ""},
		{"our own", FileName, `{"name":"trunkline","plugins":[{"type":"trunkline-cni"}]}`, false, false, ""},
	} {
		f := Parse(c.name, []byte(c.content))
		f.Kept = strings.HasPrefix(c.name, "10-aws")
		v := Judge([]File{f})
		if (len(v.Keep) == 1) != c.keep || (len(v.Refresh) == 1) != c.refresh || (len(v.Problems) == 1) != (c.problem != "") {
			t.Errorf("%s: %+v", c.what, v)
			continue
		}
		if c.problem != "" && (!strings.Contains(v.Problems[0].Message, c.problem) || !strings.Contains(v.Problems[0].Message, c.name)) {
			t.Errorf("%s: %q does not name the file and %q", c.what, v.Problems[0].Message, c.problem)
		}
	}
}

func TestOthersPluginsStayInTheirPlacesAndOursAreRight(t *testing.T) {
	wanted := Wanted{Version: "1.0.0", Network: "trunkline", Own: map[string]any{"type": PluginName, "socket": "/new"}, Portmap: map[string]any{"type": "portmap", "snat": true}}
	const ours, ports = `{"socket":"/new","type":"trunkline-cni"}`, `{"snat":true,"type":"portmap"}`
	alone := wanted
	alone.Portmap = nil
	for _, c := range []struct {
		what, name, have string
		wanted           Wanted
		without          []string
		chain, fields    string
	}{
		{"no file", FileName, ``, wanted, nil, ours + "," + ports, ""},
		{"a broken file", FileName, `{"name":"x","plugins":[{"type":"istio-cni"},`, wanted, nil, ours + "," + ports, ""},
		{"another network's", FileName, `{"name":"x","plugins":[{"type":"bridge"},{"type":"istio-cni"}]}`, wanted, nil, ours + "," + ports, ""},
		{"ours, changed", FileName, `{"cniVersion":"9","name":"x","plugins":[{"type":"trunkline-cni","socket":"/old"},{"type":"portmap"}]}`, wanted, nil, ours + "," + ports, ""},
		{"before and after portmap", FileName, `{"name":"x","plugins":[{"type":"trunkline-cni"},{"type":"a","z":1,"b":2},{"type":"portmap"},{"type":"c"}]}`, wanted, nil, ours + `,{"type":"a","z":1,"b":2},` + ports + `,{"type":"c"}`, ""},
		{"portmap goes", FileName, `{"name":"x","plugins":[{"type":"trunkline-cni"},{"type":"portmap"},{"type":"c"}]}`, alone, nil, ours + `,{"type":"c"}`, ""},
		{"portmap comes", FileName, `{"name":"x","plugins":[{"type":"trunkline-cni"},{"type":"c"}]}`, wanted, nil, ours + "," + ports + `,{"type":"c"}`, ""},
		{"portmap twice", FileName, `{"name":"x","plugins":[{"type":"trunkline-cni"},{"type":"portmap"},{"type":"portmap"}]}`, wanted, nil, ours + "," + ports, ""},
		{"ours twice", FileName, `{"name":"x","plugins":[{"type":"trunkline-cni"},{"type":"c"},{"type":"trunkline-cni"}]}`, alone, nil, ours + `,{"type":"c"}`, ""},
		{"another field", FileName, `{"name":"x","disableGC":true,"plugins":[{"type":"trunkline-cni"}]}`, alone, nil, ours, `"disableGC":true,`},
		{"AWS's", "10-aws.conflist", aws, wanted, nil, ours + "," + ports, ""},
		{"AWS's with others", "10-aws.conflist", strings.Replace(aws, `{"type":"portmap"}`, `{"type":"portmap"},{"type":"a"},{"type":"b"}`, 1), wanted, []string{"b"}, ours + "," + ports + `,{"type":"a"}`, ""},
		{"AWS's with its egress", "10-aws.conflist", strings.Replace(aws, `"egress-cni"`, `"egress-cni","enabled":"true"`, 1), wanted, nil, ours + `,{"type":"egress-cni","enabled":"true"},` + ports, ""},
	} {
		got, err := c.wanted.Render(Parse(c.name, []byte(c.have)), c.without)
		version := `"cniVersion":"1.0.0",`
		want := `{` + version + c.fields + `"name":"trunkline","plugins":[` + c.chain + `]}`
		var compact bytes.Buffer
		if err := errors.Join(err, json.Compact(&compact, got)); err != nil || compact.String() != want {
			t.Errorf("%s: %v\n%s, want\n%s", c.what, err, compact.String(), want)
		}
		again, err := c.wanted.Render(Parse(c.name, got), c.without)
		if err != nil || !bytes.Equal(again, got) {
			t.Errorf("%s: rendered again %s (%v)", c.what, again, err)
		}
	}
}

func TestContentsAreComparedByWhatTheyMean(t *testing.T) {
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{`{"a":1,"b":[2]}`, "{ \"b\": [2],\n\"a\": 1 }", true},
		{`{"a":1}`, `{"a":2}`, false},
		{`{`, `{`, true},
		{`{`, `}`, false},
		{``, `null`, false},
	} {
		if got := Same([]byte(c.a), []byte(c.b)); got != c.same {
			t.Errorf("%s and %s: %v", c.a, c.b, got)
		}
	}
}

func TestANewProblemIsOneThatWasNotThere(t *testing.T) {
	a, b := Problem{"A", "a"}, Problem{"B", "b"}
	if got := New([]Problem{a, b}, []Problem{a}); !slices.Equal(got, []Problem{b}) {
		t.Errorf("new problems %v, want %v", got, b)
	}
	if got := NotCalled([]string{"d/d", "c/c", "b/b", "a/a"}, "/etc/cni/net.d").Message; !strings.Contains(got, "a/a, b/b, c/c and 1 more;") {
		t.Error(got)
	}
}

func FuzzParseFindsNoOwnerInAFileThatCannotBeLoaded(f *testing.F) {
	f.Add("10-aws.conflist", []byte(aws))
	f.Add("a.conf", []byte(`{"type":"bridge"}`))
	f.Add("a.json", []byte(`{"plugins":null,"type":7}`))
	f.Fuzz(func(t *testing.T, name string, content []byte) {
		file := Parse(name, content)
		if invalid := file.Owner == Invalid; invalid == (file.Why == "") || invalid == (len(file.Plugins) > 0) {
			t.Errorf("%q %q: %+v", name, content, file)
		}
		if _, err := (Wanted{Version: "1.0.0"}).Render(file, nil); err != nil {
			t.Errorf("%q %q: %v", name, content, err)
		}
		v := Judge([]File{file})
		if n := len(v.Keep) + len(v.Refresh) + len(v.Problems); n > 1 || n == 1 && (!Loaded(name) || name >= FileName) {
			t.Errorf("%q: %+v", name, v)
		}
	})
}

func TestAFileThatCannotBeReadIsAProblemWithItsReason(t *testing.T) {
	v := Judge([]File{Unreadable("05-x.conflist", "permission denied")})
	if len(v.Problems) != 1 || !strings.HasPrefix(v.Problems[0].Message, "05-x.conflist sorts before "+FileName) || !strings.Contains(v.Problems[0].Message, "permission denied") {
		t.Errorf("%+v", v.Problems)
	}
}

func TestPodsThatWaitAreNamedUpToThree(t *testing.T) {
	for want, pods := range map[string][]string{
		"wait for an address: a;": {"a"}, "wait for an address: a, b, c;": {"c", "a", "b"}, "wait for an address: a, b, c and 2 more;": {"e", "d", "c", "b", "a"},
	} {
		if got := NotCalled(pods, "/etc/cni/net.d").Message; !strings.Contains(got, want) {
			t.Errorf("%s, want %q", got, want)
		}
	}
}
