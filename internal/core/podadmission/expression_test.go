package podadmission

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
)

func TestALiteralIsReadableWhereItCanBe(t *testing.T) {
	for text, want := range map[string]string{
		"":                           `''`,
		"app.kubernetes.io/name":     `'app.kubernetes.io/name'`,
		"azAZ09 -_./:,()":            `'azAZ09 -_./:,()'`,
		"`{@[":                       `'\u0060\u007b\u0040\u005b'`,
		"it's \"x\"\n":               `'it\u0027s \u0022x\u0022\u000a'`,
		"é\uffff":                    `'\u00e9\uffff'`,
		"\U00010000\U0001f600":       `'\U00010000\U0001f600'`,
		"\xff":                       `'\ufffd'`,
		"${object.metadata.name}; #": `'\u0024\u007bobject.metadata.name\u007d\u003b \u0023'`,
	} {
		if got := literal(text); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// Selectors of policies have the operators of the API's LabelSelector; the library has more.
func TestASelectorOfEachOperatorSelectsAsTheLibraryDoes(t *testing.T) {
	for _, text := range []string{"", "a", "!a", "a=x", "a==x", "a!=x", "a in (x,y)", "a notin (x,y)", "a=x,b!=y", "a,!b"} {
		s, err := labels.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		expression, ok := selects(s)
		if !ok {
			t.Errorf("%q is not compiled", text)
			continue
		}
		for _, set := range []labels.Set{nil, {"a": "x"}, {"a": "y"}, {"a": "z"}, {"b": "y"}, {"a": "x", "b": "y"}, {"a": "x", "b": "z"}} {
			if got := (subject{labels: set}).is(t, expression); got != s.Matches(set) {
				t.Errorf("%q selects %v: %v, want %v", text, set, got, !got)
			}
		}
	}
	if text, ok := selects(nil); text != "true" || !ok {
		t.Errorf("an absent selector: %q, %v, want one that does not restrict", text, ok)
	}
	if text, ok := selects(labels.Nothing()); text != "false" || !ok {
		t.Errorf("a selector of nothing: %q, %v", text, ok)
	}
}

func TestAnOperatorThatIsNotKnownIsNotCompiled(t *testing.T) {
	s, err := labels.Parse("a>1,b=x")
	if err != nil {
		t.Fatal(err)
	}
	if text, ok := selects(s); text != "" || ok {
		t.Errorf("%q, %v", text, ok)
	}
}

func TestTermsThatDecideNothingAreLeftOut(t *testing.T) {
	for _, tt := range []struct{ got, want string }{
		{and(), "true"},
		{and("true", "(true)"), "true"},
		{and("true", "a", "b"), "a && b"},
		{or(), "false"},
		{or("a", "true"), "true"},
		{or("b", "a", "b"), "(a) || (b)"},
	} {
		if tt.got != tt.want {
			t.Errorf("%q, want %q", tt.got, tt.want)
		}
	}
	if list([]string{"b", "a"}) != "['a', 'b']" || strings.Contains(list(nil), "'") {
		t.Errorf("%s, %s", list([]string{"b", "a"}), list(nil))
	}
}
