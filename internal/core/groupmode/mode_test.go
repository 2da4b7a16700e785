package groupmode

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"
)

const refusal = "OperationNotPermitted: You are not authorized to perform this action."

// capable is an instance that may have branches, of an account that may make them.
func capable() Facts {
	return Facts{Type: "m5.xlarge", Branches: 18, BranchesFrom: "the pattern of the size xlarge", Probe: Probe{Answered: true}}
}

func TestTheModeOfANode(t *testing.T) {
	own, ebpf := Choice{Mode: Own, Reason: Allowed}, Choice{Mode: EBPF, Reason: WithoutTrunk}
	refused := func(f *Facts) { f.Probe.Refusal, f.Probe.Tries = refusal, 1 }
	label := func(v string) func(*Facts) { return func(f *Facts) { f.Label = &v } }
	aws := func(f *Facts) { f.AWS = "AWS's controller owns the CNINode" }
	small := func(f *Facts) {
		f.Type, f.Branches, f.BranchesFrom = "t3.medium", 0, "instances of the family t3 have no trunk"
	}
	unanswered := func(f *Facts) { f.Probe = Probe{} }
	before := func(c Choice) func(*Facts) { return func(f *Facts) { f.Before = c } }
	with := func(n int) func(*Facts) { return func(f *Facts) { f.Held = n } }
	again := func(f *Facts) { f.Probe.Tries = 2 }
	one := func(f *Facts) { f.Branches = 1 }
	untyped := func(f *Facts) { f.Type, f.Branches = "", 0 }
	for name, c := range map[string]struct {
		facts []func(*Facts)
		mode  Mode
		why   Reason
		says  string
	}{
		"EC2 allows the calls":                              {nil, Own, Allowed, "m5.xlarge has 18 branches"},
		"a type without a trunk":                            {[]func(*Facts){small}, EBPF, WithoutTrunk, "t3 have no trunk"},
		"a type without a trunk, before EC2 answers":        {[]func(*Facts){small, unanswered}, EBPF, WithoutTrunk, ""},
		"an ordinary account":                               {[]func(*Facts){refused}, EBPF, Refused, refusal},
		"EC2 has not answered":                              {[]func(*Facts){unanswered}, Undecided, NotProbed, "dry run"},
		"EC2 has not answered a new process":                {[]func(*Facts){unanswered, before(own)}, Own, NotProbed, "it stays own"},
		"the type is not known":                             {[]func(*Facts){func(f *Facts) { f.Type = "" }}, Undecided, UnknownType, "node.kubernetes.io/instance-type"},
		"AWS's controller":                                  {[]func(*Facts){aws}, Managed, OwnedByAWS, "AWS's controller"},
		"AWS's controller, an account that may not":         {[]func(*Facts){aws, refused}, Managed, OwnedByAWS, ""},
		"AWS's controller, a type without a trunk":          {[]func(*Facts){aws, small}, EBPF, WithoutTrunk, ""},
		"AWS's controller comes while pods have branches":   {[]func(*Facts){aws, before(own), with(2)}, Own, BranchesInUse, "(2)"},
		"AWS's controller comes, no pod has a branch":       {[]func(*Facts){aws, before(own)}, Managed, OwnedByAWS, ""},
		"a refusal after a success":                         {[]func(*Facts){refused, before(own)}, Own, Refused, "until a second dry run is refused"},
		"two refusals after a success":                      {[]func(*Facts){refused, again, before(own)}, EBPF, Refused, refusal},
		"two refusals while pods have branches":             {[]func(*Facts){refused, again, before(own), with(1)}, Own, Refused, "while pods have branches (1), and new pods wait"},
		"a success after a refusal":                         {[]func(*Facts){before(Choice{Mode: EBPF, Reason: Refused})}, Own, Allowed, ""},
		"a type with one branch":                            {[]func(*Facts){one}, Own, Allowed, "has 1 branches"},
		"a refusal on a node that enforces":                 {[]func(*Facts){refused, before(ebpf), with(1)}, EBPF, Refused, refusal},
		"label ebpf on a type without a trunk":              {[]func(*Facts){label("ebpf"), small}, EBPF, ByLabel, ""},
		"label own, the type is not known":                  {[]func(*Facts){label("own"), untyped}, Own, ByLabel, ""},
		"label own on a type with one branch":               {[]func(*Facts){label("own"), one}, Own, ByLabel, ""},
		"label ebpf":                                        {[]func(*Facts){label("ebpf")}, EBPF, ByLabel, Label},
		"label ebpf while pods have branches":               {[]func(*Facts){label("ebpf"), before(own), with(3)}, EBPF, ByLabel, ""},
		"label ebpf in AWS's cluster":                       {[]func(*Facts){label("ebpf"), aws}, EBPF, ByLabel, ""},
		"label own":                                         {[]func(*Facts){label("own"), unanswered}, Own, ByLabel, ""},
		"label own of an account that may not":              {[]func(*Facts){label("own"), refused}, Own, ByLabel, "pods wait, because EC2 refuses"},
		"label own in AWS's cluster":                        {[]func(*Facts){label("own"), aws}, Undecided, InvalidLabel, "two controllers"},
		"label own on a type without a trunk":               {[]func(*Facts){label("own"), small}, Undecided, InvalidLabel, "t3.medium has no branches"},
		"label managed":                                     {[]func(*Facts){label("managed"), aws}, Managed, ByLabel, ""},
		"label managed where nothing shows AWS's":           {[]func(*Facts){label("managed")}, Managed, ByLabel, "nothing shows that it does"},
		"label managed while pods have branches":            {[]func(*Facts){label("managed"), before(own), with(1)}, Own, BranchesInUse, "then it is managed"},
		"a wrong label":                                     {[]func(*Facts){label("eBPF")}, Undecided, InvalidLabel, "eBPF: must be managed, own or ebpf"},
		"an empty label":                                    {[]func(*Facts){label("")}, Undecided, InvalidLabel, "must be managed, own or ebpf"},
		"a wrong label on a node that has a mode":           {[]func(*Facts){label("auto"), before(ebpf)}, EBPF, InvalidLabel, "it stays ebpf: label"},
		"the type is not known any more on a node with one": {[]func(*Facts){func(f *Facts) { f.Type = "" }, before(ebpf)}, EBPF, UnknownType, "it stays ebpf"},
	} {
		t.Run(name, func(t *testing.T) {
			f := capable()
			for _, change := range c.facts {
				change(&f)
			}
			got := Choose(f)
			if got.Mode != c.mode || got.Reason != c.why || !strings.Contains(got.Message, c.says) || got.Message == "" {
				t.Errorf("%s; want %s (%s), and %q", got, c.mode, c.why, c.says)
			}
			if f.Before.Mode == Undecided && strings.HasPrefix(got.Message, "it stays") && f.Held == 0 {
				t.Errorf("%s, of a node that was not decided", got)
			}
			if waits := strings.Contains(got.Message, "pods wait"); waits && got.Reason == ByLabel && f.Probe.Refusal == "" && (got.Mode == Own || f.AWS != "") {
				t.Errorf("%s: no pod waits", got)
			}
		})
	}
}

