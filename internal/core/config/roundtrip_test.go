package config

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// For every accepted value, the text that `show config` prints is accepted as a flag
// and in a file, and prints the same again.
func TestEveryAcceptedValueReadsBackAsItIsShown(t *testing.T) {
	for _, s := range settings() {
		var accepted []string
		for _, v := range examples() {
			if shown, ok := readsBack(t, s, v); ok && !slices.Contains(accepted, shown) {
				accepted = append(accepted, shown)
			}
		}
		if len(accepted) < 2 {
			t.Errorf("%s: only %q of the examples was accepted", s.Name, accepted)
		}
		rapid.Check(t, func(t *rapid.T) { readsBack(t, s, anyValue().Draw(t, s.Name)) })
	}
}

// readsBack checks the round trip of v. It returns the text shown for v, and whether v
// was accepted.
func readsBack(t rapid.TB, s Setting, v string) (shown string, accepted bool) {
	var was Config
	if s.set(&was, v) != nil {
		return "", false
	}
	shown = s.get(was)
	for from, src := range map[string]Sources{
		"a flag": {Flags: map[string]string{s.Name: shown}}, "a file": {File: map[string]string{s.Name: shown}},
	} {
		var again Config
		value, _ := s.find(src)
		if err := s.set(&again, value); err != nil || s.get(again) != shown {
			t.Errorf("%s: %q is shown as %q, which reads back from %s as %q, %v", s.Name, v, shown, from, s.get(again), err)
		}
	}
	return shown, true
}

// examples holds at least two valid values for every setting.
func examples() []string {
	return []string{
		"", "0", "8", " 12 ", "1500", "9001", "-1", "30s", "1m30.5s", "true", "F", "DEBUG", "warn", "none", "prng", "0.4.0", "auto",
		"10.0.0.0/8", "10.1.2.3/8, 192.168.0.0/16,", "/run/a", "/run/b c", "eni", "a_b", ":80", "[::1]:61678",
		"on", "off", "own", "managed", "report", "enforce", "strict", "standard", "sg-0123456789abcdef0", "sg-0123456789abcdef0=5", "m9.large=9,m9 = 18", "{}", "tl_rows=5,tl_sets = 7", `{"team": "a", "b": "\"\u00e9"}`,
	}
}

// anyValue draws valid, nearly valid and arbitrary values.
func anyValue() *rapid.Generator[string] {
	network := rapid.StringMatching(`([0-9]{1,2}\.){3}[0-9]{1,2}/[0-9]{1,2}`)
	return rapid.OneOf(
		rapid.SampledFrom(examples()),
		rapid.Map(rapid.IntRange(-1, 10000), strconv.Itoa),
		rapid.Map(rapid.Int64Range(0, int64(time.Hour)), func(n int64) string { return time.Duration(n).String() }),
		rapid.Map(rapid.SliceOfN(network, 0, 3), func(list []string) string { return strings.Join(list, " , ") }),
		rapid.StringMatching(`/[a-z/ ]{0,9}`),
		rapid.StringMatching(`(\[::1?\]|localhost)?:[0-9]{1,5}`),
		rapid.StringMatching(`[a-z_-]{1,4}`),
		rapid.String(),
	)
}
