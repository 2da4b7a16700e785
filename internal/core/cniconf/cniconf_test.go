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
		{"a.conflist", `{"name":"a","plugins":[{"type":7}]}`, Invalid, "a plugin is not valid"},
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
		{"AWS's with its egress as a boolean", "10-aws.conflist", strings.Replace(aws, `"egress-cni"`, `"egress-cni","enabled":true`, 1), wanted, nil, ours + `,{"type":"egress-cni","enabled":true},` + ports, ""},
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

func TestAConfigurationThatCannotBeEncodedIsAnError(t *testing.T) {
	if out, err := (Wanted{Own: map[string]any{"type": func() {}}}).Render(File{}, nil); err == nil || !strings.Contains(err.Error(), "encode the configuration") {
		t.Errorf("%s, %v", out, err)
	}
}

func TestPluginsThatOtherProgramsAddedAreListedOnce(t *testing.T) {
	for _, c := range []struct {
		name, content string
		want          []string
	}{
		{"10-aws.conflist", aws, nil},
		{"10-aws.conflist", `{"name":"a","plugins":[{"type":"aws-cni"},{"type":"b"},{"type":"a"},{"type":"b"},{"type":"portmap"}]}`, []string{"b", "a"}},
		{FileName, `{"name":"a","plugins":[{"type":"trunkline-cni"},{"type":"egress-cni","enabled":"true"},{"type":"egress-cni","enabled":"false"}]}`, []string{"egress-cni"}},
		{"10-flannel.conflist", `{"name":"a","plugins":[{"type":"flannel"},{"type":"b"}]}`, nil},
	} {
		if got := Parse(c.name, []byte(c.content)).Chained(); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", c.content, got, c.want)
		}
	}
}

func TestFieldsAreThoseOfAListOnly(t *testing.T) {
	if f := Parse("a.conf", []byte(`{"type":"bridge","mtu":1500}`)); f.Fields != nil {
		t.Errorf("of a single plugin: %v", f.Fields)
	}
	if f := Parse(FileName, []byte(`{"name":"a","disableGC":true,"plugins":[{"type":"trunkline-cni"}]}`)); string(f.Fields["disableGC"]) != "true" {
		t.Errorf("of a list: %v", f.Fields)
	}
}

func TestTheFileInUseIsTheFirstOfTrunklineOrOfAWS(t *testing.T) {
	const own = `{"name":"trunkline","plugins":[{"type":"trunkline-cni"}]}`
	parse := func(name, content string, kept bool) File {
		f := Parse(name, []byte(content))
		f.Kept = kept
		return f
	}
	other := parse("01-bridge.conflist", `{"name":"x","plugins":[{"type":"bridge"}]}`, false)
	ours, replaced := parse(FileName, own, false), parse("05-aws.conflist", own, true)
	for what, c := range map[string]struct {
		files   []File
		want    string
		plugins int
	}{
		"no file":                        {nil, FileName, 0},
		"only another network's":         {[]File{other}, FileName, 0},
		"ours":                           {[]File{other, ours}, FileName, 1},
		"AWS's before ours":              {[]File{parse("05-aws.conflist", aws, false), ours}, "05-aws.conflist", 3},
		"AWS's that Trunkline replaced":  {[]File{replaced, ours}, "05-aws.conflist", 1},
		"a copy of ours":                 {[]File{parse("05-copy.conflist", own, false), ours}, FileName, 1},
		"AWS's after ours":               {[]File{parse("20-aws.conflist", aws, false)}, FileName, 0},
		"AWS's for a single plugin":      {[]File{parse("05-aws.conf", `{"name":"a","type":"aws-cni"}`, false), ours}, FileName, 1},
		"a kept file of another network": {[]File{parse("05-x.conflist", `{"name":"x","plugins":[{"type":"bridge"}]}`, true), ours}, FileName, 1},
		"another network's of our name":  {[]File{parse(FileName, `{"name":"x","plugins":[{"type":"bridge"},{"type":"y"}]}`, false)}, FileName, 0},
	} {
		if got := InUse(c.files); got.Name != c.want || len(got.Plugins) != c.plugins {
			t.Errorf("%s: %s with %d plugins, want %s with %d", what, got.Name, len(got.Plugins), c.want, c.plugins)
		}
	}
	if got := Named([]File{ours, other}, ours.Name); len(got.Plugins) != 1 {
		t.Errorf("the first file by its name: %+v", got)
	}
	if got := Named([]File{ours, other}, other.Name); got.Name != other.Name || len(got.Plugins) != 1 || got.Owner != Other {
		t.Errorf("the second file by its name: %+v", got)
	}
	if got := Named([]File{ours}, "20-x.conflist"); got.Name != "20-x.conflist" || got.Plugins != nil {
		t.Errorf("a file that does not exist: %+v", got)
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
		{`null`, ``, false},
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