func TestAnUndecidedNodeIsNamedSo(t *testing.T) {
	if got := Undecided.String() + " " + Own.String(); got != "undecided own" {
		t.Error(got)
	}
}

// The bound of the record is in bytes, and a message of EC2 may be longer.
func TestALongMessageIsCutToWholeCharacters(t *testing.T) {
	for _, before := range []string{"", "x"} { // the cut is within a character of one of these
		f := capable()
		f.Probe.Refusal = before + strings.Repeat("é", longestMessage)
		got := Choose(f).Message
		if len(got) > longestMessage || len(got) < longestMessage-1 || !utf8.ValidString(got) || !strings.HasPrefix(got, "EC2 refuses the calls") {
			t.Errorf("%d bytes: %q", len(got), got)
		}
	}
	f := capable()
	f.Probe.Refusal = strings.Repeat("x", longestMessage)
	if got := Choose(f).Message; len(got) != longestMessage {
		t.Errorf("%d bytes, want %d", len(got), longestMessage)
	}
}

// random changes one fact, as between two passes.
func random(r *rand.Rand, f *Facts) {
	switch r.IntN(6) {
	case 0:
		f.Label = nil
		if r.IntN(2) == 0 {
			f.Label = new([]string{"own", "managed", "ebpf", "none"}[r.IntN(4)])
		}
	case 1:
		f.AWS = []string{"", "AWS's"}[r.IntN(2)]
	case 2:
		f.Type, f.Branches = "m5.xlarge", 18
		if r.IntN(3) == 0 {
			f.Type, f.Branches = "t3.medium", 0
		}
	case 3:
		f.Probe = Probe{Answered: r.IntN(4) > 0}
	case 4:
		if f.Probe.Answered {
			f.Probe.Refusal, f.Probe.Tries = refusal, f.Probe.Tries+1
		}
	case 5:
		f.Held = r.IntN(3)
		if f.Before.Mode != Own {
			f.Held = 0 // branches are made in the mode own only
		}
	}
}

// Over random histories: the choice is stable, a node never becomes undecided once it was decided, no node
// is own without a trunk or beside AWS's controller but for branches in use, and none with branches in use
// becomes managed.
func TestTheModeIsStableAndNeverOfTwoControllers(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		f := capable()
		for range 60 {
			random(r, &f)
			c := Choose(f)
			broken := func(what string) { t.Fatalf("seed %d: %s: %+v gives %s", seed, what, f, c) }
			next := f
			next.Before = c
			if again := Choose(next); again != c {
				broken(fmt.Sprintf("another choice by the same facts: %s", again))
			}
			switch {
			case c.Mode == Undecided && f.Before.Mode != Undecided:
				broken("undecided after it was decided")
			case c.Mode == Managed && f.Held > 0:
				broken("managed while pods have branches of Trunkline's")
			case c.Mode == Own && f.Held == 0 && f.AWS != "" && f.Before.Mode != Own:
				broken("own beside AWS's controller")
			case c.Mode == Own && f.Branches == 0 && f.Before.Mode != Own:
				broken("own without a trunk")
			case f.Before.Mode == Own && f.Held > 0 && f.Label == nil && f.Branches > 0 && c.Mode != Own:
				broken("pods have branches, and the node is not own")
			}
			seen[string(c.Mode)+string(c.Reason)]++
			f.Before = c
		}
	}
	if len(seen) < 14 {
		t.Errorf("only %d combinations of mode and reason were reached: the check is not valid: %v", len(seen), seen)
	}
}
